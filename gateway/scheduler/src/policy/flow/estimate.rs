//! What requests usually take, learnt from those that have ended.

use std::time::Duration;

/// A moving average in integers, where the newest value weighs an eighth.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Average {
    /// Eight times the average; none before the first value.
    eightfold: Option<u64>,
}

impl Average {
    pub(super) fn note(&mut self, value: u64) {
        let value = value.min(u64::MAX / 16);
        self.eightfold = Some(self.eightfold.map_or(8 * value, |sum| sum - sum / 8 + value));
    }

    pub(super) fn get(self) -> Option<u64> {
        self.eightfold.map(|sum| sum / 8)
    }
}

/// How soon the first token of a model comes after a dispatch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lead(Average);

impl Lead {
    pub(super) fn note(&mut self, lead: Duration) {
        self.0.note(u64::try_from(lead.as_micros()).unwrap_or(u64::MAX));
    }

    pub(super) fn get(self) -> Duration {
        Duration::from_micros(self.0.get().unwrap_or(0))
    }
}

/// How long an answer is taken to be before any is known.
const FIRST_GUESS: u64 = 256;

/// Tokens out, for a flow and a model of which so much is known, and a request that allows for no more than `most`.
pub(super) fn output(of_flow: Average, of_model: Average, most: u32) -> u32 {
    let usual = of_flow.get().or(of_model.get()).unwrap_or(FIRST_GUESS);
    u32::try_from(usual).unwrap_or(u32::MAX).min(most)
}
