//! Seeded randomness. Each part of a run draws from a stream of its own, so that one more class of clients or one
//! more fault leaves the draws of the others as they were. Logarithms and the like come from `libm`, as those of the
//! platforms differ in the last digit.

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{RngCore, SeedableRng},
};

/// A reproducible stream of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Stream(ChaCha8Rng);

impl Stream {
    /// The stream of that number under a seed.
    pub(crate) fn new(seed: u64, number: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(number);
        Self(rng)
    }

    /// Evenly from [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        // The 53 bits that a double can hold.
        (self.0.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// True with the probability given.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Evenly from the range, both ends included.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        let span = (most - least) as f64 + 1.0;
        (least + (self.unit() * span) as u64).min(most)
    }

    /// Exponentially distributed with the mean given.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * libm::log(1.0 - self.unit())
    }

    /// Normally distributed with mean 0 and deviation 1 (Box and Muller).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * libm::log(1.0 - self.unit())).sqrt();
        radius * libm::cos(std::f64::consts::TAU * self.unit())
    }
}
