//! The models and their replicas: what is loaded, what is on its way in or out, and for whom.

use std::{ops::Index, time::Duration};

use crate::{
    Generation, Load, ModelId, ModelSettings, PolicySettings, ReplicaId, ReplicaState, SessionId, Settings, Timestamp,
    detector::{self, Detector, Saturation, Share},
    placement::{self, Room, Spot},
    policy::{Passed, Standing},
    queue::Slot,
};

/// A model's place in the fleet. Models keep theirs for good.
pub(crate) type ModelIx = usize;

/// Every model that is or was configured.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    models: Vec<Model>,
    /// In the order of their numbers.
    by_id: Vec<(ModelId, ModelIx)>,
    /// Models with a replica that holds room on this machine, in a stable order.
    resident: Vec<ModelIx>,
    /// Models with a swap, in a stable order.
    swapping: Vec<ModelIx>,
}

/// One model.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) id: ModelId,
    /// None when it is no longer configured.
    pub(crate) settings: Option<ModelSettings>,
    pub(crate) replicas: Vec<Replica>,
    /// How full its replicas are: each by itself, and what those hold together that are ready.
    detector: Box<dyn Detector>,
    capacity: Capacity,
    spots: Vec<Spot>,
    with_room: u64,
    ready: u64,
    used: u64,
    running: u64,
    /// The load that is under way, at most one.
    pub(crate) swap: Option<Box<Swap>>,
    /// Whether it is among the resident and among the swapping.
    noted: (bool, bool),
}

/// What one replica of a model may hold, in terms of its detector; worked out when the model is configured.
#[derive(Clone, Copy, Debug)]
struct Capacity {
    /// What makes it full.
    own: u64,
    /// What it may hold while the others have room.
    most: u64,
    /// How long a sample is good for.
    staleness: Option<Duration>,
}

impl Capacity {
    fn new(detector: &dyn Detector, headroom: f64) -> Self {
        let own = detector.capacity();
        let more = u128::from(own) * u128::from(Share::new(headroom).millionths()) / 1_000_000;
        let most = own.saturating_add(u64::try_from(more).unwrap_or(u64::MAX));
        Self { own, most, staleness: detector.staleness() }
    }
}

/// One replica of a model.
#[derive(Clone, Debug)]
pub(crate) struct Replica {
    pub(crate) state: ReplicaState,
    pub(crate) generation: Generation,
    /// Requests it runs, of this generation.
    pub(crate) running: u32,
    /// Their tokens, as estimated.
    pub(crate) tokens: u64,
    /// What it said of itself.
    pub(crate) sampled: Sampled,
    /// What it counts for among the ready replicas of its model: what it holds, and what it runs.
    counted: Option<(u64, u64)>,
    /// The model's revision when it was loaded.
    pub(crate) revision: u64,
    /// Whether it holds room on this machine while loaded.
    pub(crate) managed: bool,
    /// When its last request ended, or its load.
    pub(crate) idle_since: Timestamp,
    /// From the beginning of its swap to the end of its load.
    pub(crate) made_ready: (Timestamp, Timestamp),
    /// Failed loads and crashes since it last served a request for good.
    pub(crate) failures: u32,
    /// When the first request of this load ended.
    pub(crate) served: Option<Timestamp>,
    /// The `Preload` that it was loaded for.
    pub(crate) preload: Option<u64>,
    /// When to look at it again: for its ttl, or the end of its pause.
    pub(crate) alarm: Option<Timestamp>,
}

/// What a replica last said of its own work, and what has changed since.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sampled {
    last: Option<(Timestamp, Load)>,
    /// Whether that is recent enough to go by.
    pub(crate) is_fresh: bool,
    /// Requests that it was sent since, and that still run.
    pub(crate) since: u32,
    /// Counts the samples, to tell which requests came after the last.
    pub(crate) count: u32,
}

impl Sampled {
    pub(crate) fn load(&self) -> Option<Load> {
        self.last.map(|(_, load)| load)
    }

    fn take(&mut self, load: Load, now: Timestamp) {
        *self = Self { last: Some((now, load)), is_fresh: true, since: 0, count: self.count.wrapping_add(1) };
    }
}

/// A replica that is made ready, from the first stop of another to the first service of whom it was made for.
#[derive(Clone, Debug)]
pub(crate) struct Swap {
    /// The replica's number within its model.
    pub(crate) replica: u32,
    pub(crate) phase: Phase,
    /// The request that it is for; none for a preload, or when all who waited for it have left.
    pub(crate) request: Option<Slot>,
    pub(crate) preload: Option<u64>,
    pub(crate) begun: Timestamp,
    pub(crate) evicted: Vec<ReplicaId>,
    /// Whom its request was preferred to.
    pub(crate) passed: Passed,
}

/// How far a swap has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Others are being stopped to make room.
    Evicting,
    /// `Load` was said.
    Loading,
    /// Ready, and not to be evicted before the swap's request has gone.
    Pinned,
}

impl Replica {
    const NEW: Self = Self {
        state: ReplicaState::Stopped,
        generation: Generation(0),
        running: 0,
        tokens: 0,
        sampled: Sampled { last: None, is_fresh: false, since: 0, count: 0 },
        counted: None,
        revision: 0,
        managed: true,
        idle_since: Timestamp::ZERO,
        made_ready: (Timestamp::ZERO, Timestamp::ZERO),
        failures: 0,
        served: None,
        preload: None,
        alarm: None,
    };

    /// Whether there is, or may be, a process.
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, ReplicaState::Loading | ReplicaState::Ready | ReplicaState::Stopping)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.state == ReplicaState::Ready && self.running == 0
    }

    /// It runs nothing any more, and whatever it does from now on is of another load.
    pub(crate) fn wipe(&mut self) {
        self.running = 0;
        self.tokens = 0;
        self.sampled = Sampled { count: self.sampled.count.wrapping_add(1), ..Sampled::default() };
    }
}

impl Model {
    /// Whether a replica serves the model as it is configured now.
    pub(crate) fn is_current(&self, index: usize) -> bool {
        let replica = &self.replicas[index];
        self.settings.as_ref().is_some_and(|settings| {
            settings.has_replica(index as u32)
                && replica.revision == settings.revision
                && replica.managed == settings.managed
        })
    }

    /// The ready replica for one more request, if one has room.
    pub(crate) fn place(&self, session: Option<SessionId>) -> Option<usize> {
        placement::place(&self.spots, session)
    }

    /// Whether some replica is ready, be it full.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready > 0
    }

    /// How full the ready replicas are together.
    pub(crate) fn saturation(&self) -> Saturation {
        Saturation {
            used: self.used,
            capacity: self.ready * self.capacity.own,
            one: self.detector.one(self.used, self.running),
        }
    }

    /// Takes in what a replica says of itself.
    pub(crate) fn sample(&mut self, index: usize, load: Load, now: Timestamp) {
        self.replicas[index].sampled.take(load, now);
    }

    /// Until when a replica's last sample can be gone by, if it can.
    pub(crate) fn fresh_until(&self, index: usize) -> Option<Timestamp> {
        let staleness = self.capacity.staleness?;
        let replica = &self.replicas[index];
        let (sampled, _) = replica.sampled.last.filter(|_| replica.state == ReplicaState::Ready)?;
        Some(sampled + staleness)
    }

    /// Measures a replica anew.
    fn measure(&mut self, index: usize, now: Timestamp) {
        let is_fresh = self.fresh_until(index).is_some_and(|until| now < until);
        self.replicas[index].sampled.is_fresh = is_fresh;
        let replica = &self.replicas[index];
        let settings =
            self.settings.as_ref().filter(|_| replica.state == ReplicaState::Ready && self.is_current(index));
        let (counted, spot) = match settings {
            None => (None, Spot::ABSENT),
            Some(settings) => {
                let used = self.detector.used(replica);
                let is_full = replica.running >= settings.concurrency.max(1);
                let room = if !is_full && self.capacity.staleness.is_some() && !is_fresh {
                    Room::Unsure
                } else if is_full || used >= self.capacity.most {
                    Room::Full
                } else {
                    Room::Free
                };
                (Some((used, replica.running.into())), Spot::new(room, self.detector.load(replica)))
            }
        };
        let old = std::mem::replace(&mut self.spots[index], spot);
        self.with_room = self.with_room + u64::from(spot.has_room()) - u64::from(old.has_room());
        let (before, (used, running)) = (self.replicas[index].counted, counted.unwrap_or_default());
        let (used_before, running_before) = before.unwrap_or_default();
        self.ready = self.ready + u64::from(counted.is_some()) - u64::from(before.is_some());
        self.used = self.used + used - used_before;
        self.running = self.running + running - running_before;
        self.replicas[index].counted = counted;
    }

    /// Whether it is a pool of servers that are there whether asked for or not: remote, and more than one. Each of them
    /// is checked by itself and for nobody in particular, and checked again when it has failed.
    pub(crate) fn is_pool(&self) -> bool {
        self.settings.as_ref().is_some_and(|settings| !settings.managed && settings.replicas > 1)
    }

    /// The first replica that could be loaded now.
    pub(crate) fn loadable(&self, now: Timestamp) -> Option<usize> {
        (0..self.replicas.len()).find(|&index| self.can_be_loaded(index, now))
    }

    /// Whether a replica could be loaded now, room aside.
    pub(crate) fn can_be_loaded(&self, index: usize, now: Timestamp) -> bool {
        self.settings.as_ref().is_some_and(|settings| settings.has_replica(index as u32))
            && match self.replicas[index].state {
                ReplicaState::Stopped => true,
                ReplicaState::Failed { until } => until <= now,
                ReplicaState::Loading | ReplicaState::Ready | ReplicaState::Stopping => false,
            }
    }

    /// Whether it may be evicted now: it runs nothing, and no request owns its load.
    pub(crate) fn can_leave(&self) -> bool {
        self.swap.as_ref().is_none_or(|swap| swap.request.is_none())
            && self.replicas.iter().all(|replica| replica.state != ReplicaState::Ready || replica.running == 0)
    }

    /// Whether a replica of it is loading or ready.
    pub(crate) fn is_loaded(&self) -> bool {
        self.replicas.iter().any(|replica| matches!(replica.state, ReplicaState::Loading | ReplicaState::Ready))
    }

    pub(crate) fn is_managed(&self) -> bool {
        self.settings.as_ref().is_none_or(|settings| settings.managed)
    }

    pub(crate) fn takes_slot(&self) -> bool {
        self.settings.as_ref().is_some_and(|settings| settings.takes_slot)
    }

    /// Whether its load holds a slot for the request that it is for.
    fn swap_holds_slot(&self) -> bool {
        self.takes_slot()
            && self.swap.as_ref().is_some_and(|swap| swap.request.is_some() && swap.phase != Phase::Pinned)
    }

    pub(crate) fn is_evicting(&self) -> bool {
        self.swap.as_ref().is_some_and(|swap| swap.phase == Phase::Evicting)
    }

    pub(crate) fn standing(&self, now: Timestamp) -> Standing {
        if self.settings.is_none() {
            return Standing::Blocked;
        }
        if self.with_room > 0 {
            return Standing::Ready;
        }
        if self.is_pool() {
            return Standing::Blocked;
        }
        match &self.swap {
            Some(swap) if swap.phase != Phase::Pinned => {
                return if swap.request.is_some() { Standing::Blocked } else { Standing::Unloaded };
            }
            _ => {}
        }
        let leaving = || {
            (0..self.replicas.len()).any(|index| match self.replicas[index].state {
                ReplicaState::Stopping => true,
                ReplicaState::Ready => !self.is_current(index),
                ReplicaState::Stopped | ReplicaState::Loading | ReplicaState::Failed { .. } => false,
            })
        };
        if self.loadable(now).is_some() || (!self.is_ready() && leaving()) {
            Standing::Unloaded
        } else {
            Standing::Blocked
        }
    }
}

impl Fleet {
    /// Takes over the configured models; the others lose their settings.
    pub(crate) fn configure(&mut self, settings: &Settings) {
        for model in &mut self.models {
            model.settings = None;
        }
        for (&id, model_settings) in &settings.models {
            let detector = match settings.policy {
                PolicySettings::Flow(_) => detector::build(model_settings),
                PolicySettings::Serial(_) | PolicySettings::Fifo(_) => detector::places(model_settings),
            };
            let capacity = Capacity::new(&*detector, model_settings.headroom);
            let ix = self.known(id).unwrap_or_else(|| {
                let place = self.by_id.partition_point(|&(other, _)| other < id);
                self.by_id.insert(place, (id, self.models.len()));
                self.models.push(Model {
                    id,
                    settings: None,
                    replicas: Vec::new(),
                    detector: detector::places(model_settings),
                    capacity,
                    spots: Vec::new(),
                    with_room: 0,
                    ready: 0,
                    used: 0,
                    running: 0,
                    swap: None,
                    noted: (false, false),
                });
                self.models.len() - 1
            });
            let model = &mut self.models[ix];
            let count = model.replicas.len().max(model_settings.end() as usize);
            model.replicas.resize(count, Replica::NEW);
            model.spots.resize(count, Spot::ABSENT);
            model.settings = Some(model_settings.clone());
            model.detector = detector;
            model.capacity = capacity;
        }
    }

    /// The place of a model that was configured at some time. The shell numbers them from 0 on, so most are found at
    /// their own number.
    fn known(&self, id: ModelId) -> Option<ModelIx> {
        match self.by_id.get(id.0 as usize) {
            Some(&(found, ix)) if found == id => Some(ix),
            _ => self.by_id.binary_search_by_key(&id, |&(id, _)| id).ok().map(|place| self.by_id[place].1),
        }
    }

    /// The place of a configured model.
    pub(crate) fn find(&self, id: ModelId) -> Option<ModelIx> {
        self.known(id).filter(|&ix| self.models[ix].settings.is_some())
    }

    /// The place of a replica that exists, be its model configured or not, if this is its newest load.
    pub(crate) fn find_load(&self, replica: ReplicaId, generation: Generation) -> Option<(ModelIx, usize)> {
        let ix = self.known(replica.model)?;
        let index = replica.index as usize;
        let found = self.models[ix].replicas.get(index)?;
        (found.generation == generation && generation.0 > 0).then_some((ix, index))
    }

    pub(crate) fn len(&self) -> usize {
        self.models.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Model> {
        self.models.iter()
    }

    /// The models in the order of their numbers.
    pub(crate) fn sorted(&self) -> impl Iterator<Item = &Model> {
        self.by_id.iter().map(|&(_, ix)| &self.models[ix])
    }

    pub(crate) fn get_mut(&mut self, model: ModelIx) -> &mut Model {
        &mut self.models[model]
    }

    /// Keeps what a model's replicas hold together in step; call after every change of what one of them does.
    pub(crate) fn measure(&mut self, ix: ModelIx, index: usize, now: Timestamp) {
        self.models[ix].measure(index, now);
    }

    /// Keeps the sets of models in step; call after every change of a replica's state or a swap.
    pub(crate) fn note(&mut self, ix: ModelIx) {
        let model = &self.models[ix];
        let is_resident = model.replicas.iter().any(|replica| replica.managed && replica.is_up());
        let noted = (is_resident, model.swap.is_some());
        if model.noted != noted {
            self.models[ix].noted = noted;
            update(&mut self.resident, ix, noted.0);
            update(&mut self.swapping, ix, noted.1);
        }
    }

    pub(crate) fn resident(&self) -> Vec<ModelId> {
        self.resident.iter().map(|&ix| self.models[ix].id).collect()
    }

    /// Models with a swap, in a stable order.
    pub(crate) fn swapping(&self) -> impl Iterator<Item = ModelIx> + '_ {
        self.swapping.iter().copied()
    }

    /// Slots held by loads.
    pub(crate) fn held_slots(&self) -> u64 {
        self.swapping().filter(|&ix| self.models[ix].swap_holds_slot()).count() as u64
    }

    /// The place of a model that was configured at some time.
    pub(crate) fn ix(&self, id: ModelId) -> ModelIx {
        self.known(id).expect("nobody has the number of a model that never was")
    }

    pub(crate) fn replica_id(&self, model: ModelIx, index: usize) -> ReplicaId {
        ReplicaId { model: self.models[model].id, index: index as u32 }
    }
}

impl Index<ModelIx> for Fleet {
    type Output = Model;

    fn index(&self, model: ModelIx) -> &Model {
        &self.models[model]
    }
}

/// Puts a model into a sorted list, or takes it out.
fn update(list: &mut Vec<ModelIx>, ix: ModelIx, is_in: bool) {
    match list.binary_search(&ix) {
        Err(place) if is_in => list.insert(place, ix),
        Ok(place) if !is_in => _ = list.remove(place),
        _ => {}
    }
}
