//! In which order the requests of one flow go.
//!
//! Another order is another file here and a line in [`get`].

mod edf;
mod fcfs;
mod slo_deadline;

use std::{fmt, time::Duration};

use crate::{OrderingSettings, Timestamp, queue::Entry};

/// An order among the requests of one flow: by deadline. Those without one go by arrival.
pub(super) trait Order: fmt::Debug + Send + Sync {
    /// When a request is due. Fixed while it waits.
    fn deadline(&self, entry: &Entry) -> Option<Timestamp>;

    /// The time from which on a deadline cannot be met any more, where that matters; `lead` is what a model usually
    /// takes from a dispatch to the first token.
    fn too_late(&self, _deadline: Timestamp, _lead: Duration) -> Option<Timestamp> {
        None
    }
}

/// The order of this name.
pub(super) fn get(name: OrderingSettings) -> &'static dyn Order {
    match name {
        OrderingSettings::Fcfs => &fcfs::Fcfs,
        OrderingSettings::Edf => &edf::Edf,
        OrderingSettings::SloDeadline => &slo_deadline::SloDeadline,
    }
}
