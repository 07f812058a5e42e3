//! `edf`: the request whose ttl ends first. One whose ttl is over waits no longer, so none is ever late.

use super::Order;
use crate::{Timestamp, queue::Entry};

#[derive(Debug)]
pub(super) struct Edf;

impl Order for Edf {
    fn deadline(&self, entry: &Entry) -> Option<Timestamp> {
        entry.expires
    }
}
