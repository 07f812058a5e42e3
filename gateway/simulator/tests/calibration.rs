//! The simulated model server against the measurements that it stands for: gpt-oss-20b on one H100, 128 sequences, 512
//! tokens in and 128 out.

use std::time::Duration;

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

#[test]
fn the_first_token_comes_after_140_ms_unloaded() {
    for rate in [2, 10, 20] {
        let p95 = steady(rate).classes[0].ttft.p95.as_secs_f64() * 1e3;
        assert!((130.0..150.0).contains(&p95), "p95 {p95} ms at {rate} requests/s");
    }
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
