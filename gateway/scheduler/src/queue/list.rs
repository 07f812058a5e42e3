//! Doubly-linked lists threaded through the request store: O(1) at both ends and in the middle.

use slab::Slab;

use super::{Entry, Slot};

/// No entry.
const NIL: Slot = Slot::MAX;

/// Which of an entry's links a list runs through. An entry is in at most one list of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chain {
    /// The waiting requests of one model at one priority level.
    Level,
    /// The waiting sheddable requests at one priority, of all models.
    Sheddable,
}

impl Chain {
    /// How many kinds there are.
    pub(crate) const COUNT: usize = 2;
}

/// An entry's neighbours in one list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    prev: Slot,
    next: Slot,
}

impl Default for Link {
    fn default() -> Self {
        Self { prev: NIL, next: NIL }
    }
}

/// Requests in arrival order, oldest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: Slot,
    tail: Slot,
}

impl Default for List {
    fn default() -> Self {
        Self { head: NIL, tail: NIL }
    }
}

impl List {
    /// The oldest entry.
    pub(crate) fn front(&self) -> Option<Slot> {
        some(self.head)
    }

    /// From the newest entry to the oldest.
    pub(crate) fn newest_first<'a>(
        &self,
        entries: &'a Slab<Entry>,
        chain: Chain,
    ) -> impl Iterator<Item = Slot> + use<'a> {
        std::iter::successors(some(self.tail), move |&slot| some(entries[slot as usize].links[chain as usize].prev))
    }

    /// Puts in an entry where its arrival belongs, which for most is at the end. Others cost a step for each entry
    /// between their place and the nearer end.
    pub(crate) fn insert(&mut self, entries: &mut Slab<Entry>, chain: Chain, slot: Slot) {
        let id = |slot: Slot| entries[slot as usize].id;
        let link = |slot: Slot| entries[slot as usize].links[chain as usize];
        let own = id(slot);
        let (mut from_tail, mut from_head) = (self.tail, self.head);
        let (prev, next) = loop {
            match (some(from_tail), some(from_head)) {
                (Some(older), _) if id(older) < own => break (older, link(older).next),
                (_, Some(newer)) if id(newer) > own => break (link(newer).prev, newer),
                (Some(tail), Some(head)) => (from_tail, from_head) = (link(tail).prev, link(head).next),
                _ => break (NIL, self.head),
            }
        };
        entries[slot as usize].links[chain as usize] = Link { prev, next };
        match some(prev) {
            Some(prev) => entries[prev as usize].links[chain as usize].next = slot,
            None => self.head = slot,
        }
        match some(next) {
            Some(next) => entries[next as usize].links[chain as usize].prev = slot,
            None => self.tail = slot,
        }
    }

    /// Takes out an entry that is in this list.
    pub(crate) fn unlink(&mut self, entries: &mut Slab<Entry>, chain: Chain, slot: Slot) {
        let Link { prev, next } = std::mem::take(&mut entries[slot as usize].links[chain as usize]);
        match some(prev) {
            Some(prev) => entries[prev as usize].links[chain as usize].next = next,
            None => self.head = next,
        }
        match some(next) {
            Some(next) => entries[next as usize].links[chain as usize].prev = prev,
            None => self.tail = prev,
        }
    }
}

fn some(slot: Slot) -> Option<Slot> {
    (slot != NIL).then_some(slot)
}
