//! `fcfs`: first come, first served.

use super::Order;
use crate::{Timestamp, queue::Entry};

#[derive(Debug)]
pub(super) struct Fcfs;

impl Order for Fcfs {
    fn deadline(&self, _entry: &Entry) -> Option<Timestamp> {
        None
    }
}
