//! Which tenant is next.
//!
//! One mechanism serves all: start-time fair queueing (Goyal, Vin and Cheng, "Start-time Fair Queueing", SIGCOMM 1996).
//! Each flow has a start tag, the smallest goes next; a dispatch moves it on by what the request costs over the tenant's
//! weight, and a flow that comes back from idle starts at the level's virtual time, which is the greatest start tag that
//! was served. What a turn costs is the policy: another is another file here and a line in [`Fairness::get`].

mod global_strict;
mod round_robin;
mod weighted;

use std::fmt;

use crate::{FairnessSettings, FlowSettings, TenantId};

/// A place in virtual time.
pub(super) type Tag = u128;

/// What a request uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tokens {
    pub(super) prompt: u64,
    pub(super) output: u64,
}

/// How the tenants of a level share it.
pub(super) trait Share: fmt::Debug + Send + Sync {
    /// Whose turns a tenant's requests count against.
    fn payer(&self, tenant: TenantId) -> TenantId {
        tenant
    }

    /// A tenant's share.
    fn weight(&self, _tenant: TenantId) -> u32 {
        1
    }

    /// How far a request moves the tag of a flow with this weight.
    fn cost(&self, tokens: Tokens, weight: u32) -> Tag;

    /// Tags that are alike but for so many of their last bits are equally due; none where tags say nothing.
    fn window(&self) -> Option<u32>;

    /// A way in virtual time, in terms for people.
    fn say(&self, way: i64) -> f64;
}

/// The policies, by name.
#[derive(Debug)]
pub(super) struct Fairness {
    global_strict: global_strict::GlobalStrict,
    round_robin: round_robin::RoundRobin,
    weighted: weighted::Weighted,
}

impl Fairness {
    pub(super) fn new(settings: &FlowSettings) -> Self {
        Self {
            global_strict: global_strict::GlobalStrict,
            round_robin: round_robin::RoundRobin,
            weighted: weighted::Weighted::new(settings),
        }
    }

    pub(super) fn get(&self, name: FairnessSettings) -> &dyn Share {
        match name {
            FairnessSettings::GlobalStrict => &self.global_strict,
            FairnessSettings::RoundRobin => &self.round_robin,
            FairnessSettings::Weighted => &self.weighted,
        }
    }
}
