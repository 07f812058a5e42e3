//! What `flow` promises: levels in strict order, the order within a flow, and room left below the ceilings.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use switchyard_scheduler::{
    CeilingSettings, DetectorSettings, FairnessSettings, FlowSettings, LevelSettings, ModelId, ModelSettings,
    OrderingSettings, Priority, Request, RequestId, Settings, TenantId, Timestamp,
};

use super::{Check, rule};

/// Whose turn a request takes: those of `global-strict` are all one tenant's.
type Key = (ModelId, Reverse<Priority>, TenantId);

/// What waits, by model, level and tenant.
#[derive(Debug, Default)]
pub(super) struct Flows(BTreeMap<Key, Queue>);

#[derive(Debug, Default)]
struct Queue {
    due: BTreeSet<(Timestamp, RequestId)>,
    others: BTreeSet<RequestId>,
}

pub(super) fn level(flow: &FlowSettings, priority: Priority) -> LevelSettings {
    flow.levels.get(&priority).copied().unwrap_or(flow.template)
}

fn key(flow: &FlowSettings, request: &Request) -> Key {
    let tenant = match level(flow, request.priority).fairness {
        FairnessSettings::GlobalStrict => TenantId::default(),
        FairnessSettings::RoundRobin | FairnessSettings::Weighted => request.tenant,
    };
    (request.model, Reverse(request.priority), tenant)
}

/// When the request has to be gone, as far as that orders its flow.
fn deadline(settings: &Settings, flow: &FlowSettings, arrived: Timestamp, request: &Request) -> Option<Timestamp> {
    match level(flow, request.priority).ordering {
        OrderingSettings::Edf => {
            let admission = &settings.admission;
            let of_level = admission.levels.get(&request.priority).and_then(|level| level.ttl);
            let limit = of_level.or(admission.bands[request.priority.band().index()].ttl);
            let ttl = request.ttl.into_iter().chain(limit).min()?;
            Some(arrived + ttl)
        }
        OrderingSettings::Fcfs | OrderingSettings::SloDeadline => None,
    }
}

impl Flows {
    pub(super) fn arrive(&mut self, settings: &Settings, flow: &FlowSettings, arrived: Timestamp, request: &Request) {
        let queue = self.0.entry(key(flow, request)).or_default();
        match deadline(settings, flow, arrived, request) {
            Some(deadline) => _ = queue.due.insert((deadline, request.id)),
            None => _ = queue.others.insert(request.id),
        }
    }

    pub(super) fn leave(&mut self, settings: &Settings, flow: &FlowSettings, arrived: Timestamp, request: &Request) {
        let key = key(flow, request);
        let Some(queue) = self.0.get_mut(&key) else { return };
        match deadline(settings, flow, arrived, request) {
            Some(deadline) => queue.due.remove(&(deadline, request.id)),
            None => queue.others.remove(&request.id),
        };
        if queue.due.is_empty() && queue.others.is_empty() {
            self.0.remove(&key);
        }
    }

    /// Whether it is the request's turn.
    pub(super) fn in_turn(&self, flow: &FlowSettings, request: &Request) -> Check {
        let (id, model) = (request.id, request.model);
        if flow.aging_divisor == 0 {
            let highest = self.levels(model).next();
            rule(highest == Some(request.priority), || {
                format!("{id:?} is dispatched while {highest:?} waits for the same model")
            })?;
        }
        let Some(queue) = self.0.get(&key(flow, request)) else { return Err(format!("{id:?} waits nowhere")) };
        // Which of those with a goal are too late already is the scheduler's own guess.
        let first_due = queue.due.first().map(|&(_, first)| first);
        let first = queue.others.first().copied();
        let guesses = level(flow, request.priority).ordering == OrderingSettings::SloDeadline;
        rule(guesses || first_due == Some(id) || first == Some(id), || {
            format!("{id:?} is dispatched before {first_due:?} and {first:?} of the same flow")
        })
    }

    /// The levels at which somebody waits for a model, the highest first.
    fn levels(&self, model: ModelId) -> impl Iterator<Item = Priority> + '_ {
        let from = (model, Reverse(Priority(i64::MAX)), TenantId(0));
        let to = (model, Reverse(Priority(i64::MIN)), TenantId(u64::MAX));
        self.0.range(from..=to).map(|(&(_, Reverse(level), _), _)| level)
    }
}

/// What the ready replicas of a model hold together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pool {
    pub(super) replicas: u64,
    pub(super) running: u64,
    /// In the units of the detector.
    pub(super) used: u64,
    /// Whether one of them has room.
    pub(super) has_room: bool,
    /// Whether each of them says that it has nothing to do.
    pub(super) idle: bool,
}

/// What one replica holds, in the units of the detector.
pub(super) fn used(model: &ModelSettings, running: u32, tokens: u64) -> u64 {
    match model.detector {
        DetectorSettings::Tokens { .. } => tokens,
        _ => running.into(),
    }
}

/// What one replica may hold for one more request to go there.
pub(super) fn limit(model: &ModelSettings) -> u64 {
    let whole = match model.detector {
        DetectorSettings::Slots => u64::from(model.concurrency),
        DetectorSettings::Concurrency { requests } => requests.into(),
        DetectorSettings::Tokens { tokens } => tokens,
        DetectorSettings::Utilization { .. } => return u64::MAX,
    };
    // In millionths, as settings are read.
    whole + (u128::from(whole) * (model.headroom * 1e6).round() as u128 / 1_000_000) as u64
}

/// What all replicas of a model may hold together, where the ledger can tell.
fn capacity(model: &ModelSettings, pool: Pool) -> Option<u64> {
    let one = match model.detector {
        DetectorSettings::Slots => u64::from(model.concurrency),
        DetectorSettings::Concurrency { requests } => requests.into(),
        DetectorSettings::Tokens { tokens } => tokens,
        DetectorSettings::Utilization { .. } => return None,
    };
    Some(one * pool.replicas)
}

/// The least and the most that the ceiling of a level can be.
fn ceiling(flow: &FlowSettings, priority: Priority) -> (f64, f64) {
    let of = |own: Option<f64>| match (own, flow.ceilings) {
        (Some(ceiling), _) | (None, CeilingSettings::Fixed(ceiling)) => (ceiling, ceiling),
        (None, CeilingSettings::Holdback { least, greatest, .. } | CeilingSettings::Adaptive { least, greatest }) => {
            (least, greatest)
        }
    };
    // Never above that of a more urgent level.
    let above = flow.levels.range(priority..).filter_map(|(_, level)| level.ceiling).fold(f64::INFINITY, f64::min);
    let (least, most) = of(level(flow, priority).ceiling);
    (least.min(above), most.min(above))
}

fn reaches(pool: Pool, capacity: u64, ceiling: f64) -> bool {
    u128::from(pool.used) * 1_000_000 >= u128::from(capacity) * (ceiling * 1e6).round() as u128
}

/// Whether one more request of this priority may go to replicas that hold so much.
pub(super) fn below_ceiling(flow: &FlowSettings, model: &ModelSettings, request: &Request, pool: Pool) -> Check {
    let Some(capacity) = capacity(model, pool) else { return Ok(()) };
    let (_, most) = ceiling(flow, request.priority);
    rule(!reaches(pool, capacity, most), || {
        let (id, used) = (request.id, pool.used);
        format!("{id:?} is dispatched while {used} of {capacity} are used; its ceiling is {most}")
    })
}

/// Whether somebody waits for a model who could go. Only for models that are in nobody's way.
pub(super) fn works(flows: &Flows, flow: &FlowSettings, id: ModelId, model: &ModelSettings, pool: Pool) -> Check {
    let mut levels = flows.levels(id).peekable();
    if levels.peek().is_none() || !pool.has_room {
        return Ok(());
    }
    // Which level is first may depend on their ages: none of them may have room.
    let lowest = levels.map(|level| ceiling(flow, level).0).fold(f64::INFINITY, f64::min);
    let has_room = match capacity(model, pool) {
        Some(capacity) => !reaches(pool, capacity, lowest),
        None => pool.idle && pool.running == 0,
    };
    rule(!has_room, || format!("requests wait for {id:?}, which has room: {pool:?}"))
}

/// How long a sample is good for.
pub(super) fn staleness(model: &ModelSettings) -> Option<Duration> {
    match model.detector {
        DetectorSettings::Utilization { staleness, .. } => Some(staleness),
        _ => None,
    }
}
