//! How fast requests come, at each level, and how fast they go.

use std::{collections::BTreeMap, time::Duration};

use crate::{Priority, Timestamp};

/// Moving averages over about the last ten seconds.
#[derive(Debug, Default)]
pub(in super::super) struct Demand {
    arrivals: BTreeMap<Priority, Rate>,
    departures: Rate,
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

    /// Ends the windows that are over; true if there were any.
    pub(in super::super) fn roll(&mut self, now: Timestamp) -> bool {
        let mut rolled = false;
        while self.since + Self::WINDOW <= now {
            rolled = true;
            self.since = self.since + Self::WINDOW;
            self.departures.roll();
            self.arrivals.retain(|_, rate| {
                rate.roll();
                rate.average >= 16
            });
            if self.arrivals.is_empty() {
                // Nothing is left to fade.
                self.since = self.since.max(now);
            }
        }
        rolled
    }

    /// The usual time between two requests that go; none if none did.
    pub(super) fn interval(&self) -> Option<Duration> {
        let micros = Self::WINDOW.as_micros() * u128::from(Rate::ONE);
        let micros = micros.checked_div(self.departures.average.into())?;
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
