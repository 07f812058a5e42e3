//! Several replicas of one model: what is known of each, and which one a request goes to.

use std::time::Duration;

use proptest::{prelude::*, sample::Index};
use switchyard_scheduler::{
    Action, DetectorSettings, Event, FlowSettings, Generation, Load, ModelSettings, PolicySettings, ReplicaId,
    ReplicaState, Request, SessionId, Settings, Usage,
};

use crate::{
    properties::{config, request},
    shell::{Process, Shell},
    steps::{load, pick},
    yard::{Tune, Yard, fifo, model, secs, settings},
};

const UTILIZATION: DetectorSettings =
    DetectorSettings::Utilization { queue_depth: 5, kv_cache: 0.8, staleness: Duration::from_secs(2) };

/// Servers `p`, `p.1` and so on, all of them ready.
fn pool(replicas: u32, change: impl FnOnce(&mut ModelSettings)) -> Yard {
    let policy = PolicySettings::Flow(FlowSettings::default());
    let settings = settings(policy, "p").model('p', |p| {
        (p.managed, p.replicas, p.concurrency) = (false, replicas, 100);
        change(p);
    });
    let mut yard = Yard::new(settings);
    if replicas == 1 {
        yard.warm('p');
        return yard;
    }
    let names: Vec<_> = (1..replicas).map(|index| format!(", load p.{index}")).collect();
    yard.event(Event::Tick, &format!("load p{}", names.concat()));
    for index in 0..replicas {
        yard.event(yard.load_done('p', index), "");
    }
    yard
}

fn sample(index: u32, waiting: u32, kv_cache: f64) -> Event {
    let replica = ReplicaId { model: model('p'), index };
    Event::Sample { replica, generation: Generation(1), load: Load { running: 0, waiting, kv_cache: Some(kv_cache) } }
}

fn saturation(yard: &Yard) -> Option<f64> {
    yard.scheduler.pools().next().expect("one model").saturation
}

#[test]
fn a_pool_counts_as_full_until_its_servers_say_otherwise() {
    let mut yard = pool(2, |p| p.detector = UTILIZATION);
    assert_eq!(saturation(&yard), Some(1.0));
    yard.arrive(1, 'p', 0, "");
    yard.event(sample(1, 0, 0.4), "run 1 on p.1");
    // p.1 has 1 of 5 waiting, and half of the cache it may use; p is not heard of.
    assert_eq!(saturation(&yard), Some(0.75));
    yard.event(sample(0, 2, 0.0), "");
    assert_eq!(saturation(&yard), Some(0.45));
}

#[test]
fn what_was_dispatched_since_the_last_sample_counts_on_top_of_it() {
    let mut yard = pool(1, |p| p.detector = UTILIZATION);
    yard.event(sample(0, 3, 0.0), "");
    yard.arrive(1, 'p', 0, "run 1 on p");
    yard.arrive(2, 'p', 0, "run 2 on p");
    yard.arrive(3, 'p', 0, "");
    assert_eq!(saturation(&yard), Some(1.0));
    // One that came since has gone again.
    yard.finish(1, "run 3 on p");
    // Now the server says itself that they wait; what it has counted is not counted twice.
    yard.event(sample(0, 4, 0.0), "");
    yard.finish(2, "");
    assert_eq!(saturation(&yard), Some(0.8));
    yard.arrive(4, 'p', 0, "run 4 on p");
    yard.arrive(5, 'p', 0, "");
    yard.event(sample(0, 4, 0.0), "run 5 on p");
}

#[test]
fn no_herd_follows_a_stale_sample() {
    let mut yard = pool(3, |p| p.detector = UTILIZATION);
    for (index, waiting) in [(0, 3), (1, 0), (2, 3)] {
        yard.event(sample(index, waiting, 0.0), "");
    }
    // The idle one gets three, then they take turns.
    for (id, place) in (1..).zip(["p.1", "p.1", "p.1", "p", "p.1", "p.2"]) {
        yard.arrive(id, 'p', 0, &format!("run {id} on {place}"));
    }
}

#[test]
fn a_stale_server_gets_nothing_while_another_has_room() {
    let mut yard = pool(2, |p| p.detector = UTILIZATION);
    yard.event(sample(0, 0, 0.0), "");
    yard.event(sample(1, 4, 0.0), "");
    yard.wait(1).event(sample(1, 4, 0.0), "");
    yard.arrive(1, 'p', 0, "run 1 on p");
    // The alarm that makes p stale, two seconds after its last sample.
    yard.deadline(2, "");
    assert_eq!(saturation(&yard), Some(0.9));
    yard.arrive(2, 'p', 0, "run 2 on p.1");
    yard.arrive(3, 'p', 0, "");
    yard.deadline(3, "");
    assert_eq!(saturation(&yard), Some(1.0));
    yard.event(sample(0, 0, 0.0), "run 3 on p");
    assert_eq!(yard.scheduler.deadline(), Some(yard.now + secs(2)));
}

#[test]
fn a_sample_of_an_earlier_load_says_nothing() {
    let mut yard = pool(2, |p| p.detector = UTILIZATION);
    yard.event(sample(0, 0, 0.0), "");
    yard.exited('p', "");
    assert_eq!(saturation(&yard), Some(1.0), "p.1 alone, and not heard of");
    yard.deadline(1, "load p");
    yard.loaded('p', "");
    yard.event(sample(0, 0, 0.0), "");
    assert_eq!(saturation(&yard), Some(1.0));
}

#[test]
fn one_server_far_over_its_limits_does_not_close_the_others() {
    let mut yard = pool(2, |p| p.detector = UTILIZATION);
    yard.event(sample(0, 500, 1.0), "");
    yard.event(sample(1, 0, 0.0), "");
    assert_eq!(saturation(&yard), Some(0.5));
    yard.arrive(1, 'p', 0, "run 1 on p.1");
}

#[test]
fn a_dead_server_holds_up_nobody_and_comes_back() {
    let policy = PolicySettings::Flow(FlowSettings::default());
    let settings = settings(policy, "p").model('p', |p| (p.managed, p.replicas) = (false, 2));
    let mut yard = Yard::new(settings);
    yard.arrive(1, 'p', 0, "load p, load p.1");
    yard.load_failed('p', "");
    yard.event(yard.load_done('p', 1), "run 1 on p.1");
    yard.deadline(1, "load p");
    // When all are dead, it is said to one of those who wait with every try.
    yard.exited_at('p', 1, "");
    yard.finish(1, "");
    yard.arrive(2, 'p', 0, "");
    yard.arrive(3, 'p', 0, "");
    yard.load_failed('p', "reject 2 load_failed");
    yard.deadline(2, "load p.1");
    yard.event(yard.load_done('p', 1), "run 3 on p.1");
    assert!(matches!(yard.state('p'), ReplicaState::Failed { .. }));
}

#[test]
fn headroom_is_for_sessions_while_all_together_have_room() {
    let limited = |p: &mut ModelSettings| {
        p.detector = DetectorSettings::Concurrency { requests: 4 };
        p.headroom = 0.25;
    };
    let turn = |id| Request { session: Some(SessionId(1)), ..Yard::plain(id, 'p', 0) };
    let mut yard = pool(2, limited);
    for id in 1..4 {
        yard.arrive(id, 'p', 0, &format!("run {id} on {}", ["p.1", "p"][id as usize % 2]));
    }
    // p has 2 and p.1 has 1. A session may have 5/4 of the mean, rounded up, and a server one more than its four.
    for (id, place) in (4..).zip(["p", "p", "p.1", "p", "p.1"]) {
        yard.request(turn(id), &format!("run {id} on {place}"));
    }
    assert_eq!(saturation(&yard), Some(1.0));
    yard.request(turn(9), "");
}

#[test]
fn remote_servers_are_checked_whether_asked_for_or_not() {
    let mut yard = Yard::new(fifo("rp").model('r', |r| r.managed = false).model('p', |p| {
        (p.managed, p.replicas) = (false, 2);
    }));
    assert_eq!(yard.scheduler.deadline(), Some(yard.now));
    yard.event(Event::Tick, "load p, load p.1");
    yard.loaded('p', "");
    // The least loaded of those that are there.
    yard.arrive(1, 'p', 0, "run 1 on p");
    yard.event(yard.load_done('p', 1), "");
    yard.arrive(2, 'p', 0, "run 2 on p.1");
    // A single one is no pool: it is checked for its first request.
    yard.arrive(3, 'r', 0, "load r for 3");
}

#[test]
fn servers_that_stay_are_never_over_their_limits_whichever_others_go() {
    let policy = || PolicySettings::Flow(FlowSettings::default());
    let limited = |p: &mut ModelSettings, replicas, gaps: &[u32]| {
        (p.managed, p.replicas, p.concurrency) = (false, replicas, 2);
        p.gaps = gaps.iter().copied().collect();
    };
    let of = |replicas, gaps: &[u32]| settings(policy(), "p").model('p', |p| limited(p, replicas, gaps));
    let mut yard = pool(3, |p| p.concurrency = 2);
    for (id, place) in (1..).zip(["p", "p.1", "p.2", "p", "p.1", "p.2"]) {
        yard.arrive(id, 'p', 0, &format!("run {id} on {place}"));
    }
    yard.event(Event::Reconfigure(Box::new(of(2, &[0]))), "");
    yard.arrive(7, 'p', 0, "");
    yard.finish(1, "");
    yard.finish(2, "run 7 on p.1");
    yard.arrive(8, 'p', 0, "");
    yard.finish(4, "stop p reconfigured");
    yard.stopped('p', "");
    yard.finish(3, "run 8 on p.2");
    // One alone is no pool any more, and what it runs counts all the same.
    yard.event(Event::Reconfigure(Box::new(of(1, &[0, 1]))), "");
    yard.arrive(9, 'p', 0, "");
    yard.finish(7, "");
    yard.finish(6, "run 9 on p.2");
    yard.finish(5, "stop p.1 reconfigured");
    yard.event(Event::Reconfigure(Box::new(of(2, &[1]))), "load p");
}

proptest! {
    #![proptest_config(config())]

    /// No server gets more than its limits and its headroom, none that is stale gets anything while another that is known
    /// has room, and those of one session stay together as long as the bound allows.
    #[test]
    fn no_server_is_over_its_limits(
        replicas in 2_u32..6,
        requests in 1_u32..6,
        headroom in prop::sample::select(vec![0.0, 0.25, 0.5]),
        steps in prop::collection::vec((0_u8..3, any::<Index>(), prop::option::of(0_u64..4)), 1..150),
    ) {
        let p = ModelSettings {
            managed: false,
            replicas,
            concurrency: 100,
            detector: DetectorSettings::Concurrency { requests },
            headroom,
            ..ModelSettings::default()
        };
        let models = [(switchyard_scheduler::ModelId(0), p)].into();
        let policy = PolicySettings::Flow(FlowSettings::default());
        let mut shell = Shell::new(Settings { policy, models, ..Settings::default() });
        shell.tell(Event::Tick);
        shell.answer_all();
        for (step, which, session) in steps {
            match step {
                0 => {
                    let running: Vec<_> = shell.running.keys().copied().collect();
                    if let Some(id) = pick(which, &running) {
                        shell.finish(id);
                    }
                }
                _ => _ = shell.arrive(Request {
                    session: session.map(|session| SessionId(session.wrapping_mul(0x9E37_79B9_7F4A_7C15))),
                    ..request(0, 0)
                }),
            }
            let count = |index| shell.running.values().filter(|(replica, _)| replica.index == index).count() as f64;
            let most = f64::from(requests) + (f64::from(requests) * headroom).floor();
            prop_assert!((0..replicas).all(|index| count(index) <= most.max(f64::from(requests))));
            let total = shell.running.len() as u32;
            prop_assert!(total <= replicas * requests);
            prop_assert!(shell.waiting.is_empty() || total == replicas * requests, "a place is free");
        }
    }

    /// Whatever servers say, and however late, the pool goes on as soon as they say that they have room.
    #[test]
    fn samples_only_ever_delay(
        replicas in 2_u32..5,
        steps in prop::collection::vec((0_u8..4, any::<Index>(), load(), 0_u64..3_000), 1..150),
    ) {
        let p =
            ModelSettings { managed: false, replicas, concurrency: 200, detector: UTILIZATION, ..Default::default() };
        let models = [(switchyard_scheduler::ModelId(0), p)].into();
        let policy = PolicySettings::Flow(FlowSettings::default());
        let mut shell = Shell::new(Settings { policy, models, ..Settings::default() });
        shell.tell(Event::Tick);
        shell.answer_all();
        let mut sampled = vec![None; replicas as usize];
        for (step, which, load, millis) in steps {
            let seen = shell.actions.len();
            match step {
                0 => shell.now = shell.now + Duration::from_millis(millis),
                1 => {
                    let running: Vec<_> = shell.running.keys().copied().collect();
                    if let Some(id) = pick(which, &running) {
                        shell.tell(Event::Finished { id, usage: Usage::default() });
                    }
                }
                2 => _ = shell.arrive(request(0, 0)),
                _ => {
                    let up: Vec<_> = shell.processes.iter().map(|(&replica, &(generation, _))| (replica, generation)).collect();
                    if let Some((replica, generation)) = pick(which, &up) {
                        sampled[replica.index as usize] = Some(shell.now);
                        shell.tell(Event::Sample { replica, generation, load });
                    }
                }
            }
            for action in &shell.actions[seen..] {
                if let Action::Dispatch { replica, .. } = action {
                    let fresh = |at: &Option<switchyard_scheduler::Timestamp>| at.is_some_and(|at| shell.now < at + secs(2));
                    // All are ready, so somebody who is known well enough had room.
                    prop_assert!(fresh(&sampled[replica.index as usize]), "{replica:?} at {:?}", shell.now);
                }
            }
        }
        prop_assert!(shell.processes.values().all(|(_, process)| *process == Process::Ready));
        shell.settle();
    }
}
