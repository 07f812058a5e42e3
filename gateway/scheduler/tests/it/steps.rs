//! What may happen to a scheduler, at random.

use std::{collections::BTreeSet, time::Duration};

use proptest::{prelude::*, sample::Index};
use switchyard_scheduler::{
    BackoffSettings, BandSettings, Bounds, Caller, CallerId, CeilingSettings, DetectorSettings, Event,
    EvictionSettings, FairnessSettings, FifoSettings, FlowSettings, Generation, GroupSettings, HoldbackScale,
    LevelSettings, Load, MatrixSettings, ModelId, ModelSettings, OrderingSettings, PolicySettings, Priority, Request,
    RequestId, SerialSettings, SessionId, Settings, TenantId, Usage,
};

use crate::shell::{Process, Shell};

pub(crate) const MODELS: u32 = 5;

/// The part of an arrival that only `flow` looks at.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    tenant: u64,
    prompt_tokens: u64,
    max_tokens: Option<u64>,
    goal: Option<u64>,
    session: Option<u64>,
}

fn flow() -> impl Strategy<Value = Flow> {
    let tokens = || prop_oneof![8 => 0_u64..5_000, 1 => any::<u64>()];
    (0_u64..5, tokens(), prop::option::of(tokens()), prop::option::of(0_u64..30_000), prop::option::of(any::<u64>()))
        .prop_map(|(tenant, prompt_tokens, max_tokens, goal, session)| Flow {
            tenant,
            prompt_tokens,
            max_tokens,
            goal,
            session,
        })
}

fn usage() -> impl Strategy<Value = Usage> {
    let tokens = || prop::option::weighted(0.7, prop_oneof![1 => Just(0), 5 => 0_u64..5_000, 1 => any::<u64>()]);
    (tokens(), tokens(), prop::option::of(0_u64..3_000)).prop_map(|(prompt_tokens, completion_tokens, first)| Usage {
        prompt_tokens,
        completion_tokens,
        first_token: first.map(Duration::from_millis),
    })
}

pub(crate) fn load() -> impl Strategy<Value = Load> {
    (0_u32..8, 0_u32..8, prop::option::of(0.0..1.0)).prop_map(|(running, waiting, kv_cache)| Load {
        running,
        waiting,
        kv_cache,
    })
}

/// One thing that may happen, in terms of what there is at that time.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Arrive {
        model: u32,
        priority: i64,
        bytes: u64,
        ttl: Option<u64>,
        caller: Option<u64>,
        flow: Flow,
    },
    Cancel(Index),
    Finish(Index, Usage),
    ComeBack(Index),
    Sample(Index, Load),
    /// Answer a load or a stop; a load fails if `true`.
    Answer(Index, bool),
    Exit(Index),
    Unload(Option<u32>),
    Preload(Vec<u32>),
    Reconfigure(Box<Settings>),
    Wait(u64),
    WaitForDeadline,
    /// News of a load that is long over, or never was.
    Stale(Index, u64, u8),
}

pub(crate) fn priority() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => prop::sample::select(vec![-100, -50, -1, 0, 1, 50, 99, 100, 200]),
        1 => -110_i64..110,
        1 => any::<i64>(),
    ]
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let ttl = prop_oneof![4 => Just(None), 1 => (0_u64..30_000).prop_map(Some)];
    prop_oneof![
        12 => (0..MODELS + 1, priority(), 0_u64..100, ttl, prop::option::of(0_u64..4), flow()).prop_map(
            |(model, priority, bytes, ttl, caller, flow)| Step::Arrive { model, priority, bytes, ttl, caller, flow }
        ),
        3 => any::<Index>().prop_map(Step::Cancel),
        8 => (any::<Index>(), usage()).prop_map(|(which, usage)| Step::Finish(which, usage)),
        2 => any::<Index>().prop_map(Step::ComeBack),
        4 => (any::<Index>(), load()).prop_map(|(which, load)| Step::Sample(which, load)),
        10 => (any::<Index>(), prop::bool::weighted(0.15)).prop_map(|(which, fails)| Step::Answer(which, fails)),
        1 => any::<Index>().prop_map(Step::Exit),
        1 => prop::option::of(0..MODELS).prop_map(Step::Unload),
        1 => prop::collection::vec(0..MODELS, 0..4).prop_map(Step::Preload),
        1 => settings().prop_map(|settings| Step::Reconfigure(Box::new(settings))),
        3 => (0_u64..20_000).prop_map(Step::Wait),
        2 => Just(Step::WaitForDeadline),
        1 => (any::<Index>(), 0_u64..3, 0_u8..4).prop_map(|(which, age, kind)| Step::Stale(which, age, kind)),
    ]
}

fn policy() -> impl Strategy<Value = PolicySettings> {
    prop_oneof![
        (0_u32..100, prop::sample::select(vec![0, 1, 60]), 1_u32..4).prop_map(
            |(swap_affinity_bonus, aging_divisor, slots)| {
                PolicySettings::Serial(SerialSettings { swap_affinity_bonus, aging_divisor, slots })
            }
        ),
        prop::collection::btree_map((0..MODELS).prop_map(ModelId), -20_i64..20, 0..3)
            .prop_map(|model_priority| PolicySettings::Fifo(FifoSettings { model_priority })),
        flow_settings().prop_map(PolicySettings::Flow),
    ]
}

fn level_settings() -> impl Strategy<Value = LevelSettings> {
    (
        prop::sample::select(vec![
            FairnessSettings::GlobalStrict,
            FairnessSettings::RoundRobin,
            FairnessSettings::Weighted,
        ]),
        prop::sample::select(vec![OrderingSettings::Fcfs, OrderingSettings::Edf, OrderingSettings::SloDeadline]),
        prop::option::of(0.1..1.2),
    )
        .prop_map(|(fairness, ordering, ceiling)| LevelSettings { fairness, ordering, ceiling })
}

pub(crate) fn flow_settings() -> impl Strategy<Value = FlowSettings> {
    let levels = prop::collection::btree_map(priority().prop_map(Priority), level_settings(), 0..4);
    let scale = || prop::sample::select(vec![HoldbackScale::Rank, HoldbackScale::Value]);
    let ceilings = prop_oneof![
        (0.1..1.2).prop_map(CeilingSettings::Fixed),
        (0.1..0.8, 0.8..1.1, scale()).prop_map(|(least, greatest, by)| CeilingSettings::Holdback {
            least,
            greatest,
            by
        }),
        (0.1..0.8, 0.8..1.1).prop_map(|(least, greatest)| CeilingSettings::Adaptive { least, greatest }),
    ];
    let weights = prop::collection::btree_map((0_u64..5).prop_map(TenantId), 1_u32..10, 0..4);
    let aging = prop::sample::select(vec![0_u32, 0, 1, 60]);
    (levels, level_settings(), ceilings, aging, any::<bool>(), weights, 0_u64..60).prop_map(
        |(levels, template, ceilings, aging_divisor, swap_affinity, weights, idle)| FlowSettings {
            levels,
            template,
            ceilings,
            aging_divisor,
            swap_affinity,
            weights,
            idle_timeout: Duration::from_secs(idle),
            ..FlowSettings::default()
        },
    )
}

fn detector() -> impl Strategy<Value = DetectorSettings> {
    prop_oneof![
        2 => Just(DetectorSettings::Slots),
        1 => (1_u32..5).prop_map(|requests| DetectorSettings::Concurrency { requests }),
        1 => (1_u64..5_000).prop_map(|tokens| DetectorSettings::Tokens { tokens }),
        1 => (1_u32..6, 0.1..1.0, 1_u64..30_000).prop_map(|(queue_depth, kv_cache, staleness)| {
            DetectorSettings::Utilization { queue_depth, kv_cache, staleness: Duration::from_millis(staleness) }
        }),
    ]
}

fn model() -> impl Strategy<Value = ModelSettings> {
    let flags = (prop::bool::weighted(0.85), prop::bool::weighted(0.85));
    let gaps = prop_oneof![4 => Just(BTreeSet::new()), 1 => Just(BTreeSet::from([0]))];
    let replicas = (1_u32..3, gaps);
    (replicas, 1_u32..4, prop::option::of(1_u64..20), 0_u64..2, flags, detector(), 0.0..0.5).prop_map(
        |((replicas, gaps), concurrency, ttl, revision, (managed, takes_slot), detector, headroom)| ModelSettings {
            replicas,
            gaps,
            concurrency,
            ttl: ttl.map(Duration::from_secs),
            revision,
            managed,
            takes_slot,
            detector,
            headroom,
        },
    )
}

/// Two groups, with each model in one of them or in none; or a few sets.
pub(crate) fn eviction() -> impl Strategy<Value = EvictionSettings> {
    let flags = prop::collection::vec(any::<(bool, bool, bool)>(), 2);
    let groups = (flags, prop::collection::vec(0_usize..3, MODELS as usize)).prop_map(|(flags, places)| {
        let group = |(index, (swap, exclusive, persistent))| GroupSettings {
            swap,
            exclusive,
            persistent,
            members: (0..MODELS).filter(|&id| places[id as usize] == index).map(ModelId).collect(),
        };
        EvictionSettings::Groups(flags.into_iter().enumerate().map(group).collect())
    });
    let set = prop::collection::vec((0..MODELS).prop_map(ModelId), 1..4);
    let costs = prop::collection::btree_map((0..MODELS).prop_map(ModelId), 0_u32..5, 0..3);
    let matrix = (prop::collection::vec(set, 1..5), costs)
        .prop_map(|(sets, costs)| EvictionSettings::Matrix(MatrixSettings { sets, costs }));
    prop_oneof![2 => groups, 1 => matrix]
}

pub(crate) fn settings() -> impl Strategy<Value = Settings> {
    let models = prop::collection::btree_map((0..MODELS).prop_map(ModelId), model(), 1..=MODELS as usize);
    let bounds = (3_u64..30, 200_u64..2_000).prop_map(|(requests, bytes)| Bounds { requests, bytes });
    let levels = prop::collection::btree_map(priority().prop_map(Priority), (0_u64..5, 1_u64..60), 0..3);
    (policy(), eviction(), models, bounds, prop::option::of(1_u64..60), levels, any::<bool>()).prop_map(
        |(policy, eviction, models, total, ttl, levels, sheds)| {
            let mut settings = Settings { policy, eviction, models, ..Settings::default() };
            settings.admission.total = total;
            settings.admission.shed_when_saturated = sheds;
            let level = |(requests, ttl)| BandSettings {
                bounds: Bounds { requests, ..total },
                ttl: Some(Duration::from_secs(ttl)),
            };
            settings.admission.levels = levels.into_iter().map(|(priority, of)| (priority, level(of))).collect();
            settings.admission.bands[0].ttl = ttl.map(Duration::from_secs);
            settings.backoff = BackoffSettings { initial: Duration::from_secs(1), max: Duration::from_secs(8) };
            settings
        },
    )
}

/// A caller with limits of its own, always the same.
pub(crate) fn limited(id: u64) -> Caller {
    let (waiting, running) = [(None, Some(1)), (Some(2), Some(1)), (Some(3), Some(2)), (Some(1), None)][id as usize];
    Caller { id: CallerId(id), waiting, running }
}

pub(crate) fn pick<T: Copy>(which: Index, among: &[T]) -> Option<T> {
    (!among.is_empty()).then(|| *which.get(among))
}

pub(crate) fn take(shell: &mut Shell, step: Step) {
    match step {
        Step::Arrive { model, priority, bytes, ttl, caller, flow } => {
            shell.arrive(Request {
                bytes,
                ttl: ttl.map(Duration::from_millis),
                caller: caller.map(limited),
                tenant: TenantId(flow.tenant),
                prompt_tokens: flow.prompt_tokens,
                max_tokens: flow.max_tokens,
                ttft_goal: flow.goal.map(Duration::from_millis),
                session: flow.session.map(SessionId),
                ..Request::new(RequestId(0), ModelId(model), Priority(priority))
            });
        }
        Step::Cancel(which) => {
            let known: Vec<_> = shell.waiting.keys().chain(shell.running.keys()).copied().collect();
            if let Some(id) = pick(which, &known) {
                shell.tell(Event::Cancel { id });
                shell.tell(Event::Cancel { id });
            }
        }
        Step::Finish(which, usage) => {
            if let Some(id) = pick(which, &shell.running.keys().copied().collect::<Vec<_>>()) {
                shell.tell(Event::Finished { id, usage });
                shell.tell(Event::Finished { id, usage });
            }
        }
        Step::ComeBack(which) => {
            if let Some(id) = pick(which, &shell.running.keys().copied().collect::<Vec<_>>()) {
                shell.come_back(id);
            }
        }
        Step::Sample(which, load) => {
            let up: Vec<_> = shell.processes.iter().map(|(&replica, &(generation, _))| (replica, generation)).collect();
            if let Some((replica, generation)) = pick(which, &up) {
                shell.tell(Event::Sample { replica, generation, load });
            }
        }
        Step::Answer(which, fails) => {
            let pending: Vec<_> = shell
                .processes
                .iter()
                .filter(|(_, (_, process))| *process != Process::Ready)
                .map(|(&replica, &(generation, process))| (replica, generation, process))
                .collect();
            match pick(which, &pending) {
                Some((replica, generation, Process::Loading)) => {
                    shell.tell(Event::LoadDone { replica, generation, ok: !fails });
                }
                Some((replica, generation, _)) => shell.tell(Event::StopDone { replica, generation }),
                None => {}
            }
        }
        Step::Exit(which) => {
            let up: Vec<_> = shell.processes.iter().map(|(&replica, &(generation, _))| (replica, generation)).collect();
            if let Some((replica, generation)) = pick(which, &up) {
                shell.tell(Event::Exited { replica, generation });
            }
        }
        Step::Unload(model) => shell.tell(Event::Unload { models: model.map(ModelId).into_iter().collect() }),
        Step::Preload(models) => shell.tell(Event::Preload { models: models.into_iter().map(ModelId).collect() }),
        Step::Reconfigure(settings) => {
            // Slots and places that are taken stay taken, so a check against the new numbers needs a quiet moment.
            while let Some(&id) = shell.running.keys().next() {
                shell.finish(id);
            }
            shell.tell(Event::Reconfigure(settings));
        }
        Step::Wait(millis) => shell.now = shell.now + Duration::from_millis(millis),
        Step::WaitForDeadline => {
            if let Some(deadline) = shell.scheduler.deadline() {
                shell.now = shell.now.max(deadline);
                shell.tell(Event::Tick);
                assert!(shell.scheduler.deadline().is_none_or(|next| next > shell.now), "a deadline in the past");
            }
        }
        Step::Stale(which, age, kind) => {
            let known: Vec<_> = shell.scheduler.replicas().map(|view| (view.replica, view.generation.0)).collect();
            let Some((replica, newest)) = pick(which, &known) else { return };
            let generation = Generation(if age == 0 { newest + 1 } else { newest.saturating_sub(age) });
            let ok = kind == 0;
            shell.tell(match kind {
                0 | 1 => Event::LoadDone { replica, generation, ok },
                2 => Event::StopDone { replica, generation },
                _ => Event::Exited { replica, generation },
            });
        }
    }
}
