//! How many requests were decided how, by tier.

use proxy_wasm::{hostcalls, types::MetricType};
use switchyard_policy::{Decision, Policy, Reason};

/// Decisions that a known caller can meet, and those that name none.
const WITH_TIER: [&str; 5] =
    ["allowed", Reason::ExpiredKey.code(), Reason::Scope.code(), Reason::Model.code(), Reason::Band.code()];
const WITHOUT_TIER: [&str; 4] =
    ["open", Reason::MissingKey.code(), Reason::UnknownKey.code(), Reason::AmbiguousKey.code()];

/// Ids of the host's counters. All are defined at the start, so that each is seen at zero.
pub(crate) struct Counters {
    without_tier: [Option<u32>; WITHOUT_TIER.len()],
    with_tier: Vec<(Box<str>, [Option<u32>; WITH_TIER.len()])>,
}

impl Counters {
    pub(crate) fn define(policy: &Policy) -> Self {
        Self {
            without_tier: WITHOUT_TIER.map(|decision| define(decision, "none")),
            with_tier: policy
                .tiers()
                .iter()
                .map(|tier| (tier.name.clone(), WITH_TIER.map(|decision| define(decision, &tier.name))))
                .collect(),
        }
    }

    pub(crate) fn count(&self, decision: &Decision<'_>) {
        let (name, tier) = match decision {
            Decision::Deny(denial) => (denial.reason.code(), denial.tier),
            Decision::Allow(allowed) => match &allowed.identity {
                Some(caller) => ("allowed", Some(&*caller.grant.tier.name)),
                None => ("open", None),
            },
        };
        let id = match tier {
            None => WITHOUT_TIER.iter().zip(&self.without_tier).find(|(known, _)| **known == name),
            Some(tier) => self
                .with_tier
                .iter()
                .find(|(known, _)| **known == *tier)
                .and_then(|(_, ids)| WITH_TIER.iter().zip(ids).find(|(known, _)| **known == name)),
        };
        if let Some((_, &Some(id))) = id {
            let _ = hostcalls::increment_metric(id, 1);
        }
    }
}

/// Envoy has no labels for a filter's metrics; its `stats_tags` take them out of the name.
fn define(decision: &str, tier: &str) -> Option<u32> {
    let name = format!("switchyard_filter_decisions_total.decision.{decision}.tier.{tier}");
    hostcalls::define_metric(MetricType::Counter, &name).ok()
}
