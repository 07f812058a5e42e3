//! A scenario's comparisons are the gateway's own configuration: what the simulator makes of them, the gateway does too.

use std::{collections::BTreeMap, fs};

use serde_json::{Value, json};
use switchyard::{config, scheduler::ModelId};
use switchyard_simulator::{Policy, Scenario};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/scenarios");

/// Settings beside those of the files, so that every one of them is compared.
const MORE: &str = "
duration: 10s
replicas: { pool: { model: m } }
classes: [{ name: a, rate: 1, prompt: 1, output: 1 }]
comparisons:
  - use: flow
    name: everything
    admission: { maxRequests: 7, maxBytes: 9, defaultRequestTTL: 5s, bands: { batch: { maxRequests: 3 } } }
    settings:
      flow:
        fairness: round-robin
        ordering: edf
        agingDivisor: 60
        swapAffinity: false
        tokenWeights: { prompt: 2, completion: 3 }
        ceilings: { holdback: { least: 0.25, greatest: 0.75, by: value } }
        defaultPriorityBand: { fairness: weighted, ceiling: 0.5 }
        priorityBands:
          - { priority: batch, ordering: slo-deadline, ceiling: 0.25, maxRequests: 2, defaultRequestTTL: 3s }
        saturationDetector: { utilization: { queueDepthThreshold: 3, kvCacheUtilThreshold: 0.5, metricsStalenessThreshold: 1s, headroom: 0.5 } }
  - use: flow
    name: tokens
    settings: { flow: { ceilings: { fixed: 0.5 }, saturationDetector: { concurrency: { concurrencyMode: tokens, maxTokenConcurrency: 9 } } } }
";

#[test]
fn the_gateway_and_the_simulator_read_the_same_settings_alike() {
    let mut texts: BTreeMap<String, String> = fs::read_dir(FOLDER)
        .expect("the scenarios")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .map(|path| (path.display().to_string(), fs::read_to_string(&path).expect("readable")))
        .collect();
    texts.insert("more".to_owned(), MORE.to_owned());
    let mut flows = 0;
    for (name, text) in texts {
        let scenario = Scenario::parse(&name, &text).unwrap_or_else(|problems| panic!("{problems:?}"));
        let document: Value = serde_saphyr::from_str(&text).expect("YAML");
        let written = document["comparisons"].as_array().expect("a list");
        for (comparison, written) in scenario.comparisons.iter().zip(written) {
            let Policy::Scheduler(policy) = &comparison.policy else { continue };
            let mut routing = json!({ "scheduler": { "use": written["use"] } });
            for (from, to) in [("settings", "/scheduler/settings"), ("admission", "/admission")] {
                if let Some(section) = written.get(from) {
                    let (parent, key) = to.rsplit_once('/').expect("a path");
                    routing.pointer_mut(parent).expect("it is there")[key] = section.clone();
                }
            }
            let models: serde_json::Map<_, _> = scenario
                .models
                .iter()
                .map(|model| (model.name.clone(), json!({ "endpoints": ["http://127.0.0.1:1", "http://127.0.0.1:2"] })))
                .collect();
            let file = json!({ "models": models, "routing": routing }).to_string();
            let settings = config::parse(&name, &file).unwrap_or_else(|problems| panic!("{problems}"));
            let number = |id: &str| {
                let at = scenario.models.iter().position(|model| model.name == id);
                ModelId(u32::try_from(at.expect("a model")).expect("few"))
            };
            let read = settings.scheduler_settings(number, |_| unreachable!("no weights"));
            let of = format!("{name}: {}", comparison.name);
            assert_eq!(&read.policy, policy, "{of}");
            assert_eq!(read.admission, comparison.admission, "{of}");
            if let Some(detector) = &comparison.detector {
                for model in read.models.values() {
                    assert_eq!((model.detector, model.headroom), (detector.settings, detector.headroom), "{of}");
                }
            }
            flows += u32::from(written["use"] == "flow");
        }
    }
    assert!(flows > 10, "only {flows} comparisons use flow");
}
