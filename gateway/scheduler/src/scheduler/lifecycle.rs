//! What happens to replicas: loads end, stops end, processes die, time passes.

use std::time::Duration;

use super::Scheduler;
use crate::{
    BackoffSettings, Generation, ModelId, Outcome, ReplicaId, ReplicaState, Settings, StopReason, Timestamp, eviction,
    fleet::{Model, ModelIx, Phase},
    policy::Passed,
};

impl Scheduler {
    pub(super) fn load_done(&mut self, replica: ReplicaId, generation: Generation, ok: bool) {
        let Some((model, index)) = self.fleet.find_load(replica, generation) else { return };
        match self.fleet[model].replicas[index].state {
            ReplicaState::Loading if ok => self.loaded(model, index),
            ReplicaState::Loading => self.failed(model, index),
            // The load failed while it was being stopped: either way the process is gone.
            ReplicaState::Stopping if !ok => self.stopped(model, index),
            _ => {}
        }
    }

    pub(super) fn stop_done(&mut self, replica: ReplicaId, generation: Generation) {
        if let Some((model, index)) = self.fleet.find_load(replica, generation)
            && self.fleet[model].replicas[index].state == ReplicaState::Stopping
        {
            self.stopped(model, index);
        }
    }

    pub(super) fn exited(&mut self, replica: ReplicaId, generation: Generation) {
        let Some((model, index)) = self.fleet.find_load(replica, generation) else { return };
        match self.fleet[model].replicas[index].state {
            ReplicaState::Ready | ReplicaState::Loading => self.failed(model, index),
            ReplicaState::Stopping => self.stopped(model, index),
            ReplicaState::Stopped | ReplicaState::Failed { .. } => {}
        }
    }

    /// A replica is ready. The best request of its model takes it at once, with the slot that the load held; the one
    /// it was loaded for is not sent away from it before its turn.
    fn loaded(&mut self, ix: ModelIx, index: usize) {
        let now = self.now;
        let model = self.fleet.get_mut(ix);
        let begun = model.swap.as_ref().map(|swap| swap.begun);
        let replica = &mut model.replicas[index];
        replica.state = ReplicaState::Ready;
        replica.idle_since = now;
        replica.made_ready = (begun.unwrap_or(replica.made_ready.0), now);
        replica.served = None;
        let claim = model.swap.as_mut().and_then(|swap| {
            swap.phase = Phase::Pinned;
            swap.request.map(|slot| (slot, swap.passed))
        });
        if claim.is_none() {
            model.swap = None;
        }
        self.refresh(ix);
        if let (Some((owner, passed)), Some(head)) = (claim, self.policy.head(ix))
            && !self.policy.is_held(ix)
        {
            let passed = if head == owner { passed } else { Passed::default() };
            self.dispatch(head, false, passed);
        }
    }

    /// A load failed, or a replica died by itself. Only the request that it was loaded for suffers.
    fn failed(&mut self, ix: ModelIx, index: usize) {
        let now = self.now;
        let backoff = self.settings.backoff;
        let model = self.fleet.get_mut(ix);
        let replica = &mut model.replicas[index];
        let was_loading = replica.state == ReplicaState::Loading;
        // What ends in the moment of a crash was not served.
        if replica.served.take().is_some_and(|served| now.since(served) >= backoff.initial) {
            replica.failures = 0;
        }
        replica.failures = replica.failures.saturating_add(1);
        replica.state = ReplicaState::Failed { until: now + backoff.pause(replica.failures) };
        replica.wipe();
        let mine = model.swap.take_if(|swap| swap.replica as usize == index && swap.phase != Phase::Evicting);
        let owner = if model.is_pool() {
            // Nobody in particular: as long as another may serve them, all wait.
            if model.is_loaded() { None } else { self.policy.head(ix) }
        } else {
            mine.and_then(|swap| swap.request)
        };
        self.refresh(ix);
        if was_loading && let Some(slot) = owner {
            self.reject(slot, Outcome::LoadFailed);
        }
    }

    fn stopped(&mut self, ix: ModelIx, index: usize) {
        let replica = &mut self.fleet.get_mut(ix).replicas[index];
        replica.state = ReplicaState::Stopped;
        replica.wipe();
        self.refresh(ix);
        self.advance_swaps();
    }

    /// Stops what an operator wants out of memory. Remote servers hold none.
    pub(super) fn unload(&mut self, models: &[ModelId]) {
        for ix in 0..self.fleet.len() {
            let id = self.fleet[ix].id;
            if !(models.is_empty() || models.contains(&id)) {
                continue;
            }
            self.preloads.remove(id);
            for index in 0..self.fleet[ix].replicas.len() {
                let replica = &self.fleet[ix].replicas[index];
                if replica.managed && matches!(replica.state, ReplicaState::Loading | ReplicaState::Ready) {
                    self.stop(ix, index, StopReason::Unload);
                }
            }
        }
    }

    pub(super) fn reconfigure(&mut self, settings: Settings) {
        self.settings = settings;
        self.eviction = eviction::build(&self.settings.eviction);
        let before: Vec<_> = self.fleet.iter().map(Model::revision).collect();
        self.fleet.configure(&self.settings);
        for slot in self.requests.waiting() {
            self.backlog.set_expiry(&self.settings.admission, &mut self.requests, slot);
        }
        self.backlog.recount(&self.settings.admission, &self.requests);
        self.rebuild_policy();
        for (ix, before) in before.into_iter().enumerate() {
            if self.fleet[ix].revision() != before {
                self.forgive(ix);
            }
        }
        for slot in self.requests.waiting() {
            if self.fleet[self.requests[slot].model].settings.is_none() {
                self.reject(slot, Outcome::UnknownModel);
            }
        }
        for ix in 0..self.fleet.len() {
            // A swap towards a replica that is no longer wanted; those that load are stopped by `refresh`.
            let model = self.fleet.get_mut(ix);
            let settings = model.settings.as_ref();
            model.swap.take_if(|swap| {
                swap.phase == Phase::Evicting && !settings.is_some_and(|settings| settings.has_replica(swap.replica))
            });
        }
        self.refresh_all();
        self.advance_swaps();
        self.expire();
    }

    /// A new revision starts with a clean record.
    fn forgive(&mut self, ix: ModelIx) {
        for replica in &mut self.fleet.get_mut(ix).replicas {
            replica.failures = 0;
            if matches!(replica.state, ReplicaState::Failed { .. }) {
                replica.state = ReplicaState::Stopped;
            }
        }
    }

    pub(super) fn refresh_all(&mut self) {
        for ix in 0..self.fleet.len() {
            self.refresh(ix);
        }
    }

    /// Brings all that depends on the state of a model's replicas up to date. Call after every change of it.
    pub(super) fn refresh(&mut self, ix: ModelIx) {
        for index in 0..self.fleet[ix].replicas.len() {
            if self.look_at(ix, index) {
                return;
            }
        }
        self.fleet.note(ix);
        self.stand(ix);
    }

    /// The same for a change of what one replica does, its state and swaps aside.
    pub(super) fn touch(&mut self, ix: ModelIx, index: usize) {
        if !self.look_at(ix, index) {
            self.stand(ix);
        }
    }

    /// What one replica alone makes necessary. True if that changed its state, and all is up to date.
    fn look_at(&mut self, ix: ModelIx, index: usize) -> bool {
        if let Some(reason) = self.unwanted(ix, index) {
            // Comes back to `refresh`.
            self.stop(ix, index, reason);
            return true;
        }
        self.fleet.measure(ix, index, self.now);
        self.arm(ix, index);
        false
    }

    fn stand(&mut self, ix: ModelIx) {
        let model = &self.fleet[ix];
        self.policy.set_standing(&self.requests, ix, model.standing(self.now), model.saturation());
    }

    /// Why a replica has no further use, if so: what it still runs may finish.
    fn unwanted(&self, ix: ModelIx, index: usize) -> Option<StopReason> {
        let model = &self.fleet[ix];
        let replica = &model.replicas[index];
        if !replica.is_idle() && replica.state != ReplicaState::Loading {
            None
        } else if self.drain.has_begun() {
            Some(StopReason::Shutdown)
        } else if !model.is_current(index) {
            Some(StopReason::Reconfigured)
        } else {
            None
        }
    }

    /// Sets a replica's alarm, if it needs one. An alarm that stands is left alone even when it is early by now: what
    /// it is for is looked at when it rings.
    fn arm(&mut self, ix: ModelIx, index: usize) {
        let model = &self.fleet[ix];
        let replica = &model.replicas[index];
        let at = match replica.state {
            ReplicaState::Ready => {
                let stale = if replica.sampled.is_fresh { model.fresh_until(index) } else { None };
                stale.into_iter().chain(self.idle_until(ix, index)).min()
            }
            ReplicaState::Failed { until } if until > self.now => Some(until),
            _ => self.is_to_be_checked(ix, index).then_some(self.now),
        };
        let Some(at) = at else { return };
        if replica.alarm.is_none_or(|alarm| alarm > at) {
            self.disarm(ix, index);
            self.fleet.get_mut(ix).replicas[index].alarm = Some(at);
            self.alarms.insert((at, ix, index));
        }
    }

    fn disarm(&mut self, ix: ModelIx, index: usize) {
        if let Some(alarm) = self.fleet.get_mut(ix).replicas[index].alarm.take() {
            self.alarms.remove(&(alarm, ix, index));
        }
    }

    /// Looks at the replicas whose time has come: unloads the idle, lets the paused be tried again, and no longer goes by
    /// what was said too long ago.
    pub(super) fn ring_alarms(&mut self) {
        while let Some(&(at, ix, index)) = self.alarms.first()
            && at <= self.now
        {
            self.disarm(ix, index);
            if self.idle_until(ix, index).is_some_and(|until| until <= self.now) {
                self.stop(ix, index, StopReason::Idle);
            } else {
                if self.is_to_be_checked(ix, index) {
                    self.load(ix, index, None);
                    self.fleet.note(ix);
                }
                self.touch(ix, index);
            }
        }
    }

    /// Whether it belongs to a pool and is to be checked now.
    fn is_to_be_checked(&self, ix: ModelIx, index: usize) -> bool {
        let model = &self.fleet[ix];
        model.is_pool() && model.can_be_loaded(index, self.now) && !self.drain.has_begun()
    }

    /// When a replica will have been without requests for its ttl; none while it runs one or one waits for it.
    fn idle_until(&self, ix: ModelIx, index: usize) -> Option<Timestamp> {
        let model = &self.fleet[ix];
        let replica = &model.replicas[index];
        if !replica.is_idle() {
            return None;
        }
        let ttl = model.settings.as_ref().filter(|settings| settings.managed)?.ttl?;
        self.policy.head(ix).is_none().then(|| replica.idle_since + ttl)
    }
}

impl Model {
    fn revision(&self) -> Option<u64> {
        self.settings.as_ref().map(|settings| settings.revision)
    }

    /// How long until a replica may be tried again.
    pub(super) fn pause_left(&self, now: Timestamp) -> Option<Duration> {
        let pauses = self.replicas.iter().filter_map(|replica| match replica.state {
            ReplicaState::Failed { until } => Some(until.since(now)),
            _ => None,
        });
        pauses.min()
    }
}

impl BackoffSettings {
    /// The pause after so many failures in a row.
    fn pause(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1);
        let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
        self.initial.saturating_mul(factor).min(self.max)
    }
}
