//! How a caller states its urgency, and what it is worth.

use switchyard_scheduler::{Band, Event, Priority, RequestId};

use crate::yard::{Tune, Yard, fifo, model, secs, serial};

#[test]
fn a_priority_is_an_integer_or_an_alias() {
    for (value, priority) in [
        ("0", Some(0)),
        ("-98", Some(-98)),
        ("+7", Some(7)),
        ("interactive", Some(100)),
        ("Normal", Some(0)),
        ("BATCH", Some(-100)),
        ("  \tbatch ", Some(-100)),
        (" 42 ", Some(42)),
        ("9223372036854775807", Some(i64::MAX)),
        ("-9223372036854775808", Some(i64::MIN)),
        ("9223372036854775808", None),
        ("-9223372036854775809", None),
        ("", None),
        ("   ", None),
        ("1.5", None),
        ("1e3", None),
        ("0x10", None),
        ("high", None),
        ("batch 1", None),
        ("- 1", None),
    ] {
        assert_eq!(Priority::parse(value.as_bytes()), priority.map(Priority), "{value:?}");
    }
    assert_eq!(Priority::parse(b"\xff"), None, "not UTF-8");
}

#[test]
fn bands_begin_at_100_and_at_0() {
    for (priority, band) in [
        (i64::MIN, Band::Batch),
        (-100, Band::Batch),
        (-1, Band::Batch),
        (0, Band::Normal),
        (99, Band::Normal),
        (100, Band::Interactive),
        (i64::MAX, Band::Interactive),
    ] {
        assert_eq!(Priority(priority).band(), band, "{priority}");
        assert_eq!(Priority(priority).is_sheddable(), band == Band::Batch, "{priority}");
    }
}

/// Runs what waits, one after another, and tells the order.
fn order(yard: &mut Yard, first: u64) -> Vec<u64> {
    let mut order = vec![];
    let mut running = first;
    loop {
        yard.scheduler.handle(yard.now, Event::Finished { id: RequestId(running), usage: Default::default() });
        let Some(action) = yard.scheduler.poll_action() else { return order };
        let switchyard_scheduler::Action::Dispatch { id, .. } = action else { panic!("{action:?}") };
        order.push(id.0);
        running = id.0;
    }
}

#[test]
fn finer_steps_within_a_band_count() {
    let mut yard = Yard::new(serial("a"));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'a', -100, "");
    yard.arrive(3, 'a', -99, "");
    yard.arrive(4, 'a', -98, "");
    yard.arrive(5, 'a', -100, "");
    assert_eq!(order(&mut yard, 1), [4, 3, 2, 5]);
}

#[test]
fn priorities_are_never_clamped() {
    for settings in [serial("a"), serial("a").divisor(u32::MAX), fifo("a").concurrency(1).model_priority('a', i64::MAX)]
    {
        let mut yard = Yard::new(settings);
        yard.warm('a');
        yard.arrive(1, 'a', 0, "run 1 on a");
        yard.arrive(2, 'a', i64::MIN, "");
        yard.arrive(3, 'a', i64::MIN + 1, "");
        yard.arrive(4, 'a', i64::MAX - 1, "");
        yard.arrive(5, 'a', i64::MAX, "");
        yard.arrive(6, 'a', 0, "");
        yard.now = switchyard_scheduler::Timestamp(u64::MAX);
        assert_eq!(order(&mut yard, 1), [5, 4, 6, 3, 2]);
    }
}

#[test]
fn at_divisor_60_a_batch_job_passes_fresh_normal_traffic_after_100_minutes() {
    for (minutes, expected) in [(99, [3, 2]), (101, [2, 3])] {
        let mut yard = Yard::new(serial("a"));
        yard.warm('a');
        yard.arrive(1, 'a', 0, "run 1 on a");
        yard.arrive(2, 'a', -100, "");
        yard.wait(minutes * 60).arrive(3, 'a', 0, "");
        assert_eq!(order(&mut yard, 1), expected, "{minutes} minutes");
    }
    // At exactly 100 minutes both score 0, and the one that arrived first goes.
    let mut yard = Yard::new(serial("a"));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'a', -100, "");
    yard.wait(6_000).arrive(3, 'a', 0, "");
    yard.finish(1, "run 2 on a");
    let decision = yard.decision(2);
    assert_eq!((decision.priority, decision.band), (Priority(-100), Band::Batch));
    assert_eq!((decision.aging, decision.affinity, decision.score), (100.0, 10, 10.0));
    assert_eq!(decision.waited, secs(6_000));
    assert_eq!(decision.passed_by_aging, Some(RequestId(3)));
    assert_eq!(decision.still_waiting, 1);
}

#[test]
fn without_aging_waiting_earns_nothing() {
    let mut yard = Yard::new(serial("a").divisor(0));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'a', -1, "");
    yard.wait(1_000_000).arrive(3, 'a', 0, "");
    yard.finish(1, "run 3 on a");
    assert_eq!(yard.decision(3).aging, 0.0);
    assert_eq!(yard.decision(3).passed_by_aging, None);
}

#[test]
fn without_bonus_and_with_one_priority_serial_is_first_come_first_served() {
    // Two models that keep replacing each other: arrival order all the same.
    let mut yard = Yard::new(serial("ab").bonus(0));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.wait(1).arrive(2, 'b', 0, "");
    yard.wait(1).arrive(3, 'a', 0, "");
    yard.wait(1).arrive(4, 'b', 0, "");
    yard.finish(1, "stop a evicted");
    yard.stopped('a', "load b for 2 after a");
    yard.loaded('b', "run 2 on b");
    yard.finish(2, "stop b evicted");
    yard.stopped('b', "load a for 3 after b");
    yard.loaded('a', "run 3 on a");
    yard.finish(3, "stop a evicted");
}

#[test]
fn a_bonus_breaks_near_ties() {
    let mut yard = Yard::new(serial("ab"));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'b', 0, "");
    yard.arrive(3, 'a', 0, "");
    yard.finish(1, "run 3 on a");
    let decision = yard.decision(3);
    assert_eq!((decision.affinity, decision.score), (10, 10.0));
    assert_eq!((decision.passed_by_affinity, decision.passed_by_aging), (Some(RequestId(2)), None));
    // Eleven points more are no near tie.
    yard.arrive(4, 'b', 11, "");
    yard.arrive(5, 'a', 0, "");
    yard.finish(3, "stop a evicted");
}

#[test]
fn a_bonus_never_crosses_a_band() {
    // Whatever the bonus, the model that is ready loses to the lowest request of the next band, fresh for fresh.
    for (ready, cold) in [(-1, 0), (-100, 0), (99, 100), (0, 100), (i64::MIN, 0)] {
        let mut yard = Yard::new(serial("ab").bonus(99));
        yard.warm('a');
        yard.arrive(1, 'a', 0, "run 1 on a");
        yard.arrive(2, 'a', ready, "");
        yard.arrive(3, 'b', cold, "");
        yard.finish(1, "stop a evicted");
    }
    // Up to there it counts in part.
    let mut yard = Yard::new(serial("ab"));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'a', 95, "");
    yard.arrive(3, 'b', 98, "");
    yard.finish(1, "run 2 on a");
    assert_eq!((yard.decision(2).affinity, yard.decision(2).score), (4, 99.0));
}

#[test]
fn a_bonus_never_reorders_the_requests_of_one_model() {
    let mut yard = Yard::new(serial("a").bonus(99));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'a', 10, "");
    yard.arrive(3, 'a', 98, "");
    yard.arrive(4, 'a', 99, "");
    assert_eq!(order(&mut yard, 1), [4, 3, 2]);
}

#[test]
fn fifo_adds_the_priority_of_the_model() {
    // A model at 10 with a batch request queues at -90: after a normal request for another at 0, before one at -91.
    let settings = fifo("abc").together().concurrency(1).model_priority('a', 10);
    let mut yard = Yard::new(settings);
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'a', -100, "");
    yard.finish(1, "run 2 on a");
    let decision = yard.decision(2);
    assert_eq!((decision.score, decision.model_priority, decision.band), (-90.0, 10, Band::Batch));

    for (other, expected) in
        [(-91, "load a for 2 after c"), (-90, "load a for 2 after c"), (-89, "load b for 3 after c")]
    {
        let mut yard = Yard::new(fifo("abc").model_priority('a', 10));
        yard.warm('c');
        yard.arrive(1, 'c', 0, "run 1 on c");
        yard.arrive(2, 'a', -100, "");
        yard.arrive(3, 'b', other, "");
        yard.finish(1, "stop c evicted");
        yard.stopped('c', expected);
    }
    assert_eq!(model('a').0, 97);
}
