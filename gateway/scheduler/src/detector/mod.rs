//! How full a model's replicas are.
//!
//! A detector measures one replica in units of its own; the saturation of the model is what its ready replicas hold
//! together over what they may. Another detector is another file here and one line in [`build`].

mod concurrency;
mod slots;
mod tokens;
mod utilization;

use std::{fmt, time::Duration};

use crate::{DetectorSettings, ModelSettings, fleet::Replica};

/// What tells how full a replica is. Pure: it decides from its settings and the replica alone.
pub(crate) trait Detector: fmt::Debug + Send + Sync {
    /// What a replica may hold, at least 1.
    fn capacity(&self) -> u64;

    /// What it holds.
    fn used(&self, replica: &Replica) -> u64;

    /// How busy it is, to be compared with the other replicas of its model.
    fn load(&self, replica: &Replica) -> u64 {
        replica.running.into()
    }

    /// What one more request takes, roughly; `running` of them take `used`.
    fn one(&self, _used: u64, _running: u64) -> u64 {
        1
    }

    /// How long a sample is good for; none if samples are not looked at.
    fn staleness(&self) -> Option<Duration> {
        None
    }
}

/// The detector that a model's settings ask for.
pub(crate) fn build(model: &ModelSettings) -> Box<dyn Detector> {
    match model.detector {
        DetectorSettings::Slots => Box::new(slots::detector(model)),
        DetectorSettings::Concurrency { requests } => Box::new(concurrency::Concurrency::new(requests)),
        DetectorSettings::Tokens { tokens } => Box::new(tokens::Tokens::new(tokens)),
        DetectorSettings::Utilization { queue_depth, kv_cache, staleness } => {
            Box::new(utilization::Utilization::new(queue_depth, kv_cache, staleness))
        }
    }
}

/// The detector for policies that look at none but the places of a replica.
pub(crate) fn places(model: &ModelSettings) -> Box<dyn Detector> {
    Box::new(slots::detector(model))
}

/// A part of a whole, in millionths, so that it is exact for what people write into settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Share(u64);

impl Share {
    pub(crate) const NOTHING: Self = Self(0);
    pub(crate) const WHOLE: Self = Self(1_000_000);

    /// Anything below zero, and what is no number, is nothing.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounded, and clamped before")]
    pub(crate) fn new(share: f64) -> Self {
        Self((share.clamp(0.0, 1e6) * 1e6).round() as u64)
    }

    /// `part` over `whole`, rounded down; everything of nothing.
    pub(crate) fn of(part: u64, whole: u64) -> Self {
        if whole == 0 {
            return Self::WHOLE;
        }
        // Dividing 128 bits takes long.
        Self(part.checked_mul(Self::WHOLE.0).map_or_else(
            || u64::try_from(u128::from(part) * u128::from(Self::WHOLE.0) / u128::from(whole)).unwrap_or(u64::MAX),
            |millionths| millionths / whole,
        ))
    }

    pub(crate) const fn millionths(self) -> u64 {
        self.0
    }

    pub(crate) const fn from_millionths(millionths: u64) -> Self {
        Self(millionths)
    }

    #[expect(clippy::cast_precision_loss, reason = "for people")]
    pub(crate) fn as_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

/// What the ready replicas of a model hold together, in the units of its detector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Saturation {
    pub(crate) used: u64,
    /// What they may hold; zero while none is ready.
    pub(crate) capacity: u64,
    /// What one more request takes, roughly.
    pub(crate) one: u64,
}

impl Saturation {
    /// Whether so much of the capacity is used, or more. Nothing is, while no replica is ready.
    pub(crate) fn reaches(self, ceiling: Share) -> bool {
        let used = u128::from(self.used) * u128::from(Share::WHOLE.0);
        self.capacity > 0 && used >= u128::from(self.capacity) * u128::from(ceiling.0)
    }

    /// None while no replica is ready.
    pub(crate) fn share(self) -> Option<Share> {
        (self.capacity > 0).then(|| Share::of(self.used, self.capacity))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceilings_are_met_exactly() {
        let of_ten = |used| Saturation { used, capacity: 10, one: 1 };
        assert!(!of_ten(7).reaches(Share::new(0.8)) && of_ten(8).reaches(Share::new(0.8)));
        let of_three = |used| Saturation { used, capacity: 3, one: 1 };
        assert!(!of_three(2).reaches(Share::WHOLE) && of_three(3).reaches(Share::WHOLE));
        assert!(!Saturation::default().reaches(Share::new(0.0)), "nothing is ready, nothing is full");
    }
}
