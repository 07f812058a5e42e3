//! `switchyard simulate`: what it prints, writes and says of files that are wrong.

use std::{fs, path::PathBuf};

use assert_cmd::Command;
use tempfile::TempDir;

const SCENARIO: &str = "
description: A small one.
duration: 20s
replicas: { pool: { engine: { maxRunning: 2 } } }
classes:
  - { name: people, priority: interactive, rate: 2, prompt: 100, output: 10 }
comparisons:
  - use: no-gate
  - use: fifo
  - { name: weighted, use: flow, settings: { flow: { fairness: weighted } } }
";

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let file = self.0.path().join(name);
        fs::write(&file, text).expect("written");
        file
    }

    fn simulate(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_switchyard"));
        command.current_dir(self.0.path()).arg("simulate").args(arguments);
        command
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).expect("a folder");
        let mut names: Vec<_> =
            entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

/// What a command that succeeds prints; it has nothing to say on standard error.
fn printed(command: &mut Command) -> String {
    let output = command.assert().success().stderr("").get_output().stdout.clone();
    String::from_utf8(output).expect("UTF-8")
}

/// What a command that fails says; it prints nothing.
fn complaint(command: &mut Command) -> String {
    let output = command.assert().code(1).stdout("").get_output().stderr.clone();
    String::from_utf8(output).expect("UTF-8")
}

#[test]
fn a_table_is_printed_and_a_picture_and_figures_are_written_beside_the_file() {
    let folder = Folder::new();
    folder.write("small.v1.yaml", SCENARIO);
    let table = printed(&mut folder.simulate(&["small.v1.yaml"]));
    assert!(table.contains("A small one.") && table.contains("TTFT p50"), "{table}");
    for name in ["no gate", "fifo", "weighted"] {
        assert!(table.lines().any(|line| line.starts_with(name)), "{table}");
    }
    assert_eq!(folder.names(), ["small.v1.csv", "small.v1.svg", "small.v1.yaml"]);
    let csv = fs::read_to_string(folder.0.path().join("small.v1.csv")).expect("written");
    assert_eq!(csv.lines().count(), 1 + 3);
}

#[test]
fn the_same_seed_gives_the_same_figures_and_another_gives_others() {
    let folder = Folder::new();
    folder.write("small.yaml", SCENARIO);
    let run = |seed: &str| printed(&mut folder.simulate(&["small.yaml", "--seed", seed]));
    assert_eq!(run("1"), run("1"));
    assert_ne!(run("1"), run("2"));
}

#[test]
fn one_comparison_can_be_run_alone_and_its_results_go_where_they_should() {
    let folder = Folder::new();
    folder.write("small.yaml", SCENARIO);
    let arguments = ["small.yaml", "--only", "weighted", "--out", "here/there", "--format", "markdown"];
    let table = printed(&mut folder.simulate(&arguments));
    assert!(table.starts_with("## small\n") && table.contains("| weighted | people |"), "{table}");
    assert!(!table.contains("fifo"), "{table}");
    assert_eq!(folder.names(), ["here", "small.yaml"]);
    assert!(folder.0.path().join("here/there/small.svg").exists());

    let complaint = complaint(&mut folder.simulate(&["small.yaml", "--only", "serial"]));
    assert_eq!(complaint, "switchyard: small.yaml: nothing is called `serial`; there are: no gate; fifo; weighted\n");
}

#[test]
fn every_problem_of_every_file_is_said_before_anything_runs() {
    let folder = Folder::new();
    folder.write("sound.yaml", SCENARIO);
    let wrong = SCENARIO.replace("duration: 20s", "duration: 0s").replace("fairness: weighted", "agingDivisr: 3");
    folder.write("wrong.yaml", &wrong);
    let late =
        SCENARIO.replace("maxRunning: 2", "maxRunning: 0").replace("fairness: weighted", "ceilings: { fixed: 2 }");
    folder.write("late.yaml", &late);
    let complaint = complaint(&mut folder.simulate(&["sound.yaml", "wrong.yaml", "late.yaml", "missing.yaml"]));
    let lines: Vec<_> = complaint.lines().collect();
    assert_eq!(lines.len(), 4, "{complaint}");
    assert!(lines[0].starts_with("wrong.yaml:10:") && lines[0].contains("did you mean `agingDivisor`?"), "{complaint}");
    assert_eq!(lines[1], "late.yaml:4:43: replicas.pool.engine.maxRunning: has to be more than 0");
    assert!(lines[2].starts_with("late.yaml:10:"), "{complaint}");
    assert!(lines[2].ends_with("ceilings.fixed: has to be above 0 and at most 1"), "{complaint}");
    assert!(lines[3].starts_with("switchyard: cannot read missing.yaml: "), "{complaint}");
    assert_eq!(folder.names(), ["late.yaml", "sound.yaml", "wrong.yaml"]);
}

#[test]
fn two_files_whose_results_would_have_one_name_are_refused() {
    let folder = Folder::new();
    folder.write("small.yaml", SCENARIO);
    folder.write("small.yml", SCENARIO);
    let complaint = complaint(&mut folder.simulate(&["small.yaml", "small.yml"]));
    assert_eq!(complaint, "switchyard: small.yml: another file's results would be small.svg too\n");
}

/// Every setting of `flow`.
const FLOW: &str = "flow:
  fairness: weighted
  ordering: fcfs
  saturationDetector:
    utilization:
      queueDepthThreshold: 5
      kvCacheUtilThreshold: 0.8
      metricsStalenessThreshold: 200ms
      refreshMetricsInterval: 50ms
      headroom: 0.2
  ceilings: { holdback: { least: 0.5, greatest: 1.0, by: value } }
  priorityBands:
    - { name: gold, priority: interactive, fairness: round-robin, ordering: slo-deadline, ceiling: 1.0 }
    - { priority: -10, ordering: edf, maxRequests: 100, maxBytes: 1000000, defaultRequestTTL: 1m }
  defaultPriorityBand: { fairness: global-strict, ordering: fcfs, ceiling: 0.9 }
  agingDivisor: 60
  swapAffinity: false
  weights: { people: 3 }
  tokenWeights: { prompt: 1, completion: 2 }
  idleTimeout: 5m
";

#[test]
fn a_scenario_takes_the_very_settings_of_flow_that_the_gateway_takes() {
    let others = [
        FLOW.to_owned(),
        FLOW.replace("holdback: { least: 0.5, greatest: 1.0, by: value }", "adaptive: { least: 0.5, greatest: 1.0 }"),
        FLOW.replace("holdback: { least: 0.5, greatest: 1.0, by: value }", "fixed: 0.9"),
        "flow: { saturationDetector: { concurrency: { maxConcurrency: 9, headroom: 0.1 } } }".to_owned(),
        "flow: { saturationDetector: { concurrency: { concurrencyMode: tokens, maxTokenConcurrency: 9000 } } }"
            .to_owned(),
    ];
    for flow in others {
        let folder = Folder::new();
        let indented = |spaces: usize| flow.lines().map(|line| format!("{:spaces$}{line}\n", "")).collect::<String>();
        let gateway = format!(
            "models: {{ people: {{ proxy: \"http://127.0.0.1:9\" }} }}\nrouting:\n  scheduler:\n    use: flow\n    \
             settings:\n{}",
            indented(6)
        );
        let config = folder.write("gateway.yaml", &gateway);
        Command::new(env!("CARGO_BIN_EXE_switchyard")).args(["check", "--config"]).arg(config).assert().success();

        let start = SCENARIO.split("comparisons:").next().expect("a start");
        folder.write("flow.yaml", &format!("{start}comparisons:\n  - use: flow\n    settings:\n{}", indented(6)));
        let table = printed(&mut folder.simulate(&["flow.yaml"]));
        assert!(table.lines().any(|line| line.starts_with("flow")), "{table}");
    }
}
