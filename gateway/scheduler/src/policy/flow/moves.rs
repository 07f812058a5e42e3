//! What changes when a request comes or goes: queues, levels, virtual time, and the model's candidate.

use std::cmp::Reverse;

use super::{Flow, Tag, queue::Queue};
use crate::{
    RequestId,
    fleet::ModelIx,
    policy::Standing,
    queue::{Requests, Slot},
};

/// A place in the order; the greatest goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    points: i128,
    /// Those with the same number are equally due.
    turn: Reverse<u128>,
    is_ready: bool,
    due: Reverse<u128>,
    pub(super) arrival: Reverse<RequestId>,
}

impl Key {
    /// Less than any that a request can have.
    pub(super) const NONE: Self = Self {
        points: i128::MIN,
        turn: Reverse(u128::MAX),
        is_ready: false,
        due: Reverse(u128::MAX),
        arrival: Reverse(RequestId(u64::MAX)),
    };

    /// As if its model were not ready.
    pub(super) fn without_affinity(self) -> Self {
        Self { is_ready: false, ..self }
    }
}

impl Flow {
    /// Takes a request out of all in which it waits. Its queue is gone if it was the last one in there.
    pub(super) fn take(&mut self, requests: &mut Requests, slot: Slot, goes: bool) {
        let entry = &requests[slot];
        let (model, priority, ix) = (entry.model, entry.priority, entry.queue);
        let request = (entry.arrived, entry.id);
        let flow = self.queues[ix as usize].flow;
        let order = self.order(flow);
        let queue = &mut self.queues[ix as usize];
        if goes {
            queue.take_turn(slot);
        }
        queue.remove(requests, order, slot);
        let is_empty = queue.head().is_none();
        let pool = &mut self.pools[model];
        if let Some(micros) = self.micros_per_point {
            pool.age(priority, micros, request, false);
        }
        let state = self.flows.get_mut(flow);
        state.waiting -= 1;
        if let Some(lane) = pool.lanes.get_mut(&priority) {
            lane.waiting -= 1;
            if is_empty {
                lane.queues.remove(&(state.tag, state.stamp, ix));
                state.queues.retain(|&other| other != ix);
            }
            if lane.waiting == 0 {
                pool.lanes.remove(&priority);
            }
        }
        self.watch(ix);
        if is_empty {
            self.queues.remove(ix as usize);
        }
    }

    /// Keeps in mind when the first deadline of a queue will be too late.
    pub(super) fn watch(&mut self, ix: u32) {
        let queue = &self.queues[ix as usize];
        let lead = self.pools[queue.model].lead.get();
        let first = queue.first_deadline();
        if first.is_none() && queue.too_late.is_none() {
            return;
        }
        let at = first.and_then(|deadline| self.order(queue.flow).too_late(deadline, lead));
        let before = std::mem::replace(&mut self.queues[ix as usize].too_late, at);
        if before != at {
            if let Some(before) = before {
                self.too_late.remove(&(before, ix));
            }
            self.too_late.extend(at.map(|at| (at, ix)));
        }
    }

    /// Moves a flow in virtual time, and the models with it for which it waits.
    pub(super) fn shift(&mut self, requests: &Requests, flow: u32, tag: Tag, but: ModelIx) {
        let stamp = self.flows.stamp();
        let state = self.flows.get_mut(flow);
        let before = (std::mem::replace(&mut state.tag, tag), std::mem::replace(&mut state.stamp, stamp));
        for place in 0..state.queues.len() {
            let state = self.flows.get(flow);
            let ix = state.queues[place];
            let priority = self.flows.levels[state.level].priority;
            let model = self.queues[ix as usize].model;
            if let Some(lane) = self.pools[model].lanes.get_mut(&priority) {
                lane.queues.remove(&(before.0, before.1, ix));
                lane.queues.insert((tag, stamp, ix));
            }
            if model != but {
                self.update(requests, model);
            }
        }
    }

    /// Brings a model's place among the candidates up to date.
    pub(super) fn update(&mut self, requests: &Requests, model: ModelIx) {
        let turn = self.pools[model].turn(self.now);
        let first = turn.and_then(|(priority, _)| self.pools[model].lanes[&priority].queues.first().copied());
        let best = first.and_then(|(_, _, ix)| self.queues[ix as usize].head());
        let (Some((priority, is_held)), Some((tag, _, ix)), Some(slot)) = (turn, first, best) else {
            self.pools[model].best = None;
            self.pools[model].is_held = false;
            return self.board.set(model, None);
        };
        let pool = &mut self.pools[model];
        pool.best = Some((slot, priority));
        if is_held && !pool.is_held {
            pool.held[priority.band().index()] += 1;
        }
        pool.is_held = is_held;
        if is_held && self.now < pool.next_place && !pool.looks_again {
            pool.looks_again = true;
            self.paced.insert((pool.next_place, model));
        }
        if is_held || pool.standing == Standing::Blocked || pool.is_aside {
            return self.board.set(model, None);
        }
        let points = pool.points(priority, self.micros_per_point);
        let standing = pool.standing;
        let level = pool.lanes[&priority].level;
        let (turn, due) = match self.fairness(level).window() {
            Some(bits) if self.is_shared[model] && self.settings.swap_affinity => (tag >> bits, tag),
            Some(_) => (tag, tag),
            None => {
                let due = Queue::due(requests, self.order(self.queues[ix as usize].flow), slot);
                (due, due)
            }
        };
        let key = Key {
            points,
            turn: Reverse(turn),
            is_ready: self.settings.swap_affinity && standing == Standing::Ready,
            due: Reverse(due),
            arrival: Reverse(requests[slot].id),
        };
        self.board.set(model, Some((standing, key)));
    }

    /// The ceilings of a model's levels change with the demand.
    pub(super) fn lay_ceilings(&mut self, requests: &Requests, model: ModelIx) {
        let pool = &mut self.pools[model];
        for (&priority, lane) in &mut pool.lanes {
            lane.ceiling = self.ceilings.of(priority, &pool.demand, pool.saturation);
            lane.pace = self.ceilings.pace(priority, &pool.demand);
        }
        self.update(requests, model);
    }
}
