//! No gate: what happens without a scheduler.
//!
//! A request goes at once to the server of its model with the fewest unfinished ones, and queues there. On a machine
//! where models take turns, requests go strictly in the order of arrival: the first whose model is not loaded waits
//! for the running ones to end, has its model swapped in, and holds up everyone behind it.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use switchyard_scheduler::{
    Action, Decision, Event, Generation, Outcome, Priority, ReplicaId, Request, RequestId, StopReason, Timestamp,
};

use crate::{
    Model,
    gate::{Gate, View},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    Loading(RequestId),
    Ready,
    Stopping,
}

#[derive(Debug)]
struct Server {
    generation: Generation,
    state: State,
    managed: bool,
    running: u32,
}

/// Lets everything through in the order of arrival.
#[derive(Debug)]
pub(crate) struct NoGate {
    servers: BTreeMap<ReplicaId, Server>,
    waiting: VecDeque<(Timestamp, Request)>,
    on: BTreeMap<RequestId, ReplicaId>,
    actions: VecDeque<Action>,
}

impl NoGate {
    pub(crate) fn new(models: &[Model]) -> Self {
        let mut servers = BTreeMap::new();
        for (number, model) in (0..).zip(models) {
            for index in 0..model.replicas {
                let replica = ReplicaId { model: switchyard_scheduler::ModelId(number), index };
                let server =
                    Server { generation: Generation(0), state: State::Absent, managed: model.managed, running: 0 };
                servers.insert(replica, server);
            }
        }
        Self { servers, waiting: VecDeque::new(), on: BTreeMap::new(), actions: VecDeque::new() }
    }

    fn release(&mut self, id: RequestId) {
        if let Some(server) = self.on.remove(&id).and_then(|replica| self.servers.get_mut(&replica)) {
            server.running = server.running.saturating_sub(1);
        }
    }

    fn set(&mut self, replica: ReplicaId, generation: Generation, state: State) {
        if let Some(server) = self.servers.get_mut(&replica)
            && server.generation == generation
        {
            server.state = state;
        }
    }

    /// Lets the first ones go, as far as their models are there, and begins what the next one needs.
    fn step(&mut self, now: Timestamp) {
        while let Some(&(arrived, ref request)) = self.waiting.front() {
            let (id, model, priority) = (request.id, request.model, request.priority);
            let ready = self
                .servers
                .iter_mut()
                .filter(|(replica, server)| replica.model == model && server.state == State::Ready)
                .min_by_key(|(_, server)| server.running);
            let Some((&replica, server)) = ready else {
                self.make_ready(id, model);
                return;
            };
            server.running += 1;
            let generation = server.generation;
            self.on.insert(id, replica);
            self.waiting.pop_front();
            let decision = plain_decision(priority, now.since(arrived), self.waiting.len());
            self.actions.push_back(Action::Dispatch { id, replica, generation, decision });
        }
    }

    fn make_ready(&mut self, request: RequestId, model: switchyard_scheduler::ModelId) {
        let managed = self.servers.iter().any(|(replica, server)| replica.model == model && server.managed);
        if managed {
            let mut in_the_way = false;
            for (&replica, server) in self.servers.iter_mut().filter(|(replica, _)| replica.model != model) {
                in_the_way |= server.managed && server.state != State::Absent;
                if server.managed && server.state == State::Ready && server.running == 0 {
                    server.state = State::Stopping;
                    let generation = server.generation;
                    self.actions.push_back(Action::Stop { replica, generation, reason: StopReason::Evicted });
                }
            }
            if in_the_way {
                return;
            }
        }
        for (&replica, server) in self.servers.iter_mut().filter(|(replica, _)| replica.model == model) {
            if server.state == State::Absent {
                server.generation.0 += 1;
                server.state = State::Loading(request);
                let generation = server.generation;
                let load = Action::Load { replica, generation, request: Some(request), evicted: Vec::new() };
                self.actions.push_back(load);
            }
        }
    }
}

fn plain_decision(priority: Priority, waited: Duration, still_waiting: usize) -> Decision {
    Decision {
        priority,
        band: priority.band(),
        model_priority: 0,
        affinity: 0,
        aging: 0.0,
        score: 0.0,
        waited,
        swap: None,
        passed_by_aging: None,
        passed_by_affinity: None,
        still_waiting: still_waiting as u64,
        flow: None,
    }
}

impl Gate for NoGate {
    fn handle(&mut self, now: Timestamp, event: Event) {
        match event {
            Event::Arrive(request) => self.waiting.push_back((now, request)),
            Event::Cancel { id } => {
                self.waiting.retain(|(_, request)| request.id != id);
                self.release(id);
            }
            Event::Finished { id, .. } => self.release(id),
            Event::LoadDone { replica, generation, ok: true } => self.set(replica, generation, State::Ready),
            Event::LoadDone { replica, generation, ok: false } => {
                let state = self.servers.get(&replica).map(|server| server.state);
                self.set(replica, generation, State::Absent);
                // The one that it was for bears the failure, if it still waits.
                if let Some(State::Loading(id)) = state
                    && let Some(at) = self.waiting.iter().position(|(_, request)| request.id == id)
                    && let Some((arrived, _)) = self.waiting.remove(at)
                {
                    let waited = now.since(arrived);
                    let outcome = Outcome::LoadFailed;
                    self.actions.push_back(Action::Reject { id, outcome, waited, retry_after: None, flow: None });
                }
            }
            Event::StopDone { replica, generation } | Event::Exited { replica, generation } => {
                self.set(replica, generation, State::Absent);
            }
            // Nobody operates what is not there.
            _ => {}
        }
        self.step(now);
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn deadline(&self) -> Option<Timestamp> {
        None
    }

    fn view(&self) -> Option<View> {
        None
    }
}
