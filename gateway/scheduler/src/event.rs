//! What the shell tells the scheduler.

use std::time::Duration;

use crate::{CallerId, Generation, ModelId, Priority, ReplicaId, RequestId, Settings};

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
    /// Its number; larger than any before, for it stands for arrival order where scores are equal.
    pub id: RequestId,
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

/// Tokens that a request used; zero where unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Usage {
    /// Tokens in.
    pub prompt_tokens: u64,
    /// Tokens out.
    pub completion_tokens: u64,
}
