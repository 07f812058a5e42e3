//! Limits on one caller's requests.

use switchyard_scheduler::{Caller, CallerId, Event, Request, RequestId};

use crate::yard::{Tune, Yard, fifo, secs, serial};

/// A request of caller 7, of whom so many may wait and run.
fn of(waiting: u32, running: u32, request: Request) -> Request {
    let limit = |limit| (limit > 0).then_some(limit);
    Request { caller: Some(Caller { id: CallerId(7), waiting: limit(waiting), running: limit(running) }), ..request }
}

/// One who may run one request at a time.
fn single(id: u64, letter: char, priority: i64) -> Request {
    of(0, 1, Yard::plain(id, letter, priority))
}

fn warm(settings: switchyard_scheduler::Settings, letters: &str) -> Yard {
    let mut yard = Yard::new(settings);
    letters.chars().for_each(|letter| yard.warm(letter));
    yard
}

#[test]
fn no_more_run_than_may_and_others_are_not_held_up() {
    let mut yard = warm(fifo("a"), "a");
    yard.request(single(1, 'a', 0), "run 1 on a");
    yard.request(single(2, 'a', 100), "");
    yard.request(single(3, 'a', 0), "");
    yard.arrive(4, 'a', -100, "run 4 on a");
    assert_eq!(yard.waiting(), 2);
    yard.finish(4, "");
    yard.finish(1, "run 2 on a");
    yard.finish(2, "run 3 on a");
    yard.finish(3, "");
}

#[test]
fn the_most_urgent_of_ones_own_goes_first_whatever_came_first() {
    let mut yard = warm(serial("ab").together().divisor(0), "ab");
    yard.arrive(1, 'a', 0, "run 1 on a");
    // Its place in the policy goes to whoever is more urgent, whichever model that is for.
    yard.request(single(2, 'a', -100), "");
    yard.request(single(3, 'b', 0), "");
    yard.request(single(4, 'a', 0), "");
    yard.request(single(5, 'b', 100), "");
    yard.arrive(6, 'b', 50, "");
    yard.finish(1, "run 5 on b");
    yard.finish(5, "run 6 on b");
    yard.finish(6, "run 3 on b");
    yard.finish(3, "run 4 on a");
    yard.finish(4, "run 2 on a");
}

#[test]
fn who_is_let_in_late_keeps_the_place_of_its_arrival() {
    for divisor in [0, 60] {
        let mut yard = warm(serial("a").divisor(divisor), "a");
        yard.request(single(1, 'a', 0), "run 1 on a");
        yard.request(single(2, 'a', 0), "");
        yard.wait(30).arrive(3, 'a', 0, "");
        yard.wait(30).arrive(4, 'a', 0, "");
        yard.finish(1, "run 2 on a");
        assert_eq!(yard.decision(2).waited, secs(60));
        yard.finish(2, "run 3 on a");
        yard.finish(3, "run 4 on a");
    }
}

#[test]
fn the_place_of_an_arrival_is_found_anywhere_in_a_queue() {
    let mut yard = warm(serial("a").divisor(0), "a");
    yard.arrive(1, 'a', 0, "run 1 on a");
    for id in 2..20 {
        let caller = Caller { id: CallerId(id % 3), waiting: None, running: Some(1) };
        yard.request(Request { caller: Some(caller), ..Yard::plain(id, 'a', 0) }, "");
    }
    yard.arrive(20, 'a', 0, "");
    for id in 1..20 {
        yard.finish(id, &format!("run {} on a", id + 1));
    }
}

#[test]
fn a_caller_keeps_waiting_no_more_than_may() {
    let mut yard = warm(fifo("a").concurrency(1), "a");
    let request = |id| of(2, 5, Yard::plain(id, 'a', 0));
    yard.request(request(1), "run 1 on a");
    yard.request(request(2), "");
    yard.request(request(3), "");
    yard.request(request(4), "reject 4 rejected_limit");
    assert!(yard.retry_after().is_some());
    yard.arrive(5, 'a', 0, "");
    yard.finish(1, "run 2 on a");
    yard.request(request(6), "");
    yard.request(request(7), "reject 7 rejected_limit");
    yard.cancel(6, "");
    yard.request(request(8), "");
}

#[test]
fn who_can_go_at_once_does_not_wait() {
    let mut yard = warm(fifo("a"), "a");
    let request = |id| of(1, 2, Yard::plain(id, 'a', 0));
    yard.request(request(1), "run 1 on a");
    yard.request(request(2), "run 2 on a");
    yard.request(request(3), "");
    yard.request(request(4), "reject 4 rejected_limit");
    yard.finish(1, "run 3 on a");
}

#[test]
fn parked_requests_expire_and_are_displaced_and_count() {
    let mut yard = warm(fifo("a").waiting(2), "a");
    yard.request(single(1, 'a', 0), "run 1 on a");
    yard.request(Request { ttl: Some(secs(5)), ..single(2, 'a', 0) }, "");
    yard.request(single(3, 'a', -1), "");
    yard.request(single(4, 'a', 0), "reject 3 evicted");
    yard.deadline(5, "reject 2 rejected_ttl");
    yard.finish(1, "run 4 on a");
    assert_eq!(yard.waiting(), 0);
}

#[test]
fn a_place_in_the_policy_is_free_again_however_its_holder_leaves() {
    let mut yard = Yard::new(fifo("ab"));
    yard.request(single(1, 'a', 0), "load a for 1");
    yard.request(single(2, 'b', 0), "");
    yard.cancel(1, "stop a abandoned");
    yard.stopped('a', "load b for 2 after a");
    yard.request(single(3, 'a', 0), "");
    yard.load_failed('b', "reject 2 load_failed, load a for 3");
    yard.request(Request { ttl: Some(secs(5)), ..single(4, 'a', 200) }, "");
    yard.loaded('a', "run 3 on a");
    yard.finish(3, "run 4 on a");
}

#[test]
fn who_is_being_loaded_for_is_not_parked() {
    let mut yard = Yard::new(fifo("ab"));
    yard.request(single(1, 'a', 0), "load a for 1");
    yard.request(single(2, 'b', 100), "");
    yard.loaded('a', "run 1 on a");
    yard.finish(1, "stop a evicted");
    yard.stopped('a', "load b for 2 after a");
}

#[test]
fn the_latest_limits_count() {
    let mut yard = warm(fifo("a"), "a");
    yard.request(single(1, 'a', 0), "run 1 on a");
    yard.request(single(2, 'a', 0), "");
    yard.request(of(0, 3, Yard::plain(3, 'a', 0)), "run 3 on a");
    yard.finish(1, "run 2 on a");
    // Fewer than run now: nobody goes until there is room again.
    yard.request(single(4, 'a', 0), "");
    yard.finish(2, "");
    yard.finish(3, "run 4 on a");
    // Without limits the caller is no one in particular.
    yard.arrive(5, 'a', 0, "run 5 on a");
}

#[test]
fn new_settings_and_a_drain_find_the_parked() {
    let mut yard = warm(fifo("ab").together(), "ab");
    yard.request(single(1, 'a', 0), "run 1 on a");
    yard.request(single(2, 'a', 0), "");
    yard.request(single(3, 'b', 0), "");
    let settings = fifo("a");
    yard.event(Event::Reconfigure(Box::new(settings)), "stop b reconfigured, reject 3 unknown_model");
    yard.request(single(4, 'a', 0), "");
    yard.event(Event::Drain, "reject 2 shutdown, reject 4 shutdown");
    yard.stopped('b', "");
    yard.finish(1, "stop a shutdown");
    yard.stopped('a', "drained");
}

#[test]
fn a_parked_request_can_be_cancelled_and_never_runs() {
    let mut yard = warm(fifo("a"), "a");
    yard.request(single(1, 'a', 0), "run 1 on a");
    yard.request(single(2, 'a', 0), "");
    yard.request(single(3, 'a', 0), "");
    yard.cancel(2, "");
    yard.event(Event::Finished { id: RequestId(3), usage: Default::default() }, "");
    yard.finish(1, "run 3 on a");
}
