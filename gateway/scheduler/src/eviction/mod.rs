//! Which models have to leave memory before another can be loaded.
//!
//! Another rule is another file here and one line in [`build`].

mod groups;
mod matrix;

use std::{collections::BTreeMap, fmt};

use crate::{EvictionSettings, ModelId, policy::ModelTraits};

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

/// Numbers the domains of models: two that may ever be in each other's way share one, and so compete for the same
/// machine; one that needs nobody to leave, and is in nobody's way, has its own.
pub(crate) fn domains(eviction: &dyn Eviction, models: &mut [ModelTraits]) {
    // Models of one class are interchangeable, so a first and a second of each say all there is to know.
    let mut classes: BTreeMap<usize, Vec<ModelId>> = BTreeMap::new();
    for model in models.iter() {
        if let Some(class) = model.class {
            classes.entry(class).or_default().push(model.id);
        }
    }
    let conflict =
        |a: ModelId, b: ModelId| !eviction.in_the_way(a, &[b]).is_empty() || !eviction.in_the_way(b, &[a]).is_empty();
    let classes: Vec<_> = classes.into_iter().collect();
    let mut domain_of: BTreeMap<usize, usize> = BTreeMap::new();
    let mut is_shared = vec![false; classes.len()];
    for (index, (class, members)) in classes.iter().enumerate() {
        domain_of.entry(*class).or_insert(index);
        is_shared[index] |= matches!(members[..], [a, b, ..] if conflict(a, b));
        for (other_index, (other, others)) in classes.iter().enumerate().skip(index + 1) {
            if conflict(members[0], others[0]) {
                (is_shared[index], is_shared[other_index]) = (true, true);
                let (own, theirs) = (domain_of[class], domain_of.get(other).copied());
                domain_of.insert(*other, own);
                domain_of.values_mut().filter(|domain| Some(**domain) == theirs).for_each(|domain| *domain = own);
            }
        }
    }
    let mut next = classes.len();
    for model in models {
        let index = model.class.and_then(|class| classes.binary_search_by_key(&class, |(class, _)| *class).ok());
        model.domain = match index {
            Some(index) if is_shared[index] => domain_of[&classes[index].0],
            _ => {
                next += 1;
                next - 1
            }
        };
    }
}

/// The rule that the settings ask for.
pub(crate) fn build(settings: &EvictionSettings) -> Box<dyn Eviction> {
    match settings {
        EvictionSettings::Groups(groups) => Box::new(groups::Groups::new(groups)),
        EvictionSettings::Matrix(matrix) => Box::new(matrix::Matrix::new(matrix)),
    }
}
