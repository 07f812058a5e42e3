//! `serial`: one job at a time.

use switchyard_scheduler::{Event, RequestId};

use crate::yard::{Tune, Yard, model, secs, serial};

#[test]
fn one_job_at_a_time() {
    let mut yard = Yard::new(serial("a"));
    yard.arrive(1, 'a', 0, "load a for 1");
    yard.loaded('a', "run 1 on a");
    yard.arrive(2, 'a', 0, "");
    yard.arrive(3, 'a', 1, "");
    yard.finish(1, "run 3 on a");
    yard.finish(3, "run 2 on a");
    yard.finish(2, "");
}

#[test]
fn never_preempts() {
    let mut yard = Yard::new(serial("ab"));
    yard.warm('a');
    yard.arrive(1, 'a', -100, "run 1 on a");
    yard.arrive(2, 'b', i64::MAX, "");
    yard.finish(1, "stop a evicted");
}

#[test]
fn the_slot_is_held_while_a_model_loads() {
    let mut yard = Yard::new(serial("ab").together());
    yard.warm('a');
    yard.arrive(1, 'b', 0, "load b for 1");
    yard.arrive(2, 'a', 100, "");
    yard.loaded('b', "run 1 on b");
    yard.finish(1, "run 2 on a");
}

#[test]
fn the_top_request_blocks_all_others_even_while_it_waits_for_room() {
    let mut yard =
        Yard::new(serial("abf").group("swap", "ab").group("persistent", "f").model('a', |a| a.takes_slot = false));
    yard.warm('a');
    yard.warm('f');
    // A job on `a` that takes no slot keeps it busy.
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'b', 0, "");
    yard.arrive(3, 'f', -20, "");
    yard.finish(1, "stop a evicted");
    yard.stopped('a', "load b for 2 after a");
    yard.loaded('b', "run 2 on b");
    yard.finish(2, "run 3 on f");
}

#[test]
fn more_slots_run_more_jobs() {
    let mut yard = Yard::new(serial("ab").together().slots(2));
    yard.warm('a');
    yard.warm('b');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'b', 0, "run 2 on b");
    yard.arrive(3, 'a', 0, "");
    yard.arrive(4, 'b', 5, "");
    yard.finish(1, "run 4 on b");
    yard.finish(4, "run 3 on a");
}

#[test]
fn a_full_model_is_skipped() {
    let mut yard = Yard::new(serial("ab").together().slots(2).concurrency(1));
    yard.warm('a');
    yard.warm('b');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'a', 100, "");
    yard.arrive(3, 'b', -100, "run 3 on b");
}

#[test]
fn each_candidate_takes_one_slot_from_the_budget_also_by_waiting() {
    let mut yard = Yard::new(serial("ab").slots(2));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'b', 20, "");
    // One slot is left, but it is the one that 2 waits for.
    yard.arrive(3, 'a', 0, "");
    yard.finish(1, "stop a evicted");
    yard.stopped('a', "load b for 2 after a");
    yard.loaded('b', "run 2 on b");
    yard.finish(2, "stop b evicted");
    yard.stopped('b', "load a for 3 after b");
}

#[test]
fn jobs_that_take_no_slot_go_beside() {
    let mut yard = Yard::new(serial("ae").together().model('e', |e| e.takes_slot = false));
    yard.warm('a');
    yard.warm('e');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'e', -100, "run 2 on e");
    yard.arrive(3, 'e', -100, "run 3 on e");
    yard.arrive(4, 'a', 0, "");
    yard.finish(2, "");
    yard.finish(1, "run 4 on a");
    assert_eq!(yard.scheduler.running(), 2);
}

#[test]
fn the_dispatch_after_a_load_tells_how_long_the_swap_took() {
    let mut yard = Yard::new(serial("ab"));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'b', 0, "");
    yard.wait(7).finish(1, "stop a evicted");
    yard.wait(2).stopped('a', "load b for 2 after a");
    yard.wait(30).arrive(3, 'b', 0, "");
    yard.wait(5).loaded('b', "run 2 on b");
    let decision = yard.decision(2);
    assert_eq!((decision.waited, decision.swap), (secs(44), Some(secs(37))));
    assert_eq!(decision.affinity, 0, "its model was not ready: it was made so");
    yard.wait(1).finish(2, "run 3 on b");
    assert_eq!((yard.decision(3).waited, yard.decision(3).swap), (secs(6), Some(secs(5))));
    yard.arrive(4, 'b', 0, "");
    yard.finish(3, "run 4 on b");
    assert_eq!(yard.decision(4).swap, None);
}

#[test]
fn a_request_that_had_to_be_loaded_for_still_tells_whom_it_passed() {
    let mut yard = Yard::new(serial("ab"));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'b', -100, "");
    yard.wait(7_000).arrive(3, 'a', 0, "");
    yard.finish(1, "stop a evicted");
    yard.stopped('a', "load b for 2 after a");
    yard.loaded('b', "run 2 on b");
    assert_eq!(yard.decision(2).passed_by_aging, Some(RequestId(3)));
}

#[test]
fn the_top_request_keeps_its_turn_while_its_model_stops() {
    let mut yard = Yard::new(serial("ab").together());
    yard.warm('a');
    yard.warm('b');
    yard.event(Event::Unload { models: vec![model('a')] }, "stop a unload");
    yard.arrive(1, 'a', 20, "");
    yard.arrive(2, 'b', 0, "");
    yard.stopped('a', "load a for 1");
}
