//! `concurrency`: requests that run over requests that may.

use super::Detector;
use crate::fleet::Replica;

#[derive(Debug)]
pub(super) struct Concurrency {
    requests: u32,
}

impl Concurrency {
    pub(super) fn new(requests: u32) -> Self {
        Self { requests: requests.max(1) }
    }
}

impl Detector for Concurrency {
    fn capacity(&self) -> u64 {
        self.requests.into()
    }

    fn used(&self, replica: &Replica) -> u64 {
        replica.running.into()
    }
}
