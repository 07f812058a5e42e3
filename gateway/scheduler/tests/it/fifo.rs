//! `fifo`: concurrent, ordered by priority, then arrival.

use switchyard_scheduler::{Event, ReplicaState};

use crate::yard::{Tune, Yard, fifo, model};

#[test]
fn a_model_runs_up_to_its_concurrency() {
    let mut yard = Yard::new(fifo("a").concurrency(2));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'a', 0, "run 2 on a");
    yard.arrive(3, 'a', 0, "");
    yard.arrive(4, 'a', 1, "");
    yard.finish(1, "run 4 on a");
    yard.finish(2, "run 3 on a");
}

#[test]
fn a_loaded_model_is_no_way_round_the_queue() {
    // 2 waits for `b`; later traffic for `a`, though it could go at once, must not keep `a` busy.
    let mut yard = Yard::new(fifo("ab"));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'b', 0, "");
    yard.arrive(3, 'a', 0, "");
    yard.arrive(4, 'a', 0, "");
    yard.finish(1, "stop a evicted");
    yard.stopped('a', "load b for 2 after a");
    yard.loaded('b', "run 2 on b");
    yard.finish(2, "stop b evicted");
    yard.stopped('b', "load a for 3 after b");
    yard.loaded('a', "run 3 on a, run 4 on a");
}

#[test]
fn a_more_urgent_request_for_the_loaded_model_goes_first() {
    let mut yard = Yard::new(fifo("ab"));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'b', 0, "");
    yard.arrive(3, 'a', 1, "run 3 on a");
}

#[test]
fn those_who_touch_nothing_of_it_go_on() {
    let mut yard = Yard::new(fifo("abc").group("swap", "ab").group("", "c"));
    yard.warm('a');
    yard.warm('c');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'b', 0, "");
    yard.arrive(3, 'a', 0, "");
    yard.arrive(4, 'c', -100, "run 4 on c");
}

#[test]
fn nothing_is_stopped_before_all_that_is_in_the_way_is_idle() {
    let mut yard = Yard::new(fifo("abx").group("", "ab").group("exclusive", "x"));
    yard.warm('a');
    yard.warm('b');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'b', 0, "run 2 on b");
    yard.arrive(3, 'x', 0, "");
    yard.finish(1, "");
    yard.arrive(4, 'a', 0, "");
    yard.finish(2, "stop a evicted, stop b evicted");
    yard.stopped('b', "");
    // `a`'s group is not exclusive, so once `x` loads it may come back beside it: groups as llama-swap has them.
    yard.stopped('a', "load x for 3 after a+b, load a for 4");
}

#[test]
fn the_room_of_a_better_request_is_not_taken() {
    // `x` waits for `a`; `b` would fit beside `a`, but `x` would have to send it away again.
    let mut yard = Yard::new(fifo("abx").group("", "ab").group("exclusive", "x"));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'x', 0, "");
    yard.arrive(3, 'b', 0, "");
    yard.finish(1, "stop a evicted");
    // Not even by a more urgent one, now that the swap has begun.
    yard.arrive(4, 'b', 100, "");
    yard.stopped('a', "load x for 2 after a, load b for 4");
}

#[test]
fn nobody_is_evicted_for_who_would_have_to_evict_the_next_to_come() {
    // Room is being made for `c`; `w` will have to send `c` away again, and `y` with it: both at once, later.
    let mut yard = Yard::new(fifo("cxwy").group("swap", "cx").group("exclusive", "w").group("", "y"));
    yard.warm('x');
    yard.warm('y');
    yard.arrive(1, 'c', 0, "stop x evicted");
    yard.arrive(2, 'w', 0, "");
    yard.stopped('x', "load c for 1 after x");
    yard.loaded('c', "run 1 on c");
    yard.finish(1, "stop c evicted, stop y evicted");
}

#[test]
fn no_steady_stream_starves_a_cold_model() {
    // Overlapping requests for `a`, always one running; `b` gets its turn as soon as those before it are done.
    let mut yard = Yard::new(fifo("ab"));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'a', 0, "run 2 on a");
    yard.arrive(3, 'b', 0, "");
    for id in 4..100 {
        yard.arrive(id, 'a', 0, "");
    }
    yard.finish(1, "");
    yard.finish(2, "stop a evicted");
    yard.stopped('a', "load b for 3 after a");
}

#[test]
fn models_that_fit_together_load_together() {
    let mut yard = Yard::new(fifo("abc").together());
    yard.arrive(1, 'a', 0, "load a for 1");
    yard.arrive(2, 'b', 0, "load b for 2");
    yard.loaded('b', "run 2 on b");
    yard.arrive(3, 'c', 0, "load c for 3");
    yard.loaded('a', "run 1 on a");
}

#[test]
fn two_cold_models_asked_for_together_are_served_in_two_swaps() {
    let mut yard = Yard::new(fifo("abc"));
    yard.warm('c');
    yard.arrive(1, 'a', 0, "stop c evicted");
    yard.arrive(2, 'b', 0, "");
    yard.stopped('c', "load a for 1 after c");
    yard.loaded('a', "run 1 on a");
    yard.finish(1, "stop a evicted");
    yard.stopped('a', "load b for 2 after a");
    yard.loaded('b', "run 2 on b");
}

#[test]
fn a_remote_model_touches_nobody() {
    let mut yard = Yard::new(fifo("ar").model('r', |r| r.managed = false));
    yard.warm('a');
    yard.arrive(1, 'r', 0, "load r for 1");
    yard.loaded('r', "run 1 on r");
    yard.arrive(2, 'a', 0, "run 2 on a");
    yard.finish(1, "");
    yard.event(Event::Unload { models: vec![] }, "stop a unload");
    assert_eq!(yard.state('r'), ReplicaState::Ready, "it holds no memory here");
}

#[test]
fn a_persistent_group_is_never_unloaded_for_another() {
    let mut yard = Yard::new(fifo("ap").group("persistent", "p"));
    yard.warm('p');
    yard.arrive(1, 'a', 0, "load a for 1");
    yard.loaded('a', "run 1 on a");
    yard.arrive(2, 'p', 0, "run 2 on p");
}

#[test]
fn more_replicas_are_loaded_when_the_first_is_full_and_there_is_room() {
    let mut yard = Yard::new(fifo("ab").concurrency(1).model('a', |a| a.replicas = 2));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.arrive(2, 'a', 0, "load a.1 for 2");
    yard.arrive(3, 'a', 0, "");
    yard.finish(1, "run 2 on a");
    let replica = switchyard_scheduler::ReplicaId { model: model('a'), index: 1 };
    let generation = switchyard_scheduler::Generation(1);
    yard.event(Event::LoadDone { replica, generation, ok: true }, "run 3 on a.1");
    // To make room, both have to leave.
    yard.finish(2, "");
    yard.arrive(4, 'b', 0, "");
    yard.finish(3, "stop a evicted, stop a.1 evicted");
    yard.stopped('a', "");
    yard.event(Event::StopDone { replica, generation }, "load b for 4 after a+a.1");
}
