//! One scenario under one scheduler.

use std::collections::{BTreeMap, BTreeSet};

use switchyard_scheduler::{ModelId, ModelSettings, PolicySettings, Scheduler, Settings};

use crate::{
    Comparison, Policy, Scenario,
    driver::{Driver, Outcomes, Violation},
    measure::{Run, measure},
    no_gate::NoGate,
};

/// Runs a scenario under one of its comparisons. The same scenario gives the same run, to the microsecond.
///
/// # Errors
/// When the scheduler breaks one of its promises: a defect in it, worth reporting with the scenario.
pub fn run(scenario: &Scenario, comparison: &Comparison) -> Result<Run, Violation> {
    Ok(measure(scenario, &comparison.name, &outcomes(scenario, comparison)?))
}

pub(crate) fn outcomes(scenario: &Scenario, comparison: &Comparison) -> Result<Outcomes, Violation> {
    match &comparison.policy {
        Policy::NoGate => {
            let settings = settings(scenario, comparison, PolicySettings::default());
            Driver::new(scenario, comparison, NoGate::new(&scenario.models), settings).run()
        }
        Policy::Scheduler(policy) => {
            let settings = settings(scenario, comparison, policy.clone());
            Driver::new(scenario, comparison, Scheduler::new(settings.clone()), settings).run()
        }
    }
}

pub(crate) fn settings(scenario: &Scenario, comparison: &Comparison, policy: PolicySettings) -> Settings {
    let detector = comparison.detector.as_ref();
    let models: BTreeMap<_, _> = (0..)
        .zip(&scenario.models)
        .map(|(number, model)| {
            let settings = ModelSettings {
                replicas: model.replicas,
                gaps: BTreeSet::new(),
                // A second bound below the detector's would only hide it.
                concurrency: model.concurrency.unwrap_or(if detector.is_some() {
                    u32::MAX
                } else {
                    model.engine.max_running
                }),
                ttl: model.ttl,
                revision: 0,
                managed: model.managed,
                takes_slot: true,
                detector: detector.map(|detector| detector.settings).unwrap_or_default(),
                headroom: detector.map_or(0.0, |detector| detector.headroom),
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
