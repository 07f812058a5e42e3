//! What is true in a run, and whether what the gate wants fits it.
//!
//! The ledger holds the requests' and servers' true states by its own, simple bookkeeping. Every action and event
//! passes through it; the first that breaks a rule ends the run.

mod flow;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use switchyard_scheduler::{
    Decision, EvictionSettings, FlowDecision, Generation, GroupSettings, Load, ModelId, Outcome, PolicySettings,
    Priority, ReplicaId, Request, RequestId, Settings, StopReason, Timestamp,
};

use crate::gate::View;
use flow::{Flows, Pool};

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
    /// Tokens that it was taken to need when it went (`flow`).
    tokens: u64,
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
    /// Tokens that those are taken to need (`flow`).
    tokens: u64,
    /// Until when its last sample is good for, if that said that it has nothing to do and nothing went to it since.
    idle_until: Option<Timestamp>,
    /// Since when it is ready.
    since: Timestamp,
    /// Whether the request that it was loaded for may still go before better ones, and above its ceiling: nothing is
    /// loaded in vain.
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
    flows: Flows,
    waiting: [u64; 3],
    waiting_by_level: BTreeMap<Priority, u64>,
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
            flows: Flows::default(),
            waiting: [0; 3],
            waiting_by_level: BTreeMap::new(),
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
        *self.waiting_by_level.entry(request.priority).or_default() += 1;
        self.waiting_bytes += request.bytes;
        self.unfinished += 1;
        let place = self.place(now, &request);
        self.queues.entry(request.model).or_default().insert(place);
        if let PolicySettings::Flow(flow) = &self.settings.policy {
            self.flows.arrive(&self.settings, flow, now, &request);
        }
        self.requests.push(Entry { request, arrived: now, stage: Stage::Waiting, tokens: 0 });
        Ok(())
    }

    pub(crate) fn dispatch(
        &mut self,
        now: Timestamp,
        id: RequestId,
        replica: ReplicaId,
        generation: Generation,
        decision: &Decision,
    ) -> Check {
        let entry = self.entry(id)?;
        rule(entry.stage == Stage::Waiting, || format!("{id:?} is dispatched while {:?}", entry.stage))?;
        rule(entry.request.model == replica.model, || format!("{id:?} goes to {replica:?}, not to its model"))?;
        let waited = decision.waited;
        rule(waited == now.since(entry.arrived), || format!("{id:?} is said to have waited {waited:?}"))?;
        let process = self.process(replica, generation);
        rule(process == Process::Ready, || {
            format!("{id:?} goes to {replica:?} of {generation:?}, which is {process:?}")
        })?;
        rule(!self.draining, || format!("{id:?} is dispatched after a drain began"))?;
        if self.gated {
            self.check_limits(id, replica)?;
        }
        let in_turn = if self.gated { self.in_turn(id, decision) } else { Ok(()) };
        self.leave_queue(id)?;
        let tokens = decision
            .flow
            .map_or(0, |flow| self.requests[id.0 as usize - 1].request.prompt_tokens + flow.expected_tokens);
        let server = self.server(replica, generation)?;
        server.running += 1;
        server.tokens += tokens;
        server.idle_until = None;
        if in_turn.is_err() && !self.keeps_promise(now, replica) {
            return in_turn;
        }
        self.running += 1;
        let entry = self.entry_mut(id)?;
        entry.stage = Stage::Running(replica, generation);
        entry.tokens = tokens;
        Ok(())
    }

    fn check_limits(&self, id: RequestId, replica: ReplicaId) -> Check {
        let Some(model) = self.settings.models.get(&replica.model) else {
            return Err(format!("{id:?} goes to {replica:?}, which is not configured"));
        };
        let server = self.servers.get(&replica).ok_or_else(|| format!("{replica:?} was never loaded"))?;
        rule(model.has_replica(replica.index), || format!("{id:?} goes to {replica:?}, which has left"))?;
        let limit = model.concurrency;
        rule(server.running < limit, || {
            format!("{id:?} goes to {replica:?}, which runs {} of {limit} already", server.running)
        })?;
        if let PolicySettings::Flow(_) = &self.settings.policy {
            let (used, limit) = (flow::used(model, server.running, server.tokens), flow::limit(model));
            rule(used < limit, || format!("{id:?} goes to {replica:?}, which holds {used} of {limit} already"))?;
        }
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

    /// Whether it is the request's turn among those for its model, and its level may have one.
    fn in_turn(&self, id: RequestId, decision: &Decision) -> Check {
        let request = &self.entry(id)?.request;
        if let PolicySettings::Flow(flow) = &self.settings.policy {
            self.flows.in_turn(flow, request)?;
            let FlowDecision { saturation, ceiling, .. } =
                decision.flow.ok_or("flow has nothing to say of a dispatch")?;
            rule(saturation.is_none_or(|saturation| saturation < ceiling), || {
                format!("{id:?} is dispatched at a saturation of {saturation:?}; its ceiling is said to be {ceiling}")
            })?;
            let model = self.settings.models.get(&request.model);
            let below = |model| flow::below_ceiling(flow, model, request, self.pool(request.model, Timestamp::ZERO));
            return model.map_or(Ok(()), below);
        }
        let first = self.queues.get(&request.model).and_then(BTreeSet::first).map(|&(_, first)| first);
        rule(first == Some(id), || format!("{id:?} is dispatched before {first:?}, which is due for the same model"))
    }

    /// Whether a replica of the model has just been loaded, or was for somebody who has not gone yet: best the one that he
    /// goes to now, but another may have got a place free meanwhile.
    fn keeps_promise(&mut self, now: Timestamp, replica: ReplicaId) -> bool {
        let (from, to) = (ReplicaId { index: 0, ..replica }, ReplicaId { index: u32::MAX, ..replica });
        if self.servers.range(from..=to).any(|(_, server)| server.process == Process::Ready && server.since == now) {
            return true;
        }
        let promised: Vec<_> =
            self.servers.range(from..=to).filter(|(_, server)| server.promised).map(|(&replica, _)| replica).collect();
        let kept = promised.iter().find(|&&other| other == replica).or(promised.first());
        kept.and_then(|kept| self.servers.get_mut(kept)).is_some_and(|server| std::mem::take(&mut server.promised))
    }

    /// What the ready replicas of a model that are up to date do.
    fn pool(&self, model: ModelId, now: Timestamp) -> Pool {
        let Some(settings) = self.settings.models.get(&model) else { return Pool::default() };
        let is_flow = matches!(self.settings.policy, PolicySettings::Flow(_));
        let mut pool = Pool { idle: true, ..Pool::default() };
        let (from, to) = (ReplicaId { model, index: 0 }, ReplicaId { model, index: u32::MAX });
        for (replica, server) in self.servers.range(from..=to) {
            let is_current = server.revision == settings.revision && settings.has_replica(replica.index);
            if server.process == Process::Ready && is_current {
                pool.replicas += 1;
                pool.running += u64::from(server.running);
                let used = flow::used(settings, server.running, server.tokens);
                pool.used += used;
                pool.has_room |= server.running < settings.concurrency && (!is_flow || used < flow::limit(settings));
                pool.idle &= server.idle_until.is_some_and(|until| now < until);
            }
        }
        pool
    }

    /// What the gate is told that a server's metrics say.
    pub(crate) fn sampled(&mut self, now: Timestamp, replica: ReplicaId, generation: Generation, load: Load) {
        let staleness = self.settings.models.get(&replica.model).and_then(flow::staleness);
        if let (Ok(server), Some(staleness)) = (self.server(replica, generation), staleness) {
            let idle = load.waiting == 0 && load.kv_cache == Some(0.0);
            server.idle_until = idle.then_some(now + staleness);
        }
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
        let &Entry { stage: Stage::Running(replica, generation), tokens, .. } = self.entry(id)? else {
            return Err(format!("{id:?} finished without running"));
        };
        if let Some(server) = self.servers.get_mut(&replica)
            && server.generation == generation
        {
            server.running -= 1;
            server.tokens -= tokens;
        }
        self.running -= 1;
        self.end(id)
    }

    pub(crate) fn load(&mut self, replica: ReplicaId, generation: Generation) -> Check {
        let Some(model) = self.settings.models.get(&replica.model).cloned() else {
            return Err(format!("{replica:?} is loaded, which is not configured"));
        };
        rule(model.has_replica(replica.index), || format!("{replica:?} is loaded, which there is not"))?;
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
            tokens: 0,
            idle_until: None,
            since: Timestamp::ZERO,
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
    pub(crate) fn becomes(&mut self, now: Timestamp, replica: ReplicaId, generation: Generation, to: Process) -> Check {
        let server = self.server(replica, generation)?;
        server.process = to;
        server.since = now;
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
    pub(crate) fn settled(&self, now: Timestamp, view: Option<View>, asleep: bool) -> Check {
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
            self.within_bounds(waiting)?;
            self.works(now)?;
        }
        Ok(())
    }

    fn within_bounds(&self, waiting: u64) -> Check {
        let admission = &self.settings.admission;
        let bounds = admission.total;
        rule(waiting <= bounds.requests && self.waiting_bytes <= bounds.bytes, || {
            format!("{waiting} requests of {} bytes wait; the bounds are {bounds:?}", self.waiting_bytes)
        })?;
        for (waiting, band) in self.waiting.iter().zip(&admission.bands) {
            rule(*waiting <= band.bounds.requests, || format!("{waiting} requests of a band wait: {band:?}"))?;
        }
        for (priority, level) in &admission.levels {
            let waiting = self.waiting_by_level.get(priority).copied().unwrap_or(0);
            rule(waiting <= level.bounds.requests, || format!("{waiting} wait at {priority:?}: {level:?}"))?;
        }
        Ok(())
    }

    /// Nobody waits for a server that has room and is in nobody's way.
    fn works(&self, now: Timestamp) -> Check {
        for (&id, model) in self.settings.models.iter().filter(|(_, model)| !model.managed) {
            let pool = self.pool(id, now);
            match &self.settings.policy {
                PolicySettings::Flow(flow) => flow::works(&self.flows, flow, id, model, pool)?,
                PolicySettings::Fifo(_) => {
                    let waits = self.queues.get(&id).is_some_and(|queue| !queue.is_empty());
                    rule(!waits || !pool.has_room, || format!("requests wait for {id:?}, which has room: {pool:?}"))?;
                }
                // Its slots may be taken, or kept for somebody.
                PolicySettings::Serial(_) => {}
            }
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
        let (request, arrived) = (entry.request.clone(), entry.arrived);
        let place = self.place(arrived, &request);
        if let PolicySettings::Flow(flow) = &self.settings.policy {
            self.flows.leave(&self.settings, flow, arrived, &request);
        }
        let Request { model, priority, bytes, .. } = request;
        let was_there = self.queues.get_mut(&model).is_some_and(|queue| queue.remove(&place));
        rule(was_there, || format!("{id:?} leaves a queue that it is not in"))?;
        self.waiting[priority.band().index()] -= 1;
        if let Some(waiting) = self.waiting_by_level.get_mut(&priority) {
            *waiting -= 1;
        }
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
