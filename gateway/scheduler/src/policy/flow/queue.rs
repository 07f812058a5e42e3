//! The requests of one flow that wait for one model.

use std::collections::BTreeSet;

use super::ordering::Order;
use crate::{
    RequestId, Timestamp,
    fleet::ModelIx,
    queue::{Chain, List, Requests, Slot},
};

/// One flow's queue for one model: those with a deadline by that, the others by arrival.
///
/// Deadlines go first, but never all the time: at the latest after so many of them in a row, the oldest of the others
/// goes, so that nobody starves.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) flow: u32,
    pub(super) model: ModelIx,
    /// When its flow got where it is.
    pub(super) stamp: u64,
    /// The next of its flow's queues.
    pub(super) next: Option<u32>,
    due: BTreeSet<(Timestamp, RequestId, Slot)>,
    others: List,
    /// How many have gone by their deadline while others waited.
    in_a_row: u8,
    /// When the first of those that are due will be too late.
    pub(super) too_late: Option<Timestamp>,
}

const MOST_IN_A_ROW: u8 = 7;

/// How long after its arrival a request without a deadline is due, in comparison with those of other models.
const PATIENCE_MICROS: u64 = 10_000_000;

impl Queue {
    pub(super) fn new(flow: u32, model: ModelIx, stamp: u64) -> Self {
        Self {
            flow,
            model,
            stamp,
            next: None,
            due: BTreeSet::new(),
            others: List::default(),
            in_a_row: 0,
            too_late: None,
        }
    }

    pub(super) fn push(&mut self, requests: &mut Requests, order: &dyn Order, slot: Slot) {
        match order.deadline(&requests[slot]) {
            Some(deadline) => _ = self.due.insert((deadline, requests[slot].id, slot)),
            // Who was parked comes later than some that arrived after it.
            None => self.others.insert(requests.entries_mut(), Chain::Level, slot),
        }
    }

    pub(super) fn remove(&mut self, requests: &mut Requests, order: &dyn Order, slot: Slot) {
        let entry = &requests[slot];
        let was_due = order.deadline(entry).is_some_and(|deadline| self.due.remove(&(deadline, entry.id, slot)));
        if !was_due {
            self.others.unlink(requests.entries_mut(), Chain::Level, slot);
        }
    }

    /// A request is about to go.
    pub(super) fn take_turn(&mut self, slot: Slot) {
        if self.others.front().is_none() || self.others.front() == Some(slot) {
            self.in_a_row = 0;
        } else {
            self.in_a_row = self.in_a_row.saturating_add(1);
        }
    }

    /// The one that is next.
    pub(super) fn head(&self) -> Option<Slot> {
        match (self.due.first(), self.others.front()) {
            (Some(_), Some(other)) if self.in_a_row >= MOST_IN_A_ROW => Some(other),
            (Some(&(.., slot)), _) => Some(slot),
            (None, other) => other,
        }
    }

    /// When a request of this queue is due, in comparison with those of other models.
    pub(super) fn due(requests: &Requests, order: &dyn Order, slot: Slot) -> u128 {
        let entry = &requests[slot];
        let due = order.deadline(entry).map_or(entry.arrived.0.saturating_add(PATIENCE_MICROS), |deadline| deadline.0);
        u128::from(due) << 64 | u128::from(entry.id.0)
    }

    /// The deadline that comes first.
    pub(super) fn first_deadline(&self) -> Option<Timestamp> {
        self.due.first().map(|&(deadline, ..)| deadline)
    }

    /// The first that is due goes with the others from now on.
    pub(super) fn give_up_first(&mut self, requests: &mut Requests) {
        if let Some((.., slot)) = self.due.pop_first() {
            self.others.insert(requests.entries_mut(), Chain::Level, slot);
        }
    }
}
