//! Switchyard's scheduler against simulated clients and model servers, in virtual time.
//!
//! A [`Scenario`] says who asks for what, of which servers, and what is compared. [`simulate`] runs all of it and
//! gives a [`Report`]: a table, a picture and CSV. Nothing in here reads a clock or does I/O: the same scenario gives
//! the same report, and a day of traffic takes seconds. The scheduler is the real one; while it works, a ledger that
//! keeps its own books checks that it breaks none of its promises.
//!
//! A load run against a real gateway takes its [`arrivals`] from here, and its figures by [`measure`].

mod agenda;
mod driver;
mod engine;
mod faults;
mod gate;
mod ledger;
mod measure;
mod no_gate;
mod random;
#[cfg(test)]
mod recording;
mod report;
mod run;
mod scenario;
#[cfg(test)]
mod swarm;
mod workload;

pub use driver::{End, Life, Outcomes, Violation};
pub use engine::{Engine, EngineLoad, EngineSettings, Output};
pub use faults::Faults;
pub use measure::{ClassFigures, Quantiles, Run, SLICES, measure};
pub use report::{Report, simulate};
pub use run::run;
pub use scenario::{Arrivals, Class, Comparison, Detector, Length, Model, Operation, Policy, Problem, Scenario};
pub use workload::{Arrival, arrivals};
