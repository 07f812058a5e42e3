//! From what became of each request to figures.

use std::{collections::BTreeMap, time::Duration};

use switchyard_scheduler::{Outcome, Timestamp};

use crate::{
    Class, Scenario,
    driver::{End, Life, Outcomes},
};

/// The figures of one scenario under one scheduler.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The comparison's name.
    pub name: String,
    /// In the scenario's order.
    pub classes: Vec<ClassFigures>,
    /// Requests whose answers ended within the window, a second.
    pub requests_per_second: f64,
    /// Tokens of those, in and out, a second.
    pub tokens_per_second: f64,
    /// Jain's index over the tokens of each tenant served within the window: 1 is even, 1/n is one alone.
    pub fairness: f64,
    /// Loads of models that take turns.
    pub loads: u64,
    /// Those that failed.
    pub failed_loads: u64,
    /// Servers that went away by themselves.
    pub crashes: u64,
    /// Sequences that lost their place in a KV cache.
    pub preemptions: u64,
    /// From the start to the end of the last request.
    pub end: Duration,
}

/// The figures of one class.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassFigures {
    /// Its name.
    pub name: String,
    /// Requests that arrived within the window.
    pub arrived: u64,
    /// Of those: served.
    pub served: u64,
    /// Of those: refused by the gate.
    pub shed: u64,
    /// The refused ones by reason.
    pub refusals: BTreeMap<&'static str, u64>,
    /// Of those: their client left.
    pub left: u64,
    /// Of those: their server went away.
    pub lost: u64,
    /// Time to the first token.
    pub ttft: Quantiles,
    /// Time to the last token of those served.
    pub latency: Quantiles,
    /// Share of the arrived ones whose first token came within the class's goal.
    pub goal_met: Option<f64>,
    /// Tokens of the served ones, in and out.
    pub tokens: u64,
    /// Time to the first token (p95) by time of arrival, in [`SLICES`] equal parts of the duration; `None` where no
    /// token came.
    pub series: Vec<Option<Duration>>,
}

/// Parts of a series.
pub const SLICES: usize = 48;

/// Exact quantiles; zero without samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quantiles {
    /// Median.
    pub p50: Duration,
    /// 95 of 100 are no longer.
    pub p95: Duration,
    /// 99 of 100 are no longer.
    pub p99: Duration,
}

impl Quantiles {
    fn of(mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        let at = |q| quantile(&samples, q).unwrap_or_default();
        Self { p50: at(0.5), p95: at(0.95), p99: at(0.99) }
    }
}

/// The smallest sample that at least the share `q` of them does not exceed.
fn quantile(sorted: &[Duration], q: f64) -> Option<Duration> {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

/// Jain's index: the square of the sum over n times the sum of squares.
pub(crate) fn jain(shares: impl Iterator<Item = u64>) -> f64 {
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for share in shares.map(|share| share as f64) {
        count += 1.0;
        sum += share;
        squares += share * share;
    }
    if squares == 0.0 { 1.0 } else { sum * sum / (count * squares) }
}

/// The figures of what became of a scenario's requests; `name` is the comparison's.
#[must_use]
pub fn measure(scenario: &Scenario, name: &str, outcomes: &Outcomes) -> Run {
    let mut of_class: Vec<Vec<&Life>> = vec![Vec::new(); scenario.classes.len()];
    for life in &outcomes.lives {
        of_class[life.arrival.class as usize].push(life);
    }
    let within = |life: &&Life| life.end == End::Served && in_window(scenario, life.ended);
    let (mut requests, mut tokens) = (0_u64, 0_u64);
    for life in outcomes.lives.iter().filter(within) {
        requests += 1;
        tokens += life.tokens();
    }
    let seconds = (scenario.window.1 - scenario.window.0).as_secs_f64();
    Run {
        name: name.to_owned(),
        classes: scenario
            .classes
            .iter()
            .zip(&of_class)
            .map(|(class, lives)| class_figures(scenario, class, lives))
            .collect(),
        requests_per_second: requests as f64 / seconds,
        tokens_per_second: tokens as f64 / seconds,
        fairness: fairness(scenario, &outcomes.lives),
        loads: outcomes.loads,
        failed_loads: outcomes.failed_loads,
        crashes: outcomes.crashes,
        preemptions: outcomes.preemptions,
        end: outcomes.end.since(Timestamp::ZERO),
    }
}

fn fairness(scenario: &Scenario, lives: &[Life]) -> f64 {
    let mut tokens: BTreeMap<&str, u64> =
        scenario.classes.iter().flat_map(|class| &class.tenants).map(|tenant| (tenant.as_str(), 0)).collect();
    for life in lives.iter().filter(|life| life.end == End::Served && in_window(scenario, life.ended)) {
        let class = &scenario.classes[life.arrival.class as usize];
        *tokens.entry(&class.tenants[life.arrival.tenant as usize]).or_default() += life.tokens();
    }
    jain(tokens.into_values())
}

fn in_window(scenario: &Scenario, at: Timestamp) -> bool {
    let at = at.since(Timestamp::ZERO);
    scenario.window.0 <= at && at <= scenario.window.1
}

fn class_figures(scenario: &Scenario, class: &Class, lives: &[&Life]) -> ClassFigures {
    let mut figures = ClassFigures {
        name: class.name.clone(),
        arrived: 0,
        served: 0,
        shed: 0,
        refusals: BTreeMap::new(),
        left: 0,
        lost: 0,
        ttft: Quantiles::default(),
        latency: Quantiles::default(),
        goal_met: None,
        tokens: 0,
        series: series(scenario, lives),
    };
    let (mut ttfts, mut latencies) = (Vec::new(), Vec::new());
    for life in lives.iter().filter(|life| in_window(scenario, life.arrival.at)) {
        figures.arrived += 1;
        ttfts.extend(life.ttft());
        match life.end {
            End::Served => {
                figures.served += 1;
                figures.tokens += life.tokens();
                latencies.push(life.ended.since(life.arrival.at));
            }
            End::Rejected(outcome) => {
                figures.shed += 1;
                *figures.refusals.entry(Outcome::as_str(outcome)).or_default() += 1;
            }
            End::Left => figures.left += 1,
            End::Lost => figures.lost += 1,
        }
    }
    figures.goal_met = class
        .goal
        .filter(|_| figures.arrived > 0)
        .map(|goal| ttfts.iter().filter(|&&ttft| ttft <= goal).count() as f64 / figures.arrived as f64);
    figures.ttft = Quantiles::of(ttfts);
    figures.latency = Quantiles::of(latencies);
    figures
}

fn series(scenario: &Scenario, lives: &[&Life]) -> Vec<Option<Duration>> {
    let mut slices = vec![Vec::new(); SLICES];
    for life in lives {
        let part = life.arrival.at.since(Timestamp::ZERO).as_secs_f64() / scenario.duration.as_secs_f64();
        let slice = ((part * SLICES as f64) as usize).min(SLICES - 1);
        slices[slice].extend(life.ttft());
    }
    slices
        .into_iter()
        .map(|mut samples: Vec<Duration>| {
            samples.sort_unstable();
            quantile(&samples, 0.95)
        })
        .collect()
}

impl Life {
    fn ttft(&self) -> Option<Duration> {
        self.first_token.map(|first| first.since(self.arrival.at))
    }

    fn tokens(&self) -> u64 {
        u64::from(self.arrival.prompt) + u64::from(self.arrival.output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jain_is_one_when_even_and_one_of_n_when_one_has_it_all() {
        assert_eq!(jain([5, 5, 5, 5].into_iter()), 1.0);
        assert_eq!(jain([9, 0, 0].into_iter()), 1.0 / 3.0);
        assert_eq!(jain([1, 3].into_iter()), 0.8);
        assert_eq!(jain([0, 0].into_iter()), 1.0);
    }

    #[test]
    fn quantiles_are_samples() {
        let millis = |numbers: std::ops::RangeInclusive<u64>| numbers.map(Duration::from_millis).collect::<Vec<_>>();
        let of = |samples| {
            let Quantiles { p50, p95, p99 } = Quantiles::of(samples);
            [p50, p95, p99].map(|time| time.as_millis())
        };
        assert_eq!(of(millis(1..=100)), [50, 95, 99]);
        assert_eq!(of(millis(1..=3)), [2, 3, 3]);
        assert_eq!(of(millis(8..=8)), [8, 8, 8]);
        assert_eq!(of(Vec::new()), [0, 0, 0]);
    }
}
