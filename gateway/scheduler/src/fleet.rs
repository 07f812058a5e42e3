//! The models and their replicas: what is loaded, what is on its way in or out, and for whom.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Index,
};

use crate::{
    Generation, ModelId, ModelSettings, ReplicaId, ReplicaState, Timestamp,
    policy::{Passed, Standing},
    queue::Slot,
};

/// A model's place in the fleet. Models keep theirs for good.
pub(crate) type ModelIx = usize;

/// Every model that is or was configured.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    models: Vec<Model>,
    by_id: BTreeMap<ModelId, ModelIx>,
    /// Models with a replica that holds room on this machine.
    resident: BTreeSet<ModelIx>,
    /// Models with a swap.
    swapping: BTreeSet<ModelIx>,
}

/// One model.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) id: ModelId,
    /// None when it is no longer configured.
    pub(crate) settings: Option<ModelSettings>,
    pub(crate) replicas: Vec<Replica>,
    /// The load that is under way, at most one.
    pub(crate) swap: Option<Swap>,
    /// Whether it is among the resident and among the swapping.
    noted: (bool, bool),
}

/// One replica of a model.
#[derive(Clone, Debug)]
pub(crate) struct Replica {
    pub(crate) state: ReplicaState,
    pub(crate) generation: Generation,
    /// Requests it runs, of this generation.
    pub(crate) running: u32,
    /// The model's revision when it was loaded.
    pub(crate) revision: u64,
    /// Whether it holds room on this machine while loaded.
    pub(crate) managed: bool,
    /// When its last request ended, or its load.
    pub(crate) idle_since: Timestamp,
    /// From the beginning of its swap to the end of its load.
    pub(crate) made_ready: (Timestamp, Timestamp),
    /// Failed loads and crashes since it last served a request.
    pub(crate) failures: u32,
    /// The `Preload` that it was loaded for.
    pub(crate) preload: Option<u64>,
    /// When to look at it again: for its ttl, or the end of its pause.
    pub(crate) alarm: Option<Timestamp>,
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
        revision: 0,
        managed: true,
        idle_since: Timestamp::ZERO,
        made_ready: (Timestamp::ZERO, Timestamp::ZERO),
        failures: 0,
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
}

impl Model {
    /// Whether a replica serves the model as it is configured now.
    pub(crate) fn is_current(&self, index: usize) -> bool {
        let replica = &self.replicas[index];
        self.settings.as_ref().is_some_and(|settings| {
            index < settings.replicas.max(1) as usize
                && replica.revision == settings.revision
                && replica.managed == settings.managed
        })
    }

    fn ready(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.replicas.len())
            .filter(|&index| self.replicas[index].state == ReplicaState::Ready && self.is_current(index))
    }

    /// The ready replica with a place free that runs the least.
    pub(crate) fn place(&self) -> Option<usize> {
        let limit = self.settings.as_ref()?.concurrency.max(1);
        self.ready()
            .filter(|&index| self.replicas[index].running < limit)
            .min_by_key(|&index| self.replicas[index].running)
    }

    /// Whether some replica is ready, be it full.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready().next().is_some()
    }

    /// The first replica that could be loaded now.
    pub(crate) fn loadable(&self, now: Timestamp) -> Option<usize> {
        let count = self.settings.as_ref()?.replicas.max(1) as usize;
        self.replicas.iter().take(count).position(|replica| match replica.state {
            ReplicaState::Stopped => true,
            ReplicaState::Failed { until } => until <= now,
            ReplicaState::Loading | ReplicaState::Ready | ReplicaState::Stopping => false,
        })
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
        if self.place().is_some() {
            return Standing::Ready;
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
    pub(crate) fn configure(&mut self, settings: &BTreeMap<ModelId, ModelSettings>) {
        for model in &mut self.models {
            model.settings = None;
        }
        for (&id, settings) in settings {
            let ix = *self.by_id.entry(id).or_insert_with(|| {
                self.models.push(Model { id, settings: None, replicas: Vec::new(), swap: None, noted: (false, false) });
                self.models.len() - 1
            });
            let model = &mut self.models[ix];
            let count = model.replicas.len().max(settings.replicas.max(1) as usize);
            model.replicas.resize(count, Replica::NEW);
            model.settings = Some(settings.clone());
        }
    }

    /// The place of a configured model.
    pub(crate) fn find(&self, id: ModelId) -> Option<ModelIx> {
        self.by_id.get(&id).copied().filter(|&ix| self.models[ix].settings.is_some())
    }

    /// The place of a replica that exists, be its model configured or not, if this is its newest load.
    pub(crate) fn find_load(&self, replica: ReplicaId, generation: Generation) -> Option<(ModelIx, usize)> {
        let ix = *self.by_id.get(&replica.model)?;
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
        self.by_id.values().map(|&ix| &self.models[ix])
    }

    pub(crate) fn get_mut(&mut self, model: ModelIx) -> &mut Model {
        &mut self.models[model]
    }

    /// Keeps the sets of models in step; call after every change of a replica's state or a swap.
    pub(crate) fn note(&mut self, ix: ModelIx) {
        let model = &self.models[ix];
        let is_resident = model.replicas.iter().any(|replica| replica.managed && replica.is_up());
        let noted = (is_resident, model.swap.is_some());
        // Most calls change nothing, and this is on the way of every request.
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
        self.by_id[&id]
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

fn update(set: &mut BTreeSet<ModelIx>, ix: ModelIx, is_in: bool) {
    if is_in {
        set.insert(ix);
    } else {
        set.remove(&ix);
    }
}
