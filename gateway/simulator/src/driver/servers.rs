//! What servers do by themselves, and what becomes of what they run.

use std::collections::BTreeSet;

use switchyard_scheduler::{Event, Generation, Load, ReplicaId, RequestId, StopReason, Usage};

use super::{Driver, End, Happening};
use crate::{
    engine::{Engine, Output},
    faults::Scrape,
    gate::Gate,
    ledger::{Broken, Process},
};

#[derive(Debug, Default)]
pub(super) struct Server {
    pub(super) generation: Generation,
    pub(super) engine: Option<Engine>,
    /// Dispatched to it, whether they have reached its queue or not.
    pub(super) requests: BTreeSet<RequestId>,
}

impl Server {
    pub(super) fn preemptions(&self) -> u64 {
        self.engine.as_ref().map_or(0, |engine| engine.load().preemptions)
    }
}

impl<G: Gate> Driver<'_, G> {
    pub(super) fn step(&mut self, replica: ReplicaId, generation: Generation) -> Result<(), Broken> {
        let Some(server) = self.servers.get_mut(&replica).filter(|server| server.generation == generation) else {
            return Ok(());
        };
        let Some(engine) = server.engine.as_mut() else { return Ok(()) };
        let mut outputs = std::mem::take(&mut self.outputs);
        engine.advance(self.now, &mut outputs);
        if let Some(end) = engine.step_end() {
            self.agenda.plan(end, Happening::Step { replica, generation });
        }
        for output in outputs.drain(..) {
            match output {
                Output::FirstToken(id) => {
                    let now = self.now;
                    if let Some(life) = self.life_mut(id) {
                        life.first_token = Some(now);
                    }
                }
                Output::Done(id) => {
                    let usage = self.life(id).map_or_else(Usage::default, |life| Usage {
                        prompt_tokens: Some(life.arrival.prompt.into()),
                        completion_tokens: Some(life.arrival.output.into()),
                        first_token: life.first_token.zip(life.dispatched).map(|(first, sent)| first.since(sent)),
                    });
                    self.finish(id, End::Served, usage)?;
                }
            }
        }
        self.outputs = outputs;
        Ok(())
    }

    pub(super) fn load_done(&mut self, replica: ReplicaId, generation: Generation, ok: bool) -> Result<(), Broken> {
        // A stop that came meanwhile is answered by its end alone.
        if self.ledger.process(replica, generation) != Process::Loading {
            return Ok(());
        }
        self.ledger.becomes(self.now, replica, generation, if ok { Process::Ready } else { Process::None })?;
        if ok {
            let settings = self.scenario.models[replica.model.0 as usize].engine.clone();
            let server = self.servers.entry(replica).or_default();
            *server = Server { generation, engine: Some(Engine::new(settings)), requests: BTreeSet::new() };
            if let Some(life) = self.fate.lives_for() {
                self.agenda.plan(self.now + life, Happening::Crash { replica, generation });
            }
            if self.scrape_every.is_some() {
                self.agenda.plan(self.now, Happening::Scrape { replica, generation });
            }
        } else {
            self.failed_loads += 1;
        }
        self.tell(Event::LoadDone { replica, generation, ok });
        Ok(())
    }

    pub(super) fn crash(&mut self, replica: ReplicaId, generation: Generation) -> Result<(), Broken> {
        // Once nobody is left to see it, crashes and restarts would go on for ever.
        if self.is_over() || self.ledger.process(replica, generation) != Process::Ready {
            return Ok(());
        }
        self.crashes += 1;
        self.ledger.becomes(self.now, replica, generation, Process::None)?;
        self.lose_server(replica);
        self.tell(Event::Exited { replica, generation });
        Ok(())
    }

    /// Whether nobody waits or runs, and nobody comes any more.
    pub(super) fn is_over(&self) -> bool {
        self.ledger.unfinished() == 0 && self.lives.len() == self.arrivals.len()
    }

    pub(super) fn scrape(&mut self, replica: ReplicaId, generation: Generation) {
        let Some(every) = self.scrape_every.filter(|_| !self.is_over()) else { return };
        let server = self.servers.get(&replica).filter(|server| server.generation == generation);
        let Some(engine) = server.and_then(|server| server.engine.as_ref()) else { return };
        let load = engine.load();
        let load = Load { running: load.running, waiting: load.waiting, kv_cache: Some(load.kv) };
        match self.fate.scrape(every) {
            Scrape::InTime => self.sample(replica, generation, load),
            Scrape::Late(by) => self.agenda.plan(self.now + by, Happening::Sample { replica, generation, load }),
            Scrape::Lost => {}
        }
        self.agenda.plan(self.now + every, Happening::Scrape { replica, generation });
    }

    pub(super) fn sample(&mut self, replica: ReplicaId, generation: Generation, load: Load) {
        self.ledger.sampled(self.now, replica, generation, load);
        self.gate.handle(self.now, Event::Sample { replica, generation, load });
    }

    /// The process is gone: its requests will be seen to break, sooner or later.
    pub(super) fn lose_server(&mut self, replica: ReplicaId) {
        let Some(server) = self.servers.get_mut(&replica) else { return };
        self.preemptions += server.preemptions();
        server.engine = None;
        for id in std::mem::take(&mut server.requests) {
            self.agenda.plan(self.now + self.fate.notices_after(), Happening::Broken { id });
        }
    }

    pub(super) fn stop(
        &mut self,
        replica: ReplicaId,
        generation: Generation,
        reason: StopReason,
    ) -> Result<(), Broken> {
        self.ledger.stop(replica, generation, reason)?;
        self.lose_server(replica);
        let takes = self.fate.stop(self.scenario.models[replica.model.0 as usize].stop);
        self.agenda.plan(self.now + takes, Happening::StopDone { replica, generation });
        Ok(())
    }
}
