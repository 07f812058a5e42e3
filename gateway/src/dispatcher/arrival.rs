//! What the queue has to be told of a request.

use std::{sync::Arc, time::Duration};

use switchyard_policy::{Grant, Identity};
use switchyard_scheduler::{Priority, RequestId, SessionId, TenantId, Timestamp};

use crate::config::Model;

/// A request that wants to go upstream.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The model it asks for.
    pub model: Arc<Model>,
    /// Its urgency.
    pub priority: Priority,
    /// The size of its body, in bytes.
    pub bytes: u64,
    /// The longest it wants to wait; can only shorten what is configured.
    pub ttl: Option<Duration>,
    /// What its key stands for, with the limits on it; none without a key.
    pub caller: Option<Arc<Grant>>,
    /// Whom it is for: [`super::Dispatcher::tenant`] of a name; the tenant of its key without one.
    pub tenant: TenantId,
    /// How much it asks for.
    pub tokens: Tokens,
    /// How soon it wants its first token.
    pub ttft_goal: Option<Duration>,
    /// What it belongs together with.
    pub session: Option<SessionId>,
    /// Its place in the queue, if it comes back: [`super::Slot::place`] of the slot that came to nothing, which has been
    /// given back.
    pub place: Option<Place>,
}

/// A request's place in the queue.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub(super) seq: RequestId,
    pub(super) arrived: Timestamp,
}

/// The size of a request, as far as it can be told beforehand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// In, about.
    pub prompt: u64,
    /// Out, at the most.
    pub max: Option<u64>,
}

impl Arrival {
    /// A request of nobody in particular, with no body to speak of.
    #[must_use]
    pub fn new(model: Arc<Model>) -> Self {
        Self {
            model,
            priority: Priority::default(),
            bytes: 0,
            ttl: None,
            caller: None,
            tenant: TenantId::default(),
            tokens: Tokens::default(),
            ttft_goal: None,
            session: None,
            place: None,
        }
    }

    /// The same of a caller that the policy knows, as urgent as the policy says.
    #[must_use]
    pub fn by(self, identity: &Identity) -> Self {
        Self { priority: Priority(identity.priority), caller: Some(Arc::clone(&identity.grant)), ..self }
    }
}
