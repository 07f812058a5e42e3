//! What is true in a run, and whether what the gate wants fits it.
//!
//! The ledger holds the requests' and servers' true states by its own, simple bookkeeping. Every action and event
//! passes through it; the first that breaks a rule ends the run.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use switchyard_scheduler::{
    EvictionSettings, Generation, GroupSettings, ModelId, Outcome, PolicySettings, ReplicaId, Request, RequestId,
    Settings, StopReason, Timestamp,
};

use crate::gate::View;

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Waiting,
    Running(ReplicaId, Generation),
    Ended,
}

/// Where a server's process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Process {
    None,
    Loading,
    Ready,
    Stopping,
}

#[derive(Debug)]
struct Entry {
    request: Request,
    arrived: Timestamp,
    stage: Stage,
}

#[derive(Debug)]
struct Server {
    generation: Generation,
    process: Process,
    /// Of the settings under which it was loaded, as is `managed`.
    revision: u64,
    /// Whether it takes room on this machine.
    managed: bool,
    /// Dispatched to it in this generation and not finished.
    running: u32,
    /// Whether the request that it was loaded for may still go before better ones: nothing is loaded in vain.
    promised: bool,
}

/// A broken rule.
pub(crate) type Broken = String;

type Check = Result<(), Broken>;

fn rule(holds: bool, broken: impl FnOnce() -> Broken) -> Check {
    if holds { Ok(()) } else { Err(broken()) }
}

/// Requests for one model in the order in which they have to go.
type Queue = BTreeSet<(Reverse<i128>, RequestId)>;

#[derive(Debug)]
pub(crate) struct Ledger {
    settings: Settings,
    /// Whether limits, order and bounds are promised at all.
    gated: bool,
    /// By number, from 1.
    requests: Vec<Entry>,
    servers: BTreeMap<ReplicaId, Server>,
    queues: BTreeMap<ModelId, Queue>,
    waiting: [u64; 3],
    waiting_bytes: u64,
    running: u64,
    unfinished: u64,
    draining: bool,
    drained: bool,
}

impl Ledger {
    pub(crate) fn new(settings: Settings, gated: bool) -> Self {
        Self {
            settings,
            gated,
            requests: Vec::new(),
            servers: BTreeMap::new(),
            queues: BTreeMap::new(),
            waiting: [0; 3],
            waiting_bytes: 0,
            running: 0,
            unfinished: 0,
            draining: false,
            drained: false,
        }
    }

    pub(crate) const fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn stage(&self, id: RequestId) -> Option<Stage> {
        self.entry(id).ok().map(|entry| entry.stage)
    }

    /// The process of that generation; `None` also when a later one has taken its place.
    pub(crate) fn process(&self, replica: ReplicaId, generation: Generation) -> Process {
        self.servers
            .get(&replica)
            .filter(|server| server.generation == generation)
            .map_or(Process::None, |server| server.process)
    }

    pub(crate) const fn unfinished(&self) -> u64 {
        self.unfinished
    }

    pub(crate) fn arrive(&mut self, now: Timestamp, request: Request) -> Check {
        rule(request.id.0 == self.requests.len() as u64 + 1, || format!("{:?} is out of order", request.id))?;
        self.waiting[request.priority.band().index()] += 1;
        self.waiting_bytes += request.bytes;
        self.unfinished += 1;
        let place = self.place(now, &request);
        self.queues.entry(request.model).or_default().insert(place);
        self.requests.push(Entry { request, arrived: now, stage: Stage::Waiting });
        Ok(())
    }

    pub(crate) fn dispatch(
        &mut self,
        now: Timestamp,
        id: RequestId,
        replica: ReplicaId,
        generation: Generation,
        waited: std::time::Duration,
    ) -> Check {
        let entry = self.entry(id)?;
        rule(entry.stage == Stage::Waiting, || format!("{id:?} is dispatched while {:?}", entry.stage))?;
        rule(entry.request.model == replica.model, || format!("{id:?} goes to {replica:?}, not to its model"))?;
        rule(waited == now.since(entry.arrived), || format!("{id:?} is said to have waited {waited:?}"))?;
        let process = self.process(replica, generation);
        rule(process == Process::Ready, || {
            format!("{id:?} goes to {replica:?} of {generation:?}, which is {process:?}")
        })?;
        rule(!self.draining, || format!("{id:?} is dispatched after a drain began"))?;
        if self.gated {
            self.check_limits(id, replica)?;
        }
        let first = self.queues.get(&replica.model).and_then(BTreeSet::first).map(|&(_, first)| first);
        self.leave_queue(id)?;
        let ordered = self.gated;
        let server = self.server(replica, generation)?;
        let in_turn = !ordered || first == Some(id) || std::mem::take(&mut server.promised);
        server.running += 1;
        rule(in_turn, || format!("{id:?} is dispatched before {first:?}, which is due for the same model"))?;
        self.running += 1;
        self.entry_mut(id)?.stage = Stage::Running(replica, generation);
        Ok(())
    }

    fn check_limits(&self, id: RequestId, replica: ReplicaId) -> Check {
        let Some(model) = self.settings.models.get(&replica.model) else {
            return Err(format!("{id:?} goes to {replica:?}, which is not configured"));
        };
        let server = self.servers.get(&replica).ok_or_else(|| format!("{replica:?} was never loaded"))?;
        rule(server.running < model.concurrency, || {
            format!("{id:?} goes to {replica:?}, which runs {} of {} already", server.running, model.concurrency)
        })?;
        rule(server.revision == model.revision, || format!("{id:?} goes to {replica:?} of an old revision"))?;
        if let PolicySettings::Serial(serial) = &self.settings.policy
            && model.takes_slot
        {
            // Every model of a scenario takes a slot, those that are no longer configured included.
            rule(self.running < u64::from(serial.slots), || {
                format!("{id:?} is dispatched while {} run on {} slots", self.running, serial.slots)
            })?;
        }
        Ok(())
    }

    pub(crate) fn reject(&mut self, id: RequestId, outcome: Outcome) -> Check {
        let stage = self.entry(id)?.stage;
        rule(stage == Stage::Waiting, || format!("{id:?} is rejected while {stage:?}"))?;
        rule(self.draining || outcome != Outcome::Shutdown, || format!("{id:?} is refused without a drain"))?;
        self.leave_queue(id)?;
        self.end(id)
    }

    /// The client of a waiting request has left.
    pub(crate) fn cancel_waiting(&mut self, id: RequestId) -> Check {
        self.leave_queue(id)?;
        self.end(id)
    }

    /// A running request has ended.
    pub(crate) fn finish(&mut self, id: RequestId) -> Check {
        let Stage::Running(replica, generation) = self.entry(id)?.stage else {
            return Err(format!("{id:?} finished without running"));
        };
        if let Some(server) = self.servers.get_mut(&replica)
            && server.generation == generation
        {
            server.running -= 1;
        }
        self.running -= 1;
        self.end(id)
    }

    pub(crate) fn load(&mut self, replica: ReplicaId, generation: Generation) -> Check {
        let Some(model) = self.settings.models.get(&replica.model).cloned() else {
            return Err(format!("{replica:?} is loaded, which is not configured"));
        };
        rule(replica.index < model.replicas, || format!("{replica:?} is loaded; there are {}", model.replicas))?;
        if let Some(server) = self.servers.get(&replica) {
            rule(server.process == Process::None, || format!("{replica:?} is loaded while {:?}", server.process))?;
            rule(server.generation < generation, || format!("{replica:?} is loaded as {generation:?} again"))?;
        }
        rule(!self.draining, || format!("{replica:?} is loaded after a drain began"))?;
        if model.managed {
            self.check_room(replica)?;
        }
        let server = Server {
            generation,
            process: Process::Loading,
            revision: model.revision,
            managed: model.managed,
            running: 0,
            promised: true,
        };
        self.servers.insert(replica, server);
        Ok(())
    }

    pub(crate) fn stop(&mut self, replica: ReplicaId, generation: Generation, reason: StopReason) -> Check {
        let server = self.server(replica, generation)?;
        rule(matches!(server.process, Process::Loading | Process::Ready), || {
            format!("{replica:?} is stopped while {:?}", server.process)
        })?;
        rule(server.running == 0 || reason == StopReason::Unload, || {
            format!("{replica:?} is stopped ({reason:?}) while it runs {} requests", server.running)
        })?;
        server.process = Process::Stopping;
        Ok(())
    }

    /// A process changes by itself.
    pub(crate) fn becomes(&mut self, replica: ReplicaId, generation: Generation, process: Process) -> Check {
        self.server(replica, generation)?.process = process;
        Ok(())
    }

    pub(crate) fn reconfigure(&mut self, settings: Settings) {
        self.settings = settings;
    }

    pub(crate) const fn drain(&mut self) {
        self.draining = true;
    }

    pub(crate) fn drained(&mut self) -> Check {
        rule(self.draining && !self.drained, || "a drain is over that did not run".into())?;
        rule(self.unfinished == 0, || format!("a drain is over while {} requests are under way", self.unfinished))?;
        let alive = self.servers.iter().find(|(_, server)| server.process != Process::None);
        rule(alive.is_none(), || format!("a drain is over while something is alive: {alive:?}"))?;
        self.drained = true;
        Ok(())
    }

    /// After the gate has said all it wanted to say, `asleep` if it does not even want to be woken.
    pub(crate) fn settled(&self, view: Option<View>, asleep: bool) -> Check {
        let waiting: u64 = self.waiting.iter().sum();
        let moving = |server: &Server| matches!(server.process, Process::Loading | Process::Stopping);
        rule(!asleep || waiting == 0 || self.running > 0 || self.servers.values().any(moving), || {
            format!("{waiting} requests wait for nothing")
        })?;
        if let Some(view) = view {
            let truth = View { waiting: self.waiting, running: self.running };
            rule(view == truth, || format!("the scheduler believes {view:?}; the truth is {truth:?}"))?;
        }
        if self.gated {
            let bounds = self.settings.admission.total;
            rule(waiting <= bounds.requests && self.waiting_bytes <= bounds.bytes, || {
                format!("{waiting} requests of {} bytes wait; the bounds are {bounds:?}", self.waiting_bytes)
            })?;
        }
        Ok(())
    }

    /// When nothing will happen any more.
    pub(crate) fn over(&self) -> Check {
        let stuck = self.requests.iter().find(|entry| entry.stage != Stage::Ended);
        rule(stuck.is_none(), || format!("{} requests are stuck, the first is {stuck:?}", self.unfinished))?;
        rule(!self.draining || self.drained, || "a drain never ended".into())
    }

    /// Where a request stands among those for its model: as the documentation says it, not as the scheduler does it.
    fn place(&self, arrived: Timestamp, request: &Request) -> (Reverse<i128>, RequestId) {
        let priority = i128::from(request.priority.0);
        let score = match &self.settings.policy {
            PolicySettings::Serial(serial) if serial.aging_divisor > 0 => {
                priority * i128::from(serial.aging_divisor) * 1_000_000 - i128::from(arrived.0)
            }
            _ => priority,
        };
        (Reverse(score), request.id)
    }

    fn leave_queue(&mut self, id: RequestId) -> Check {
        let entry = self.entry(id)?;
        let (place, model) = (self.place(entry.arrived, &entry.request), entry.request.model);
        let (band, bytes) = (entry.request.priority.band(), entry.request.bytes);
        let was_there = self.queues.get_mut(&model).is_some_and(|queue| queue.remove(&place));
        rule(was_there, || format!("{id:?} leaves a queue that it is not in"))?;
        self.waiting[band.index()] -= 1;
        self.waiting_bytes -= bytes;
        Ok(())
    }

    fn end(&mut self, id: RequestId) -> Check {
        self.entry_mut(id)?.stage = Stage::Ended;
        self.unfinished -= 1;
        Ok(())
    }

    /// Whether everything that has to be gone before the newcomer may be loaded is gone.
    fn check_room(&self, newcomer: ReplicaId) -> Check {
        let in_memory: Vec<_> = self
            .servers
            .iter()
            .filter(|(_, server)| server.managed && server.process != Process::None)
            .map(|(replica, _)| replica.model)
            .filter(|&model| model != newcomer.model)
            .collect();
        let fits = match &self.settings.eviction {
            EvictionSettings::Groups(groups) => {
                !in_memory.iter().any(|&other| has_to_leave(groups, other, newcomer.model))
            }
            EvictionSettings::Matrix(matrix) => {
                let together = |set: &Vec<ModelId>| {
                    set.contains(&newcomer.model) && in_memory.iter().all(|model| set.contains(model))
                };
                in_memory.is_empty() || matrix.sets.iter().any(together)
            }
        };
        rule(fits, || format!("{newcomer:?} is loaded beside {in_memory:?}"))
    }

    fn entry(&self, id: RequestId) -> Result<&Entry, Broken> {
        let index = usize::try_from(id.0).ok().and_then(|number| number.checked_sub(1));
        index.and_then(|index| self.requests.get(index)).ok_or_else(|| format!("{id:?} never arrived"))
    }

    fn entry_mut(&mut self, id: RequestId) -> Result<&mut Entry, Broken> {
        let index = usize::try_from(id.0).ok().and_then(|number| number.checked_sub(1));
        index.and_then(|index| self.requests.get_mut(index)).ok_or_else(|| format!("{id:?} never arrived"))
    }

    fn server(&mut self, replica: ReplicaId, generation: Generation) -> Result<&mut Server, Broken> {
        self.servers
            .get_mut(&replica)
            .filter(|server| server.generation == generation)
            .ok_or_else(|| format!("there is no {replica:?} of {generation:?}"))
    }
}

fn has_to_leave(groups: &[GroupSettings], other: ModelId, newcomer: ModelId) -> bool {
    let group = |model: ModelId| groups.iter().position(|group| group.members.contains(&model));
    let (of_newcomer, of_other) = (group(newcomer), group(other));
    let (swap, exclusive) = of_newcomer.map_or((true, true), |at| (groups[at].swap, groups[at].exclusive));
    let persistent = of_other.is_some_and(|at| groups[at].persistent);
    if of_newcomer == of_other { swap } else { exclusive && !persistent }
}
