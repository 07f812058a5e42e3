//! The store of every request the scheduler knows: those that wait and those that run.

use std::{num::NonZeroU32, ops::Index, time::Duration};

use hashbrown::{HashTable, hash_table};
use slab::Slab;

use super::list::{Chain, Link};
use crate::{
    CallerId, Generation, Priority, Request, RequestId, SessionId, TenantId, Timestamp, fleet::ModelIx, policy::Payers,
};

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
    /// Whose it is, where that limits it.
    pub(crate) caller: Option<CallerId>,
    /// Whom it is for.
    pub(crate) tenant: TenantId,
    pub(crate) session: Option<SessionId>,
    /// When its first token is due.
    pub(crate) goal: Option<Timestamp>,
    /// Tokens in, and the most out; what is more than these can hold counts as the most they can.
    pub(crate) prompt_tokens: u32,
    pub(crate) max_tokens: u32,
    /// The queue that it waits in, in terms of the policy.
    pub(crate) queue: u32,
    pub(super) links: [Link; Chain::COUNT],
}

/// How far a request has come.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    Waiting,
    /// Waits to be let into the policy.
    Parked,
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
    /// How many samples its replica had given.
    pub(crate) samples: u32,
    /// What the policy expects of it.
    pub(crate) charge: Charge,
}

/// What a request was taken to need when it was dispatched.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Charge {
    /// Who pays for it, in terms of the policy that it was dispatched by.
    pub(crate) payer: Option<NonZeroU32>,
    /// Tokens out.
    pub(crate) output: u32,
    /// Tokens in and out.
    pub(crate) tokens: u64,
}

impl Entry {
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Waiting | Stage::Parked)
    }

    pub(crate) fn is_parked(&self) -> bool {
        matches!(self.stage, Stage::Parked)
    }
}

/// Every request between its arrival and its end.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    entries: Slab<Entry>,
    /// Finds entries by id. Its hash is fixed and its own order is never used, so it is the same in every run.
    by_id: HashTable<Slot>,
}

impl Requests {
    pub(crate) fn find(&self, id: RequestId) -> Option<Slot> {
        self.by_id.find(hash(id), |&slot| self[slot].id == id).copied()
    }

    /// Takes in an arrival; none if its id is known.
    pub(crate) fn insert(&mut self, request: &Request, model: ModelIx, arrived: Timestamp) -> Option<Slot> {
        let entries = &self.entries;
        let id_of = |&slot: &Slot| entries[slot as usize].id;
        let found = self.by_id.entry(hash(request.id), |slot| id_of(slot) == request.id, |slot| hash(id_of(slot)));
        let hash_table::Entry::Vacant(vacant) = found else { return None };
        let entry = Entry {
            id: request.id,
            model,
            priority: request.priority,
            bytes: request.bytes,
            arrived,
            ttl: request.ttl,
            expires: None,
            stage: Stage::Waiting,
            caller: request.caller.as_ref().map(|caller| caller.id),
            tenant: request.tenant,
            session: request.session,
            goal: request.ttft_goal.map(|goal| arrived + goal),
            prompt_tokens: u32::try_from(request.prompt_tokens).unwrap_or(u32::MAX),
            max_tokens: request.max_tokens.and_then(|most| u32::try_from(most).ok()).unwrap_or(u32::MAX),
            queue: 0,
            links: Default::default(),
        };
        let slot = Slot::try_from(self.entries.insert(entry)).expect("fewer than 2^32 requests fit into memory");
        vacant.insert(slot);
        Some(slot)
    }

    /// Forgets a request that is in no list.
    pub(crate) fn remove(&mut self, slot: Slot) -> Entry {
        let entry = self.entries.remove(slot as usize);
        if let Ok(found) = self.by_id.find_entry(hash(entry.id), |&other| other == slot) {
            found.remove();
        }
        entry
    }

    /// Forgets a request that runs; none if it does not.
    pub(crate) fn remove_running(&mut self, id: RequestId) -> Option<(Entry, Running)> {
        let found = self.by_id.find_entry(hash(id), |&slot| self.entries[slot as usize].id == id).ok()?;
        let slot = *found.get() as usize;
        let Stage::Running(run) = self.entries[slot].stage else { return None };
        found.remove();
        Some((self.entries.remove(slot), run))
    }

    /// Whether the request under this id, last seen in this place, still waits.
    pub(crate) fn is_waiting(&self, id: RequestId, slot: Slot) -> bool {
        self.entries.get(slot as usize).is_some_and(|entry| entry.id == id && entry.is_waiting())
    }

    /// Whether the request under this id, last seen in this place, still waits in the policy.
    pub(crate) fn is_queued(&self, id: RequestId, slot: Slot) -> bool {
        self.is_waiting(id, slot) && !self[slot].is_parked()
    }

    /// The waiting requests in arrival order.
    pub(crate) fn waiting(&self) -> Vec<Slot> {
        let waiting = self.entries.iter().filter(|(_, entry)| entry.is_waiting());
        let mut slots: Vec<_> = waiting.map(|(slot, _)| slot as Slot).collect();
        slots.sort_unstable_by_key(|&slot| self[slot].id);
        slots
    }

    /// The next policy knows those who pay for what runs by other numbers, or not at all.
    pub(crate) fn settle_charges(&mut self, payers: &Payers) {
        for (_, entry) in &mut self.entries {
            if let Stage::Running(run) = &mut entry.stage {
                let payer = run.charge.payer.and_then(|payer| payers.get(&(payer.get() - 1)));
                run.charge.payer = payer.and_then(|payer| NonZeroU32::new(payer + 1));
            }
        }
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

/// Ids are consecutive numbers, so their low bits are a perfect hash already, and neighbours stay neighbours. The high
/// bits, by which the table tells the entries of one bucket apart, are spread.
fn hash(id: RequestId) -> u64 {
    const LOW: u64 = (1 << 57) - 1;
    (id.0 & LOW) | (id.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) & !LOW)
}
