//! `adaptive`: keeps as many places free as the levels above are likely to need before the next one becomes free, and
//! lets the levels below fill the rest evenly.
//!
//! Places become free as requests end, and the levels above have first claim on them. With ρ of their requests coming for
//! each one that ends, more than R come before the next place is free with probability (ρ/(1+ρ))^(R+1), both being
//! Poisson. The reserve of a level is the least R for which that is rare; never more than `holdback` would keep, and none
//! at all while nobody comes.
//!
//! A free place is not all that an urgent request needs. Requests that begin together end together, leave many places at
//! once, and if these were filled at once, would do so again; whoever comes meanwhile finds no place, or a server that is
//! busy reading a heap of prompts, or one whose own queue has filled. So the levels below keep a pace: that at which
//! places would be left if as many were taken as the level may take. By Little's law, that is places over the time for
//! which each is held. What goes is then spread evenly, whoever it is: those above go at once, and those below in what
//! gaps they leave. Such a pace needs no tuning and corrects itself, for with fewer places taken fewer are left than it
//! fills. It aims a place below the ceiling, for one that runs into the ceiling stops and starts.

use std::time::Duration;

use super::{Ceiling, Demand, Pace, holdback::Holdback};
use crate::{
    HoldbackScale, Priority,
    detector::{Saturation, Share},
};

/// Probabilities and ratios are in parts of this.
const ONE: u64 = 1 << 16;
/// How often the reserve may be found empty.
const RARE: u64 = ONE / 6;
/// The pace is for the sake of times to the first token, so it matters by milliseconds.
const SLOWEST: Duration = Duration::from_millis(100);
/// Levels above from which so little comes count as idle.
const IDLE: u64 = ONE / 256;

#[derive(Debug)]
pub(super) struct Adaptive {
    holdback: Holdback,
}

impl Adaptive {
    pub(super) fn new(levels: impl Iterator<Item = Priority>, least: f64, greatest: f64) -> Self {
        Self { holdback: Holdback::new(levels, least, greatest, HoldbackScale::Rank) }
    }
}

impl Ceiling for Adaptive {
    fn of(&self, level: Priority, demand: &Demand, saturation: Saturation) -> Share {
        let (lowest, highest) = (self.holdback.ceiling(level), self.holdback.greatest());
        let pressure = demand.pressure_above(level);
        if pressure < IDLE {
            return highest;
        }
        // Of all that comes and goes, the part that comes to the levels above.
        let part = pressure * ONE / (ONE + pressure);
        let (mut places, mut more) = (0, part);
        while more > RARE {
            places += 1;
            more = more * part / ONE;
        }
        below(highest, places, saturation).max(lowest)
    }

    fn pace(&self, level: Priority, ceiling: Share, demand: &Demand, saturation: Saturation) -> Option<Pace> {
        let is_idle = demand.pressure_above(level) < IDLE;
        let interval = demand.interval(below(ceiling, 1, saturation)).filter(|_| !is_idle)?;
        Some(Pace { interval: interval.min(SLOWEST), from: self.holdback.ceiling(level) })
    }

    fn follows_demand(&self) -> bool {
        true
    }
}

/// So many places less.
fn below(share: Share, places: u64, saturation: Saturation) -> Share {
    let kept = u128::from(places * saturation.one) * u128::from(Share::WHOLE.millionths());
    let kept = u64::try_from(kept.div_ceil(saturation.capacity.max(1).into())).unwrap_or(u64::MAX);
    Share::from_millionths(share.millionths().saturating_sub(kept))
}
