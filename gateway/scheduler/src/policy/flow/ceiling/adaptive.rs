//! `adaptive`: keeps as many places free as the levels above are likely to need before the next one becomes free.
//!
//! Places become free as requests end, and the levels above have first claim on them. So the reserve is a stock that is
//! drawn on at the rate at which their requests come and replenished at the rate at which requests end: with ρ the first
//! over the second, a stock of R is found empty with probability ρ^R, as for the queue M/M/1. The reserve of a level is
//! the least R for which that is rare; never more than `holdback` would keep, and none at all while nobody comes.

use super::{Ceiling, Demand, holdback::Holdback};
use crate::{
    HoldbackScale, Priority,
    detector::{Saturation, Share},
};

/// Probabilities and ratios are in parts of this.
const ONE: u64 = 1 << 16;
/// How often the reserve may be found empty.
const RARE: u64 = ONE / 16;
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
        if pressure >= ONE {
            return lowest;
        }
        let (mut places, mut empty) = (0_u64, ONE);
        while empty > RARE {
            places += 1;
            empty = (empty * pressure) >> 16;
        }
        let reserve = u128::from(places * saturation.one) * u128::from(Share::WHOLE.millionths());
        let reserve = reserve.div_ceil(saturation.capacity.max(1).into());
        let reserve = u64::try_from(reserve).unwrap_or(u64::MAX);
        Share::from_millionths(highest.millionths().saturating_sub(reserve)).max(lowest)
    }

    fn follows_demand(&self) -> bool {
        true
    }
}
