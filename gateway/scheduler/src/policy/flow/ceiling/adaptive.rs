//! `adaptive`: keeps as many places free as the levels above are likely to need before the next one becomes free.
//!
//! Places become free as requests end, and the levels above have first claim on them. With ρ of their requests coming for
//! each one that ends, more than R come before the next place is free with probability (ρ/(1+ρ))^(R+1), both being
//! Poisson. The reserve of a level is the least R for which that is rare; never more than `holdback` would keep, and none
//! at all while nobody comes.
//!
//! Requests do not end evenly: those that began together end together, leave many places at once, and if these were
//! filled at once, would do so again. Then urgent requests find no place for a while, and when they do, a server that is
//! busy reading a heap of prompts. So the levels below take places no faster than at four times the rate at which
//! requests end, and heaps dissolve.

use std::time::Duration;

use super::{Ceiling, Demand, Pace, holdback::Holdback};
use crate::{
    HoldbackScale, Priority,
    detector::{Saturation, Share},
};

/// Probabilities and ratios are in parts of this.
const ONE: u64 = 1 << 16;
/// How often the reserve may be found empty.
const RARE: u64 = ONE / 12;
/// The pace is for the sake of times to the first token, so it matters by milliseconds.
const SLOWEST: Duration = Duration::from_millis(10);
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
        let (mut places, mut more) = (0_u64, part);
        while more > RARE {
            places += 1;
            more = more * part / ONE;
        }
        let reserve = u128::from(places * saturation.one) * u128::from(Share::WHOLE.millionths());
        let reserve = reserve.div_ceil(saturation.capacity.max(1).into());
        let reserve = u64::try_from(reserve).unwrap_or(u64::MAX);
        Share::from_millionths(highest.millionths().saturating_sub(reserve)).max(lowest)
    }

    fn pace(&self, level: Priority, demand: &Demand) -> Option<Pace> {
        let is_idle = demand.pressure_above(level) < IDLE;
        let interval = demand.interval().filter(|_| !is_idle)? / 4;
        Some(Pace { interval: interval.min(SLOWEST), from: self.holdback.ceiling(level) })
    }

    fn follows_demand(&self) -> bool {
        true
    }
}
