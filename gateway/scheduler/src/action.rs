//! What the scheduler tells the shell to do.

use std::time::Duration;

use crate::{Band, FairnessSettings, Generation, Priority, ReplicaId, RequestId};

/// Something to do now. Taken one at a time from [`crate::Scheduler::poll_action`].
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Action {
    /// Forward the request to the replica. Answer with exactly one `Finished` (or `Cancel`).
    Dispatch {
        /// Which request.
        id: RequestId,
        /// Where to.
        replica: ReplicaId,
        /// Of which load.
        generation: Generation,
        /// Why it, and why now.
        decision: Decision,
    },
    /// Answer the request with an error; it is forgotten.
    Reject {
        /// Which request.
        id: RequestId,
        /// Why.
        outcome: Outcome,
        /// How long it waited.
        waited: Duration,
        /// When it is worth coming back: once all that wait now will have gone at the rate at which the queue drains, 1
        /// to 60 seconds; after a failed load, when the next try is due; at shutdown, 5 seconds; for an unknown model
        /// never.
        retry_after: Option<Duration>,
        /// What it waited for last (`flow`).
        #[cfg_attr(feature = "serde", serde(default))]
        flow: Option<FlowDecision>,
    },
    /// Start the replica. Everything in its way has been stopped and reaped. Answer with `LoadDone`.
    Load {
        /// Which.
        replica: ReplicaId,
        /// The number of this load.
        generation: Generation,
        /// The request that it is loaded for, now; none for a preload. The load may pass to another that waits for the
        /// model.
        request: Option<RequestId>,
        /// Replicas that were stopped to make room.
        evicted: Vec<ReplicaId>,
    },
    /// Stop the replica, whether loading or ready. Answer with `StopDone` once it is reaped.
    Stop {
        /// Which.
        replica: ReplicaId,
        /// Of which load.
        generation: Generation,
        /// Why.
        reason: StopReason,
    },
    /// A drain is over: nothing waits, runs or is loaded.
    Drained,
}

/// Why a request was dispatched when it was.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Decision {
    /// As the caller stated it.
    pub priority: Priority,
    /// The band of that priority.
    pub band: Band,
    /// Points of the model (`fifo`).
    pub model_priority: i64,
    /// Points for a model that was ready when the request was picked (`serial`), capped so that they lift nobody out of
    /// its band. None where the pick was made before: for the first dispatch after a load, and for a request that goes
    /// ahead of a better one because that one would evict what was loaded for it.
    pub affinity: u32,
    /// Points for having waited (`serial`): waited seconds over the divisor.
    pub aging: f64,
    /// The sum of the four terms. For people: the order itself is decided in exact integers, and the requests of one
    /// model go by what they score without affinity.
    pub score: f64,
    /// From arrival to dispatch, loading included.
    pub waited: Duration,
    /// The part of `waited` in which the replica that it goes to was being made ready: evictions and the load, for
    /// whomever they were. None if the replica was ready at the request's arrival.
    pub swap: Option<Duration>,
    /// The request that would have been picked in its place without aging: from the moment of the pick, which for a
    /// request that a load was for is the beginning of its swap.
    pub passed_by_aging: Option<RequestId>,
    /// The request that would have been picked in its place without swap affinity.
    pub passed_by_affinity: Option<RequestId>,
    /// How many requests still wait after this dispatch.
    pub still_waiting: u64,
    /// What else counted (`flow`).
    #[cfg_attr(feature = "serde", serde(default))]
    pub flow: Option<FlowDecision>,
}

/// The part of a [`Decision`] that only `flow` makes. Its numbers are for people: the order itself is decided in exact
/// integers.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FlowDecision {
    /// What chose the tenant.
    pub fairness: FairnessSettings,
    /// How far its tenant was ahead of the level's virtual time: in turns (`round-robin`), or in weighted tokens over its
    /// share (`weighted`). Less than zero for one that had had less than it was due.
    pub ahead: f64,
    /// Tokens out that it was charged for, to be corrected when it ends.
    pub expected_tokens: u64,
    /// How full the model's replicas were, from 0; none if that was not looked at.
    pub saturation: Option<f64>,
    /// The saturation at which it would have had to wait.
    pub ceiling: f64,
}

/// How a request that was not dispatched ended, and the words for it in metrics and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Outcome {
    /// A bound was hit, and nothing less urgent could be displaced.
    RejectedCapacity,
    /// As many requests of its caller wait already as may.
    RejectedLimit,
    /// It waited longer than its TTL.
    RejectedTtl,
    /// Sheddable, and refused at once because the pool is saturated (`flow`).
    RejectedShed,
    /// Displaced from a full queue by a more urgent arrival.
    Evicted,
    /// The load that was made for it failed.
    LoadFailed,
    /// Its model is not configured, or no longer.
    UnknownModel,
    /// The gateway shuts down.
    Shutdown,
}

impl Outcome {
    /// The name used in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RejectedCapacity => "rejected_capacity",
            Self::RejectedLimit => "rejected_limit",
            Self::RejectedTtl => "rejected_ttl",
            Self::RejectedShed => "rejected_shed",
            Self::Evicted => "evicted",
            Self::LoadFailed => "load_failed",
            Self::UnknownModel => "unknown_model",
            Self::Shutdown => "shutdown",
        }
    }
}

/// Why a replica is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum StopReason {
    /// Another model needs its room; it was idle.
    Evicted,
    /// It was idle for its ttl.
    Idle,
    /// It was still loading for nobody (a preload, or all who waited for it have left) and is in somebody's way.
    Abandoned,
    /// An operator asked.
    Unload,
    /// Its settings changed, or its model is no longer configured.
    Reconfigured,
    /// The gateway shuts down.
    Shutdown,
}
