//! The virtual clock: what happens next, and when.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, binary_heap::PeekMut},
};

use switchyard_scheduler::Timestamp;

/// Future happenings in order of time; those of one moment come in the order in which they were planned.
#[derive(Debug)]
pub(crate) struct Agenda<H> {
    heap: BinaryHeap<Reverse<Entry<H>>>,
    planned: u64,
}

#[derive(Debug)]
struct Entry<H> {
    at: Timestamp,
    number: u64,
    happening: H,
}

impl<H> Agenda<H> {
    pub(crate) const fn new() -> Self {
        Self { heap: BinaryHeap::new(), planned: 0 }
    }

    pub(crate) fn plan(&mut self, at: Timestamp, happening: H) {
        self.heap.push(Reverse(Entry { at, number: self.planned, happening }));
        self.planned += 1;
    }

    /// The next happening, which is no longer planned then.
    pub(crate) fn next(&mut self) -> Option<(Timestamp, H)> {
        let Reverse(entry) = PeekMut::pop(self.heap.peek_mut()?);
        Some((entry.at, entry.happening))
    }
}

impl<H> Ord for Entry<H> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl<H> PartialOrd for Entry<H> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<H> PartialEq for Entry<H> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<H> Eq for Entry<H> {}
