//! A swap that has begun is committed: for whom, until when, and what becomes of it when they leave.

use switchyard_scheduler::{Event, ReplicaState};

use crate::yard::{Tune, Yard, fifo, serial};

#[test]
fn later_arrivals_do_not_turn_a_swap_round() {
    for settings in [serial("abc"), fifo("abc")] {
        let mut yard = Yard::new(settings);
        yard.warm('a');
        yard.arrive(1, 'b', -100, "stop a evicted");
        yard.arrive(2, 'c', 100, "");
        yard.arrive(3, 'a', 100, "");
        yard.stopped('a', "load b for 1 after a");
        yard.arrive(4, 'c', 200, "");
        yard.loaded('b', "run 1 on b");
        yard.finish(1, "stop b evicted");
        yard.stopped('b', "load c for 4 after b");
    }
}

#[test]
fn a_more_urgent_request_for_the_same_model_slips_in_front() {
    let mut yard = Yard::new(serial("ab"));
    yard.arrive(1, 'a', 0, "load a for 1");
    yard.arrive(2, 'a', 50, "");
    yard.loaded('a', "run 2 on a");
    assert_eq!(yard.decision(2).passed_by_aging, None);
    yard.finish(2, "run 1 on a");
}

#[test]
fn a_model_just_loaded_is_not_evicted_before_the_request_it_was_loaded_for() {
    let mut yard = Yard::new(serial("ab"));
    yard.arrive(1, 'a', 0, "load a for 1");
    yard.arrive(2, 'a', 50, "");
    yard.arrive(3, 'b', 100, "");
    yard.loaded('a', "run 2 on a");
    // 3 is the best by far, but it would have to send `a` away before 1 has had it.
    yard.finish(2, "run 1 on a");
    yard.finish(1, "stop a evicted");
}

#[test]
fn the_pin_holds_under_fifo_too() {
    let mut yard = Yard::new(fifo("ab").concurrency(1));
    yard.arrive(1, 'a', 0, "load a for 1");
    yard.arrive(2, 'a', 50, "");
    yard.arrive(3, 'b', 100, "");
    yard.arrive(4, 'a', 60, "");
    yard.loaded('a', "run 4 on a");
    // 2 comes before 1, but 3 comes before both, and only 1 has the pin.
    yard.finish(4, "run 1 on a");
    yard.finish(1, "stop a evicted");
    yard.stopped('a', "load b for 3 after a");
}

#[test]
fn the_pin_outlives_the_wish_for_one_more_replica() {
    let mut yard = Yard::new(fifo("ab").concurrency(1).model('a', |a| a.replicas = 2));
    yard.arrive(1, 'a', 0, "load a for 1");
    yard.arrive(2, 'a', 50, "");
    yard.arrive(3, 'a', 60, "");
    yard.loaded('a', "run 3 on a");
    yard.arrive(4, 'b', 100, "");
    yard.finish(3, "run 1 on a");
}

#[test]
fn the_pin_goes_with_its_request() {
    let mut yard = Yard::new(serial("ab"));
    yard.arrive(1, 'a', 0, "load a for 1");
    yard.arrive(2, 'a', 50, "");
    yard.arrive(3, 'b', 100, "");
    yard.loaded('a', "run 2 on a");
    yard.cancel(1, "");
    yard.finish(2, "stop a evicted");
}

#[test]
fn a_swap_passes_to_the_next_who_waits_for_the_model() {
    let mut yard = Yard::new(serial("abc"));
    yard.warm('c');
    yard.arrive(1, 'a', 0, "stop c evicted");
    yard.arrive(2, 'a', -5, "");
    yard.arrive(3, 'b', 100, "");
    yard.cancel(1, "");
    yard.stopped('c', "load a for 2 after c");
    yard.arrive(4, 'a', -50, "");
    yard.cancel(2, "");
    yard.loaded('a', "run 4 on a");
}

#[test]
fn who_takes_over_a_swap_has_passed_nobody() {
    let mut yard = Yard::new(serial("ab"));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'b', -100, "");
    yard.wait(7_000).arrive(3, 'a', 0, "");
    yard.arrive(4, 'b', -100, "");
    yard.finish(1, "stop a evicted");
    yard.cancel(2, "");
    yard.stopped('a', "load b for 4 after a");
    yard.loaded('b', "run 4 on b");
    assert_eq!(yard.decision(4).passed_by_aging, None);
}

#[test]
fn a_load_that_nobody_waits_for_is_aborted_when_it_is_in_the_way() {
    for settings in [serial("ab"), fifo("ab")] {
        let mut yard = Yard::new(settings);
        yard.arrive(1, 'a', 0, "load a for 1");
        yard.arrive(2, 'b', 0, "");
        yard.cancel(1, "stop a abandoned");
        yard.stopped('a', "load b for 2 after a");
        yard.loaded('b', "run 2 on b");
    }
}

#[test]
fn a_load_that_nobody_waits_for_is_aborted_later_too() {
    let mut yard = Yard::new(serial("ab"));
    yard.arrive(1, 'a', 0, "load a for 1");
    yard.cancel(1, "");
    yard.arrive(2, 'b', 0, "stop a abandoned");
}

#[test]
fn a_load_that_is_in_nobodys_way_finishes_and_stays_warm() {
    let mut yard = Yard::new(serial("ab"));
    yard.arrive(1, 'a', 0, "load a for 1");
    yard.cancel(1, "");
    yard.loaded('a', "");
    assert_eq!(yard.state('a'), ReplicaState::Ready);
    yard.arrive(2, 'a', 0, "run 2 on a");
}

#[test]
fn a_load_without_owner_is_taken_over() {
    let mut yard = Yard::new(serial("ab"));
    yard.arrive(1, 'a', 0, "load a for 1");
    yard.cancel(1, "");
    yard.arrive(2, 'a', 0, "");
    yard.arrive(3, 'b', 100, "");
    yard.loaded('a', "run 2 on a");
}

#[test]
fn a_load_is_taken_over_only_with_a_slot_to_spare() {
    let mut yard = Yard::new(serial("ab").together());
    yard.warm('b');
    yard.arrive(1, 'a', 0, "load a for 1");
    yard.arrive(2, 'b', 0, "");
    yard.cancel(1, "run 2 on b");
    yard.arrive(3, 'a', 0, "");
    yard.loaded('a', "");
    assert_eq!(yard.scheduler.running(), 1);
    yard.finish(2, "run 3 on a");
}

#[test]
fn a_load_that_has_to_leave_for_a_better_request_is_not_taken_over() {
    let mut yard = Yard::new(fifo("apx").group("", "ap").group("exclusive", "x"));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'p', 0, "load p for 2");
    yard.cancel(2, "");
    yard.arrive(3, 'x', 0, "");
    yard.arrive(4, 'p', 0, "");
    yard.finish(1, "stop a evicted, stop p abandoned");
}

#[test]
fn both_the_pinned_and_whom_it_keeps_waiting_take_a_slot() {
    let settings = serial("abf").group("swap", "ab").group("persistent", "f").slots(2).concurrency(1);
    let mut yard = Yard::new(settings);
    yard.warm('f');
    yard.arrive(1, 'a', 0, "load a for 1");
    yard.arrive(2, 'a', 50, "");
    yard.loaded('a', "run 2 on a");
    yard.arrive(3, 'b', 100, "");
    yard.arrive(4, 'f', 0, "");
    yard.finish(2, "run 1 on a");
    yard.finish(1, "stop a evicted, run 4 on f");
}

#[test]
fn who_leaves_before_the_load_is_not_loaded_for() {
    let mut yard = Yard::new(serial("ab"));
    yard.warm('a');
    yard.arrive(1, 'b', 0, "stop a evicted");
    yard.cancel(1, "");
    yard.stopped('a', "");
    assert_eq!(yard.state('b'), ReplicaState::Stopped);
    yard.arrive(2, 'a', 0, "load a for 2");
}

#[test]
fn who_leaves_while_waiting_for_room_dooms_nobody_any_more() {
    let mut yard = Yard::new(fifo("ab"));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'b', 0, "");
    yard.arrive(3, 'a', 0, "");
    yard.cancel(2, "run 3 on a");
}

#[test]
fn a_preload_that_waits_for_its_evictions_yields_to_a_request() {
    let mut yard = Yard::new(serial("abc"));
    yard.warm('a');
    yard.event(Event::Preload { models: vec![crate::yard::model('b')] }, "stop a evicted");
    yard.arrive(1, 'c', 0, "");
    yard.stopped('a', "load c for 1");
}

#[test]
fn a_preload_does_not_come_between_a_request_and_its_evictions() {
    let mut yard = Yard::new(fifo("xypw").matrix(&["xy", "py", "wx"]));
    yard.warm('x');
    yard.warm('y');
    yard.event(Event::Preload { models: vec![crate::yard::model('p')] }, "stop x evicted");
    yard.arrive(1, 'w', 0, "stop y evicted");
    yard.stopped('x', "");
    yard.stopped('y', "load w for 1 after y");
}

#[test]
fn the_room_of_a_swap_is_not_taken_by_thirds_that_fit_with_either_alone() {
    // `b` waits for `x` to stop and will stay with `a`; `c` fits with `a` and with `b`, but not with both.
    let mut yard = Yard::new(fifo("abcx").matrix(&["ab", "bc", "ac", "ax", "cx"]));
    yard.warm('a');
    yard.warm('x');
    yard.arrive(1, 'b', 0, "stop x evicted");
    yard.arrive(2, 'c', 0, "");
    yard.stopped('x', "load b for 1 after x, stop a evicted");
    yard.loaded('b', "run 1 on b");
    yard.stopped('a', "load c for 2 after a");
}
