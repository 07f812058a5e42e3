//! The scenario files of the repository.

use std::{fs, path::PathBuf};

use switchyard_simulator::{EngineSettings, Run, Scenario, run};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/scenarios")
}

fn scenario(name: &str) -> Scenario {
    let file = folder().join(name).with_extension("yaml");
    let text = fs::read_to_string(&file).unwrap();
    Scenario::parse(&file.display().to_string(), &text).unwrap_or_else(|problems| panic!("{problems:#?}"))
}

fn runs<const N: usize>(scenario: &Scenario, names: [&str; N]) -> [Run; N] {
    names.map(|name| {
        let comparison = scenario.comparisons.iter().find(|comparison| comparison.name == name).unwrap();
        run(scenario, comparison).unwrap()
    })
}

#[test]
fn every_file_is_a_scenario() {
    let mut names = 0;
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            scenario(path.file_stem().unwrap().to_str().unwrap());
            names += 1;
        }
    }
    assert!(names >= 9);
}

#[test]
fn the_same_scenario_gives_the_same_run() {
    let scenario = scenario("priority-tiers");
    assert_eq!(runs(&scenario, ["serial"]), runs(&scenario, ["serial"]));
    let other = Scenario { seed: 2, ..scenario.clone() };
    assert_ne!(runs(&scenario, ["serial"]), runs(&other, ["serial"]));
}

#[test]
fn in_the_swap_storm_serial_swaps_a_third_as_often_and_keeps_nobody_waiting_longer() {
    for seed in 1..=3 {
        let [serial, fifo] = runs(&Scenario { seed, ..scenario("swap-storm") }, ["serial", "fifo"]);
        assert!(serial.loads * 3 <= fifo.loads, "seed {seed}: {} loads, fifo {}", serial.loads, fifo.loads);
        // The two interactive classes together.
        let p95 = |run: &Run| run.classes[0].ttft.p95 + run.classes[1].ttft.p95;
        assert!(p95(&serial) <= p95(&fifo), "seed {seed}: {:?}, fifo {:?}", p95(&serial) / 2, p95(&fifo) / 2);
    }
}

#[test]
fn the_readme_shows_a_scenario_with_the_default_engine() {
    let readme = fs::read_to_string(folder().join("README.md")).unwrap();
    let (_, rest) = readme.split_once("```yaml\n").unwrap();
    let (shown, _) = rest.split_once("```").unwrap();
    let scenario = Scenario::parse("README.md", shown).unwrap_or_else(|problems| panic!("{problems:#?}"));
    assert_eq!(scenario.models[0].engine, EngineSettings::default());
}
