//! Who goes next: the scheduler of Switchyard as a pure state machine.
//!
//! No I/O, no clock, no lock, no thread and no log in here. The shell feeds [`Event`]s with a monotonic
//! [`Timestamp`] into [`Scheduler::handle`], takes [`Action`]s out of [`Scheduler::poll_action`] until there are
//! none, and calls again with [`Event::Tick`] at [`Scheduler::deadline`]. The same events at the same times give the
//! same actions.

mod action;
mod admission;
mod detector;
mod event;
mod eviction;
mod fleet;
mod ids;
mod placement;
mod policy;
mod priority;
mod queue;
mod scheduler;
mod settings;
mod time;

pub use action::{Action, Decision, FlowDecision, Outcome, StopReason};
pub use event::{Caller, Event, Load, Request, Usage};
pub use ids::{CallerId, Generation, ModelId, ReplicaId, RequestId, SessionId, TenantId};
pub use priority::{Band, Priority};
pub use scheduler::{BandView, LevelView, PoolView, ReplicaState, ReplicaView, Scheduler};
pub use settings::{
    AdmissionSettings, BackoffSettings, BandSettings, Bounds, CeilingSettings, DetectorSettings, EvictionSettings,
    FairnessSettings, FifoSettings, FlowSettings, GroupSettings, HoldbackScale, LevelSettings, MatrixSettings,
    ModelSettings, OrderingSettings, PolicySettings, SerialSettings, Settings,
};
pub use time::Timestamp;
