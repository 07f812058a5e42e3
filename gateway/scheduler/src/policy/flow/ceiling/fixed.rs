//! `fixed`: the same for all.

use super::{Ceiling, Demand};
use crate::{
    Priority,
    detector::{Saturation, Share},
};

#[derive(Debug)]
pub(super) struct Fixed(Share);

impl Fixed {
    pub(super) fn new(ceiling: f64) -> Self {
        Self(Share::new(ceiling))
    }
}

impl Ceiling for Fixed {
    fn of(&self, _level: Priority, _demand: &Demand, _saturation: Saturation) -> Share {
        self.0
    }
}
