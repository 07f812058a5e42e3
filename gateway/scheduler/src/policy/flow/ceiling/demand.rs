//! How fast requests come, at each level, how fast they go, and how full the replicas are meanwhile.

use std::{collections::BTreeMap, time::Duration};

use crate::{Priority, Timestamp, detector::Share};

/// Moving averages over about the last ten seconds.
#[derive(Debug, Default)]
pub(in super::super) struct Demand {
    arrivals: BTreeMap<Priority, Rate>,
    departures: Rate,
    fullness: Fullness,
    /// When the present window began.
    since: Timestamp,
}

/// Requests in a window.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    now: u64,
    /// The average, in parts of [`Rate::ONE`].
    average: u64,
}

impl Rate {
    const ONE: u64 = 1 << 20;

    fn roll(&mut self) {
        self.average = self.average - self.average / 16 + self.now * (Self::ONE / 16);
        self.now = 0;
    }
}

/// How full the replicas are, over time; in millionths.
#[derive(Debug, Default)]
struct Fullness {
    now: u64,
    /// Counted so far, in the present window.
    sum: u128,
    until: Timestamp,
    average: u64,
}

impl Fullness {
    fn count(&mut self, until: Timestamp) {
        self.sum += u128::from(self.now) * until.since(self.until).as_micros();
        self.until = self.until.max(until);
    }

    fn roll(&mut self, end: Timestamp) {
        self.count(end);
        let mean = std::mem::take(&mut self.sum) / Demand::WINDOW.as_micros();
        self.average = self.average - self.average / 16 + u64::try_from(mean / 16).unwrap_or(u64::MAX / 16);
    }
}

/// In parts of 65,536.
const MOST: u64 = 16 << 16;

impl Demand {
    pub(in super::super) const WINDOW: Duration = Duration::from_millis(500);

    pub(in super::super) fn arrived(&mut self, level: Priority) {
        self.arrivals.entry(level).or_default().now += 1;
    }

    pub(in super::super) fn departed(&mut self) {
        self.departures.now += 1;
    }

    /// From now on the replicas are so full.
    pub(in super::super) fn filled(&mut self, now: Timestamp, share: Share) {
        self.fullness.count(now);
        self.fullness.now = share.millionths();
    }

    /// Ends the windows that are over; true if there were any.
    pub(in super::super) fn roll(&mut self, now: Timestamp) -> bool {
        let mut rolled = false;
        while self.since + Self::WINDOW <= now {
            rolled = true;
            self.since = self.since + Self::WINDOW;
            self.departures.roll();
            self.fullness.roll(self.since);
            self.arrivals.retain(|_, rate| {
                rate.roll();
                rate.average >= 16
            });
            if self.arrivals.is_empty() {
                // Nothing is left to fade.
                self.since = self.since.max(now);
                self.fullness.until = self.since;
            }
        }
        rolled
    }

    /// The time between two requests that go, once the replicas are so full; none if none went.
    ///
    /// A place is taken for as long as ever, so twice as many places are left twice as often.
    pub(super) fn interval(&self, full: Share) -> Option<Duration> {
        let micros = Self::WINDOW.as_micros() * u128::from(Rate::ONE) * u128::from(self.fullness.average);
        let micros = micros.checked_div(u128::from(self.departures.average) * u128::from(full.millionths()))?;
        Some(Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
    }

    /// How many requests of the levels above this one come for each that goes, in parts of 65,536; at most sixteen.
    pub(super) fn pressure_above(&self, level: Priority) -> u64 {
        let above = self.arrivals.range(level..).filter(|&(&other, _)| other > level);
        let above: u64 = above.map(|(_, rate)| rate.average).sum();
        if above == 0 {
            return 0;
        }
        (u128::from(above) << 16)
            .checked_div(self.departures.average.into())
            .map_or(MOST, |pressure| u64::try_from(pressure).unwrap_or(MOST).min(MOST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENTH: Duration = Duration::from_millis(100);

    #[test]
    fn twice_as_many_places_are_left_twice_as_often() {
        let (mut demand, mut now) = (Demand::default(), Timestamp::ZERO);
        assert_eq!(demand.interval(Share::WHOLE), None, "nobody has left yet");
        for _ in 0..1_000 {
            // Full to 0.3 on the average, and somebody leaves every tenth of a second.
            demand.filled(now, Share::new(0.1));
            now = now + TENTH / 2;
            demand.filled(now, Share::new(0.5));
            now = now + TENTH / 2;
            demand.arrived(Priority(0));
            demand.departed();
            demand.roll(now);
        }
        let millis = |share| demand.interval(Share::new(share)).expect("some have left").as_micros() as f64 / 1e3;
        for (share, expected) in [(0.3, 100.0), (0.6, 50.0), (1.0, 30.0)] {
            assert!((millis(share) / expected - 1.0_f64).abs() < 0.01, "{} ms when {share} full", millis(share));
        }
    }

    #[test]
    fn what_was_before_a_long_rest_does_not_count() {
        let mut demand = Demand::default();
        demand.filled(Timestamp::ZERO, Share::WHOLE);
        let hour = Timestamp::ZERO + Duration::from_secs(3_600);
        demand.roll(hour);
        demand.filled(hour, Share::new(0.5));
        demand.departed();
        demand.roll(hour + Demand::WINDOW);
        // A window with half of the places taken, and one left by somebody.
        let interval = demand.interval(Share::new(0.5)).expect("somebody has left");
        assert!(interval < Demand::WINDOW * 3, "{interval:?}");
    }
}
