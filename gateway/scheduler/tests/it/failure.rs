//! Failed loads, crashes, late news.

use switchyard_scheduler::{Event, Generation, ReplicaState, Request, RequestId, Timestamp, Usage};

use crate::yard::{Tune, Yard, fifo, flow, replica, secs, serial};

#[test]
fn a_failed_load_rejects_only_the_request_it_was_for() {
    let mut yard = Yard::new(serial("ab"));
    yard.arrive(1, 'a', 0, "load a for 1");
    yard.arrive(2, 'a', 50, "");
    yard.arrive(3, 'b', -100, "");
    yard.load_failed('a', "reject 1 load_failed, load b for 3");
    assert_eq!(yard.retry_after(), Some(secs(1)));
    yard.loaded('b', "run 3 on b");
    yard.finish(3, "");
    // After the pause the next who waits tries again.
    yard.deadline(1, "stop b evicted");
    yard.stopped('b', "load a for 2 after b");
    yard.loaded('a', "run 2 on a");
}

#[test]
fn a_paused_model_takes_no_slot_and_dooms_nobody() {
    let mut yard = Yard::new(serial("ab"));
    yard.warm('b');
    yard.arrive(1, 'a', 0, "stop b evicted");
    yard.stopped('b', "load a for 1 after b");
    yard.load_failed('a', "reject 1 load_failed");
    yard.arrive(2, 'a', 100, "");
    yard.arrive(3, 'b', 0, "load b for 3");
    yard.loaded('b', "run 3 on b");
    yard.arrive(4, 'b', 0, "");
    yard.finish(3, "run 4 on b");
}

#[test]
fn the_pause_doubles_up_to_its_limit_and_starts_anew_after_service() {
    let mut yard = Yard::new(serial("a"));
    let mut id = 0;
    for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
        id += 1;
        yard.arrive(id, 'a', 0, &format!("load a for {id}"));
        yard.load_failed('a', &format!("reject {id} load_failed"));
        assert_eq!(yard.retry_after(), Some(secs(pause)));
        assert_eq!(yard.state('a'), ReplicaState::Failed { until: yard.now + secs(pause) });
        let now = yard.now.0 / 1_000_000;
        yard.deadline(now + pause, "");
    }
    yard.arrive(100, 'a', 0, "load a for 100");
    yard.loaded('a', "run 100 on a");
    yard.finish(100, "");
    yard.wait(1).exited('a', "");
    assert_eq!(yard.state('a'), ReplicaState::Failed { until: yard.now + secs(1) });
}

#[test]
fn what_ends_in_a_crash_was_no_service() {
    let mut yard = Yard::new(serial("a"));
    for (id, pause) in (1..).zip([1, 2, 4, 8]) {
        yard.arrive(id, 'a', 0, &format!("load a for {id}"));
        yard.loaded('a', &format!("run {id} on a"));
        yard.finish(id, "");
        yard.exited('a', "");
        assert_eq!(yard.state('a'), ReplicaState::Failed { until: yard.now + secs(pause) });
        yard.wait(pause);
    }
}

#[test]
fn no_failure_is_for_ever() {
    let mut yard = Yard::new(serial("a"));
    for id in 1..200 {
        yard.arrive(id, 'a', 0, &format!("load a for {id}"));
        yard.load_failed('a', &format!("reject {id} load_failed"));
        yard.wait(60);
    }
}

#[test]
fn a_crash_ends_its_requests_through_their_own_ends() {
    let mut yard = Yard::new(serial("a"));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'a', 0, "");
    yard.exited('a', "");
    assert_eq!(yard.scheduler.running(), 1, "its slot is held until it says so");
    yard.deadline(1, "");
    yard.finish(1, "load a for 2");
    yard.loaded('a', "run 2 on a");
}

#[test]
fn the_end_of_a_request_of_an_older_load_frees_no_place_on_the_new_one() {
    let mut yard = Yard::new(fifo("a").concurrency(1));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.exited('a', "");
    yard.arrive(2, 'a', 0, "");
    yard.deadline(1, "load a for 2");
    yard.loaded('a', "run 2 on a");
    yard.arrive(3, 'a', 0, "");
    yard.finish(1, "");
    assert_eq!(yard.scheduler.running(), 1);
    yard.finish(2, "run 3 on a");
}

#[test]
fn late_news_is_ignored() {
    let mut yard = Yard::new(serial("ab"));
    yard.arrive(1, 'a', 0, "load a for 1");
    yard.loaded('a', "run 1 on a");
    yard.finish(1, "");
    yard.arrive(2, 'b', 0, "stop a evicted");
    yard.stopped('a', "load b for 2 after a");
    yard.loaded('b', "run 2 on b");
    yard.arrive(3, 'a', 0, "");
    yard.finish(2, "stop b evicted");
    yard.stopped('b', "load a for 3 after b");
    for generation in [0, 1, 3] {
        let generation = Generation(generation);
        yard.event(Event::LoadDone { replica: replica('a'), generation, ok: true }, "");
        yard.event(Event::LoadDone { replica: replica('a'), generation, ok: false }, "");
        yard.event(Event::StopDone { replica: replica('a'), generation }, "");
        yard.event(Event::Exited { replica: replica('a'), generation }, "");
        yard.event(Event::Exited { replica: replica('z'), generation }, "");
    }
    yard.loaded('a', "run 3 on a");
}

#[test]
fn a_process_that_ends_while_it_is_stopped_counts_as_stopped() {
    for ok in [false, true] {
        let mut yard = Yard::new(serial("ab"));
        yard.arrive(1, 'a', 0, "load a for 1");
        yard.cancel(1, "");
        yard.arrive(2, 'b', 0, "stop a abandoned");
        let (replica, generation) = (replica('a'), Generation(1));
        if ok {
            // It became ready while it was being stopped; that is not the end.
            yard.event(Event::LoadDone { replica, generation, ok }, "");
            yard.event(Event::Exited { replica, generation }, "load b for 2 after a");
        } else {
            yard.event(Event::LoadDone { replica, generation, ok }, "load b for 2 after a");
        }
        yard.event(Event::StopDone { replica, generation }, "");
    }
}

#[test]
fn unknown_requests_are_ignored() {
    let mut yard = Yard::new(serial("a"));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.cancel(9, "");
    yard.finish(9, "");
    yard.finish(1, "");
    yard.finish(1, "");
    yard.cancel(1, "");
    assert_eq!(yard.scheduler.running(), 0);
    yard.arrive(2, 'a', 0, "run 2 on a");
    yard.arrive(3, 'a', 0, "");
    yard.event(Event::Finished { id: RequestId(3), usage: Usage::default() }, "");
    assert_eq!(yard.waiting(), 1, "what waits cannot finish");
}

#[test]
fn a_second_arrival_under_one_number_is_ignored() {
    let mut yard = Yard::new(serial("a"));
    yard.arrive(1, 'a', 0, "load a for 1");
    yard.arrive(1, 'a', 0, "");
    yard.loaded('a', "run 1 on a");
    yard.arrive(1, 'a', 0, "");
    yard.finish(1, "");
}

#[test]
fn whoever_came_to_nothing_takes_the_place_that_it_had() {
    for settings in [serial("a"), fifo("a").concurrency(1), flow("a").concurrency(1)] {
        let mut settings = settings;
        settings.admission.total.requests = 4;
        let mut yard = Yard::new(settings);
        yard.warm('a');
        yard.wait(5).arrive(1, 'a', -1, "run 1 on a");
        yard.wait(10).arrive(2, 'a', -1, "");
        yard.arrive(3, 'a', -1, "");
        // The server of 1 dies.
        yard.exited('a', "");
        yard.finish(1, "");
        let again = Request { arrived: Some(Timestamp::from_secs(5)), ..Yard::plain(1, 'a', -1) };
        yard.request(again, "");
        assert_eq!(yard.scheduler.bands()[0].oldest, Some(Timestamp::from_secs(5)), "it has waited longest");
        yard.arrive(4, 'a', -1, "");
        // The newest has to leave when the queue is full, and that is not the one that came back last.
        yard.arrive(5, 'a', 0, "reject 4 evicted");
        yard.cancel(5, "");
        yard.deadline(16, "load a for 1");
        yard.wait(4).loaded('a', "run 1 on a");
        assert_eq!(yard.decision_of_latest().waited, secs(15));
        yard.finish(1, "run 2 on a");
        yard.finish(2, "run 3 on a");
    }
}

#[test]
fn the_time_of_whoever_comes_back_goes_on() {
    let mut yard = Yard::new(serial("a"));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'a', 0, "");
    yard.exited('a', "");
    yard.finish(1, "");
    let again = |ttl| Request { ttl: Some(secs(ttl)), arrived: Some(Timestamp::ZERO), ..Yard::plain(1, 'a', 0) };
    yard.wait(3).request(again(3), "reject 1 rejected_ttl, load a for 2");
}

#[test]
fn a_cancel_of_a_running_request_gives_its_slot_back() {
    let mut yard = Yard::new(serial("a"));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'a', 0, "");
    yard.cancel(1, "run 2 on a");
    yard.finish(1, "");
    assert_eq!(yard.scheduler.running(), 1);
}

#[test]
fn time_never_runs_backwards() {
    let mut yard = Yard::new(serial("a"));
    yard.warm('a');
    yard.wait(10).arrive(1, 'a', 0, "run 1 on a");
    yard.now = Timestamp::from_secs(3);
    yard.arrive(2, 'a', 0, "");
    assert_eq!(yard.scheduler.bands()[1].oldest, Some(Timestamp::from_secs(10)));
}
