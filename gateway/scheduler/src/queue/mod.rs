//! Where requests are kept: one store for all, chained into lists without copying.

mod arrivals;
mod list;
mod requests;
mod tournament;

pub(crate) use arrivals::Arrivals;
pub(crate) use list::{Chain, List};
pub(crate) use requests::{Charge, Entry, Requests, Running, Slot, Stage};
pub(crate) use tournament::Tournament;
