//! `tokens`: tokens of what runs over tokens that may, prompts and answers as estimated.

use super::Detector;
use crate::fleet::Replica;

#[derive(Debug)]
pub(super) struct Tokens {
    tokens: u64,
}

impl Tokens {
    pub(super) fn new(tokens: u64) -> Self {
        Self { tokens: tokens.max(1) }
    }
}

impl Detector for Tokens {
    fn capacity(&self) -> u64 {
        self.tokens
    }

    fn used(&self, replica: &Replica) -> u64 {
        replica.tokens
    }

    fn load(&self, replica: &Replica) -> u64 {
        replica.tokens
    }

    fn one(&self, used: u64, running: u64) -> u64 {
        used.checked_div(running).unwrap_or(0)
    }
}
