//! Who may wait, and for how long.

use std::time::Duration;

use switchyard_scheduler::{Band, Event, Request, Timestamp};

use crate::yard::{Tune, Yard, bounds, secs, serial};

fn busy(settings: switchyard_scheduler::Settings) -> Yard {
    let mut yard = Yard::new(settings);
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard
}

#[test]
fn the_default_bounds_are_finite_and_take_a_days_batch() {
    let mut yard = busy(serial("a"));
    for id in 2..10_002 {
        yard.arrive(id, 'a', -100, "");
    }
    yard.arrive(10_002, 'a', -100, "reject 10002 rejected_capacity");
}

#[test]
fn what_can_go_at_once_never_meets_a_bound() {
    let mut yard = Yard::new(serial("a").waiting(0));
    yard.warm('a');
    yard.arrive(1, 'a', -100, "run 1 on a");
    yard.arrive(2, 'a', 100, "reject 2 rejected_capacity");
    yard.finish(1, "");
    yard.arrive(3, 'a', 0, "run 3 on a");
}

#[test]
fn nothing_is_loaded_for_who_may_not_wait() {
    let mut yard = Yard::new(serial("ab").waiting(0));
    yard.arrive(1, 'a', 0, "reject 1 rejected_capacity");
    yard.warm('a');
    yard.arrive(2, 'b', 0, "reject 2 rejected_capacity");
    yard.arrive(3, 'a', 0, "run 3 on a");
}

#[test]
fn the_newest_of_the_least_urgent_is_displaced() {
    let mut yard = busy(serial("ab").waiting(4));
    yard.arrive(2, 'a', -100, "");
    yard.arrive(3, 'b', -100, "");
    yard.arrive(4, 'a', -50, "");
    yard.arrive(5, 'a', 0, "");
    yard.arrive(6, 'a', 100, "reject 3 evicted");
    yard.arrive(7, 'a', -99, "reject 2 evicted");
    yard.arrive(8, 'a', -99, "reject 8 rejected_capacity");
    yard.arrive(9, 'a', i64::MAX, "reject 7 evicted");
    yard.arrive(10, 'a', -49, "reject 4 evicted");
    yard.arrive(11, 'a', 5, "reject 10 evicted");
    // None of those who are left is sheddable.
    yard.arrive(12, 'a', 1_000, "reject 12 rejected_capacity");
}

#[test]
fn a_bound_of_a_band_displaces_only_in_that_band() {
    let bands = |bands: &mut [switchyard_scheduler::BandSettings; 3]| {
        bands[Band::Batch.index()].bounds.requests = 1;
        bands[Band::Normal.index()].bounds.requests = 1;
    };
    let mut yard = busy(serial("a").bands(bands));
    yard.arrive(2, 'a', -100, "");
    yard.arrive(3, 'a', 0, "");
    yard.arrive(4, 'a', 50, "reject 4 rejected_capacity");
    yard.arrive(5, 'a', -100, "reject 5 rejected_capacity");
    yard.arrive(6, 'a', -1, "reject 2 evicted");
    yard.arrive(7, 'a', 100, "");
}

#[test]
fn bytes_are_bounded_too() {
    let mut yard = busy(serial("a").tune(|settings| settings.admission.total = bounds(100, 1_000)));
    let body = |id, priority, bytes| Request { bytes, ..Yard::plain(id, 'a', priority) };
    yard.request(body(2, -100, 400), "");
    yard.request(body(3, -100, 400), "");
    yard.request(body(4, 0, 300), "reject 3 evicted");
    yard.request(body(5, 0, 600), "reject 2 evicted");
    yard.request(body(6, -1, 100), "");
    // It would not fit though the last sheddable one left, so that one stays.
    yard.request(body(7, 0, 300), "reject 7 rejected_capacity");
    assert_eq!(yard.scheduler.bands().map(|band| (band.requests, band.bytes)), [(1, 100), (2, 900), (0, 0)]);
}

#[test]
fn a_large_arrival_displaces_as_many_as_it_needs() {
    let mut yard = busy(serial("a").tune(|settings| settings.admission.total = bounds(100, 1_000)));
    let body = |id, priority, bytes| Request { bytes, ..Yard::plain(id, 'a', priority) };
    for id in 2..12 {
        yard.request(body(id, -100, 100), "");
    }
    yard.request(body(12, 0, 250), "reject 11 evicted, reject 10 evicted, reject 9 evicted");
}

#[test]
fn a_ttl_ends_the_wait() {
    let mut yard = busy(serial("a").bands(|bands| bands[Band::Batch.index()].ttl = Some(secs(60))));
    let asks = |id, priority, ttl| Request { ttl: Some(secs(ttl)), ..Yard::plain(id, 'a', priority) };
    yard.arrive(2, 'a', -1, "");
    yard.request(asks(3, -1, 30), "");
    yard.request(asks(4, -1, 90), "");
    yard.request(asks(5, 0, 40), "");
    yard.arrive(6, 'a', 0, "");
    yard.deadline(30, "reject 3 rejected_ttl");
    yard.deadline(40, "reject 5 rejected_ttl");
    yard.deadline(60, "reject 2 rejected_ttl, reject 4 rejected_ttl");
    assert_eq!(yard.scheduler.deadline(), None);
    yard.finish(1, "run 6 on a");
}

#[test]
fn a_late_tick_does_not_let_the_expired_go() {
    let mut yard = busy(serial("a"));
    yard.request(Request { ttl: Some(secs(5)), ..Yard::plain(2, 'a', 0) }, "");
    yard.arrive(3, 'a', 0, "");
    yard.wait(6).finish(1, "reject 2 rejected_ttl, run 3 on a");
}

#[test]
fn a_ttl_ends_with_the_wait() {
    let mut yard = busy(serial("a"));
    yard.request(Request { ttl: Some(secs(5)), ..Yard::plain(2, 'a', 0) }, "");
    yard.finish(1, "run 2 on a");
    assert_eq!(yard.scheduler.deadline(), None);
    yard.request(Request { ttl: Some(Duration::ZERO), ..Yard::plain(3, 'a', 0) }, "");
    yard.deadline(0, "reject 3 rejected_ttl");
}

#[test]
fn retry_after_follows_the_pace_of_the_queue() {
    let mut yard = busy(serial("a").waiting(5));
    for id in 2..7 {
        yard.arrive(id, 'a', 0, "");
    }
    for id in 1..4 {
        yard.wait(4).finish(id, &format!("run {} on a", id + 1));
        yard.arrive(100 + id, 'a', 0, "");
    }
    yard.arrive(200, 'a', 0, "reject 200 rejected_capacity");
    assert_eq!(yard.retry_after(), Some(secs(5 * 4)));
}

#[test]
fn the_view_shows_what_waits() {
    let mut yard = busy(serial("ab"));
    yard.wait(1).arrive(2, 'a', -100, "");
    yard.wait(1).arrive(3, 'b', -5, "");
    yard.wait(1).arrive(4, 'b', 100, "");
    let bands = yard.scheduler.bands();
    assert_eq!(bands.map(|band| band.requests), [2, 0, 1]);
    let oldest = [Some(Timestamp::from_secs(1)), None, Some(Timestamp::from_secs(3))];
    assert_eq!(bands.map(|band| band.oldest), oldest);
    yard.cancel(2, "");
    assert_eq!(yard.scheduler.bands()[0].oldest, Some(Timestamp::from_secs(2)));
}

#[test]
fn lowered_bounds_let_those_who_wait_stay() {
    let mut yard = busy(serial("a"));
    for id in 2..8 {
        yard.arrive(id, 'a', -100, "");
    }
    yard.event(Event::Reconfigure(Box::new(serial("a").waiting(2))), "");
    assert_eq!(yard.waiting(), 6);
    yard.arrive(8, 'a', -100, "reject 8 rejected_capacity");
    // One in, one out.
    yard.arrive(9, 'a', 0, "reject 7 evicted");
    assert_eq!(yard.waiting(), 6);
}

#[test]
fn a_new_ttl_is_for_those_who_wait_too() {
    let mut yard = busy(serial("a"));
    yard.arrive(2, 'a', 0, "");
    yard.request(Request { ttl: Some(secs(5)), ..Yard::plain(3, 'a', 0) }, "");
    let shorter = serial("a").bands(|bands| bands[Band::Normal.index()].ttl = Some(secs(20)));
    yard.event(Event::Reconfigure(Box::new(shorter)), "");
    yard.deadline(5, "reject 3 rejected_ttl");
    yard.deadline(20, "reject 2 rejected_ttl");
    // One that has waited for longer already goes at once.
    yard.arrive(4, 'a', 0, "");
    yard.event(Event::Reconfigure(Box::new(serial("a"))), "");
    assert_eq!(yard.scheduler.deadline(), None);
    yard.wait(30);
    let shorter = serial("a").bands(|bands| bands[Band::Normal.index()].ttl = Some(secs(20)));
    yard.event(Event::Reconfigure(Box::new(shorter)), "reject 4 rejected_ttl");
}
