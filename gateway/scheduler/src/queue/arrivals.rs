//! Who has waited longest, without a thought for those who leave.

use std::collections::VecDeque;

use super::{Requests, Slot};
use crate::RequestId;

/// Requests in arrival order. Those who leave stay in it until they are the oldest, or more than half have left: so a
/// departure touches no neighbours, and the whole is never more than twice as long as those who wait.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    log: VecDeque<(RequestId, Slot)>,
    waiting: usize,
}

impl Arrivals {
    /// The least length at which it is worth clearing out.
    const SLACK: usize = 64;

    pub(crate) fn push(&mut self, requests: &Requests, slot: Slot) {
        let entry = (requests[slot].id, slot);
        self.waiting += 1;
        match self.log.back() {
            // It has been here before.
            Some(newest) if entry <= *newest => {
                if let Err(place) = self.log.binary_search(&entry) {
                    self.log.insert(place, entry);
                }
            }
            _ => self.log.push_back(entry),
        }
    }

    /// Takes note that a request is about to leave; it must still be waiting.
    pub(crate) fn remove(&mut self, requests: &Requests, slot: Slot) {
        self.waiting -= 1;
        let id = requests[slot].id;
        let has_left = |entry: &(RequestId, Slot)| entry.0 == id || !requests.is_waiting(entry.0, entry.1);
        while self.log.front().is_some_and(has_left) {
            self.log.pop_front();
        }
        if self.log.len() > 2 * self.waiting + Self::SLACK {
            self.log.retain(|entry| !has_left(entry));
        }
    }

    pub(crate) fn oldest(&self) -> Option<Slot> {
        self.log.front().map(|&(_, slot)| slot)
    }

    pub(crate) fn len(&self) -> u64 {
        self.waiting as u64
    }
}
