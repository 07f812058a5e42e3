//! `holdback`: from a least ceiling for the lowest level to a greatest for the highest.

use super::{Ceiling, Demand, ladder::Ladder};
use crate::{
    HoldbackScale, Priority,
    detector::{Saturation, Share},
};

#[derive(Debug)]
pub(super) struct Holdback {
    ladder: Ladder,
    least: u64,
    greatest: u64,
    by: HoldbackScale,
}

impl Holdback {
    pub(super) fn new(levels: impl Iterator<Item = Priority>, least: f64, greatest: f64, by: HoldbackScale) -> Self {
        let (least, greatest) = (Share::new(least).millionths(), Share::new(greatest).millionths());
        Self { ladder: Ladder::new(levels), least, greatest: greatest.max(least), by }
    }

    pub(super) fn greatest(&self) -> Share {
        Share::from_millionths(self.greatest)
    }

    pub(super) fn ceiling(&self, level: Priority) -> Share {
        let (step, steps) = match self.by {
            HoldbackScale::Rank => self.ladder.rank(level),
            HoldbackScale::Value => self.ladder.value(level),
        };
        if steps == 0 {
            return self.greatest();
        }
        let way = u128::from(self.greatest - self.least) * u128::from(step) / u128::from(steps);
        Share::from_millionths(self.least + u64::try_from(way).unwrap_or(u64::MAX))
    }
}

impl Ceiling for Holdback {
    fn of(&self, level: Priority, _demand: &Demand, _saturation: Saturation) -> Share {
        self.ceiling(level)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ceilings(levels: &[i64], by: HoldbackScale, asked: &[i64]) -> Vec<f64> {
        let holdback = Holdback::new(levels.iter().copied().map(Priority), 0.5, 1.0, by);
        asked.iter().map(|&level| holdback.ceiling(Priority(level)).as_f64()).collect()
    }

    #[test]
    fn the_levels_share_the_way_evenly_by_rank() {
        let levels = [-10, 0, 100];
        assert_eq!(ceilings(&levels, HoldbackScale::Rank, &levels), [0.5, 0.75, 1.0]);
        assert_eq!(ceilings(&levels, HoldbackScale::Rank, &[-11, -9, 99, 101]), [0.5, 0.5, 0.75, 1.0]);
        assert_eq!(ceilings(&[7], HoldbackScale::Rank, &[7]), [1.0]);
        assert_eq!(ceilings(&[], HoldbackScale::Rank, &[-100, -1, 0, 99, 100]), [0.5, 0.5, 0.75, 0.75, 1.0]);
    }

    #[test]
    fn the_levels_lie_where_their_numbers_do_by_value() {
        let asked = [i64::MIN, 0, 20, 100, i64::MAX];
        assert_eq!(ceilings(&[0, 20, 100], HoldbackScale::Value, &asked), [0.5, 0.5, 0.6, 1.0, 1.0]);
        assert_eq!(ceilings(&[i64::MIN, i64::MAX], HoldbackScale::Value, &[i64::MIN, i64::MAX]), [0.5, 1.0]);
    }
}
