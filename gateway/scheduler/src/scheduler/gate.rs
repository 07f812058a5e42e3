//! Limits on one caller's requests: a gate in front of the policy.
//!
//! As many of a caller's requests as may run at once are in the policy or running, the most urgent of those that wait.
//! The others are parked: they wait like everybody else, as far as bounds, bands and ttl are concerned, but are no
//! candidates until one of the earlier ones has ended. So a caller with a limit never stands in the way of others with
//! what it could not run anyway.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::Scheduler;
use crate::{
    Caller, CallerId, Priority, RequestId,
    queue::{Entry, Slot, Stage},
};

/// The callers with limits that have requests.
#[derive(Debug, Default)]
pub(super) struct Gate {
    callers: BTreeMap<CallerId, Requests>,
    /// Callers for whom a place may have become free.
    freed: Vec<CallerId>,
}

/// The requests of one caller.
#[derive(Debug)]
struct Requests {
    /// As the latest of them states its limits.
    caller: Caller,
    running: u32,
    /// Those that wait in the policy, and those that are parked; the least urgent first.
    queued: BTreeSet<Rank>,
    parked: BTreeSet<Rank>,
}

/// Greater goes first.
type Rank = (Priority, Reverse<RequestId>, Slot);

fn rank(entry: &Entry, slot: Slot) -> Rank {
    (entry.priority, Reverse(entry.id), slot)
}

impl Requests {
    fn has_room(&self) -> bool {
        let inside = u64::from(self.running) + self.queued.len() as u64;
        self.caller.running.is_none_or(|limit| inside < u64::from(limit.max(1)))
    }
}

impl Gate {
    fn get_mut(&mut self, entry: &Entry) -> Option<&mut Requests> {
        self.callers.get_mut(&entry.caller?)
    }

    /// Whether more of the request's caller wait than may.
    pub(super) fn is_over(&self, entry: &Entry) -> bool {
        let requests = entry.caller.and_then(|caller| self.callers.get(&caller));
        requests.is_some_and(|requests| {
            let waiting = (requests.queued.len() + requests.parked.len()) as u64;
            requests.caller.waiting.is_some_and(|limit| waiting > u64::from(limit))
        })
    }

    /// A request that was in the policy runs.
    pub(super) fn start(&mut self, entry: &Entry, slot: Slot) {
        if let Some(requests) = self.get_mut(entry) {
            requests.queued.remove(&rank(entry, slot));
            requests.running += 1;
        }
    }

    /// A request no longer waits, and will not run.
    pub(super) fn leave(&mut self, entry: &Entry, slot: Slot) {
        if let Some(requests) = self.get_mut(entry) {
            let rank = rank(entry, slot);
            requests.queued.remove(&rank);
            requests.parked.remove(&rank);
            self.free(entry);
        }
    }

    /// A request no longer runs.
    pub(super) fn end(&mut self, entry: &Entry) {
        if let Some(requests) = self.get_mut(entry) {
            requests.running -= 1;
            self.free(entry);
        }
    }

    fn free(&mut self, entry: &Entry) {
        let Some(id) = entry.caller else { return };
        match self.callers.get(&id) {
            Some(requests) if requests.running == 0 && requests.queued.is_empty() && requests.parked.is_empty() => {
                self.callers.remove(&id);
            }
            Some(requests) if !requests.parked.is_empty() => self.freed.push(id),
            _ => {}
        }
    }

    /// A parked request that may go into the policy now.
    fn next(&mut self) -> Option<Slot> {
        while let Some(id) = self.freed.last() {
            if let Some(requests) = self.callers.get_mut(id).filter(|requests| requests.has_room())
                && let Some(best) = requests.parked.pop_last()
            {
                requests.queued.insert(best);
                return Some(best.2);
            }
            self.freed.pop();
        }
        None
    }
}

impl Scheduler {
    /// Lets an arrival into the policy, or parks it.
    pub(super) fn enter(&mut self, slot: Slot, caller: Option<&Caller>) {
        let Some(caller) = caller else { return self.policy.push(&mut self.requests, slot) };
        let own = rank(&self.requests[slot], slot);
        let requests = self.gate.callers.entry(caller.id).or_insert_with(|| Requests {
            caller: caller.clone(),
            running: 0,
            queued: BTreeSet::new(),
            parked: BTreeSet::new(),
        });
        requests.caller = caller.clone();
        if !requests.has_room() {
            // What somebody is being loaded for stays, as it does when others arrive.
            let holds_swap = |&&(.., slot): &&Rank| {
                let model = &self.fleet[self.requests[slot].model];
                model.swap.as_ref().is_some_and(|swap| swap.request == Some(slot))
            };
            let Some(&last) = requests.queued.range(..own).find(|rank| !holds_swap(rank)) else {
                requests.parked.insert(own);
                self.requests.get_mut(slot).stage = Stage::Parked;
                return;
            };
            requests.queued.remove(&last);
            requests.parked.insert(last);
            self.park(last.2);
        }
        if let Some(requests) = self.gate.callers.get_mut(&caller.id) {
            requests.queued.insert(own);
        }
        self.policy.push(&mut self.requests, slot);
    }

    fn park(&mut self, slot: Slot) {
        self.policy.remove(&mut self.requests, slot);
        let entry = self.requests.get_mut(slot);
        entry.stage = Stage::Parked;
        let model = entry.model;
        if self.policy.head(model).is_none() {
            // Its ttl runs again.
            self.refresh(model);
        }
    }

    /// Lets parked requests into the policy as far as there is room.
    pub(super) fn unpark(&mut self) {
        while let Some(slot) = self.gate.next() {
            self.requests.get_mut(slot).stage = Stage::Waiting;
            self.policy.push(&mut self.requests, slot);
        }
    }
}
