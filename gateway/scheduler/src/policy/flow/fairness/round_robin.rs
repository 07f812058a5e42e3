//! `round-robin`: one request each in turn.
//!
//! A tag is the number of the flow's next turn. Flows in the same turn go in the order in which they got there, so the
//! ring keeps its order, and two flows that both have requests waiting never differ by more than one request.

use super::{Share, Tag, Tokens};

#[derive(Debug)]
pub(super) struct RoundRobin;

impl Share for RoundRobin {
    fn cost(&self, _tokens: Tokens, _weight: u32) -> Tag {
        1
    }

    fn window(&self) -> Option<u32> {
        Some(0)
    }

    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn say(&self, way: i64) -> f64 {
        way as f64
    }
}
