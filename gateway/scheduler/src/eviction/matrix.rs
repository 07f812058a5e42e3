//! Sets of models that may be in memory together, as in llama-swap's matrix.

use std::collections::BTreeMap;

use super::Eviction;
use crate::{MatrixSettings, ModelId};

/// The sets as bits, so that what a set lacks is found a word at a time.
#[derive(Debug)]
pub(super) struct Matrix {
    /// The models that are in any set, numbered from 0; those in none come after them, all as one.
    number_of: BTreeMap<ModelId, usize>,
    /// What it costs to unload a model, by number.
    costs: Vec<u64>,
    sets: Vec<Vec<u64>>,
    /// The sets of a model, by number.
    sets_of: Vec<Vec<usize>>,
}

impl Matrix {
    pub(super) fn new(settings: &MatrixSettings) -> Self {
        let mut number_of = BTreeMap::new();
        for &model in settings.sets.iter().flatten() {
            let next = number_of.len();
            number_of.entry(model).or_insert(next);
        }
        let mut costs = vec![1; number_of.len()];
        for (model, &cost) in &settings.costs {
            if let Some(&number) = number_of.get(model) {
                costs[number] = cost.into();
            }
        }
        let mut sets = Vec::with_capacity(settings.sets.len());
        let mut sets_of = vec![Vec::new(); number_of.len()];
        for (index, members) in settings.sets.iter().enumerate() {
            let mut bits = vec![0; number_of.len().div_ceil(64)];
            for member in members {
                let number = number_of[member];
                if !has(&bits, number) {
                    bits[number / 64] |= 1 << (number % 64);
                    sets_of[number].push(index);
                }
            }
            sets.push(bits);
        }
        Self { number_of, costs, sets, sets_of }
    }

    fn number(&self, model: ModelId) -> Option<usize> {
        self.number_of.get(&model).copied()
    }

    /// What it costs to unload the models that are not in a set. Those in no set at all are always unloaded.
    fn cost(&self, set: usize, resident: &[usize]) -> u64 {
        resident.iter().filter(|&&number| !has(&self.sets[set], number)).map(|&number| self.costs[number]).sum()
    }
}

fn has(bits: &[u64], number: usize) -> bool {
    bits[number / 64] & (1 << (number % 64)) != 0
}

impl Eviction for Matrix {
    /// Room is made by the set with `wanted` that costs least, the first of equal ones.
    fn in_the_way(&self, wanted: ModelId, resident: &[ModelId]) -> Vec<ModelId> {
        let others = resident.iter().copied().filter(|&model| model != wanted);
        let numbers: Vec<usize> = others.clone().filter_map(|model| self.number(model)).collect();
        let sets = self.number(wanted).map_or(&[][..], |number| &self.sets_of[number]);
        let best = sets.iter().copied().min_by_key(|&set| self.cost(set, &numbers));
        let stays = |model: ModelId| match (best, self.number(model)) {
            (Some(set), Some(number)) => has(&self.sets[set], number),
            _ => false,
        };
        others.filter(|&model| !stays(model)).collect()
    }

    fn class(&self, model: ModelId) -> usize {
        self.number(model).unwrap_or(self.number_of.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ModelId = ModelId(10);
    const B: ModelId = ModelId(20);
    const C: ModelId = ModelId(30);
    const D: ModelId = ModelId(40);
    const NOWHERE: ModelId = ModelId(50);

    fn matrix(sets: &[&[ModelId]], costs: &[(ModelId, u32)]) -> Matrix {
        let sets = sets.iter().map(|set| set.to_vec()).collect();
        Matrix::new(&MatrixSettings { sets, costs: costs.iter().copied().collect() })
    }

    #[test]
    fn models_of_one_set_stay_together() {
        let matrix = matrix(&[&[A, B, C]], &[]);
        assert_eq!(matrix.in_the_way(A, &[B, C]), []);
        assert_eq!(matrix.in_the_way(B, &[C]), [], "part of a set will do");
    }

    #[test]
    fn the_cheapest_set_makes_room() {
        let matrix = matrix(&[&[A, B], &[A, C, D]], &[(B, 5)]);
        assert_eq!(matrix.in_the_way(A, &[B, C, D]), [C, D], "two models at 1 are cheaper than one at 5");
        assert_eq!(matrix.in_the_way(A, &[C, D]), []);
    }

    #[test]
    fn the_first_of_equal_sets_is_chosen() {
        let matrix = matrix(&[&[A, B], &[A, C]], &[]);
        assert_eq!(matrix.in_the_way(A, &[C, B]), [C]);
    }

    #[test]
    fn a_model_in_no_set_runs_alone() {
        let matrix = matrix(&[&[A, B]], &[(NOWHERE, 100)]);
        assert_eq!(matrix.in_the_way(NOWHERE, &[A, B, NOWHERE]), [A, B]);
        assert_eq!(matrix.in_the_way(A, &[NOWHERE, B]), [NOWHERE]);
        assert_eq!(matrix.class(NOWHERE), matrix.class(ModelId(60)));
        assert_ne!(matrix.class(NOWHERE), matrix.class(B));
    }

    #[test]
    fn more_models_than_a_word_has_bits() {
        let all: Vec<ModelId> = (0..130).map(ModelId).collect();
        let matrix = matrix(&[&all[..129], &all[1..]], &[]);
        assert_eq!(matrix.in_the_way(all[0], &all), [all[129]]);
        assert_eq!(matrix.in_the_way(all[129], &all), [all[0]]);
    }
}
