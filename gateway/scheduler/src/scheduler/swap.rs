//! Making a replica ready: stop what is in the way, load, and hold it for whom it was made.

use std::collections::VecDeque;

use super::Scheduler;
use crate::{
    Action, ModelId, ReplicaState, StopReason,
    fleet::{ModelIx, Phase, Swap},
    policy::Passed,
    queue::Slot,
};

/// Models to be loaded ahead of any request, in order.
#[derive(Debug, Default)]
pub(super) struct Preloads {
    queue: VecDeque<(u64, ModelId)>,
    /// Tells one `Preload` from the next: only models of the same one spare each other.
    batch: u64,
}

impl Preloads {
    pub(super) fn remove(&mut self, model: ModelId) {
        self.queue.retain(|&(_, queued)| queued != model);
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }
}

impl Scheduler {
    /// Commits to loading a replica. Those in its way are stopped now; it is loaded once they are gone.
    pub(super) fn begin_swap(
        &mut self,
        model: ModelIx,
        replica: usize,
        evict: &[ModelIx],
        request: Option<(Slot, Passed)>,
        preload: Option<u64>,
    ) {
        let mut evicted = Vec::new();
        for &other in evict {
            for index in 0..self.fleet[other].replicas.len() {
                let reason = match self.fleet[other].replicas[index].state {
                    ReplicaState::Ready => StopReason::Evicted,
                    ReplicaState::Loading => StopReason::Abandoned,
                    ReplicaState::Stopped | ReplicaState::Stopping | ReplicaState::Failed { .. } => continue,
                };
                evicted.push(self.fleet.replica_id(other, index));
                self.stop(other, index, reason);
            }
        }
        let (request, passed) = request.unzip();
        self.fleet.get_mut(model).swap = Some(Box::new(Swap {
            replica: replica as u32,
            phase: Phase::Evicting,
            request,
            preload,
            begun: self.now,
            evicted,
            passed: passed.unwrap_or_default(),
        }));
        self.fleet.note(model);
        self.load_if_clear(model);
        self.refresh(model);
    }

    /// Looks again at every swap that waits for its evictions.
    pub(super) fn advance_swaps(&mut self) {
        let evicting: Vec<_> = self.fleet.swapping().filter(|&model| self.fleet[model].is_evicting()).collect();
        for model in evicting {
            self.load_if_clear(model);
            self.refresh(model);
        }
    }

    /// Says `Load` if nothing is in the way any more. If something is that is not on its way out (the settings have
    /// changed meanwhile), the swap is called off, and its request waits as before.
    fn load_if_clear(&mut self, ix: ModelIx) {
        let in_the_way = if self.fleet[ix].is_managed() { self.in_the_way(ix) } else { Vec::new() };
        if in_the_way.iter().any(|&other| self.fleet[other].is_loaded()) {
            self.fleet.get_mut(ix).swap = None;
        }
        if !in_the_way.is_empty() {
            return;
        }
        let Some(swap) = &mut self.fleet.get_mut(ix).swap else { return };
        swap.phase = Phase::Loading;
        let (index, preload) = (swap.replica as usize, swap.preload);
        self.load(ix, index, preload);
    }

    /// Says `Load`.
    pub(super) fn load(&mut self, ix: ModelIx, index: usize, preload: Option<u64>) {
        let now = self.now;
        let model = self.fleet.get_mut(ix);
        let Some(settings) = &model.settings else { return };
        let replica = &mut model.replicas[index];
        replica.wipe();
        replica.state = ReplicaState::Loading;
        replica.generation.0 += 1;
        replica.revision = settings.revision;
        replica.managed = settings.managed;
        replica.preload = preload;
        replica.made_ready.0 = now;
        let generation = replica.generation;
        let swap = model.swap.as_mut().filter(|swap| swap.replica as usize == index);
        let (request, evicted) =
            swap.map_or((None, Vec::new()), |swap| (swap.request, std::mem::take(&mut swap.evicted)));
        let request = request.map(|slot| self.requests[slot].id);
        let replica = self.fleet.replica_id(ix, index);
        self.actions.push_back(Action::Load { replica, generation, request, evicted });
    }

    /// Says `Stop`, and drops the swap that the replica was part of.
    pub(super) fn stop(&mut self, ix: ModelIx, index: usize, reason: StopReason) {
        let model = self.fleet.get_mut(ix);
        if model.swap.as_ref().is_some_and(|swap| swap.replica as usize == index && swap.phase != Phase::Evicting) {
            model.swap = None;
        }
        let replica = &mut model.replicas[index];
        replica.state = ReplicaState::Stopping;
        let generation = replica.generation;
        let replica = self.fleet.replica_id(ix, index);
        self.actions.push_back(Action::Stop { replica, generation, reason });
        self.refresh(ix);
    }

    /// A request no longer waits. If a swap was for it, the swap passes to the next who waits for that model; one that
    /// has not said `Load` is called off if there is none, and a pinned replica is free again.
    pub(super) fn release_swap(&mut self, slot: Slot) {
        let ix = self.requests[slot].model;
        let next = self.policy.head(ix);
        let model = self.fleet.get_mut(ix);
        let Some(swap) = model.swap.as_mut().filter(|swap| swap.request == Some(slot)) else { return };
        swap.passed = Passed::default();
        swap.request = next;
        if swap.phase == Phase::Pinned || (swap.phase == Phase::Evicting && next.is_none()) {
            model.swap = None;
        }
        self.refresh(ix);
    }

    /// Queues models to be loaded when nobody waits.
    pub(super) fn preload(&mut self, models: &[ModelId]) {
        if self.drain.has_begun() {
            return;
        }
        self.preloads.batch += 1;
        for &model in models {
            if self.fleet.find(model).is_some() && !self.preloads.queue.iter().any(|&(_, queued)| queued == model) {
                self.preloads.queue.push_back((self.preloads.batch, model));
            }
        }
    }

    /// Loads queued models as far as they fit.
    pub(super) fn start_preloads(&mut self) {
        while self.backlog.requests() == 0
            && let Some(&(batch, id)) = self.preloads.queue.front()
        {
            match self.preload_plan(batch, id) {
                Plan::Wait => return,
                Plan::Drop => {}
                Plan::Load { model, replica, evict } => self.begin_swap(model, replica, &evict, None, Some(batch)),
            }
            self.preloads.queue.pop_front();
        }
    }

    fn preload_plan(&self, batch: u64, id: ModelId) -> Plan {
        let Some(ix) = self.fleet.find(id) else { return Plan::Drop };
        let model = &self.fleet[ix];
        if model.is_loaded() || model.swap.is_some() || model.is_pool() {
            return Plan::Drop;
        }
        let Some(replica) = model.loadable(self.now) else {
            // On its way out, or paused after a failure; the latter is not waited for.
            return if model.replicas.iter().any(|replica| replica.is_up()) { Plan::Wait } else { Plan::Drop };
        };
        if !model.is_managed() {
            return Plan::Load { model: ix, replica, evict: Vec::new() };
        }
        let in_the_way = self.in_the_way(ix);
        let ahead: Vec<_> = self
            .fleet
            .swapping()
            .filter(|&other| self.fleet[other].is_evicting() && self.conflict(id, self.fleet[other].id))
            .collect();
        let is_sibling = |&other: &ModelIx| {
            let other = &self.fleet[other];
            other.swap.as_ref().is_some_and(|swap| swap.preload == Some(batch))
                || other.replicas.iter().any(|replica| replica.is_up() && replica.preload == Some(batch))
        };
        if in_the_way.iter().chain(&ahead).any(is_sibling) {
            return Plan::Drop;
        }
        let is_quiet = |&other: &ModelIx| self.fleet[other].can_leave() && self.fleet[other].swap.is_none();
        if ahead.is_empty() && in_the_way.iter().all(is_quiet) {
            Plan::Load { model: ix, replica, evict: in_the_way }
        } else {
            Plan::Wait
        }
    }

    /// Calls off the preloads that still wait for their evictions and that a model with a request conflicts with.
    pub(super) fn cancel_preloads_against(&mut self, ix: ModelIx) {
        if !self.fleet[ix].is_managed() {
            return;
        }
        let wanted = self.fleet[ix].id;
        let against = |&other: &ModelIx| {
            let model = &self.fleet[other];
            model.is_evicting()
                && model.swap.as_ref().is_some_and(|swap| swap.request.is_none())
                && other != ix
                && self.conflict(wanted, model.id)
        };
        let cancelled: Vec<_> = self.fleet.swapping().filter(against).collect();
        for other in cancelled {
            self.fleet.get_mut(other).swap = None;
            self.refresh(other);
        }
    }
}

/// What to do about a preload.
enum Plan {
    Load {
        model: ModelIx,
        replica: usize,
        evict: Vec<ModelIx>,
    },
    /// Something in its way is busy.
    Wait,
    /// It is loaded already, cannot be, or would undo another of the same `Preload`.
    Drop,
}
