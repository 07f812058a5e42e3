//! The round: who goes now, and who has to wait for whom.
//!
//! Candidates are looked at in the policy's order. What a better one needs is out of reach for those after it: the
//! replicas that have to leave for it are *doomed*, so that nobody prolongs their life, and the room it will take is
//! reserved. Whoever touches neither goes on.

use super::Scheduler;
use crate::{
    Action, Decision, ModelId,
    fleet::{ModelIx, Phase},
    policy::{Candidate, Passed, Standing},
    queue::{Charge, Entry, Running, Slot, Stage},
};

/// What the better candidates of a round have claimed.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// Models that have to leave for a better candidate.
    doomed: Vec<ModelIx>,
    /// Models that will be loaded for a better candidate.
    reserved: Vec<ModelId>,
}

/// What can be done for a request whose model is not loaded.
enum Room {
    /// Its load is under way without anyone to be for.
    Adopt,
    /// Begin now, after these models have left.
    Make { replica: usize, evict: Vec<ModelIx> },
    /// These models have to leave, and cannot yet.
    Wait { for_models: Vec<ModelIx> },
    /// There is room, but no replica that could be loaded yet.
    Later { doom: Vec<ModelIx> },
    /// Not for this request: a better one is in the way, or it can do without.
    None,
}

impl Scheduler {
    /// Dispatches all that can go, and begins swaps where `may_load`.
    pub(super) fn dispatch_round(&mut self, may_load: bool) {
        if self.drain.has_begun() {
            return;
        }
        let mut free = self.free_slots();
        self.round.doomed.clear();
        self.round.reserved.clear();
        while let Some(candidate) = self.policy.best(free > 0) {
            let model = candidate.model;
            let spent = match candidate.standing {
                Standing::Ready => {
                    let passed = self.policy.passed_by(&self.requests, candidate);
                    let went = !self.round.doomed.contains(&model) && self.dispatch(candidate.slot, true, passed);
                    if !went {
                        self.policy.set_aside(&self.requests, model);
                    }
                    went
                }
                Standing::Unloaded => self.make_ready(candidate, may_load, &mut free),
                Standing::Blocked => break,
            };
            if spent && self.fleet[model].takes_slot() {
                free = free.saturating_sub(1);
            }
        }
        self.policy.end_round(&self.requests);
    }

    fn free_slots(&self) -> u64 {
        self.policy
            .slots()
            .map_or(u64::MAX, |slots| u64::from(slots).saturating_sub(self.running_slots + self.fleet.held_slots()))
    }

    /// Does what can be done for a candidate whose model is not loaded. True if it takes up a slot, be it by waiting.
    fn make_ready(&mut self, candidate: Candidate, may_load: bool, free: &mut u64) -> bool {
        let Candidate { slot, model, .. } = candidate;
        match self.room_for(model) {
            Room::Adopt | Room::Make { .. } if !may_load => {
                self.reserve(model);
                self.policy.set_aside(&self.requests, model);
                true
            }
            Room::Adopt => {
                let passed = self.policy.passed_by(&self.requests, candidate);
                if let Some(swap) = &mut self.fleet.get_mut(model).swap {
                    swap.request = Some(slot);
                    swap.passed = passed;
                }
                self.refresh(model);
                true
            }
            Room::Make { replica, evict } => {
                let passed = self.policy.passed_by(&self.requests, candidate);
                self.cancel_preloads_against(model);
                self.begin_swap(model, replica, &evict, Some((slot, passed)), None);
                true
            }
            Room::Wait { for_models } => {
                self.cancel_preloads_against(model);
                for &other in &for_models {
                    if self.dispatch_pinned(other, *free > 0) && self.fleet[other].takes_slot() {
                        *free = free.saturating_sub(1);
                    }
                }
                self.round.doomed.extend(for_models);
                self.reserve(model);
                self.policy.set_aside_class(self.eviction.class(self.fleet[model].id));
                true
            }
            Room::Later { doom } => {
                self.round.doomed.extend(doom);
                self.reserve(model);
                self.policy.set_aside(&self.requests, model);
                true
            }
            Room::None => {
                self.policy.set_aside(&self.requests, model);
                false
            }
        }
    }

    fn reserve(&mut self, model: ModelIx) {
        let model = &self.fleet[model];
        if model.is_managed() {
            self.round.reserved.push(model.id);
        }
    }

    fn room_for(&self, ix: ModelIx) -> Room {
        if self.round.doomed.contains(&ix) {
            return Room::None;
        }
        let model = &self.fleet[ix];
        if model.swap.as_ref().is_some_and(|swap| swap.request.is_none()) {
            return Room::Adopt;
        }
        let replica = model.loadable(self.now);
        let (in_the_way, is_claimed) =
            if model.is_managed() { (self.in_the_way(ix), self.is_claimed(ix)) } else { (Vec::new(), false) };
        let can_all_leave = in_the_way.iter().all(|&other| self.fleet[other].can_leave());
        let any_to_stop = in_the_way.iter().any(|&other| self.fleet[other].is_loaded());
        match replica {
            // One more replica, where there is room without sending anyone away.
            Some(replica) if model.is_ready() && model.swap.is_none() && in_the_way.is_empty() && !is_claimed => {
                Room::Make { replica, evict: Vec::new() }
            }
            _ if model.is_ready() => Room::None,
            _ if is_claimed || !can_all_leave || (!any_to_stop && !in_the_way.is_empty()) => {
                Room::Wait { for_models: in_the_way }
            }
            Some(replica) => Room::Make { replica, evict: in_the_way },
            None => Room::Later { doom: in_the_way },
        }
    }

    /// Whether the room that a model needs is promised to another: to one that waits for its evictions, or to a better
    /// candidate of this round.
    fn is_claimed(&self, ix: ModelIx) -> bool {
        let wanted = self.fleet[ix].id;
        let evicting = self.fleet.swapping().filter(|&other| {
            let other = &self.fleet[other];
            other.is_evicting() && other.swap.as_ref().is_some_and(|swap| swap.request.is_some())
        });
        evicting
            .map(|other| self.fleet[other].id)
            .chain(self.round.reserved.iter().copied())
            .any(|other| other != wanted && self.conflict(wanted, other))
    }

    /// Whether a model cannot be loaded while room is being made for another: beside that one and all that stays with
    /// it, either would need somebody to leave.
    pub(super) fn conflict(&self, wanted: ModelId, other: ModelId) -> bool {
        let mut beside = self.fleet.resident();
        let leaving = self.eviction.in_the_way(other, &beside);
        beside.retain(|model| *model != wanted && !leaving.contains(model));
        beside.push(wanted);
        if !self.eviction.in_the_way(other, &beside).is_empty() {
            return true;
        }
        beside.pop();
        beside.push(other);
        self.eviction.in_the_way(wanted, &beside).contains(&other)
    }

    /// The models in memory that have to leave before a managed one can be loaded.
    pub(super) fn in_the_way(&self, ix: ModelIx) -> Vec<ModelIx> {
        let models = self.eviction.in_the_way(self.fleet[ix].id, &self.fleet.resident());
        models.into_iter().map(|id| self.fleet.ix(id)).collect()
    }

    /// A better request needs a replica gone that was made ready for another: that one goes first, if it can.
    fn dispatch_pinned(&mut self, model: ModelIx, slot_free: bool) -> bool {
        let Some(swap) = &self.fleet[model].swap else { return false };
        match swap.request {
            Some(slot) if swap.phase == Phase::Pinned && (slot_free || !self.fleet[model].takes_slot()) => {
                let passed = swap.passed;
                self.dispatch(slot, false, passed)
            }
            _ => false,
        }
    }

    /// Sends a waiting request to a replica of its model. False if there is no place.
    pub(super) fn dispatch(&mut self, slot: Slot, affinity: bool, passed: Passed) -> bool {
        let Entry { model, session, .. } = self.requests[slot];
        let Some(index) = self.fleet[model].place(session) else { return false };
        let charge = self.policy.charge(&self.requests, slot);
        let decision = self.decide(slot, index, affinity, passed, charge);
        let takes_slot = self.fleet[model].takes_slot();
        self.running += 1;
        self.running_slots += u64::from(takes_slot);
        let replica = &mut self.fleet.get_mut(model).replicas[index];
        replica.running += 1;
        replica.tokens += charge.tokens;
        replica.sampled.since += 1;
        let (generation, samples) = (replica.generation, replica.sampled.count);
        // Before the request leaves the queue: the policy need not look for the next of a model that is full.
        self.touch(model, index);
        self.policy.dispatched(&mut self.requests, slot, charge);
        self.backlog.remove(&mut self.requests, slot);
        self.release_swap(slot);
        self.gate.start(&self.requests[slot], slot);
        if decision.waited > Default::default() {
            self.backlog.drained_one(self.now);
        }
        let entry = self.requests.get_mut(slot);
        entry.stage = Stage::Running(Running { replica: index as u32, generation, takes_slot, samples, charge });
        let id = entry.id;
        let replica = self.fleet.replica_id(model, index);
        self.actions.push_back(Action::Dispatch { id, replica, generation, decision });
        true
    }

    /// The account of a dispatch, made while the request still waits.
    #[expect(clippy::cast_precision_loss, reason = "for people; the order is decided in integers")]
    fn decide(&self, slot: Slot, index: usize, affinity: bool, passed: Passed, charge: Charge) -> Decision {
        let entry = &self.requests[slot];
        let terms = self.policy.terms(&self.requests, slot, self.now);
        let affinity = if affinity { terms.affinity } else { 0 };
        let (begun, ready) = self.fleet[entry.model].replicas[index].made_ready;
        let swap = (ready > entry.arrived).then(|| ready.since(begun.max(entry.arrived)));
        Decision {
            priority: entry.priority,
            band: entry.priority.band(),
            model_priority: terms.model_priority,
            affinity,
            aging: terms.aging,
            score: entry.priority.0 as f64 + terms.model_priority as f64 + f64::from(affinity) + terms.aging,
            waited: self.now.since(entry.arrived),
            swap,
            passed_by_aging: passed.by_aging,
            passed_by_affinity: passed.by_affinity,
            still_waiting: self.backlog.requests() - 1,
            flow: self.policy.account(&self.requests, slot, charge),
        }
    }
}
