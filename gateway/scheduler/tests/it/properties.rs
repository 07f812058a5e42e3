//! What holds whatever happens.

use std::time::Duration;

use proptest::{prelude::*, sample::Index};
use switchyard_scheduler::{
    Action, Bounds, Event, EvictionSettings, FifoSettings, GroupSettings, ModelId, ModelSettings, PolicySettings,
    Priority, ReplicaId, Request, RequestId, Scheduler, SerialSettings, Settings, Timestamp,
};

use crate::{
    shell::Shell,
    steps::{MODELS, eviction, limited, pick, priority, settings, step, take},
};

/// 256 cases each, or as many as `PROPTEST_CASES` says.
pub(crate) fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

/// What a new scheduler answers to the same events.
fn replay(settings: Settings, recording: Vec<(Timestamp, Event)>) -> Vec<Action> {
    let mut scheduler = Scheduler::new(settings);
    let mut actions = Vec::new();
    for (now, event) in recording {
        scheduler.handle(now, event);
        actions.extend(std::iter::from_fn(|| scheduler.poll_action()));
    }
    actions
}

/// Models that are all in memory together, and ready.
pub(crate) fn all_ready(policy: PolicySettings, models: u32, concurrency: u32) -> Shell {
    let ids: Vec<_> = (0..models).map(ModelId).collect();
    let model = ModelSettings { concurrency, ..ModelSettings::default() };
    let together = GroupSettings { swap: false, exclusive: false, persistent: false, members: ids.clone() };
    let mut shell = Shell::new(Settings {
        policy,
        models: ids.iter().map(|&id| (id, model.clone())).collect(),
        eviction: EvictionSettings::Groups(vec![together]),
        ..Settings::default()
    });
    shell.tell(Event::Preload { models: ids });
    shell.answer_all();
    shell
}

pub(crate) fn request(model: u32, priority: i64) -> Request {
    Request { bytes: 1, ..Request::new(RequestId(0), ModelId(model), Priority(priority)) }
}

/// An arrival for a model at a priority, or the end of some request; and the microseconds before it.
pub(crate) type Moment = (Option<(u32, i64)>, Index, u64);

/// What of an event sequence matters where nothing is ever loaded or stopped.
pub(crate) fn traffic(models: u32) -> impl Strategy<Value = Vec<Moment>> {
    let arrival = prop::option::weighted(0.7, (0..models, priority()));
    let pause = prop_oneof![Just(0), 0_u64..200_000_000];
    prop::collection::vec((arrival, any::<Index>(), pause), 1..120)
}

/// The score of a waiting request times the divisor, exactly, with the terms that are asked for; and its place among
/// equals.
fn score(
    serial: &SerialSettings,
    now: Timestamp,
    (request, arrived): &(Request, Timestamp),
    aging: bool,
    affinity: bool,
) -> (i128, std::cmp::Reverse<RequestId>) {
    let unit = i128::from(serial.aging_divisor.max(1)) * 1_000_000;
    let top = match request.priority.0 {
        i64::MIN..=-1 => -1,
        0..=99 => 99,
        _ => i64::MAX,
    };
    let bonus = i128::from(serial.swap_affinity_bonus).min(i128::from(top) - i128::from(request.priority.0));
    let bonus = if request.priority.0 >= 100 { i128::from(serial.swap_affinity_bonus) } else { bonus };
    let waited = if aging && serial.aging_divisor > 0 { i128::from(now.0 - arrived.0) } else { 0 };
    let points = i128::from(request.priority.0) + if affinity { bonus } else { 0 };
    (points * unit + waited, std::cmp::Reverse(request.id))
}

/// Who goes next, the slow way: the best of each model, then the best of those.
fn best(
    serial: &SerialSettings,
    now: Timestamp,
    waiting: &[(Request, Timestamp)],
    aging: bool,
    affinity: bool,
) -> Option<RequestId> {
    let plain = |entry: &&(Request, Timestamp)| score(serial, now, entry, aging, false);
    let heads = (0..MODELS)
        .filter_map(|model| waiting.iter().filter(|(request, _)| request.model == ModelId(model)).max_by_key(plain));
    heads.max_by_key(|entry| score(serial, now, entry, aging, affinity)).map(|(request, _)| request.id)
}

proptest! {
    #![proptest_config(config())]

    /// Whatever happens, the shell's checks hold, everything that waits goes in the end, a drain ends, and the same
    /// events give the same actions.
    #[test]
    fn everything_ends_and_nothing_breaks(
        settings in settings(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut shell = Shell::new(settings.clone());
        for step in steps {
            take(&mut shell, step);
        }
        shell.settle();
        shell.shut_down();

        prop_assert_eq!(replay(settings, shell.recording), shell.actions);
    }

    /// Settings and events survive being written down, and read back they give the same actions.
    #[cfg(feature = "serde")]
    #[test]
    fn a_recording_can_be_replayed(settings in settings(), steps in prop::collection::vec(step(), 1..40)) {
        let mut shell = Shell::new(settings.clone());
        for step in steps {
            take(&mut shell, step);
        }
        let written = serde_json::to_string(&(&settings, &shell.recording)).unwrap();
        let (read, recording): (Settings, Vec<(Timestamp, Event)>) = serde_json::from_str(&written).unwrap();
        prop_assert_eq!(&read, &settings);
        prop_assert_eq!(&recording, &shell.recording);
        prop_assert_eq!(&replay(read, recording), &shell.actions);
        let actions = serde_json::to_string(&shell.actions).unwrap();
        prop_assert_eq!(serde_json::from_str::<Vec<Action>>(&actions).unwrap().len(), shell.actions.len());
    }

    /// A drain may come at any moment.
    #[test]
    fn a_drain_ends_whenever_it_begins(settings in settings(), steps in prop::collection::vec(step(), 1..60)) {
        let mut shell = Shell::new(settings);
        for step in steps {
            take(&mut shell, step);
        }
        shell.shut_down();
    }

    /// Where nothing has to be loaded, `serial` dispatches by exact score, and tells truly whom it passed over.
    #[test]
    fn serial_is_exact_score_order(
        swap_affinity_bonus in 0_u32..100,
        aging_divisor in prop::sample::select(vec![0_u32, 1, 60, 3600]),
        slots in 1_u32..4,
        traffic in traffic(MODELS),
    ) {
        let serial = SerialSettings { swap_affinity_bonus, aging_divisor, slots };
        let mut shell = all_ready(PolicySettings::Serial(serial.clone()), MODELS, u32::MAX);
        for (arrival, which, micros) in traffic {
            shell.now = shell.now + Duration::from_micros(micros);
            let mut waiting: Vec<_> = shell.waiting.values().cloned().collect();
            let seen = shell.actions.len();
            match arrival {
                Some((model, priority)) => {
                    let id = shell.arrive(request(model, priority));
                    waiting.push((Request { id, ..request(model, priority) }, shell.now));
                }
                None => {
                    let Some(id) = pick(which, &shell.running.keys().copied().collect::<Vec<_>>()) else { continue };
                    shell.finish(id);
                }
            }
            for action in &shell.actions[seen..] {
                let Action::Dispatch { id, decision, .. } = action else { panic!("{action:?}") };
                let other = |aging, affinity| best(&serial, shell.now, &waiting, aging, affinity).filter(|other| other != id);
                prop_assert_eq!(Some(*id), best(&serial, shell.now, &waiting, true, true));
                prop_assert_eq!(decision.passed_by_aging, other(false, true));
                prop_assert_eq!(decision.passed_by_affinity, other(true, false));
                waiting.retain(|(request, _)| request.id != *id);
            }
            prop_assert!(waiting.is_empty() || shell.running.len() == slots as usize, "a slot is free and somebody waits");
        }
    }

    /// Without bonus, with one priority and one slot, `serial` is first come, first served, swaps or not.
    #[test]
    fn serial_without_bonus_is_first_come_first_served(
        aging_divisor in prop::sample::select(vec![0_u32, 60]),
        eviction in eviction(),
        priority in priority(),
        arrivals in prop::collection::vec((0..MODELS, any::<bool>(), 0_u64..100_000_000), 1..60),
    ) {
        let serial = SerialSettings { swap_affinity_bonus: 0, aging_divisor, slots: 1 };
        let models = (0..MODELS).map(|id| (ModelId(id), ModelSettings::default())).collect();
        let policy = PolicySettings::Serial(serial);
        let mut shell = Shell::new(Settings { policy, models, eviction, ..Settings::default() });
        for (model, ends, micros) in arrivals {
            shell.now = shell.now + Duration::from_micros(micros);
            shell.arrive(request(model, priority));
            if ends {
                shell.answer_all();
                if let Some(&id) = shell.running.keys().next() {
                    shell.finish(id);
                }
            }
        }
        shell.settle();
        let order: Vec<_> = dispatched(&shell.actions);
        prop_assert!(order.is_sorted(), "{order:?}");
    }

    /// A bonus never lifts a request over one of a higher band.
    #[test]
    fn a_bonus_never_crosses_a_band(
        swap_affinity_bonus in 0_u32..100,
        eviction in eviction(),
        arrivals in prop::collection::vec((0..MODELS, priority()), 1..40),
    ) {
        let serial = SerialSettings { swap_affinity_bonus, aging_divisor: 0, slots: 1 };
        let models = (0..MODELS).map(|id| (ModelId(id), ModelSettings::default())).collect();
        let policy = PolicySettings::Serial(serial);
        let mut shell = Shell::new(Settings { policy, models, eviction, ..Settings::default() });
        // One that runs while the others arrive.
        shell.arrive(request(0, 0));
        shell.answer_all();
        let first = RequestId(0);
        for (model, priority) in arrivals {
            shell.arrive(request(model, priority));
        }
        shell.finish(first);
        shell.settle();
        let bands: Vec<_> = shell.actions.iter().filter_map(|action| match action {
            Action::Dispatch { id, decision, .. } if *id != first => Some(std::cmp::Reverse(decision.band)),
            _ => None,
        }).collect();
        prop_assert!(bands.is_sorted(), "{bands:?}");
    }

    /// Where nothing has to be loaded, `fifo` runs the best of each model, and lets no place stand empty.
    #[test]
    fn fifo_is_exact_order_within_a_model(
        concurrency in 1_u32..4,
        model_priority in prop::collection::btree_map((0..MODELS).prop_map(ModelId), any::<i64>(), 0..3),
        traffic in traffic(MODELS),
    ) {
        let mut shell = all_ready(PolicySettings::Fifo(FifoSettings { model_priority }), MODELS, concurrency);
        for (arrival, which, micros) in traffic {
            shell.now = shell.now + Duration::from_micros(micros);
            let mut waiting: Vec<_> = shell.waiting.values().cloned().collect();
            let seen = shell.actions.len();
            match arrival {
                Some((model, priority)) => {
                    let id = shell.arrive(request(model, priority));
                    waiting.push((Request { id, ..request(model, priority) }, shell.now));
                }
                None => {
                    let Some(id) = pick(which, &shell.running.keys().copied().collect::<Vec<_>>()) else { continue };
                    shell.finish(id);
                }
            }
            for action in &shell.actions[seen..] {
                let Action::Dispatch { id, replica, .. } = action else { panic!("{action:?}") };
                let best = waiting
                    .iter()
                    .filter(|(request, _)| request.model == replica.model)
                    .max_by_key(|(request, _)| (request.priority, std::cmp::Reverse(request.id)));
                prop_assert_eq!(best.map(|(request, _)| request.id), Some(*id));
                waiting.retain(|(request, _)| request.id != *id);
            }
            for (request, _) in shell.waiting.values() {
                let running = shell.running.values().filter(|(replica, _)| replica.model == request.model).count();
                prop_assert_eq!(running, concurrency as usize);
            }
        }
    }

    /// However steadily a loaded model is asked for, always overlapping, a request for another goes as soon as those
    /// before it are done.
    #[test]
    fn fifo_starves_nobody(
        concurrency in 1_u32..6,
        before in 1_usize..10,
        after in prop::collection::vec(prop::option::weighted(0.8, any::<Index>()), 1..100),
    ) {
        let models: std::collections::BTreeMap<_, _> =
            (0..2).map(|id| (ModelId(id), ModelSettings { concurrency, ..ModelSettings::default() })).collect();
        let mut shell = Shell::new(Settings { models, ..Settings::default() });
        for _ in 0..before {
            shell.arrive(request(0, 0));
        }
        shell.answer_all();
        let cold = shell.arrive(request(1, 0));
        for which in after {
            let running: Vec<_> = shell.running.keys().copied().collect();
            match which.and_then(|which| pick(which, &running)) {
                Some(id) => shell.finish(id),
                None => _ = shell.arrive(request(0, 0)),
            }
            shell.answer_all();
        }
        shell.settle();
        let order = dispatched(&shell.actions);
        let place = order.iter().position(|&id| id == cold);
        prop_assert_eq!(place, Some(before), "{:?}", order);
    }

    /// Admission displaces and refuses exactly as its rule says, and never lets more wait than it may.
    #[test]
    fn bounds_hold(
        total in bounds(),
        batch in bounds(),
        arrivals in prop::collection::vec((priority(), 0_u64..100, prop::bool::weighted(0.1)), 1..80),
    ) {
        let mut shell = all_ready(PolicySettings::Serial(SerialSettings::default()), 1, 1);
        let mut settings = shell.settings.clone();
        settings.admission.total = total;
        settings.admission.bands[0].bounds = batch;
        shell.tell(Event::Reconfigure(Box::new(settings)));
        for (priority, bytes, ends) in arrivals {
            let before: Vec<_> = shell.waiting.values().map(|(request, _)| request.clone()).collect();
            let goes_at_once = shell.running.is_empty();
            let id = shell.arrive(Request { bytes, ..request(0, priority) });
            let mut expected: Vec<_> = before.iter().map(|request| request.id).collect();
            if !goes_at_once {
                let arrival = Request { id, bytes, ..request(0, priority) };
                match make_room(&before, &arrival, total, batch) {
                    Some(displaced) => {
                        expected.retain(|id| !displaced.contains(id));
                        expected.push(id);
                    }
                    None => prop_assert!(!shell.waiting.contains_key(&id)),
                }
            }
            prop_assert_eq!(shell.waiting.keys().copied().collect::<Vec<_>>(), expected);
            prop_assert!(fits(shell.waiting.values().map(|(request, _)| request), total));
            let batch_only = shell.waiting.values().map(|(request, _)| request).filter(|other| other.priority.0 < 0);
            prop_assert!(fits(batch_only, batch));
            if ends && let Some(&id) = shell.running.keys().next() {
                shell.finish(id);
            }
        }
    }
}

fn bounds() -> impl Strategy<Value = Bounds> {
    (0_u64..8, 0_u64..400).prop_map(|(requests, bytes)| Bounds { requests, bytes })
}

fn fits<'a>(requests: impl Iterator<Item = &'a Request>, bounds: Bounds) -> bool {
    let (count, bytes) = requests.fold((0, 0), |(count, bytes), request| (count + 1, bytes + request.bytes));
    count <= bounds.requests && bytes <= bounds.bytes
}

/// Whom an arrival displaces, or none if it is refused, the slow way: the least urgent leave one by one, newest first,
/// until all fits.
fn make_room(waiting: &[Request], arrival: &Request, total: Bounds, batch: Bounds) -> Option<Vec<RequestId>> {
    let is_sheddable = |request: &&Request| request.priority.0 < 0;
    let mut victims: Vec<_> = waiting.iter().filter(is_sheddable).collect();
    victims.retain(|victim| victim.priority < arrival.priority);
    victims.sort_by_key(|victim| (victim.priority, std::cmp::Reverse(victim.id)));
    (0..=victims.len()).find_map(|count| {
        let displaced: Vec<_> = victims[..count].iter().map(|victim| victim.id).collect();
        let rest = || waiting.iter().filter(|request| !displaced.contains(&request.id)).chain([arrival]);
        let band_fits = arrival.priority.0 >= 0 || fits(rest().filter(is_sheddable), batch);
        (band_fits && fits(rest(), total)).then_some(displaced.clone())
    })
}

pub(crate) fn dispatched(actions: &[Action]) -> Vec<RequestId> {
    let id = |action: &Action| match action {
        Action::Dispatch { id, .. } => Some(*id),
        _ => None,
    };
    actions.iter().filter_map(id).collect()
}

/// A replica's place in a list is what its number says.
#[test]
fn replicas_are_listed_in_order() {
    let shell = all_ready(PolicySettings::Fifo(FifoSettings::default()), MODELS, 1);
    let listed: Vec<_> = shell.scheduler.replicas().map(|view| view.replica).collect();
    let expected: Vec<_> = (0..MODELS).map(|id| ReplicaId { model: ModelId(id), index: 0 }).collect();
    assert_eq!(listed, expected);
}

proptest! {
    #![proptest_config(config())]

    /// Who may run one request at a time gets the most urgent of them first, and is never idle while one waits.
    #[test]
    fn a_limited_caller_goes_by_urgency(traffic in traffic(MODELS)) {
        let mut shell = all_ready(PolicySettings::Fifo(FifoSettings::default()), MODELS, u32::MAX);
        for (arrival, _, micros) in traffic {
            shell.now = shell.now + Duration::from_micros(micros);
            let mut waiting: Vec<_> = shell.waiting.values().map(|(request, _)| request.clone()).collect();
            let seen = shell.actions.len();
            match arrival {
                Some((model, priority)) => {
                    let request = Request { caller: Some(limited(0)), ..request(model, priority) };
                    let id = shell.arrive(request.clone());
                    waiting.push(Request { id, ..request });
                }
                None => {
                    let Some(&id) = shell.running.keys().next() else { continue };
                    shell.finish(id);
                }
            }
            let best = waiting.iter().max_by_key(|request| (request.priority, std::cmp::Reverse(request.id)));
            match dispatched(&shell.actions[seen..])[..] {
                [] => prop_assert!(waiting.is_empty() || shell.running.len() == 1),
                ref went => prop_assert_eq!(went, &[best.expect("somebody waited").id]),
            }
        }
    }
}
