//! `weighted`: by tokens over the tenant's share.
//!
//! While two flows *f* and *g* have requests waiting for the same model, what they are charged over any time differs by
//! no more than |W_f/w_f − W_g/w_g| ≤ c_f/w_f + c_g/w_g, where c is the most that one request of theirs costs: theorem 1
//! of the paper. Charges are estimates until a request ends, so in tokens really used the difference can be greater by
//! what the estimates of the requests that run now are off. Where models compete for one machine and swap affinity is
//! on, a window of 16,384 weighted tokens comes on top.

use std::collections::BTreeMap;

use super::{Share, Tag, Tokens};
use crate::{FlowSettings, TenantId};

/// A weighted token, for a tenant of weight 1, moves its tag by two to the power of this.
const TOKEN: u32 = 16;

#[derive(Debug)]
pub(super) struct Weighted {
    weights: BTreeMap<TenantId, u32>,
    prompt: u32,
    completion: u32,
}

impl Weighted {
    pub(super) fn new(settings: &FlowSettings) -> Self {
        Self {
            weights: settings.weights.clone(),
            prompt: settings.prompt_weight,
            completion: settings.completion_weight,
        }
    }
}

impl Share for Weighted {
    fn weight(&self, tenant: TenantId) -> u32 {
        self.weights.get(&tenant).copied().unwrap_or(1).max(1)
    }

    fn cost(&self, tokens: Tokens, weight: u32) -> Tag {
        let weighted = u128::from(tokens.prompt) * u128::from(self.prompt)
            + u128::from(tokens.output) * u128::from(self.completion);
        // What is known of a request is bounded, but what a server says that it used need not be.
        let parts = weighted.min(1 << 60) << TOKEN;
        if weight == 1 { parts } else { parts / u128::from(weight) }
    }

    fn window(&self) -> Option<u32> {
        Some(TOKEN + 14)
    }

    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn say(&self, way: i64) -> f64 {
        way as f64 / f64::from(1 << TOKEN)
    }
}
