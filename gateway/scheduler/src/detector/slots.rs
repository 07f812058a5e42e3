//! `slots`: what runs over what a replica runs at once.

use super::concurrency::Concurrency;
use crate::ModelSettings;

pub(super) fn detector(model: &ModelSettings) -> Concurrency {
    Concurrency::new(model.concurrency)
}
