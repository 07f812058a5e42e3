//! Sets of models that may be in memory together.

use switchyard_scheduler::{EvictionSettings, MatrixSettings, Settings};

use crate::yard::{Tune, Yard, fifo, model};

/// Sets as words of letters; costs as letters with numbers.
fn matrix(settings: Settings, sets: &str, costs: &[(char, u32)]) -> Settings {
    let sets = sets.split(' ').map(|set| set.chars().map(model).collect()).collect();
    let costs = costs.iter().map(|&(letter, cost)| (model(letter), cost)).collect();
    settings.tune(|settings| settings.eviction = EvictionSettings::Matrix(MatrixSettings { sets, costs }))
}

#[test]
fn models_of_a_set_load_side_by_side() {
    let mut yard = Yard::new(matrix(fifo("abc"), "ab bc", &[]));
    yard.warm('a');
    yard.warm('b');
    yard.arrive(1, 'c', 0, "stop a evicted");
    yard.stopped('a', "load c for 1 after a");
    yard.loaded('c', "run 1 on c");
    yard.arrive(2, 'b', 0, "run 2 on b");
}

#[test]
fn what_is_costly_to_load_stays() {
    let mut yard = Yard::new(matrix(fifo("abcd"), "ab acd", &[('b', 50)]));
    yard.warm('b');
    yard.arrive(1, 'a', 0, "load a for 1");
    yard.loaded('a', "run 1 on a");
    yard.finish(1, "");
    yard.arrive(2, 'd', 0, "stop b evicted");
    yard.stopped('b', "load d for 2 after b");
    yard.loaded('d', "run 2 on d");
    yard.arrive(3, 'b', 0, "");
    yard.finish(2, "stop d evicted");
    yard.stopped('d', "load b for 3 after d");
    yard.loaded('b', "run 3 on b");
}

#[test]
fn a_model_in_no_set_clears_the_box() {
    let mut yard = Yard::new(matrix(fifo("abx"), "ab", &[]));
    yard.warm('a');
    yard.warm('b');
    yard.arrive(1, 'x', 0, "stop a evicted, stop b evicted");
    yard.arrive(2, 'a', 0, "");
    yard.stopped('b', "");
    yard.stopped('a', "load x for 1 after a+b");
    yard.loaded('x', "run 1 on x");
    yard.finish(1, "stop x evicted");
    yard.stopped('x', "load a for 2 after x");
}
