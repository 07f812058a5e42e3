//! What tenants used. Only those that are configured have series of their own: whoever may call themselves anything could
//! make any number of them.

use std::{collections::HashMap, sync::Arc};

use arc_swap::ArcSwap;
use prometheus::{IntCounter, IntCounterVec};

use super::families::Families;

/// Tenants with series of their own, at the most.
const MAX: usize = 100;
/// All others.
const OTHER: &str = "other";

/// Tokens in and out.
#[derive(Clone)]
struct Pair([IntCounter; 2]);

pub(super) struct TenantSeries {
    tokens: IntCounterVec,
    known: ArcSwap<HashMap<String, Pair>>,
    other: Pair,
}

impl TenantSeries {
    pub(super) fn new(families: &Families) -> Self {
        let tokens = families.counter(
            "switchyard_tenant_tokens_total",
            "Tokens in (prompt) and out (completion) by tenant: the first 100 that are configured, the rest as other.",
            &["tenant", "direction"],
        );
        let other = Pair::of(&tokens, OTHER);
        Self { tokens, known: ArcSwap::default(), other }
    }

    /// The tenants that have series of their own from now on, in the order in which they matter.
    pub(super) fn configure(&self, tenants: &[String]) {
        let mut known = HashMap::new();
        for tenant in tenants.iter().filter(|tenant| *tenant != OTHER) {
            if known.len() < MAX && !known.contains_key(tenant) {
                known.insert(tenant.clone(), Pair::of(&self.tokens, tenant));
            }
        }
        let before = self.known.swap(Arc::new(known));
        let known = self.known.load();
        for tenant in before.keys().filter(|tenant| !known.contains_key(*tenant)) {
            for direction in ["prompt", "completion"] {
                // It is there, and nobody else removes it.
                let _ = self.tokens.remove_label_values(&[tenant, direction]);
            }
        }
    }

    pub(super) fn used(&self, tenant: Option<&str>, tokens: [u64; 2]) {
        let known = self.known.load();
        let Pair(series) = tenant.and_then(|tenant| known.get(tenant)).unwrap_or(&self.other);
        for (series, tokens) in series.iter().zip(tokens) {
            series.inc_by(tokens);
        }
    }
}

impl Pair {
    fn of(tokens: &IntCounterVec, tenant: &str) -> Self {
        Self(["prompt", "completion"].map(|direction| tokens.with_label_values(&[tenant, direction])))
    }
}
