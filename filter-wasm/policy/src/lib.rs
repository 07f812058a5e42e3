//! Who is calling: from an API key to tenant, tier and priority.
//!
//! One policy, the same decision everywhere: the gateway links this crate, and the proxy-wasm filter is a thin
//! shell around it. No I/O, no clock, no randomness in here; the caller brings the request's headers and the time.
//!
//! ```
//! use switchyard_policy::{Decision, Policy, PolicySettings, RequestView};
//!
//! let settings = PolicySettings::from_json(br#"{
//!     "allowPlain": true,
//!     "keys": [{ "key": "sk-demo", "tenant": "acme", "tier": "max" }]
//! }"#)?;
//! let policy = Policy::new(settings).map_err(|problems| problems[0].clone())?;
//! let request = RequestView {
//!     method: b"POST",
//!     path: b"/v1/chat/completions",
//!     headers: &[(b"authorization", b"Bearer sk-demo"), (b"x-llamaswap-priority", b"batch")],
//! };
//! let Decision::Allow(allowed) = policy.decide(&request, 1_800_000_000) else { panic!("denied") };
//! assert_eq!(allowed.identity.expect("an inference path has a caller").priority, -98);
//! # Ok::<(), switchyard_policy::Problem>(())
//! ```
//!
//! # Priority
//!
//! What a caller asks for is intent: a number or an alias selects a *band*, and the policy answers with the band's
//! anchor (-100, 0, 100) plus the tier's offset. So 99 is `normal` and becomes 0 + 2 for a tier at 2, never 101; a
//! batch job of that tier runs at -98, and no number lifts a request above its tier or across a band.

mod band;
mod check;
mod credential;
mod denial;
mod digest;
mod headers;
mod json;
mod key_ring;
mod policy;
mod route;
mod settings;

pub use band::Band;
pub use denial::{Denial, Reason};
pub use key_ring::KeyRing;
pub use policy::{Allowed, Decision, Grant, Identity, Policy, RequestView, Tier};
pub use settings::{
    AnonymousSettings, HeaderSettings, KeySettings, LimitSettings, ObjectiveSettings, PolicySettings, PrioritySetting,
    Problem, Scope, Secret, TierSettings,
};

/// Keys longer than this many bytes are unknown without being looked at.
pub const MAX_KEY_BYTES: usize = 1024;

/// The digest of a key as the settings want it: SHA-256 in lower-case hex.
#[must_use]
pub fn hash_key(key: &[u8]) -> String {
    digest::Digest::of(key).to_hex()
}
