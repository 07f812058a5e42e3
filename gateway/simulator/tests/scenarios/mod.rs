//! The scenario files of the repository.

use std::{fs, path::PathBuf};

use switchyard_simulator::{Run, Scenario, run};

/// Where they are.
pub(crate) fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/scenarios")
}

/// One of them.
#[track_caller]
pub(crate) fn scenario(name: &str) -> Scenario {
    let file = folder().join(name).with_extension("yaml");
    let text = fs::read_to_string(&file).unwrap();
    Scenario::parse(&file.display().to_string(), &text).unwrap_or_else(|problems| panic!("{problems:#?}"))
}

/// Some of its comparisons.
#[allow(dead_code, reason = "not every test runs them by name")]
#[track_caller]
pub(crate) fn runs<const N: usize>(scenario: &Scenario, names: [&str; N]) -> [Run; N] {
    names.map(|name| {
        let comparison = scenario.comparisons.iter().find(|comparison| comparison.name == name).unwrap();
        run(scenario, comparison).unwrap()
    })
}
