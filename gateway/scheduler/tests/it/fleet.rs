//! Models come and go: ttl, unload, preload, new settings, shutdown.

use switchyard_scheduler::{Event, ReplicaState};

use crate::yard::{Tune, Yard, fifo, model, secs, serial};

fn unload(letters: &str) -> Event {
    Event::Unload { models: letters.chars().map(model).collect() }
}

fn preload(letters: &str) -> Event {
    Event::Preload { models: letters.chars().map(model).collect() }
}

fn reconfigure(settings: switchyard_scheduler::Settings) -> Event {
    Event::Reconfigure(Box::new(settings))
}

#[test]
fn a_ttl_counts_from_the_end_of_the_last_request() {
    let mut yard = Yard::new(serial("a").model('a', |a| a.ttl = Some(secs(10))));
    yard.arrive(1, 'a', 0, "load a for 1");
    yard.loaded('a', "run 1 on a");
    yard.wait(100).event(Event::Tick, "");
    yard.finish(1, "");
    yard.wait(5).arrive(2, 'a', 0, "run 2 on a");
    yard.wait(1).finish(2, "");
    // The alarm of the first idle time rings once for nothing.
    yard.deadline(110, "");
    yard.deadline(116, "stop a idle");
    yard.stopped('a', "");
    assert_eq!(yard.scheduler.deadline(), None);
    yard.arrive(3, 'a', 0, "load a for 3");
}

#[test]
fn a_ttl_counts_from_the_load_when_nothing_came() {
    let mut yard = Yard::new(serial("a").model('a', |a| a.ttl = Some(secs(10))));
    yard.warm('a');
    yard.deadline(10, "stop a idle");
}

#[test]
fn a_ttl_does_not_run_while_somebody_waits_for_the_model() {
    let mut yard = Yard::new(serial("ab").together().model('a', |a| a.ttl = Some(secs(10))));
    yard.warm('a');
    yard.warm('b');
    yard.arrive(1, 'b', 0, "run 1 on b");
    yard.arrive(2, 'a', 0, "");
    yard.wait(20).event(Event::Tick, "");
    assert_eq!(yard.scheduler.deadline(), None);
    yard.finish(1, "run 2 on a");
    yard.finish(2, "");
    yard.deadline(30, "stop a idle");
}

#[test]
fn a_ttl_runs_again_when_who_waited_leaves() {
    let mut yard = Yard::new(serial("ab").together().model('a', |a| a.ttl = Some(secs(10))));
    yard.warm('a');
    yard.warm('b');
    yard.arrive(1, 'b', 0, "run 1 on b");
    yard.arrive(2, 'a', 0, "");
    yard.wait(20).event(Event::Tick, "");
    yard.cancel(2, "stop a idle");
}

#[test]
fn a_new_ttl_counts_at_once() {
    let with_ttl = |ttl| serial("a").model('a', |a| a.ttl = Some(secs(ttl)));
    let mut yard = Yard::new(with_ttl(100));
    yard.warm('a');
    yard.event(reconfigure(with_ttl(10)), "");
    yard.deadline(10, "stop a idle");
}

#[test]
fn an_unload_stops_even_what_runs_and_those_who_wait_load_it_again() {
    let mut yard = Yard::new(serial("ab").together());
    yard.warm('a');
    yard.warm('b');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'a', 0, "");
    yard.event(unload("a"), "stop a unload");
    yard.event(unload("a"), "");
    yard.stopped('a', "");
    yard.finish(1, "load a for 2");
    assert_eq!(yard.state('b'), ReplicaState::Ready);
    yard.event(unload(""), "stop a unload, stop b unload");
}

#[test]
fn an_unload_of_a_loading_model_starts_it_over_for_those_who_wait() {
    let mut yard = Yard::new(serial("a"));
    yard.arrive(1, 'a', 0, "load a for 1");
    yard.event(unload("a"), "stop a unload");
    yard.stopped('a', "load a for 1");
    yard.loaded('a', "run 1 on a");
}

#[test]
fn an_unload_that_takes_long_delays_nobody_else() {
    let mut yard = Yard::new(fifo("ab").together());
    yard.warm('a');
    yard.event(unload("a"), "stop a unload");
    yard.arrive(1, 'a', 100, "");
    yard.arrive(2, 'b', 0, "load b for 2");
    yard.loaded('b', "run 2 on b");
    yard.stopped('a', "load a for 1");
}

#[test]
fn preloads_go_in_order_as_far_as_they_fit() {
    let mut yard = Yard::new(serial("abcd").group("", "abd").group("exclusive", "c"));
    yard.event(preload("abcd"), "load a, load b, load d");
    yard.loaded('b', "");
    yard.loaded('a', "");
    yard.loaded('d', "");
}

#[test]
fn preloads_never_evict_each_other() {
    let mut yard = Yard::new(serial("abc"));
    yard.event(preload("abc"), "load a");
    yard.loaded('a', "");
    // A later wish is another matter.
    yard.event(preload("b"), "stop a evicted");
    yard.stopped('a', "load b after a");
    yard.loaded('b', "");
}

#[test]
fn a_preload_waits_for_the_room_that_another_makes() {
    let mut yard = Yard::new(serial("xpq").matrix(&["xq", "p"]));
    yard.warm('x');
    yard.event(preload("p"), "stop x evicted");
    yard.event(preload("q"), "");
    yard.stopped('x', "load p after x");
    yard.loaded('p', "stop p evicted");
}

#[test]
fn preloads_wait_until_nobody_waits_and_nothing_in_the_way_runs() {
    let mut yard = Yard::new(serial("ab"));
    yard.arrive(1, 'a', 0, "load a for 1");
    yard.event(preload("b"), "");
    yard.loaded('a', "run 1 on a");
    yard.finish(1, "stop a evicted");
    yard.stopped('a', "load b after a");
}

#[test]
fn a_preload_in_the_way_of_a_request_is_given_up() {
    let mut yard = Yard::new(serial("ab"));
    yard.event(preload("a"), "load a");
    yard.arrive(1, 'b', -100, "stop a abandoned");
    yard.stopped('a', "load b for 1 after a");
}

#[test]
fn a_request_joins_the_preload_of_its_model() {
    let mut yard = Yard::new(serial("ab"));
    yard.event(preload("a"), "load a");
    yard.arrive(1, 'a', 0, "");
    yard.arrive(2, 'b', 100, "");
    yard.loaded('a', "run 1 on a");
}

#[test]
fn a_failed_preload_is_not_repeated() {
    let mut yard = Yard::new(serial("a"));
    yard.event(preload("a"), "load a");
    yard.load_failed('a', "");
    yard.deadline(1, "");
    yard.event(preload("az"), "load a");
}

#[test]
fn waiting_requests_keep_their_place_under_new_settings() {
    let mut yard = Yard::new(serial("ab").together());
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'a', 0, "");
    yard.arrive(3, 'b', 0, "");
    yard.arrive(4, 'a', 5, "");
    yard.event(reconfigure(fifo("ab").together().concurrency(1)), "load b for 3");
    yard.loaded('b', "run 3 on b");
    yard.finish(1, "run 4 on a");
    yard.finish(4, "run 2 on a");
}

#[test]
fn models_that_are_gone_reject_those_who_wait_and_stop_when_idle() {
    let mut yard = Yard::new(serial("ab").together());
    yard.warm('a');
    yard.warm('b');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'a', 0, "");
    yard.arrive(3, 'b', 0, "");
    yard.event(reconfigure(serial("b").together()), "reject 2 unknown_model");
    assert_eq!(yard.retry_after(), None);
    yard.arrive(4, 'a', 0, "reject 4 unknown_model");
    yard.finish(1, "stop a reconfigured, run 3 on b");
    yard.stopped('a', "");
    assert_eq!(yard.scheduler.replicas().count(), 1);
    // It may come back.
    yard.event(reconfigure(serial("ab").together()), "");
    yard.finish(3, "");
    yard.arrive(5, 'a', 0, "load a for 5");
}

#[test]
fn a_new_revision_is_loaded_anew_once_the_old_is_idle() {
    let mut yard = Yard::new(fifo("a"));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.event(reconfigure(fifo("a").model('a', |a| a.revision = 1)), "");
    yard.arrive(2, 'a', 0, "");
    yard.finish(1, "stop a reconfigured");
    yard.stopped('a', "load a for 2");
    yard.loaded('a', "run 2 on a");
}

#[test]
fn a_load_of_an_old_revision_is_stopped_at_once() {
    let mut yard = Yard::new(fifo("ab"));
    yard.arrive(1, 'a', 0, "load a for 1");
    yard.arrive(2, 'b', 0, "");
    yard.event(reconfigure(fifo("ab").model('a', |a| a.revision = 1)), "stop a reconfigured");
    yard.stopped('a', "load a for 1");
}

#[test]
fn a_new_revision_ends_the_pause() {
    let mut yard = Yard::new(fifo("a"));
    yard.arrive(1, 'a', 0, "load a for 1");
    yard.arrive(2, 'a', 0, "");
    yard.load_failed('a', "reject 1 load_failed");
    yard.event(reconfigure(fifo("a").model('a', |a| a.revision = 1)), "load a for 2");
}

#[test]
fn other_models_keep_running_under_new_settings() {
    let mut yard = Yard::new(fifo("ab").together());
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.event(reconfigure(fifo("abc").together()), "");
    yard.arrive(2, 'a', 0, "run 2 on a");
    yard.arrive(3, 'c', 0, "load c for 3");
}

#[test]
fn an_eviction_that_new_settings_overtake_is_called_off_and_thought_over() {
    // `x` waits for `a` to stop when the settings make `b`, which is busy, stand in its way too.
    let mut yard = Yard::new(fifo("abx").group("", "b").group("swap", "ax"));
    yard.warm('a');
    yard.warm('b');
    yard.arrive(1, 'b', 0, "run 1 on b");
    yard.arrive(2, 'x', 0, "stop a evicted");
    yard.event(reconfigure(fifo("abx")), "");
    yard.stopped('a', "");
    yard.arrive(3, 'b', 0, "");
    yard.finish(1, "stop b evicted");
    yard.stopped('b', "load x for 2 after b");
}

#[test]
fn a_drain_rejects_who_waits_lets_finish_what_runs_and_stops_all() {
    let mut yard = Yard::new(fifo("abc").together().concurrency(1));
    yard.warm('a');
    yard.warm('b');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'a', 0, "");
    yard.arrive(3, 'c', 0, "load c for 3");
    yard.event(Event::Drain, "reject 2 shutdown, stop c shutdown, reject 3 shutdown, stop b shutdown");
    assert_eq!(yard.retry_after(), Some(secs(5)));
    yard.event(Event::Drain, "");
    yard.arrive(4, 'a', 0, "reject 4 shutdown");
    yard.event(preload("a"), "");
    yard.stopped('b', "");
    yard.stopped('c', "");
    yard.finish(1, "stop a shutdown");
    yard.stopped('a', "drained");
    yard.event(Event::Tick, "");
}

#[test]
fn a_drain_of_an_idle_scheduler_is_over_at_once() {
    let mut yard = Yard::new(serial("a"));
    yard.event(Event::Drain, "drained");
}

#[test]
fn a_drain_calls_off_what_waits_for_its_evictions() {
    let mut yard = Yard::new(serial("ab"));
    yard.warm('a');
    yard.arrive(1, 'b', 0, "stop a evicted");
    yard.event(Event::Drain, "reject 1 shutdown");
    yard.stopped('a', "drained");

    let mut yard = Yard::new(serial("ab"));
    yard.warm('a');
    yard.event(preload("b"), "stop a evicted");
    yard.event(Event::Drain, "");
    yard.stopped('a', "drained");
}

#[test]
fn a_preload_of_a_model_that_goes_is_forgotten() {
    let mut yard = Yard::new(serial("ab"));
    yard.warm('a');
    yard.event(preload("b"), "stop a evicted");
    yard.event(reconfigure(serial("a")), "");
    yard.stopped('a', "");
    yard.event(reconfigure(serial("ab")), "");
    yard.arrive(1, 'b', 0, "load b for 1");
}
