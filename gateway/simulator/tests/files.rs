//! The scenario files of the repository, and what is written about them.

mod scenarios;

use std::{collections::BTreeSet, fs};

use scenarios::{folder, runs, scenario};
use switchyard_simulator::{EngineSettings, Scenario, simulate};

/// A test for each file: its section in `RESULTS.md` is what it gives.
macro_rules! results {
    ($($name:ident: $file:literal,)*) => {
        const FILES: &[&str] = &[$($file),*];

        mod results_are_up_to_date {
            $(#[test] fn $name() { super::assert_current($file); })*
        }
    };
}

results! {
    admission_tuning: "admission-tuning",
    batch_isolation: "batch-isolation",
    consolidation: "consolidation",
    long_prompts: "long-prompts",
    noisy_neighbour: "noisy-neighbour",
    overnight_batch: "overnight-batch",
    priority_tiers: "priority-tiers",
    reserved_capacity: "reserved-capacity",
    same_priority_tenants: "same-priority-tenants",
    slo_ordering: "slo-ordering",
    swap_storm: "swap-storm",
}

#[track_caller]
fn assert_current(name: &str) {
    let report = simulate(&scenario(name)).unwrap();
    let results = fs::read_to_string(folder().join("RESULTS.md")).unwrap();
    // Tables to compare, not to print.
    let is_there = format!("{results}\n").contains(&format!("\n{}\n", report.markdown()));
    assert!(is_there, "RESULTS.md has other figures; run examples/scenarios/results.sh. New:\n{}", report.markdown());
    if let Ok(picture) = fs::read_to_string(folder().join(name).with_extension("svg"))
        && name == "priority-tiers"
    {
        assert!(picture == report.svg(), "{name}.svg is another picture; run examples/scenarios/results.sh");
    }
}

#[test]
fn every_file_is_a_scenario_with_results() {
    let files = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let names: BTreeSet<_> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    for name in &names {
        let used: BTreeSet<_> = scenario(name).comparisons.iter().map(|comparison| comparison.name.clone()).collect();
        for always in ["no gate", "fifo", "serial"] {
            assert!(used.contains(always), "{name} is not compared with {always}");
        }
    }
    assert_eq!(names.into_iter().collect::<Vec<_>>(), FILES);
}

#[test]
fn the_same_scenario_gives_the_same_run() {
    let scenario = scenario("priority-tiers");
    assert_eq!(runs(&scenario, ["serial"]), runs(&scenario, ["serial"]));
    let other = Scenario { seed: 2, ..scenario.clone() };
    assert_ne!(runs(&scenario, ["serial"]), runs(&other, ["serial"]));
}

#[test]
fn the_readme_shows_a_scenario_with_the_default_engine() {
    let readme = fs::read_to_string(folder().join("README.md")).unwrap();
    let (_, rest) = readme.split_once("```yaml\n").unwrap();
    let (shown, _) = rest.split_once("```").unwrap();
    let scenario = Scenario::parse("README.md", shown).unwrap_or_else(|problems| panic!("{problems:#?}"));
    assert_eq!(scenario.models[0].engine, EngineSettings::default());
}
