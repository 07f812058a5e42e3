//! The simulated model server, step by step.

use std::time::Duration;

use switchyard_scheduler::{RequestId, Timestamp};
use switchyard_simulator::{Engine, EngineSettings, Output};

/// One step takes 10 ms, and 1 ms more for each running sequence and each 10 prompt tokens.
fn settings() -> EngineSettings {
    EngineSettings {
        max_running: 4,
        step_tokens: 100,
        kv_tokens: 1_000,
        step_base: Duration::from_millis(10),
        step_per_sequence: Duration::from_millis(1),
        prefill_rate: 10_000.0,
        overhead: (Duration::ZERO, Duration::ZERO),
    }
}

/// Steps until nothing is left; says when each first and last token came, in milliseconds.
fn run(engine: &mut Engine) -> Vec<(u64, Output)> {
    let (mut all, mut outputs) = (Vec::new(), Vec::new());
    while let Some(now) = engine.step_end() {
        engine.advance(now, &mut outputs);
        all.extend(outputs.drain(..).map(|output| (now.0 / 1_000, output)));
    }
    all
}

fn submit(engine: &mut Engine, id: u64, prompt: u32, output: u32) {
    engine.submit(Timestamp::ZERO, RequestId(id), prompt, output);
}

const fn first(id: u64) -> Output {
    Output::FirstToken(RequestId(id))
}

const fn done(id: u64) -> Output {
    Output::Done(RequestId(id))
}

#[test]
fn the_prompt_gives_the_first_token_and_each_further_step_one_more() {
    let mut engine = Engine::new(settings());
    submit(&mut engine, 1, 50, 3);
    // 10 ms and 50 prompt tokens; then two steps of 11 ms.
    assert_eq!(run(&mut engine), [(15, first(1)), (37, done(1))]);
}

#[test]
fn a_long_prompt_is_computed_in_pieces() {
    let mut engine = Engine::new(settings());
    submit(&mut engine, 1, 250, 1);
    // Pieces of 100, 100 and 50 tokens.
    assert_eq!(run(&mut engine), [(20 + 20 + 15, first(1)), (55, done(1))]);
}

#[test]
fn what_arrives_during_a_step_joins_the_next_one() {
    let mut engine = Engine::new(settings());
    submit(&mut engine, 1, 50, 2);
    submit(&mut engine, 2, 50, 1);
    // The second step has one running sequence and 50 prompt tokens.
    assert_eq!(run(&mut engine), [(15, first(1)), (31, done(1)), (31, first(2)), (31, done(2))]);
}

#[test]
fn no_more_run_than_fit_into_the_batch() {
    let mut engine = Engine::new(EngineSettings { max_running: 1, ..settings() });
    submit(&mut engine, 1, 50, 2);
    submit(&mut engine, 2, 50, 1);
    assert_eq!(engine.load().running + engine.load().waiting, 2);
    assert_eq!(engine.load().waiting, 1);
    assert_eq!(run(&mut engine), [(15, first(1)), (26, done(1)), (41, first(2)), (41, done(2))]);
}

#[test]
fn a_full_kv_cache_sends_the_newest_back_and_loses_nobody() {
    let mut engine = Engine::new(EngineSettings { kv_tokens: 60, ..settings() });
    for id in 1..=3 {
        submit(&mut engine, id, 15, 20);
    }
    let all = run(&mut engine);
    for id in 1..=3 {
        assert_eq!(all.iter().filter(|(_, output)| *output == first(id)).count(), 1, "{all:?}");
        assert_eq!(all.iter().filter(|(_, output)| *output == done(id)).count(), 1, "{all:?}");
    }
    assert!(engine.load().preemptions > 0);
    assert_eq!((engine.unfinished(), engine.load().kv), (0, 0.0));
    // The oldest is never sent back: it has its last token first.
    assert_eq!(all.iter().find(|(_, output)| matches!(output, Output::Done(_))).unwrap().1, done(1));
}

#[test]
fn a_request_that_could_never_fit_is_cut() {
    let mut engine = Engine::new(EngineSettings { kv_tokens: 20, ..settings() });
    submit(&mut engine, 1, 500, 500);
    assert_eq!(run(&mut engine).len(), 2);
}

#[test]
fn a_cancelled_request_leaves_its_place_and_says_nothing() {
    let mut engine = Engine::new(EngineSettings { max_running: 1, ..settings() });
    for id in 1..=3 {
        submit(&mut engine, id, 50, 2);
    }
    engine.cancel(RequestId(1));
    engine.cancel(RequestId(3));
    engine.cancel(RequestId(9));
    // The running step goes on without a result.
    assert_eq!(run(&mut engine), [(30, first(2)), (41, done(2))]);
    assert_eq!(engine.load().kv, 0.0);
}
