//! The store of every request the scheduler knows: those that wait and those that run.

use std::{collections::BTreeMap, ops::Index, time::Duration};

use slab::Slab;

use super::list::{Chain, Link};
use crate::{Generation, Priority, Request, RequestId, Timestamp, fleet::ModelIx};

/// The place of a request in the store; reused once the request is forgotten.
pub(crate) type Slot = u32;

/// A request the scheduler knows.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: RequestId,
    pub(crate) model: ModelIx,
    pub(crate) priority: Priority,
    pub(crate) bytes: u64,
    pub(crate) arrived: Timestamp,
    /// The longest it wants to wait.
    pub(crate) ttl: Option<Duration>,
    /// When its wait is over; from its own and its band's ttl.
    pub(crate) expires: Option<Timestamp>,
    pub(crate) stage: Stage,
    pub(super) links: [Link; Chain::COUNT],
}

/// How far a request has come.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    Waiting,
    Running(Running),
}

/// Where a dispatched request runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    /// The replica's number within the request's model.
    pub(crate) replica: u32,
    pub(crate) generation: Generation,
    /// Whether it holds one of the policy's slots.
    pub(crate) takes_slot: bool,
}

impl Entry {
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Waiting)
    }
}

/// Every request between its arrival and its end.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    entries: Slab<Entry>,
    by_id: BTreeMap<RequestId, Slot>,
}

impl Requests {
    pub(crate) fn contains(&self, id: RequestId) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(crate) fn find(&self, id: RequestId) -> Option<Slot> {
        self.by_id.get(&id).copied()
    }

    /// Takes in an arrival. Its id must not be known.
    pub(crate) fn insert(&mut self, request: &Request, model: ModelIx, arrived: Timestamp) -> Slot {
        let entry = Entry {
            id: request.id,
            model,
            priority: request.priority,
            bytes: request.bytes,
            arrived,
            ttl: request.ttl,
            expires: None,
            stage: Stage::Waiting,
            links: Default::default(),
        };
        let slot = Slot::try_from(self.entries.insert(entry)).expect("fewer than 2^32 requests fit into memory");
        self.by_id.insert(request.id, slot);
        slot
    }

    /// Forgets a request that is in no list.
    pub(crate) fn remove(&mut self, slot: Slot) -> Entry {
        let entry = self.entries.remove(slot as usize);
        self.by_id.remove(&entry.id);
        entry
    }

    /// The waiting requests in arrival order.
    pub(crate) fn waiting(&self) -> Vec<Slot> {
        self.by_id.values().copied().filter(|&slot| self[slot].is_waiting()).collect()
    }

    pub(crate) fn get_mut(&mut self, slot: Slot) -> &mut Entry {
        &mut self.entries[slot as usize]
    }

    /// The entries themselves, for the lists that run through them.
    pub(crate) fn entries(&self) -> &Slab<Entry> {
        &self.entries
    }

    /// The entries themselves, for the lists that run through them.
    pub(crate) fn entries_mut(&mut self) -> &mut Slab<Entry> {
        &mut self.entries
    }
}

impl Index<Slot> for Requests {
    type Output = Entry;

    fn index(&self, slot: Slot) -> &Entry {
        &self.entries[slot as usize]
    }
}
