//! Arrivals: open-loop, so that clients keep coming however slow the answers are.

use std::time::Duration;

use switchyard_scheduler::Timestamp;

use crate::{Arrivals, Class, Scenario, random::Stream};

/// One request on its way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Arrival {
    pub(crate) at: Timestamp,
    /// Index of its class in the scenario.
    pub(crate) class: u32,
    /// Index of its tenant among the class's.
    pub(crate) tenant: u32,
    pub(crate) prompt: u32,
    pub(crate) output: u32,
}

/// Every request of a scenario, in order of time. The same for whoever decides what goes next.
pub(crate) fn arrivals(scenario: &Scenario) -> Vec<Arrival> {
    let mut all = Vec::new();
    for (number, class) in (0_u32..).zip(&scenario.classes) {
        let mut random = Stream::new(scenario.seed, u64::from(number));
        for at in times(&class.arrivals, scenario.duration, &mut random) {
            all.push(arrival(at, number, class, &mut random));
        }
    }
    all.sort_by_key(|arrival| arrival.at);
    all
}

fn arrival(at: Timestamp, number: u32, class: &Class, random: &mut Stream) -> Arrival {
    let last = class.tenants.len().saturating_sub(1) as u64;
    Arrival {
        at,
        class: number,
        tenant: u32::try_from(random.between(0, last)).unwrap_or(0),
        prompt: class.prompt.draw(random),
        output: class.output.draw(random),
    }
}

fn times(arrivals: &Arrivals, duration: Duration, random: &mut Stream) -> Vec<Timestamp> {
    let mut times = Vec::new();
    let ends = arrivals.rates.iter().skip(1).map(|&(from, _)| from).chain([duration]);
    for (&(from, rate), to) in arrivals.rates.iter().zip(ends) {
        if rate <= 0.0 {
            continue;
        }
        // Poisson arrivals have no memory: each phase can begin anew.
        let (mut at, to) = (from.as_secs_f64(), to.min(duration).as_secs_f64());
        loop {
            at += random.exponential(1.0 / rate);
            if at >= to {
                break;
            }
            times.push(Timestamp::ZERO + Duration::from_secs_f64(at));
        }
    }
    for &(at, count) in arrivals.bursts.iter().filter(|&&(at, _)| at < duration) {
        times.extend(std::iter::repeat_n(Timestamp::ZERO + at, count as usize));
    }
    times
}
