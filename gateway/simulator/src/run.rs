//! One scenario under one scheduler.

use std::collections::BTreeMap;

use switchyard_scheduler::{ModelId, ModelSettings, PolicySettings, Scheduler, Settings};
use thiserror::Error;

use crate::{
    Comparison, Policy, Scenario,
    driver::{Driver, Outcomes, Violation},
    measure::{Run, measure},
    no_gate::NoGate,
};

/// Why there is no result.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RunError {
    /// The scheduler of this build does not know the policy.
    #[error("`{0}` is not in this build's scheduler")]
    Unavailable(&'static str),
    /// The scheduler broke one of its promises: a defect in it, worth reporting with the scenario.
    #[error(transparent)]
    Violation(#[from] Violation),
}

/// Runs a scenario under one of its comparisons. The same scenario gives the same run, to the microsecond.
///
/// # Errors
/// When the policy does not exist in this build, or the scheduler breaks one of its promises.
pub fn run(scenario: &Scenario, comparison: &Comparison) -> Result<Run, RunError> {
    Ok(measure(scenario, &comparison.name, &outcomes(scenario, comparison)?))
}

pub(crate) fn outcomes(scenario: &Scenario, comparison: &Comparison) -> Result<Outcomes, RunError> {
    let outcomes = match &comparison.policy {
        Policy::NoGate => {
            let settings = settings(scenario, comparison, PolicySettings::default());
            Driver::new(scenario, NoGate::new(&scenario.models), settings, false).run()?
        }
        Policy::Scheduler(policy) => {
            let settings = settings(scenario, comparison, policy.clone());
            Driver::new(scenario, Scheduler::new(settings.clone()), settings, true).run()?
        }
        Policy::Flow(_) => return Err(RunError::Unavailable("flow")),
    };
    Ok(outcomes)
}

fn settings(scenario: &Scenario, comparison: &Comparison, policy: PolicySettings) -> Settings {
    let models: BTreeMap<_, _> = (0..)
        .zip(&scenario.models)
        .map(|(number, model)| {
            let settings = ModelSettings {
                replicas: model.replicas,
                concurrency: model.concurrency,
                ttl: model.ttl,
                revision: 0,
                managed: model.managed,
                takes_slot: true,
                ..ModelSettings::default()
            };
            (ModelId(number), settings)
        })
        .collect();
    Settings {
        policy,
        admission: comparison.admission.clone(),
        eviction: scenario.eviction.clone(),
        backoff: comparison.backoff,
        models,
    }
}
