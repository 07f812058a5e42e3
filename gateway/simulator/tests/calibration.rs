//! The simulated model server against the measurements that it stands for: gpt-oss-20b on one H100, 128 sequences, 512
//! tokens in and 128 out.

mod scenarios;

use std::time::Duration;

use scenarios::{runs, scenario};
use switchyard_scheduler::{RequestId, Timestamp};
use switchyard_simulator::{Comparison, Engine, EngineSettings, Output, Run, Scenario, run};

/// Poisson arrivals at a steady rate straight to one server, for as long as the study's runs.
fn steady(rate: u32) -> Run {
    let text = format!(
        "{{duration: 240s, seed: 7, replicas: {{pool: {{}}}},
          classes: [{{name: all, rate: {rate}, prompt: 512, output: 128}}], comparisons: [{{use: no-gate}}]}}"
    );
    let scenario = Scenario::parse("steady.yaml", &text).unwrap();
    let [comparison]: &[Comparison; 1] = scenario.comparisons.as_slice().try_into().unwrap();
    run(&scenario, comparison).unwrap()
}

/// Time between the tokens of a request, with `running` requests that come one after the other for ever.
fn time_per_token(running: u32) -> f64 {
    let mut engine = Engine::new(EngineSettings::default());
    let (mut now, mut next, mut outputs) = (Timestamp::ZERO, 0, Vec::new());
    // Started one step apart, so that prompts and answers mix as they do in service.
    let (mut first, mut spans) = (std::collections::BTreeMap::new(), Vec::new());
    while spans.len() < 1_000 {
        if next < u64::from(running) {
            next += 1;
            engine.submit(now, RequestId(next), 512, 128);
        }
        now = engine.step_end().unwrap();
        engine.advance(now, &mut outputs);
        for output in outputs.drain(..) {
            match output {
                Output::FirstToken(id) => {
                    first.insert(id, now);
                }
                Output::Done(id) => {
                    spans.push(now.since(first[&id]).as_secs_f64() / 127.0);
                    next += 1;
                    engine.submit(now, RequestId(next), 512, 128);
                }
            }
        }
    }
    let settled = &spans[spans.len() / 2..];
    settled.iter().sum::<f64>() / settled.len() as f64
}

#[test]
fn a_token_takes_7_5_ms_alone_and_20_ms_in_a_full_batch() {
    let alone = time_per_token(1) * 1e3;
    let full = time_per_token(128) * 1e3;
    assert!((7.4..7.6).contains(&alone), "{alone} ms alone");
    assert!((19.5..20.5).contains(&full), "{full} ms in a full batch");
}

/// Two published times to the first token (p95) cannot both be met: about 140 ms unloaded, and 135 ms for the most urgent
/// tier while half of the server, which is the slower for being half full, is held back for it. The overhead is set
/// between them, so that neither is far off, one below and one above.
#[test]
fn the_first_token_comes_between_what_was_measured_unloaded_and_with_holdback() {
    // The load of the study when nobody surges.
    let unloaded = steady(25).classes[0].ttft.p95.as_secs_f64() * 1e3;
    let [held] = runs(&scenario("reserved-capacity"), ["holdback"]);
    let platinum = held.classes[0].ttft.p95.as_secs_f64() * 1e3;
    assert!((133.0..140.0).contains(&unloaded), "{unloaded} ms at 25 requests/s");
    assert!((135.0..142.5).contains(&platinum), "{platinum} ms with holdback");
    assert!((140.0 - unloaded - (platinum - 135.0)).abs() < 3.0, "{unloaded} and {platinum} ms: not in the middle");
    // The rest is steps; with next to nobody else they are short.
    let alone = steady(2).classes[0].ttft.p95.as_secs_f64() * 1e3;
    assert!((126.0..132.0).contains(&alone), "{alone} ms at 2 requests/s");
}

#[test]
fn the_knee_is_between_40_and_51_requests_a_second() {
    let p95 = |rate| steady(rate).classes[0].ttft.p95;
    let (below, above) = (p95(40), p95(51));
    assert!(below < Duration::from_millis(200), "{below:?} at 40 requests/s");
    assert!(above > Duration::from_secs(2), "{above:?} at 51 requests/s");
}

#[test]
fn throughput_levels_off_at_the_knee() {
    let served = |rate| steady(rate).requests_per_second;
    assert!((39.0..41.0).contains(&served(40)), "{} of 40", served(40));
    for rate in [51, 60] {
        assert!((47.0..50.5).contains(&served(rate)), "{} of {rate}", served(rate));
    }
}
