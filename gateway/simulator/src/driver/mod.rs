//! Drives a gate with simulated clients and servers, and carries out what it decides.

mod servers;

use std::{collections::BTreeMap, time::Duration};

use switchyard_scheduler::{
    Action, Event, Generation, Load, Outcome, ReplicaId, Request, RequestId, Settings, TenantId, Timestamp, Usage,
};
use thiserror::Error;

use crate::{
    Comparison, Operation, Policy, Scenario,
    agenda::Agenda,
    engine::Output,
    faults::Fate,
    gate::Gate,
    ledger::{Broken, Ledger, Process, Stage},
    random::Stream,
    scenario::tenants,
    workload::{Arrival, arrivals},
};
use servers::Server;

/// The gate did something that it must never do.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("after {at:?} of virtual time: {what}")]
pub struct Violation {
    /// When.
    pub at: Timestamp,
    /// What.
    pub what: String,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// To the last token.
    Served,
    /// The gate refused it.
    Rejected(Outcome),
    /// Its client left.
    Left,
    /// Its server went away.
    Lost,
}

/// What became of one request.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    /// The request.
    pub arrival: Arrival,
    /// When it went to a server, as far as that is known.
    pub dispatched: Option<Timestamp>,
    /// When its first token came.
    pub first_token: Option<Timestamp>,
    /// When it ended.
    pub ended: Timestamp,
    /// How it ended.
    pub end: End,
}

/// What became of everything.
#[derive(Debug, Default)]
pub struct Outcomes {
    /// Every request.
    pub lives: Vec<Life>,
    /// Loads of models that take turns.
    pub loads: u64,
    /// Those that failed.
    pub failed_loads: u64,
    /// Servers that went away by themselves.
    pub crashes: u64,
    /// Sequences that lost their place in a KV cache.
    pub preemptions: u64,
    /// When the last request ended.
    pub end: Timestamp,
}

#[derive(Clone, Debug)]
enum Happening {
    /// The arrival of that index.
    Arrival(usize),
    /// The client leaves; one that is merely impatient stays once it has seen a token.
    ClientLeaves {
        id: RequestId,
        impatient: bool,
    },
    /// A dispatched request has come to its server's queue.
    Submitted {
        id: RequestId,
    },
    Step {
        replica: ReplicaId,
        generation: Generation,
    },
    LoadDone {
        replica: ReplicaId,
        generation: Generation,
        ok: bool,
    },
    StopDone {
        replica: ReplicaId,
        generation: Generation,
    },
    Crash {
        replica: ReplicaId,
        generation: Generation,
    },
    /// The connection of a request to its lost server is seen to be broken.
    Broken {
        id: RequestId,
    },
    Operation(usize),
    /// A look at a server's metrics.
    Scrape {
        replica: ReplicaId,
        generation: Generation,
    },
    /// What a late look at a server's metrics found.
    Sample {
        replica: ReplicaId,
        generation: Generation,
        load: Load,
    },
    /// News that the gate has heard before.
    StaleNews(Event),
    Tick,
}

/// A run that is this far beyond its duration never ends.
const NEVER: Duration = Duration::from_secs(100 * 24 * 3600);
/// The same where looks at metrics keep the clock going.
const NEVER_WITH_SCRAPES: Duration = Duration::from_secs(24 * 3600);

pub(crate) struct Driver<'a, G> {
    scenario: &'a Scenario,
    gate: G,
    ledger: Ledger,
    /// The tenants of each class.
    tenants: Vec<Vec<TenantId>>,
    /// Between two looks at a server's metrics.
    scrape_every: Option<Duration>,
    now: Timestamp,
    agenda: Agenda<Happening>,
    arrivals: Vec<Arrival>,
    lives: Vec<Life>,
    servers: BTreeMap<ReplicaId, Server>,
    fate: Fate,
    network: Stream,
    tick: Option<Timestamp>,
    outputs: Vec<Output>,
    loads: u64,
    failed_loads: u64,
    crashes: u64,
    preemptions: u64,
    last_end: Timestamp,
}

impl<'a, G: Gate> Driver<'a, G> {
    /// A run of the scenario under the gate, which was built with these settings.
    pub(crate) fn new(scenario: &'a Scenario, comparison: &Comparison, gate: G, settings: Settings) -> Self {
        // Streams from the far end of the numbers, away from those of the classes.
        let stream = |number: u64| Stream::new(scenario.seed, u64::MAX - number);
        let gated = comparison.policy != Policy::NoGate;
        let numbers = tenants(&scenario.classes);
        Self {
            scenario,
            gate,
            ledger: Ledger::new(settings, gated),
            tenants: scenario
                .classes
                .iter()
                .map(|class| class.tenants.iter().map(|name| numbers[name]).collect())
                .collect(),
            scrape_every: comparison.detector.and_then(|detector| detector.refresh),
            now: Timestamp::ZERO,
            agenda: Agenda::new(),
            arrivals: arrivals(scenario),
            lives: Vec::new(),
            servers: BTreeMap::new(),
            fate: Fate::new(scenario.faults.clone(), stream(0), stream(1)),
            network: stream(2),
            tick: None,
            outputs: Vec::new(),
            loads: 0,
            failed_loads: 0,
            crashes: 0,
            preemptions: 0,
            last_end: Timestamp::ZERO,
        }
    }

    /// Runs until nothing happens any more.
    pub(crate) fn run(mut self) -> Result<Outcomes, Violation> {
        for (index, &(at, _)) in self.scenario.operations.iter().enumerate() {
            self.agenda.plan(Timestamp::ZERO + at, Happening::Operation(index));
        }
        self.plan_arrival(0);
        while let Some((at, happening)) = self.agenda.next() {
            self.now = at;
            self.happen(happening).map_err(|what| Violation { at, what })?;
        }
        let at = self.now;
        self.ledger.over().map_err(|what| Violation { at, what })?;
        let preemptions = self.preemptions + self.servers.values().map(Server::preemptions).sum::<u64>();
        Ok(Outcomes {
            lives: self.lives,
            loads: self.loads,
            failed_loads: self.failed_loads,
            crashes: self.crashes,
            preemptions,
            end: self.last_end,
        })
    }

    fn happen(&mut self, happening: Happening) -> Result<(), Broken> {
        let never = if self.scrape_every.is_some() { NEVER_WITH_SCRAPES } else { NEVER };
        if self.now.since(Timestamp::ZERO) > self.scenario.duration + never {
            return Err(format!("{} requests never end", self.ledger.unfinished()));
        }
        match happening {
            Happening::Arrival(index) => self.arrive(index)?,
            Happening::ClientLeaves { id, impatient } => self.client_leaves(id, impatient)?,
            Happening::Submitted { id } => self.submitted(id),
            Happening::Step { replica, generation } => self.step(replica, generation)?,
            Happening::LoadDone { replica, generation, ok } => self.load_done(replica, generation, ok)?,
            Happening::StopDone { replica, generation } => {
                self.ledger.becomes(self.now, replica, generation, Process::None)?;
                self.tell(Event::StopDone { replica, generation });
            }
            Happening::Crash { replica, generation } => self.crash(replica, generation)?,
            Happening::Broken { id } => {
                if let Some(Stage::Running(..)) = self.ledger.stage(id) {
                    self.finish(id, End::Lost, Usage::default())?;
                }
            }
            Happening::Operation(index) => self.operate(index),
            Happening::Scrape { replica, generation } => self.scrape(replica, generation),
            Happening::Sample { replica, generation, load } => self.sample(replica, generation, load),
            Happening::StaleNews(event) => self.gate.handle(self.now, event),
            Happening::Tick => self.tick()?,
        }
        self.settle()
    }

    /// Tells the gate what has happened to a request or a server.
    fn tell(&mut self, event: Event) {
        if let Some(after) = self.fate.comes_again_after() {
            self.agenda.plan(self.now + after, Happening::StaleNews(event.clone()));
        }
        self.gate.handle(self.now, event);
    }

    fn plan_arrival(&mut self, index: usize) {
        if let Some(arrival) = self.arrivals.get(index) {
            self.agenda.plan(arrival.at, Happening::Arrival(index));
        }
    }

    fn arrive(&mut self, index: usize) -> Result<(), Broken> {
        let arrival = self.arrivals[index];
        let class = &self.scenario.classes[arrival.class as usize];
        let id = RequestId(index as u64 + 1);
        let request = Request {
            // About four letters a token.
            bytes: u64::from(arrival.prompt) * 4,
            ttl: class.ttl,
            tenant: self.tenants[arrival.class as usize][arrival.tenant as usize],
            prompt_tokens: arrival.prompt.into(),
            max_tokens: class.max_tokens,
            ttft_goal: class.goal,
            ..Request::new(id, class.model, class.priority)
        };
        self.plan_arrival(index + 1);
        self.lives.push(Life { arrival, dispatched: None, first_token: None, ended: self.now, end: End::Left });
        if let Some(patience) = class.patience {
            self.agenda.plan(self.now + patience, Happening::ClientLeaves { id, impatient: true });
        }
        if let Some(after) = self.fate.leaves_after(self.scenario.duration / 20) {
            self.agenda.plan(self.now + after, Happening::ClientLeaves { id, impatient: false });
        }
        self.ledger.arrive(self.now, request.clone())?;
        self.gate.handle(self.now, Event::Arrive(request));
        Ok(())
    }

    fn client_leaves(&mut self, id: RequestId, impatient: bool) -> Result<(), Broken> {
        // What is due now comes first: it may be the end of this very request.
        self.tick()?;
        let seen_a_token = self.life(id).is_some_and(|life| life.first_token.is_some());
        match self.ledger.stage(id) {
            Some(Stage::Waiting) => {
                self.ledger.cancel_waiting(id)?;
                self.ended(id, End::Left);
                self.tell(Event::Cancel { id });
            }
            Some(Stage::Running(replica, _)) if !(impatient && seen_a_token) => {
                if let Some(engine) = self.servers.get_mut(&replica).and_then(|server| server.engine.as_mut()) {
                    engine.cancel(id);
                }
                if seen_a_token {
                    self.finish(id, End::Left, Usage::default())?;
                } else {
                    // As when the client's end crosses the dispatch: the gate hears of a cancel alone.
                    self.release(id)?;
                    self.ended(id, End::Left);
                    self.tell(Event::Cancel { id });
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn submitted(&mut self, id: RequestId) {
        let Some(Stage::Running(replica, generation)) = self.ledger.stage(id) else { return };
        let Some(arrival) = self.life(id).map(|life| life.arrival) else { return };
        let Some(server) = self.servers.get_mut(&replica) else { return };
        // Lost with its server before it got there: its end is planned.
        let (true, Some(engine)) = (server.generation == generation, server.engine.as_mut()) else { return };
        let idle = engine.step_end().is_none();
        engine.submit(self.now, id, arrival.prompt, arrival.output);
        if let (true, Some(end)) = (idle, engine.step_end()) {
            self.agenda.plan(end, Happening::Step { replica, generation });
        }
    }

    fn operate(&mut self, index: usize) {
        let event = match &self.scenario.operations[index].1 {
            Operation::Unload(models) => Event::Unload { models: models.clone() },
            Operation::Preload(models) => Event::Preload { models: models.clone() },
            Operation::Restart(model) => self.reconfigured(|settings| {
                if let Some(model) = settings.models.get_mut(model) {
                    model.revision += 1;
                }
            }),
            Operation::Remove(model) => self.reconfigured(|settings| {
                settings.models.remove(model);
            }),
            Operation::Leave(model) => self.reconfigured(|settings| {
                if let Some(model) = settings.models.get_mut(model).filter(|model| model.replicas > 1) {
                    let first = (0..).find(|number| !model.gaps.contains(number));
                    model.replicas -= 1;
                    model.gaps.extend(first);
                }
            }),
            Operation::Drain => {
                self.ledger.drain();
                Event::Drain
            }
        };
        self.gate.handle(self.now, event);
    }

    fn reconfigured(&mut self, change: impl FnOnce(&mut Settings)) -> Event {
        let mut settings = self.ledger.settings().clone();
        change(&mut settings);
        self.ledger.reconfigure(settings.clone());
        Event::Reconfigure(Box::new(settings))
    }

    fn tick(&mut self) -> Result<(), Broken> {
        // An earlier one may have been planned after this one was; then it is not due.
        self.tick = None;
        // What a tick does may call for another one at once, but not for ever.
        let mut ticks = 0;
        while let Some(deadline) = self.gate.deadline().filter(|&deadline| deadline <= self.now) {
            if ticks == 3 {
                return Err(format!("after three ticks the deadline is still {deadline:?}"));
            }
            ticks += 1;
            self.gate.handle(self.now, Event::Tick);
            self.carry_out_all()?;
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<(), Broken> {
        self.carry_out_all()?;
        let deadline = self.gate.deadline();
        // A look at metrics may bring what a request waits for.
        let asleep = deadline.is_none() && self.scrape_every.is_none();
        self.ledger.settled(self.now, self.gate.view(), asleep)?;
        if let Some(deadline) = deadline.map(|deadline| deadline.max(self.now))
            && self.tick.is_none_or(|planned| deadline < planned)
        {
            self.agenda.plan(deadline, Happening::Tick);
            self.tick = Some(deadline);
        }
        Ok(())
    }

    fn carry_out_all(&mut self) -> Result<(), Broken> {
        while let Some(action) = self.gate.poll_action() {
            self.carry_out(action)?;
        }
        Ok(())
    }

    fn carry_out(&mut self, action: Action) -> Result<(), Broken> {
        match action {
            Action::Dispatch { id, replica, generation, decision } => {
                self.ledger.dispatch(self.now, id, replica, generation, &decision)?;
                self.servers.entry(replica).or_default().requests.insert(id);
                let now = self.now;
                if let Some(life) = self.life_mut(id) {
                    life.dispatched = Some(now);
                }
                let (least, most) = self.scenario.models[replica.model.0 as usize].engine.overhead;
                let micros = self.network.between(least.as_micros() as u64, most.as_micros() as u64);
                self.agenda.plan(self.now + Duration::from_micros(micros), Happening::Submitted { id });
            }
            Action::Reject { id, outcome, .. } => {
                self.ledger.reject(id, outcome)?;
                self.ended(id, End::Rejected(outcome));
            }
            Action::Load { replica, generation, .. } => {
                self.ledger.load(replica, generation)?;
                let model = &self.scenario.models[replica.model.0 as usize];
                self.loads += u64::from(model.managed);
                let (takes, ok) = self.fate.load(model.load);
                self.agenda.plan(self.now + takes, Happening::LoadDone { replica, generation, ok });
            }
            Action::Stop { replica, generation, reason } => self.stop(replica, generation, reason)?,
            Action::Drained => self.ledger.drained()?,
        }
        Ok(())
    }

    fn finish(&mut self, id: RequestId, end: End, usage: Usage) -> Result<(), Broken> {
        self.release(id)?;
        self.ended(id, end);
        self.tell(Event::Finished { id, usage });
        Ok(())
    }

    /// The request no longer runs.
    fn release(&mut self, id: RequestId) -> Result<(), Broken> {
        if let Some(Stage::Running(replica, _)) = self.ledger.stage(id)
            && let Some(server) = self.servers.get_mut(&replica)
        {
            server.requests.remove(&id);
        }
        self.ledger.finish(id)
    }

    fn ended(&mut self, id: RequestId, end: End) {
        let now = self.now;
        if let Some(life) = self.life_mut(id) {
            life.ended = now;
            life.end = end;
        }
        self.last_end = now;
    }

    fn life(&self, id: RequestId) -> Option<&Life> {
        self.lives.get(usize::try_from(id.0).ok()?.checked_sub(1)?)
    }

    fn life_mut(&mut self, id: RequestId) -> Option<&mut Life> {
        self.lives.get_mut(usize::try_from(id.0).ok()?.checked_sub(1)?)
    }
}
