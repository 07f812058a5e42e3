//! What the shell tells the scheduler.

use std::time::Duration;

use crate::{CallerId, Generation, ModelId, Priority, ReplicaId, RequestId, SessionId, Settings, TenantId, Timestamp};

/// Something that happened. Give it to [`crate::Scheduler::handle`] with the time at which it did.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Event {
    /// A request wants to go. Ends in exactly one `Dispatch` or `Reject`, unless it is cancelled first.
    Arrive(Request),
    /// The client is gone. Takes the request out of whatever state it is in; unknown numbers are ignored, so a
    /// cancel that crosses its own dispatch gives the slot back. One that comes together with the end of the request's
    /// ttl wins.
    Cancel {
        /// Which.
        id: RequestId,
    },
    /// A dispatched request has ended, in whatever way. Gives its slot back.
    Finished {
        /// Which.
        id: RequestId,
        /// What it used, as far as known.
        usage: Usage,
    },
    /// A `Load` has ended. After a failure the process is gone: no `Exited` follows, and if a `Stop` crossed it, a
    /// `StopDone` may follow or not.
    LoadDone {
        /// Which replica.
        replica: ReplicaId,
        /// Of which load.
        generation: Generation,
        /// Whether it is ready to serve.
        ok: bool,
    },
    /// A `Stop` has ended: the process is reaped, its memory is free. Also answers a `Stop` that came while
    /// loading; then no `LoadDone` follows.
    StopDone {
        /// Which replica.
        replica: ReplicaId,
        /// Of which load.
        generation: Generation,
    },
    /// A replica went away by itself; it is reaped. The requests that it ran end through their own `Finished`. It is
    /// paused like after a failed load.
    Exited {
        /// Which replica.
        replica: ReplicaId,
        /// Of which load.
        generation: Generation,
    },
    /// What a replica's own metrics say of it, as of now.
    Sample {
        /// Which replica.
        replica: ReplicaId,
        /// Of which load.
        generation: Generation,
        /// What they say.
        load: Load,
    },
    /// An operator wants these models out of memory now, whether they run something or not. Waiting requests stay
    /// and load them again. Remote servers are left alone: they hold no memory here.
    Unload {
        /// Which; empty means all.
        models: Vec<ModelId>,
    },
    /// An operator wants these models loaded ahead of any request, in this order, once nobody waits. One that would
    /// send away another of the same `Preload` is dropped, and so is one that fails or is paused; one that has to wait
    /// for a running request of another model waits.
    Preload {
        /// Which.
        models: Vec<ModelId>,
    },
    /// The settings changed. Waiting requests keep their place, under the new order and time limits; those whose model
    /// is gone are rejected. Replicas that are no longer configured, or are at another revision, are stopped when idle,
    /// at once while they load; what they run may finish. A new revision ends the pause after failures.
    Reconfigure(Box<Settings>),
    /// Shut down: reject what waits and what still arrives, let running requests finish, stop every replica, then
    /// say `Drained`.
    Drain,
    /// The [`crate::Scheduler::deadline`] has come.
    Tick,
}

/// A request that wants a slot.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Request {
    /// Its number; larger than any before, for it stands for arrival order where scores are equal. One that was
    /// dispatched, came to nothing and wants to go anew, keeps its number, and says when it first arrived.
    pub id: RequestId,
    /// When it first arrived, if that was earlier than now: it takes the place that it would have if it had waited ever
    /// since, and its time limits count from then. Its `Finished` comes before.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub arrived: Option<Timestamp>,
    /// The model it asks for.
    pub model: ModelId,
    /// Its urgency.
    pub priority: Priority,
    /// The size of its body, in bytes.
    pub bytes: u64,
    /// The longest it wants to wait; can only shorten the band's.
    pub ttl: Option<Duration>,
    /// Whose it is, where the caller has limits.
    #[cfg_attr(feature = "serde", serde(default))]
    pub caller: Option<Caller>,
    /// Whom it is for: at one priority, the requests of one tenant are one flow.
    #[cfg_attr(feature = "serde", serde(default))]
    pub tenant: TenantId,
    /// Tokens in, as estimated from its body.
    #[cfg_attr(feature = "serde", serde(default))]
    pub prompt_tokens: u64,
    /// The most tokens out that it allows.
    #[cfg_attr(feature = "serde", serde(default))]
    pub max_tokens: Option<u64>,
    /// How soon after its arrival it wants its first token.
    #[cfg_attr(feature = "serde", serde(default))]
    pub ttft_goal: Option<Duration>,
    /// What it belongs together with.
    #[cfg_attr(feature = "serde", serde(default))]
    pub session: Option<SessionId>,
}

impl Request {
    /// A request without a body, a time limit, or anybody in particular whom it is for.
    #[must_use]
    pub const fn new(id: RequestId, model: ModelId, priority: Priority) -> Self {
        Self {
            id,
            arrived: None,
            model,
            priority,
            bytes: 0,
            ttl: None,
            caller: None,
            tenant: TenantId(0),
            prompt_tokens: 0,
            max_tokens: None,
            ttft_goal: None,
            session: None,
        }
    }
}

/// Who sends a request, and how many requests of it there may be at once. The latest request's limits count.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Caller {
    /// Who.
    pub id: CallerId,
    /// That wait; more are rejected. None for no bound but those of all.
    pub waiting: Option<u32>,
    /// That run, at least 1; more wait for the earlier ones to end. None for no bound.
    pub running: Option<u32>,
}

/// What a request used; none where unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Usage {
    /// Tokens in.
    #[cfg_attr(feature = "serde", serde(default))]
    pub prompt_tokens: Option<u64>,
    /// Tokens out. Where only the tokens in are known, there were none, and nothing is learnt from it.
    #[cfg_attr(feature = "serde", serde(default))]
    pub completion_tokens: Option<u64>,
    /// From its dispatch to its first token.
    #[cfg_attr(feature = "serde", serde(default))]
    pub first_token: Option<Duration>,
}

/// What a replica says of its own work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Load {
    /// Requests in its batch.
    pub running: u32,
    /// Requests in its own queue.
    pub waiting: u32,
    /// The used part of its KV cache, 0 to 1; none where it does not say.
    pub kv_cache: Option<f64>,
}
