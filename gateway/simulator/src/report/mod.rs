//! The results of a scenario side by side.

mod canvas;
mod csv;
mod svg;
mod table;

use crate::{Run, Scenario, Violation, run};

/// What came out of a scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The scenario's name.
    pub name: String,
    /// The scenario's description.
    pub description: String,
    /// From where to where the figures count, in seconds.
    pub window: (f64, f64),
    /// In seconds.
    pub duration: f64,
    /// In the order of the comparisons.
    pub runs: Vec<Run>,
}

/// Runs every comparison of a scenario.
///
/// # Errors
/// When the scheduler breaks one of its promises.
pub fn simulate(scenario: &Scenario) -> Result<Report, Violation> {
    let (from, to) = scenario.window;
    Ok(Report {
        name: scenario.name.clone(),
        description: scenario.description.clone(),
        window: (from.as_secs_f64(), to.as_secs_f64()),
        duration: scenario.duration.as_secs_f64(),
        runs: scenario.comparisons.iter().map(|comparison| run(scenario, comparison)).collect::<Result<_, _>>()?,
    })
}

impl Report {
    /// The figures as a table for a terminal.
    #[must_use]
    pub fn table(&self) -> String {
        table::text(self)
    }

    /// The figures as a section of a Markdown document.
    #[must_use]
    pub fn markdown(&self) -> String {
        table::markdown(self)
    }

    /// The figures as CSV: a header, then one line for each scheduler and class.
    #[must_use]
    pub fn csv(&self) -> String {
        csv::csv(self)
    }

    /// The picture: time to the first token over time, a panel for each scheduler, and p95 as bars below.
    #[must_use]
    pub fn svg(&self) -> String {
        svg::svg(self)
    }
}

/// A duration as people read it: `7.5 ms`, `140 ms`, `13.3 s`, `2 h 05 min`.
fn readable(seconds: f64) -> String {
    match seconds {
        s if s < 0.01 => format!("{:.1} ms", s * 1e3),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 100.0 => format!("{s:.1} s"),
        s if s < 6_000.0 => format!("{:.1} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// A number with three digits that say something.
fn significant(number: f64) -> String {
    let decimals = if number > 0.0 { (2.0 - libm::log10(number).floor()).clamp(0.0, 6.0) } else { 0.0 };
    format!("{number:.*}", decimals as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_as_people_read_them() {
        let times = [0.0075, 0.14, 0.656, 13.3, 100.0, 95.0 * 60.0, 7_200.0].map(readable);
        assert_eq!(times, ["7.5 ms", "140 ms", "656 ms", "13.3 s", "1.7 min", "95.0 min", "2.0 h"]);
        let numbers = [0.0, 0.018_62, 0.5, 9.994, 36.88, 23_603.4].map(significant);
        assert_eq!(numbers, ["0", "0.0186", "0.500", "9.99", "36.9", "23603"]);
    }
}
