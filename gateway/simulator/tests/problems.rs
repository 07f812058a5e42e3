//! What a broken scenario file is answered with.

use switchyard_simulator::Scenario;

const POOL: &str = "replicas: {pool: {}}\n";
const CLASS: &str = "classes: [{name: a, rate: 1, prompt: 10, output: 10}]\n";
const COMPARISON: &str = "comparisons: [{use: fifo}]\n";

/// The problems of a file made of these parts, a line each.
fn problems(parts: &[&str]) -> String {
    let problems = Scenario::parse("broken.yaml", &parts.concat()).expect_err("the file is broken");
    problems.iter().map(|problem| format!("{problem}\n")).collect()
}

/// Asserts that the problems are these lines.
#[track_caller]
fn assert_problems(parts: &[&str], expected: &[&str]) {
    let found = problems(parts);
    let expected: String = expected.iter().map(|line| format!("{line}\n")).collect();
    assert_eq!(found, expected, "\nfound:\n{found}");
}

#[test]
fn a_sound_file_has_none() {
    assert!(Scenario::parse("sound.yaml", &["duration: 10s\n", POOL, CLASS, COMPARISON].concat()).is_ok());
}

#[test]
fn unknown_keys_come_with_the_nearest_known_one() {
    let class = "classes:\n  - name: a\n    rates: 1\n    prompt: 10\n    output: 10\n";
    let found = problems(&["duration: 10s\n", POOL, class, COMPARISON]);
    assert!(found.starts_with("broken.yaml:5:5: classes[0].rates: "), "{found}");
    assert!(found.contains("`rates`") && found.contains("did you mean `rate`?"), "{found}");
}

#[test]
fn values_of_the_wrong_kind_name_what_would_be_right() {
    let cases = [
        ("duration: soon\n", "broken.yaml:1:11: duration", "a duration such as 250ms, 8s or 1h30m"),
        ("duration: -3\n", "broken.yaml:1:11: duration", "a duration such as"),
        ("duration: 9s\nwindow: 8s\n", "broken.yaml:2:9: window", "such as 80s..190s"),
    ];
    for (start, place, cure) in cases {
        let found = problems(&[start, POOL, CLASS, COMPARISON]);
        assert!(found.starts_with(place) && found.contains(cure), "{found}");
    }
    let cases = [
        ("priority: soon", "interactive, normal or batch"),
        ("prompt: 0", "at least 1"),
        ("prompt: 9..3", "a range such as 64..512"),
        ("prompt: {median: 10, p95: 5}", "0 < median <= p95 <= max"),
        ("rate: -1", "not negative"),
        ("rate: {9s: 1, 3s: 2}", "in order"),
    ];
    for (wrong, cure) in cases {
        let class = format!("classes:\n  - {{ name: a, output: 10, {wrong} }}\n");
        let found = problems(&["duration: 10s\n", POOL, &class, COMPARISON]);
        assert!(found.starts_with("broken.yaml:4:") && found.contains(cure), "{found}");
    }
}

#[test]
fn every_problem_that_is_not_of_the_grammar_is_named_at_once() {
    let file = "
duration: 10s
window: 5s..20s
replicas:
  swap:
    models:
      small: { load: 1s, engine: { maxRunning: 0, kvTokens: 100 } }
      large: { load: 1s }
classes:
  - { name: a, model: smal, rate: 1, prompt: 10, output: 10 }
  - { name: a, model: large, prompt: 10, output: 10 }
  - { name: b, rate: 1, prompt: 10, output: 10 }
  - { name: c, model: small, burst: 2.5, prompt: 90, output: 11 }
comparisons:
  - use: serial
    settings: { serial: { swapAffinityBonus: 100, slots: 0 } }
  - use: fifo
    settings: { fifo: { priority: { tiny: 1 } } }
  - use: fifo
faults: { cancel: 1.5, crashEvery: 0s }
";
    assert_problems(
        &[file],
        &[
            "broken.yaml:3:9: window: has to be a part of 0s..10s",
            "broken.yaml:7:48: replicas.swap.models.small.engine.maxRunning: has to be more than 0",
            "broken.yaml:10:23: classes[0].model: `smal` is not among the models; they are large, small",
            "broken.yaml:11:5: classes[1]: sends nothing; give it a `rate` or a `burst` within the duration",
            "broken.yaml:11:13: classes[1].name: `a` is the name of classes[0] too; give each class its own",
            "broken.yaml:12:5: classes[2]: needs `model`, as there are several",
            "broken.yaml:13:37: classes[3].burst: has to be whole numbers of requests up to 2000000",
            "broken.yaml:13:50: classes[3].prompt: prompt and output can reach 101 tokens, and the engine's KV cache \
             holds 100; shorten them, set their `max`, or raise kvTokens",
            "broken.yaml:16:46: comparisons[0].settings.serial.swapAffinityBonus: has to be 0 to 99, so that it never \
             crosses a band",
            "broken.yaml:16:58: comparisons[0].settings.serial.slots: has to be more than 0",
            "broken.yaml:18:43: comparisons[1].settings.fifo.priority.tiny: is not among the models",
            "broken.yaml:19:5: comparisons[2]: is called `fifo` as comparisons[1] is; give each its own `name`",
            "broken.yaml:20:19: faults.cancel: has to be a share between 0 and 1",
            "broken.yaml:20:36: faults.crashEvery: has to be longer than 0s",
        ],
    );
}

#[test]
fn every_problem_of_flow_is_named_at_once() {
    let comparisons = "
comparisons:
  - use: flow
    settings:
      flow:
        saturationDetector: { concurrency: { maxConcurrency: 0, maxTokenConcurrency: 9, headroom: 11 } }
        ceilings: { holdback: { least: 0.9, greatest: 0.5 } }
        priorityBands:
          - { priority: 5, ceiling: 1.5 }
          - { priority: 5 }
        defaultPriorityBand: { ceiling: 0 }
        weights: { a: 0, b: 2 }
  - name: other
    use: flow
    settings:
      flow:
        saturationDetector: { utilization: { kvCacheUtilThreshold: 2, refreshMetricsInterval: 1s } }
";
    assert_problems(
        &["duration: 10s\n", POOL, CLASS, comparisons],
        &[
            "broken.yaml:9:62: comparisons[0].settings.flow.saturationDetector.concurrency.maxConcurrency: has to be more \
             than 0",
            "broken.yaml:9:86: comparisons[0].settings.flow.saturationDetector.concurrency.maxTokenConcurrency: has no \
             effect while concurrencyMode is requests; leave it out, or set the other mode",
            "broken.yaml:9:99: comparisons[0].settings.flow.saturationDetector.concurrency.headroom: has to be between \
             0 and 10",
            "broken.yaml:10:19: comparisons[0].settings.flow.ceilings.holdback: least is 0.9, and has to be at most \
             greatest, 0.5",
            "broken.yaml:12:37: comparisons[0].settings.flow.priorityBands[0].ceiling: has to be above 0 and at most 1",
            "broken.yaml:13:25: comparisons[0].settings.flow.priorityBands[1].priority: has the priority 5 as another \
             band has; give each its own",
            "broken.yaml:14:41: comparisons[0].settings.flow.defaultPriorityBand.ceiling: has to be above 0 and at most \
             1",
            "broken.yaml:15:23: comparisons[0].settings.flow.weights.a: has to be more than 0",
            "broken.yaml:15:29: comparisons[0].settings.flow.weights.b: `b` is not among the tenants; they are a",
            "broken.yaml:20:68: comparisons[1].settings.flow.saturationDetector.utilization.kvCacheUtilThreshold: has to \
             be above 0 and at most 1",
            "broken.yaml:20:95: comparisons[1].settings.flow.saturationDetector.utilization.refreshMetricsInterval: \
             metrics are looked at every 1s and good for 200ms; let it be less than metricsStalenessThreshold, best a \
             half",
        ],
    );
}

#[test]
fn empty_lists_and_slips_in_rates_are_named() {
    assert_problems(
        &["duration: 0s\n", "replicas: {swap: {models: {}}}\n", "classes: []\n", "comparisons: []\n"],
        &[
            "broken.yaml:1:11: duration: has to be longer than 0s",
            "broken.yaml:2:11: replicas.swap.models: needs at least one model",
            "broken.yaml:3:10: classes: needs at least one class of clients",
            "broken.yaml:4:14: comparisons: needs at least one, such as `- use: fifo`",
        ],
    );
    let class = "classes: [{name: a, rate: 1e6, prompt: 10, output: 10}]\n";
    assert_problems(
        &["duration: 10s\n", POOL, class, COMPARISON],
        &["broken.yaml:3:10: classes: about 10000000 requests would come, more than 2000000; lower the rates or the \
           duration"],
    );
}

#[test]
fn what_is_no_yaml_is_one_problem() {
    let found = problems(&["duration: [10s\n", POOL]);
    assert!(found.starts_with("broken.yaml:") && found.lines().count() == 1, "{found}");
    let found = problems(&["just words"]);
    assert!(found.lines().count() == 1, "{found}");
    assert!(problems(&[""]).starts_with("broken.yaml"));
}
