//! Arrivals: open-loop, so that clients keep coming however slow the answers are.

use std::time::Duration;

use switchyard_scheduler::Timestamp;

use crate::{Arrivals, Class, Scenario, random::Stream};

/// One request on its way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrival {
    /// When.
    pub at: Timestamp,
    /// Index of its class in the scenario.
    pub class: u32,
    /// Index of its tenant among the class's.
    pub tenant: u32,
    /// Tokens in.
    pub prompt: u32,
    /// Tokens out.
    pub output: u32,
}

/// Every request of a scenario, in order of time. The same for whoever decides what goes next.
#[must_use]
pub fn arrivals(scenario: &Scenario) -> Vec<Arrival> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Length;

    #[test]
    fn each_phase_has_its_rate_and_a_burst_comes_at_once() {
        let second = Duration::from_secs;
        let arrivals = Arrivals {
            rates: vec![(Duration::ZERO, 10.0), (second(100), 40.0), (second(200), 0.0), (second(300), 20.0)],
            bursts: vec![(second(250), 7), (second(900), 9)],
        };
        let times = times(&arrivals, second(400), &mut Stream::new(1, 1));
        let between = |from, to| times.iter().filter(|at| (from..to).contains(&at.0)).count() as f64;
        for (from, to, expected) in [(0, 100, 1_000.0_f64), (100, 200, 4_000.0), (300, 400, 2_000.0)] {
            let count = between(from * 1_000_000, to * 1_000_000);
            // Four deviations of a Poisson count.
            assert!((count - expected).abs() < 4.0 * expected.sqrt(), "{count} from {from} to {to}");
        }
        assert_eq!(between(200_000_000, 300_000_000), 7.0);
        assert_eq!(between(400_000_000, u64::MAX), 0.0);
    }

    #[test]
    fn poisson_arrivals_vary_as_much_as_they_should() {
        let arrivals = Arrivals { rates: vec![(Duration::ZERO, 50.0)], bursts: Vec::new() };
        let times = times(&arrivals, Duration::from_secs(1_000), &mut Stream::new(1, 1));
        let mut counts = vec![0.0; 1_000];
        times.iter().for_each(|at| counts[(at.0 / 1_000_000) as usize] += 1.0);
        let mean = counts.iter().sum::<f64>() / 1_000.0;
        let variance = counts.iter().map(|count| (count - mean) * (count - mean)).sum::<f64>() / 1_000.0;
        // Mean and variance are the same.
        assert!((0.85..1.15).contains(&(variance / mean)), "mean {mean}, variance {variance}");
    }

    #[test]
    fn lengths_are_as_described() {
        let random = &mut Stream::new(1, 1);
        let mut draw = |length: Length| {
            let mut lengths: Vec<_> = (0..10_000).map(|_| length.draw(random)).collect();
            lengths.sort_unstable();
            lengths
        };
        assert_eq!(draw(Length::Fixed(7))[..], [7; 10_000]);
        let uniform = draw(Length::Uniform(3, 6));
        for length in 3..=6 {
            let share = uniform.iter().filter(|&&drawn| drawn == length).count();
            assert!((2_300..2_700).contains(&share), "{length} came {share} times");
        }
        assert_eq!((uniform[0], uniform[9_999]), (3, 6));
        let sigma = (2_000.0_f64 / 300.0).ln() / 1.644_853_6;
        let skewed = draw(Length::LogNormal { median: 300.0, sigma, max: 5_000 });
        let (median, p95, most) = (skewed[5_000], skewed[9_500], skewed[9_999]);
        assert!(
            (285..315).contains(&median) && (1_850..2_150).contains(&p95) && most == 5_000,
            "{median} {p95} {most}"
        );
    }
}
