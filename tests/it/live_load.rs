//! `examples/live-load`: a scenario's clients against a real gateway and pretend model servers.

use std::process::Command;

use crate::support::example;

const SCENARIO: &str = "
duration: 2s
replicas: { pool: { model: m, count: 2, engine: { maxRunning: 4, stepBase: 5ms, overhead: 1ms..3ms } } }
classes:
  - { name: people, priority: interactive, rate: 10, prompt: 20, output: 4, maxTokens: 8, sloTtft: 1h }
  - { name: job, priority: batch, tenants: 2, burst: 30, prompt: 50, output: 8, ttl: 1h }
comparisons:
  - use: no-gate
  - use: flow
    settings: { flow: { fairness: round-robin, saturationDetector: { concurrency: { maxConcurrency: 4 } } } }
";

#[test]
fn a_scenario_runs_live_and_every_request_of_it_is_answered() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("tiny.yaml");
    std::fs::write(&file, SCENARIO).expect("written");
    let output = Command::new(example("live_load")).arg(env!("CARGO_BIN_EXE_switchyard")).arg(&file).output();
    let output = output.expect("it runs");
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{table}\n{}", String::from_utf8_lossy(&output.stderr));
    // From the class's name on: arrived, served, shed, left; then the goal before the tokens.
    let row = |class: &str| -> Vec<&str> {
        let row = table.lines().find_map(|line| Some(line.split_once(class)?.1));
        row.unwrap_or_else(|| panic!("no {class} in\n{table}")).split_whitespace().collect()
    };
    let people = row(" people ");
    assert!(people[0].parse::<u32>().expect("a number") > 5, "{table}");
    assert_eq!((people[0], &people[2..4]), (people[1], &["0", "0"][..]), "{table}");
    assert!(table.contains("100.0 %"), "each of them had a first token: {table}");
    let job = row(" job ");
    assert_eq!(job[..4], ["30", "30", "0", "0"], "{table}");
    assert_eq!(job.last(), Some(&"1740"), "30 times 50 tokens in and 8 out: {table}");
}
