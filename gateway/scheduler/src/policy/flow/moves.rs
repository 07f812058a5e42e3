//! What changes when a request comes or goes: queues, levels, virtual time, and the model's candidate.

use std::{cmp::Reverse, collections::btree_map};

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
        self.flows.get_mut(flow).waiting -= 1;
        self.watch(ix);
        if is_empty {
            self.drop_queue(ix);
        }
        if let btree_map::Entry::Occupied(mut place) = self.pools[model].lanes.entry(priority) {
            let lane = place.get_mut();
            lane.waiting -= 1;
            if lane.waiting == 0 {
                place.remove();
            } else if is_empty {
                lane.turns.clear(&self.queues, lane.waiting);
            }
        }
    }

    /// Forgets a queue that nobody is in.
    fn drop_queue(&mut self, ix: u32) {
        let Queue { flow, next, .. } = self.queues.remove(ix as usize);
        let first = &mut self.flows.get_mut(flow).queues;
        if *first == Some(ix) {
            *first = next;
            return;
        }
        let mut before = *first;
        while let Some(queue) = before.map(|before| &mut self.queues[before as usize]) {
            if queue.next == Some(ix) {
                queue.next = next;
                return;
            }
            before = queue.next;
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
        (state.tag, state.stamp) = (tag, stamp);
        let (level, mut queue) = (state.level, state.queues);
        let priority = self.flows.levels[level].priority;
        while let Some(ix) = queue {
            let moved = &mut self.queues[ix as usize];
            moved.stamp = stamp;
            queue = moved.next;
            let model = moved.model;
            if let Some(lane) = self.pools[model].lanes.get_mut(&priority) {
                lane.turns.push(&self.queues, (tag, stamp, ix), lane.waiting);
            }
            if model != but {
                self.update(requests, model);
            }
        }
    }

    /// Brings a model's place among the candidates up to date.
    pub(super) fn update(&mut self, requests: &Requests, model: ModelIx) {
        let pool = &self.pools[model];
        let turn = pool.turn(self.now).and_then(|(priority, lane, is_held)| {
            let (tag, _, ix) = lane.turns.first()?;
            let queue = &self.queues[ix as usize];
            Some((priority, lane, is_held, tag, queue, queue.head()?))
        });
        let Some((priority, lane, is_held, tag, queue, slot)) = turn else {
            let pool = &mut self.pools[model];
            (pool.best, pool.is_held) = (None, false);
            return self.board.set(model, None);
        };
        let candidate = if is_held || pool.standing == Standing::Blocked || pool.is_aside {
            None
        } else {
            let (turn, due) = match self.fairness(lane.level).window() {
                Some(bits) if self.is_shared[model] && self.settings.swap_affinity => (tag >> bits, tag),
                Some(_) => (tag, tag),
                None => {
                    let due = Queue::due(requests, self.order(queue.flow), slot);
                    (due, due)
                }
            };
            let key = Key {
                points: lane.points(priority, self.micros_per_point),
                turn: Reverse(turn),
                is_ready: self.settings.swap_affinity && pool.standing == Standing::Ready,
                due: Reverse(due),
                arrival: Reverse(requests[slot].id),
            };
            Some((pool.standing, key))
        };
        self.board.set(model, candidate);
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
    }

    /// The ceilings of a model's levels change with the demand.
    pub(super) fn lay_ceilings(&mut self, requests: &Requests, model: ModelIx) {
        let pool = &mut self.pools[model];
        for (&priority, lane) in &mut pool.lanes {
            lane.ceiling = self.ceilings.of(priority, &pool.demand, pool.saturation);
            lane.pace = self.ceilings.pace(priority, lane.ceiling, &pool.demand, pool.saturation);
        }
        self.update(requests, model);
    }
}
