//! Who may use the gateway, and what it believes of them.

use std::{net::IpAddr, path::PathBuf, sync::Arc};

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;
use switchyard_policy::{HeaderSettings, KeyRing, Policy, PolicySettings};

/// Who may use the gateway.
#[derive(Clone, Debug)]
pub struct Callers {
    /// Who is let in.
    pub gate: Gate,
    /// From keys to tenants, tiers and priorities where the gate asks it; in any case it knows which headers are not
    /// for callers to send.
    pub policy: Arc<Policy>,
    /// Whose word is taken for who is calling. Without it, everybody's, unless the policy knows better.
    pub trust: Option<Trust>,
    /// The file that the policy was read from, where it is another one.
    pub tiers_file: Option<PathBuf>,
    /// The tenants of the keys.
    pub tenants: Vec<String>,
}

/// Who is let in.
#[derive(Clone, Debug)]
pub enum Gate {
    /// Anyone.
    Open,
    /// Whoever has one of the keys of llama-swap's `apiKeys`.
    ApiKeys {
        /// The keys.
        ring: KeyRing,
        /// The key goes on to the model server.
        forward: bool,
    },
    /// Whom the policy lets in.
    Policy,
}

/// Whose word is taken.
#[derive(Clone, Debug)]
pub struct Trust {
    /// Peers in these networks.
    pub networks: Vec<IpNet>,
    /// Whoever sends one of these secrets in this header.
    pub secret: Option<(HeaderName, KeyRing)>,
}

impl Trust {
    /// Whether the sender of these headers, at this address, is believed.
    #[must_use]
    pub fn covers(&self, peer: impl FnOnce() -> Option<IpAddr>, headers: &HeaderMap) -> bool {
        let has_secret = self
            .secret
            .as_ref()
            .is_some_and(|(name, ring)| headers.get(name).is_some_and(|value| ring.holds(value.as_bytes())));
        // An IPv4 peer of a socket for both is written as IPv6.
        let is_inside = |peer: IpAddr| self.networks.iter().any(|network| network.contains(&peer.to_canonical()));
        has_secret || (!self.networks.is_empty() && peer().is_some_and(is_inside))
    }
}

impl Default for Callers {
    /// Anyone may, and is believed.
    fn default() -> Self {
        let settings = PolicySettings { forward_key: true, ..PolicySettings::default() };
        match Policy::new(settings) {
            Ok(policy) => {
                Self { gate: Gate::Open, policy: Arc::new(policy), trust: None, tiers_file: None, tenants: Vec::new() }
            }
            Err(problems) => unreachable!("settings without keys are fine: {problems:?}"),
        }
    }
}

/// Names of the headers that steer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Carries the priority.
    pub priority: HeaderName,
    /// Carries the tenant.
    pub tenant: HeaderName,
    /// Carries the tier.
    pub tier: HeaderName,
    /// Carries the models of a caller that may not use all, with commas between them.
    pub models: HeaderName,
    /// Names a session.
    pub session: HeaderName,
    /// Those that go no further than the gateway.
    pub kept: Vec<HeaderName>,
}

/// llm-d's older names for tenant and objective.
pub const OLDER_TENANT: HeaderName = HeaderName::from_static("x-gateway-inference-fairness-id");
const SESSION: HeaderName = HeaderName::from_static("x-session-id");
const OLDER_OBJECTIVE: HeaderName = HeaderName::from_static("x-gateway-inference-objective");

impl Headers {
    /// From names that the policy has checked.
    pub(super) fn new(names: &HeaderSettings, forward_priority: bool, forward_identity: bool) -> Self {
        let name = |text: &str| HeaderName::from_bytes(text.as_bytes()).unwrap_or(OLDER_TENANT);
        let [priority, tenant, objective, tier, models] =
            [&names.priority, &names.tenant, &names.objective, &names.tier, &names.models].map(|text| name(text));
        let mut kept = Vec::new();
        if !forward_priority {
            kept.push(priority.clone());
        }
        if !forward_identity {
            kept.extend([tenant.clone(), tier.clone(), models.clone(), objective, OLDER_TENANT, OLDER_OBJECTIVE]);
        }
        Self { priority, tenant, tier, models, session: SESSION, kept }
    }
}

impl Default for Headers {
    fn default() -> Self {
        Self::new(&HeaderSettings::default(), false, true)
    }
}
