//! The levels that ceilings are laid out by.

use crate::Priority;

/// The configured levels; where there are none, those of the three bands. Fixed, so that the ceilings of some do not
/// move as strangers come and go.
#[derive(Debug)]
pub(super) struct Ladder(Vec<Priority>);

impl Ladder {
    /// `levels` in ascending order.
    pub(super) fn new(levels: impl Iterator<Item = Priority>) -> Self {
        let mut levels: Vec<_> = levels.collect();
        if levels.is_empty() {
            levels = vec![Priority::BATCH, Priority::NORMAL, Priority::INTERACTIVE];
        }
        Self(levels)
    }

    /// A level's step from the bottom, and how many steps there are. One in between counts as the next below, but none
    /// is below the lowest.
    pub(super) fn rank(&self, level: Priority) -> (u64, u64) {
        let step = self.0.partition_point(|&rung| rung <= level).saturating_sub(1);
        (step as u64, self.0.len() as u64 - 1)
    }

    /// How far a level is above the lowest, and how far the highest is.
    pub(super) fn value(&self, level: Priority) -> (u64, u64) {
        let (lowest, highest) = (self.0[0].0, self.0[self.0.len() - 1].0);
        (level.0.clamp(lowest, highest).abs_diff(lowest), highest.abs_diff(lowest))
    }
}
