//! Which models have to leave memory before another can be loaded.
//!
//! Another rule is another file here and one line in [`build`].

mod groups;
mod matrix;

use std::fmt;

use crate::{EvictionSettings, ModelId};

/// A rule of what may be in memory together. Pure: it decides from its settings and arguments alone. It is asked only
/// about managed models.
pub(crate) trait Eviction: fmt::Debug + Send + Sync {
    /// The models among `resident` that have to leave before `wanted` can be loaded. `wanted` itself never counts as
    /// in its own way.
    fn in_the_way(&self, wanted: ModelId, resident: &[ModelId]) -> Vec<ModelId>;

    /// Numbers models, from 0 and without large gaps, so that those with the same number are interchangeable: other
    /// models are in the way of both or of neither, and either both are in the way of each other or neither. When one
    /// has to wait for room, the dispatcher spares itself asking for the others.
    fn class(&self, model: ModelId) -> usize;
}

/// The rule that the settings ask for.
pub(crate) fn build(settings: &EvictionSettings) -> Box<dyn Eviction> {
    match settings {
        EvictionSettings::Groups(groups) => Box::new(groups::Groups::new(groups)),
        EvictionSettings::Matrix(matrix) => Box::new(matrix::Matrix::new(matrix)),
    }
}
