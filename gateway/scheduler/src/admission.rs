//! What may wait: bounds, displacement, time to live, and how soon it is worth coming back.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map},
    time::Duration,
};

use crate::{
    AdmissionSettings, Band, BandView, Bounds, Priority, Timestamp,
    queue::{Arrivals, Chain, List, Requests, Slot},
};

/// The waiting requests by what admission has to know of them.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    bands: [BandBacklog; 3],
    /// What waits at the levels that have bounds of their own.
    levels: BTreeMap<Priority, Bounds>,
    /// Sheddable requests of all models, by priority.
    sheddable: BTreeMap<Priority, List>,
    expiry: BTreeSet<(Timestamp, Slot)>,
    rate: DrainRate,
}

#[derive(Debug, Default)]
struct BandBacklog {
    bytes: u64,
    arrivals: Arrivals,
}

/// Whether an arrival may wait.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Fits,
    /// It fits once these have left.
    Displace(Vec<Slot>),
    Full,
}

impl Backlog {
    /// A request starts to wait.
    pub(crate) fn add(&mut self, settings: &AdmissionSettings, requests: &mut Requests, slot: Slot, now: Timestamp) {
        if self.requests() == 0 {
            self.rate.queue_begins(now);
        }
        let (priority, bytes) = (requests[slot].priority, requests[slot].bytes);
        let band = &mut self.bands[priority.band().index()];
        band.bytes += bytes;
        band.arrivals.push(requests, slot);
        if settings.levels.contains_key(&priority) {
            self.levels.entry(priority).or_insert(Bounds::NONE).add(bytes);
        }
        if priority.is_sheddable() {
            let level = self.sheddable.entry(priority).or_default();
            level.insert(requests.entries_mut(), Chain::Sheddable, slot);
        }
        self.set_expiry(settings, requests, slot);
    }

    /// A request no longer waits.
    pub(crate) fn remove(&mut self, requests: &mut Requests, slot: Slot) {
        let (priority, bytes) = (requests[slot].priority, requests[slot].bytes);
        let band = &mut self.bands[priority.band().index()];
        band.bytes -= bytes;
        band.arrivals.remove(requests, slot);
        if let Some(level) = self.levels.get_mut(&priority) {
            level.requests -= 1;
            level.bytes -= bytes;
            if level.requests == 0 {
                self.levels.remove(&priority);
            }
        }
        if priority.is_sheddable()
            && let btree_map::Entry::Occupied(mut level) = self.sheddable.entry(priority)
        {
            level.get_mut().unlink(requests.entries_mut(), Chain::Sheddable, slot);
            if level.get().front().is_none() {
                level.remove();
            }
        }
        if let Some(expires) = requests.get_mut(slot).expires.take() {
            self.expiry.remove(&(expires, slot));
        }
    }

    /// Works out anew when a request's wait is over.
    pub(crate) fn set_expiry(&mut self, settings: &AdmissionSettings, requests: &mut Requests, slot: Slot) {
        let entry = requests.get_mut(slot);
        let band = &settings.bands[entry.priority.band().index()];
        let own = settings.levels.get(&entry.priority).unwrap_or(band);
        let ttl = [own.ttl, entry.ttl].into_iter().flatten().min();
        let expires = ttl.map(|ttl| entry.arrived + ttl);
        if let Some(old) = std::mem::replace(&mut entry.expires, expires) {
            self.expiry.remove(&(old, slot));
        }
        self.expiry.extend(expires.map(|expires| (expires, slot)));
    }

    /// Counts anew what waits at the levels that have bounds of their own, which are others now.
    pub(crate) fn recount(&mut self, settings: &AdmissionSettings, requests: &Requests) {
        self.levels.clear();
        if settings.levels.is_empty() {
            return;
        }
        for slot in requests.waiting() {
            let entry = &requests[slot];
            if settings.levels.contains_key(&entry.priority) {
                self.levels.entry(entry.priority).or_insert(Bounds::NONE).add(entry.bytes);
            }
        }
    }

    /// The request whose wait is over first, and when.
    pub(crate) fn next_expiry(&self) -> Option<(Timestamp, Slot)> {
        self.expiry.first().copied()
    }

    /// Judges a request that has just been added.
    pub(crate) fn judge(&self, settings: &AdmissionSettings, requests: &Requests, slot: Slot) -> Verdict {
        let arrival = &requests[slot];
        let band = arrival.priority.band();
        let in_band = &self.bands[band.index()];
        let over_band = excess(settings.bands[band.index()].bounds, in_band.arrivals.len(), in_band.bytes);
        let over_all = excess(settings.total, self.requests(), self.bands.iter().map(|band| band.bytes).sum());
        // At one level nobody is less urgent than another.
        if let (Some(level), Some(own)) = (self.levels.get(&arrival.priority), settings.levels.get(&arrival.priority))
            && !excess(own.bounds, level.requests, level.bytes).is_met()
        {
            return Verdict::Full;
        }
        // Where bounds were lowered under what waits, an arrival has to make up for itself only.
        let mut wanted = over_band.max(over_all).min(Bounds { requests: 1, bytes: arrival.bytes });
        if wanted.is_met() {
            return Verdict::Fits;
        }
        // Only the lowest band is sheddable, so a bound of another band can displace nobody.
        if !over_band.is_met() && band != Band::Batch {
            return Verdict::Full;
        }
        let mut victims = Vec::new();
        for level in self.sheddable.range(..arrival.priority).map(|(_, level)| level) {
            for victim in level.newest_first(requests.entries(), Chain::Sheddable) {
                victims.push(victim);
                wanted.requests = wanted.requests.saturating_sub(1);
                wanted.bytes = wanted.bytes.saturating_sub(requests[victim].bytes);
                if wanted.is_met() {
                    return Verdict::Displace(victims);
                }
            }
        }
        Verdict::Full
    }

    /// Waiting requests of all bands.
    pub(crate) fn requests(&self) -> u64 {
        self.bands.iter().map(|band| band.arrivals.len()).sum()
    }

    pub(crate) fn views(&self, requests: &Requests) -> [BandView; 3] {
        self.bands.each_ref().map(|band| BandView {
            requests: band.arrivals.len(),
            bytes: band.bytes,
            oldest: band.arrivals.oldest().map(|slot| requests[slot].arrived),
        })
    }

    /// A request that had to wait was dispatched.
    pub(crate) fn drained_one(&mut self, now: Timestamp) {
        self.rate.dispatched(now);
    }

    /// When it is worth coming back.
    pub(crate) fn retry_after(&self, now: Timestamp) -> Duration {
        self.rate.retry_after(now, self.requests())
    }
}

/// By how much bounds are exceeded.
fn excess(bounds: Bounds, requests: u64, bytes: u64) -> Bounds {
    Bounds { requests: requests.saturating_sub(bounds.requests), bytes: bytes.saturating_sub(bounds.bytes) }
}

impl Bounds {
    const NONE: Self = Self { requests: 0, bytes: 0 };

    fn add(&mut self, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
    }

    fn max(self, other: Self) -> Self {
        Self { requests: self.requests.max(other.requests), bytes: self.bytes.max(other.bytes) }
    }

    fn min(self, other: Self) -> Self {
        Self { requests: self.requests.min(other.requests), bytes: self.bytes.min(other.bytes) }
    }

    fn is_met(self) -> bool {
        self.requests == 0 && self.bytes == 0
    }
}

/// How fast the queue drains: the usual time between two dispatches while somebody waits, in integers.
#[derive(Debug, Default)]
struct DrainRate {
    /// A moving average in microseconds, where the newest interval weighs an eighth; none before the first.
    interval: Option<u64>,
    /// When the running interval began.
    since: Timestamp,
}

impl DrainRate {
    const LEAST: Duration = Duration::from_secs(1);
    const MOST: Duration = Duration::from_secs(60);

    /// Somebody waits, and nobody did.
    fn queue_begins(&mut self, now: Timestamp) {
        self.since = now;
    }

    fn dispatched(&mut self, now: Timestamp) {
        let sample = now.0.saturating_sub(self.since.0);
        self.interval = Some(self.interval.map_or(sample, |average| average - average / 8 + sample / 8));
        self.since = now;
    }

    /// The time until all that wait now will have gone.
    fn retry_after(&self, now: Timestamp, waiting: u64) -> Duration {
        // A queue that has stood still for longer than usual is slower than its average says.
        let interval = self.interval.unwrap_or(0).max(now.0.saturating_sub(self.since.0));
        Duration::from_micros(interval.saturating_mul(waiting)).clamp(Self::LEAST, Self::MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_the_time_the_queue_takes_to_drain() {
        let mut rate = DrainRate::default();
        rate.queue_begins(Timestamp::from_secs(100));
        assert_eq!(rate.retry_after(Timestamp::from_secs(100), 5), DrainRate::LEAST, "nothing measured yet");
        for second in 1..=20 {
            rate.dispatched(Timestamp::from_secs(100 + 2 * second));
        }
        assert_eq!(rate.retry_after(Timestamp::from_secs(140), 5), Duration::from_secs(10));
        assert_eq!(rate.retry_after(Timestamp::from_secs(140), 0), DrainRate::LEAST);
        assert_eq!(rate.retry_after(Timestamp::from_secs(140), u64::MAX), DrainRate::MOST);
        assert_eq!(rate.retry_after(Timestamp::from_secs(148), 5), Duration::from_secs(40), "it stands still");
    }
}
