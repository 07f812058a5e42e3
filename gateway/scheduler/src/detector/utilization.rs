//! `utilization`: what a replica says of its own queue and memory, and what it was sent since.
//!
//! A sample is old news by the time it comes, so whatever was dispatched to the replica after it counts as waiting
//! there until the next: no herd tramples the replica that was idle a moment ago.

use std::time::Duration;

use super::{Detector, Share};
use crate::fleet::Replica;

#[derive(Debug)]
pub(super) struct Utilization {
    queue_depth: u64,
    kv_cache: f64,
    staleness: Duration,
}

impl Utilization {
    pub(super) fn new(queue_depth: u32, kv_cache: f64, staleness: Duration) -> Self {
        Self { queue_depth: queue_depth.max(1).into(), kv_cache: kv_cache.max(f64::MIN_POSITIVE), staleness }
    }
}

impl Detector for Utilization {
    fn capacity(&self) -> u64 {
        Share::WHOLE.millionths()
    }

    /// At most the whole: one replica that is far over its limits does not make the others full.
    fn used(&self, replica: &Replica) -> u64 {
        let Some(load) = replica.sampled.load().filter(|_| replica.sampled.is_fresh) else {
            return self.capacity();
        };
        let waiting = u64::from(load.waiting) + u64::from(replica.sampled.since);
        let queue = Share::of(waiting, self.queue_depth);
        let kv_cache = Share::new(load.kv_cache.unwrap_or(0.0) / self.kv_cache);
        queue.max(kv_cache).min(Share::WHOLE).millionths()
    }

    fn load(&self, replica: &Replica) -> u64 {
        match replica.sampled.load() {
            Some(load) if replica.sampled.is_fresh => {
                u64::from(load.running) + u64::from(load.waiting) + u64::from(replica.sampled.since)
            }
            _ => replica.running.into(),
        }
    }

    fn one(&self, _used: u64, _running: u64) -> u64 {
        self.capacity() / self.queue_depth
    }

    fn staleness(&self) -> Option<Duration> {
        Some(self.staleness)
    }
}
