//! Whose turn it is.

use std::{cmp::Reverse, collections::BinaryHeap};

use slab::Slab;

use super::{fairness::Tag, queue::Queue};
use crate::fleet::ModelIx;

/// Where a queue stands: its flow's start tag, and when the flow got there; then the queue's number.
pub(super) type Turn = (Tag, u64, u32);

/// The queues of a level by start tag; equal ones in the order in which they got there.
///
/// Queues that have moved or gone since stay in it under their old turns until these come up, or until they are more
/// than half: so a move costs little more than a comparison, and touches no other queue.
#[derive(Debug)]
pub(super) struct Turns {
    /// Whom the queues wait for.
    model: ModelIx,
    /// The least on top, which is always one that stands.
    heap: BinaryHeap<Reverse<Turn>>,
}

impl Turns {
    /// The least number of turns at which it is worth clearing out the old ones.
    const SLACK: usize = 64;

    pub(super) fn new(model: ModelIx) -> Self {
        Self { model, heap: BinaryHeap::new() }
    }

    pub(super) fn first(&self) -> Option<Turn> {
        self.heap.peek().map(|&Reverse(turn)| turn)
    }

    /// A queue takes up its turn; if it had another, that is an old one from now on. No more than `most` stand.
    pub(super) fn push(&mut self, queues: &Slab<Queue>, turn: Turn, most: u64) {
        if self.first().is_some_and(|(.., first)| first == turn.2)
            && let Some(mut first) = self.heap.peek_mut()
        {
            *first = Reverse(turn);
        } else {
            self.heap.push(Reverse(turn));
        }
        self.clear(queues, most);
    }

    /// Clears out old turns.
    pub(super) fn clear(&mut self, queues: &Slab<Queue>, most: u64) {
        let stands = |&Reverse((_, stamp, ix)): &Reverse<Turn>| {
            queues.get(ix as usize).is_some_and(|queue| queue.stamp == stamp && queue.model == self.model)
        };
        while self.heap.peek().is_some_and(|first| !stands(first)) {
            self.heap.pop();
        }
        if self.heap.len() as u64 > 2 * most + Self::SLACK as u64 {
            let mut turns = std::mem::take(&mut self.heap).into_vec();
            turns.retain(stands);
            // One that left and came back to where it was stands there twice.
            turns.sort_unstable();
            turns.dedup();
            self.heap = turns.into();
        }
    }
}
