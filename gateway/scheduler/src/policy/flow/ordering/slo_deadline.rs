//! `slo-deadline`: the request whose first token is due first.
//!
//! Plain earliest-deadline-first collapses in overload: those that are late already hold up those that could still be in
//! time, until all are late. So whoever cannot be in time any more goes with those who have no goal.

use std::time::Duration;

use super::Order;
use crate::{Timestamp, queue::Entry};

#[derive(Debug)]
pub(super) struct SloDeadline;

impl Order for SloDeadline {
    fn deadline(&self, entry: &Entry) -> Option<Timestamp> {
        entry.goal
    }

    fn too_late(&self, deadline: Timestamp, lead: Duration) -> Option<Timestamp> {
        let lead = u64::try_from(lead.as_micros()).unwrap_or(u64::MAX);
        Some(Timestamp(deadline.0.saturating_sub(lead)))
    }
}
