//! Groups of models, as llama-swap has them: `swap`, `exclusive`, `persistent`.

use std::collections::BTreeMap;

use super::Eviction;
use crate::{GroupSettings, ModelId};

/// Groups, the last of which is the implicit one of all models in no other.
#[derive(Debug)]
pub(super) struct Groups {
    groups: Vec<Rules>,
    group_of: BTreeMap<ModelId, usize>,
}

#[derive(Clone, Copy, Debug)]
struct Rules {
    swap: bool,
    exclusive: bool,
    persistent: bool,
}

impl Groups {
    /// A model that is named in several groups belongs to the first.
    pub(super) fn new(settings: &[GroupSettings]) -> Self {
        let mut groups = Vec::with_capacity(settings.len() + 1);
        let mut group_of = BTreeMap::new();
        for (index, &GroupSettings { swap, exclusive, persistent, ref members }) in settings.iter().enumerate() {
            groups.push(Rules { swap, exclusive, persistent });
            for &member in members {
                group_of.entry(member).or_insert(index);
            }
        }
        groups.push(Rules { swap: true, exclusive: true, persistent: false });
        Self { groups, group_of }
    }
}

impl Eviction for Groups {
    fn in_the_way(&self, wanted: ModelId, resident: &[ModelId]) -> Vec<ModelId> {
        let own = self.class(wanted);
        let is_in_the_way = |&model: &ModelId| {
            let group = self.class(model);
            if group == own {
                model != wanted && self.groups[own].swap
            } else {
                self.groups[own].exclusive && !self.groups[group].persistent
            }
        };
        resident.iter().copied().filter(is_in_the_way).collect()
    }

    fn class(&self, model: ModelId) -> usize {
        self.group_of.get(&model).copied().unwrap_or(self.groups.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ModelId = ModelId(1);
    const B: ModelId = ModelId(2);
    const C: ModelId = ModelId(3);
    const D: ModelId = ModelId(4);

    fn group(swap: bool, exclusive: bool, persistent: bool, members: &[ModelId]) -> GroupSettings {
        GroupSettings { swap, exclusive, persistent, members: members.to_vec() }
    }

    #[test]
    fn models_without_a_group_replace_each_other() {
        let groups = Groups::new(&[]);
        assert_eq!(groups.in_the_way(A, &[A, B, C]), [B, C]);
    }

    #[test]
    fn swap_keeps_one_member_at_a_time() {
        let groups = Groups::new(&[group(true, false, false, &[A, B]), group(true, false, false, &[C])]);
        assert_eq!(groups.in_the_way(A, &[B, C]), [B]);
        let groups = Groups::new(&[group(false, false, false, &[A, B])]);
        assert_eq!(groups.in_the_way(A, &[B]), []);
    }

    #[test]
    fn exclusive_unloads_every_other_group_that_is_not_persistent() {
        let groups = Groups::new(&[
            group(false, true, false, &[A]),
            group(false, false, false, &[B]),
            group(false, false, true, &[C]),
        ]);
        assert_eq!(groups.in_the_way(A, &[B, C, D]), [B, D]);
        assert_eq!(groups.in_the_way(B, &[A, C, D]), [], "not exclusive: unloads nobody else's group");
        assert_eq!(groups.in_the_way(C, &[A, B, D]), []);
        assert_eq!(groups.in_the_way(D, &[A, B, C]), [A, B], "the implicit group is exclusive");
    }

    #[test]
    fn the_first_group_that_names_a_model_has_it() {
        let groups = Groups::new(&[group(false, false, false, &[A]), group(true, true, false, &[A, B])]);
        assert_eq!(groups.class(A), 0);
    }
}
