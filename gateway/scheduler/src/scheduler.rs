//! The state machine itself: events in, actions out.

mod dispatch;
mod gate;
mod lifecycle;
mod shutdown;
mod swap;

use std::collections::{BTreeSet, VecDeque};

use crate::{
    Action, Event, Generation, Load, ModelId, Outcome, PolicySettings, Priority, ReplicaId, Request, RequestId,
    Settings, Timestamp, Usage,
    admission::{Backlog, Verdict},
    detector::Share,
    eviction::{self, Eviction},
    fleet::{Fleet, ModelIx},
    policy::{self, ModelTraits, Policy},
    queue::{Entry, Requests, Slot},
};

/// Decides who goes next. See the crate's documentation for how to drive it.
#[derive(Debug)]
pub struct Scheduler {
    settings: Settings,
    /// The latest time heard of.
    now: Timestamp,
    requests: Requests,
    backlog: Backlog,
    gate: gate::Gate,
    policy: Box<dyn Policy>,
    fleet: Fleet,
    eviction: Box<dyn Eviction>,
    round: dispatch::Round,
    /// Running requests, and those of them that hold a slot.
    running: u64,
    running_slots: u64,
    /// When to look at which replica again.
    alarms: BTreeSet<(Timestamp, ModelIx, usize)>,
    preloads: swap::Preloads,
    drain: shutdown::Drain,
    actions: VecDeque<Action>,
}

impl Scheduler {
    /// An idle scheduler: nothing waits, nothing is loaded.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let mut fleet = Fleet::default();
        fleet.configure(&settings);
        let eviction = eviction::build(&settings.eviction);
        let mut scheduler = Self {
            now: Timestamp::ZERO,
            requests: Requests::default(),
            backlog: Backlog::default(),
            gate: gate::Gate::default(),
            policy: policy::build(&settings.policy, &traits(&settings.policy, &fleet, &*eviction)),
            fleet,
            eviction,
            round: dispatch::Round::default(),
            running: 0,
            running_slots: 0,
            alarms: BTreeSet::new(),
            preloads: swap::Preloads::default(),
            drain: shutdown::Drain::default(),
            actions: VecDeque::new(),
            settings,
        };
        scheduler.refresh_all();
        scheduler
    }

    /// Takes in one event. `now` must not be earlier than at any call before; if it is, the latest time counts.
    ///
    /// Events about requests, loads and models that are not known (any more) are ignored, and so is an arrival under
    /// the number of a request that still waits or runs.
    ///
    /// A call that comes later than the [`deadline`](Self::deadline) is as good as a tick: first the client that the
    /// event says is gone, then the waits that are over by `now`, then the event, then what else is due (an idle
    /// replica that the event has just put to use stays).
    pub fn handle(&mut self, now: Timestamp, event: Event) {
        self.now = self.now.max(now);
        if let Event::Cancel { id } = event {
            self.cancel(id);
        }
        self.policy.advance(&mut self.requests, self.now);
        self.expire();
        self.unpark();
        match event {
            Event::Arrive(request) => self.arrive(&request),
            Event::Finished { id, usage } => self.finished(id, usage),
            Event::LoadDone { replica, generation, ok } => self.load_done(replica, generation, ok),
            Event::StopDone { replica, generation } => self.stop_done(replica, generation),
            Event::Exited { replica, generation } => self.exited(replica, generation),
            Event::Unload { models } => self.unload(&models),
            Event::Preload { models } => self.preload(&models),
            Event::Reconfigure(settings) => self.reconfigure(*settings),
            Event::Drain => self.begin_drain(),
            Event::Sample { replica, generation, load } => self.sampled(replica, generation, load),
            Event::Cancel { .. } | Event::Tick => {}
        }
        self.unpark();
        self.ring_alarms();
        self.dispatch_round(true);
        self.start_preloads();
        self.end_drain();
    }

    /// The next thing to do; call until `None`. Actions come in the order in which they have to be carried out.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to call again with [`Event::Tick`], if nothing happens before. It may turn out that nothing was due.
    #[must_use]
    pub fn deadline(&self) -> Option<Timestamp> {
        let expiry = self.backlog.next_expiry().map(|(at, _)| at);
        let alarm = self.alarms.first().map(|&(at, ..)| at);
        [expiry, alarm, self.policy.deadline()].into_iter().flatten().min()
    }

    /// What waits in each band, by [`crate::Band::index`].
    #[must_use]
    pub fn bands(&self) -> [BandView; 3] {
        self.backlog.views(&self.requests)
    }

    /// Requests that run now.
    #[must_use]
    pub fn running(&self) -> u64 {
        self.running
    }

    /// Every replica that is or was loaded, in order. Those of models that are no longer configured are left out once
    /// they are gone.
    pub fn replicas(&self) -> impl Iterator<Item = ReplicaView> + '_ {
        self.fleet.sorted().flat_map(|model| {
            let replicas = model.replicas.iter().enumerate();
            replicas
                .filter(|(_, replica)| replica.generation.0 > 0 && (model.settings.is_some() || replica.is_up()))
                .map(|(index, replica)| ReplicaView {
                    replica: ReplicaId { model: model.id, index: index as u32 },
                    generation: replica.generation,
                    state: replica.state,
                    running: replica.running,
                })
        })
    }

    /// How full each configured model's replicas are, and who waits for them, in order.
    pub fn pools(&self) -> impl Iterator<Item = PoolView> + '_ {
        self.fleet.sorted().filter(|model| model.settings.is_some()).map(|model| PoolView {
            model: model.id,
            saturation: model.saturation().share().map(Share::as_f64),
            levels: self.policy.levels(self.fleet.ix(model.id)),
            held: self.policy.held(self.fleet.ix(model.id)),
        })
    }

    /// How many flows are remembered, and how many levels of priority with them (`flow`). Both are bounded, whoever
    /// comes and goes.
    #[must_use]
    pub fn remembered(&self) -> (usize, usize) {
        self.policy.remembered()
    }

    fn arrive(&mut self, request: &Request) {
        let model = self.fleet.find(request.model).filter(|_| !self.drain.has_begun());
        let Some(model) = model else { return self.turn_away(request) };
        let arrived = request.arrived.map_or(self.now, |arrived| arrived.min(self.now));
        let Some(slot) = self.requests.insert(request, model, arrived) else { return };
        self.backlog.add(&self.settings.admission, &mut self.requests, slot, self.now);
        self.enter(slot, request.caller.as_ref());
        if request.arrived.is_some() {
            self.expire();
            if self.requests.find(request.id).is_none() {
                return;
            }
        }
        let verdict = self.backlog.judge(&self.settings.admission, &self.requests, slot);
        let may_be_shed = self.settings.admission.shed_when_saturated && request.priority.is_sheddable();
        if verdict != Verdict::Fits || self.gate.is_over(&self.requests[slot]) || may_be_shed {
            self.admit(slot, may_be_shed);
        }
    }

    /// Rejects an arrival that nothing could ever be done for.
    fn turn_away(&mut self, request: &Request) {
        if self.requests.find(request.id).is_some() {
            return;
        }
        let (outcome, retry_after) = match self.drain.has_begun() {
            true => (Outcome::Shutdown, Some(shutdown::RETRY_AFTER)),
            false => (Outcome::UnknownModel, None),
        };
        let (id, waited) = (request.id, Default::default());
        self.actions.push_back(Action::Reject { id, outcome, waited, retry_after, flow: None });
    }

    /// Decides about an arrival that a bound is too small for, or that may not wait for a saturated model.
    fn admit(&mut self, slot: Slot, may_be_shed: bool) {
        // Bounds are for what waits: if it can go at once, it may.
        self.dispatch_round(false);
        if !self.requests[slot].is_waiting() {
            return;
        }
        if self.gate.is_over(&self.requests[slot]) {
            self.reject(slot, Outcome::RejectedLimit);
            return;
        }
        let Entry { model, priority, .. } = self.requests[slot];
        if may_be_shed && self.policy.is_saturated(model, priority) {
            self.reject(slot, Outcome::RejectedShed);
            return;
        }
        match self.backlog.judge(&self.settings.admission, &self.requests, slot) {
            Verdict::Fits => {}
            Verdict::Displace(victims) => {
                for victim in victims {
                    self.reject(victim, Outcome::Evicted);
                }
            }
            Verdict::Full => self.reject(slot, Outcome::RejectedCapacity),
        }
    }

    fn cancel(&mut self, id: RequestId) {
        match self.requests.find(id) {
            Some(slot) if self.requests[slot].is_waiting() => {
                self.forget(slot);
            }
            _ => self.finished(id, Usage::default()),
        }
    }

    fn finished(&mut self, id: RequestId, usage: Usage) {
        let Some((entry, run)) = self.requests.remove_running(id) else { return };
        self.gate.end(&entry);
        self.policy.finished(&self.requests, &entry, run.charge, usage);
        let model = entry.model;
        self.running -= 1;
        self.running_slots -= u64::from(run.takes_slot);
        let index = run.replica as usize;
        let replica = &mut self.fleet.get_mut(model).replicas[index];
        // The count of a load that is gone went with it.
        if replica.generation == run.generation && replica.is_up() {
            replica.running -= 1;
            replica.tokens -= run.charge.tokens;
            // The next sample will not count it, and the last one did not.
            replica.sampled.since -= u32::from(run.samples == replica.sampled.count);
            replica.served.get_or_insert(self.now);
            replica.idle_since = self.now;
            if self.policy.head(model).is_some() {
                self.touch(model, index);
            } else {
                // Nobody waits: the ttl of the others may run again.
                self.refresh(model);
            }
        }
    }

    /// A replica says how it fares.
    fn sampled(&mut self, replica: ReplicaId, generation: Generation, load: Load) {
        let Some((model, index)) = self.fleet.find_load(replica, generation) else { return };
        if self.fleet[model].replicas[index].state == ReplicaState::Ready {
            self.fleet.get_mut(model).sample(index, load, self.now);
            self.touch(model, index);
        }
    }

    /// Rejects what has waited too long.
    fn expire(&mut self) {
        while let Some((at, slot)) = self.backlog.next_expiry()
            && at <= self.now
        {
            self.reject(slot, Outcome::RejectedTtl);
        }
    }

    /// Ends the wait of a request with an error.
    fn reject(&mut self, slot: Slot, outcome: Outcome) {
        let flow = if self.requests[slot].is_parked() {
            None
        } else {
            let charge = self.policy.charge(&self.requests, slot);
            self.policy.account(&self.requests, slot, charge)
        };
        let entry = self.forget(slot);
        let retry_after = match outcome {
            Outcome::UnknownModel => None,
            Outcome::Shutdown => Some(shutdown::RETRY_AFTER),
            Outcome::LoadFailed => self.fleet[entry.model].pause_left(self.now),
            _ => Some(self.backlog.retry_after(self.now)),
        };
        let (id, waited) = (entry.id, self.now.since(entry.arrived));
        self.actions.push_back(Action::Reject { id, outcome, waited, retry_after, flow });
    }

    /// Forgets a waiting request that will not go.
    fn forget(&mut self, slot: Slot) -> Entry {
        if !self.requests[slot].is_parked() {
            self.policy.remove(&mut self.requests, slot);
        }
        self.backlog.remove(&mut self.requests, slot);
        self.release_swap(slot);
        let entry = self.requests.remove(slot);
        self.gate.leave(&entry, slot);
        if self.policy.head(entry.model).is_none() {
            // Its model's ttl runs again.
            self.refresh(entry.model);
        }
        entry
    }

    /// Builds the policy anew and queues everybody who waits and is not parked, in arrival order.
    fn rebuild_policy(&mut self) {
        let traits = traits(&self.settings.policy, &self.fleet, &*self.eviction);
        let before = std::mem::replace(&mut self.policy, policy::build(&self.settings.policy, &traits));
        let payers = self.policy.inherit(before);
        self.requests.settle_charges(&payers);
        self.policy.advance(&mut self.requests, self.now);
        let mut waiting = self.requests.waiting();
        waiting.retain(|&slot| !self.requests[slot].is_parked());
        for slot in waiting {
            self.policy.push(&mut self.requests, slot);
        }
    }
}

fn traits(policy: &PolicySettings, fleet: &Fleet, eviction: &dyn Eviction) -> Vec<ModelTraits> {
    let traits = |model: &crate::fleet::Model| ModelTraits {
        id: model.id,
        takes_slot: model.takes_slot(),
        class: model.is_managed().then(|| eviction.class(model.id)),
        domain: 0,
    };
    let mut traits: Vec<_> = fleet.iter().map(traits).collect();
    if let PolicySettings::Flow(_) = policy {
        eviction::domains(eviction, &mut traits);
    }
    traits
}

/// What waits in one band.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BandView {
    /// Waiting requests.
    pub requests: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// When the one that has waited longest arrived.
    pub oldest: Option<Timestamp>,
}

/// One replica as the scheduler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaView {
    /// Which.
    pub replica: ReplicaId,
    /// Its newest load.
    pub generation: Generation,
    /// Its state.
    pub state: ReplicaState,
    /// Requests it runs.
    pub running: u32,
}

/// The state of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplicaState {
    /// Not in memory.
    Stopped,
    /// `Load` was said, `LoadDone` has not come.
    Loading,
    /// Serves.
    Ready,
    /// `Stop` was said, `StopDone` has not come.
    Stopping,
    /// A load failed or it crashed; not tried again before the time given.
    Failed {
        /// When it may be tried again.
        until: Timestamp,
    },
}

/// One model's replicas together, and who waits for them.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolView {
    /// Which model.
    pub model: ModelId,
    /// How full its ready replicas are, from 0; none while none is ready.
    pub saturation: Option<f64>,
    /// The levels of priority at which requests wait, the most urgent first.
    pub levels: Vec<LevelView>,
    /// How often waiting requests of each band, by [`crate::Band::index`], came up against their ceiling (`flow`).
    pub held: [u64; 3],
}

/// What waits for one model at one level of priority (`flow`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LevelView {
    /// Which.
    pub priority: Priority,
    /// Waiting requests.
    pub waiting: u64,
    /// The saturation from which on none of them goes.
    pub ceiling: f64,
}
