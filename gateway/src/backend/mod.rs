//! Model servers: one supervisor task per replica, which alone changes that replica's state.
//!
//! The scheduler says `Load` and `Stop`; the supervisor answers with exactly one [`BackendEvent`] to each, and with
//! [`BackendEvent::Exited`] when a ready replica went away by itself. Everything carries its generation.

mod client;
mod dialect;
mod fleet;
mod health;
mod leftovers;
mod logs;
mod process;
#[cfg(target_os = "linux")]
mod procfs;
mod scrape;
mod spawner;
mod supervisor;
mod suspicion;
#[cfg(all(test, target_os = "linux"))]
mod tests;

pub use fleet::{Fleet, FleetOptions};
pub use leftovers::reap_leftovers;
pub use logs::Logs;
pub(crate) use logs::Ring;
pub use scrape::Sample;

use std::{sync::Arc, time::SystemTime};

use switchyard_scheduler::{Generation, ReplicaId};
use tokio::sync::oneshot;

use crate::config::Upstream;

/// News of a replica, for the dispatcher. Field meanings are those of the scheduler's events of the same names.
#[derive(Debug)]
pub enum BackendEvent {
    /// A load has ended: ready, or failed with words for the client (the last lines of the log in them).
    LoadDone {
        /// Which replica.
        replica: ReplicaId,
        /// Of which load.
        generation: Generation,
        /// Ready, or why not.
        result: Result<(), Failure>,
    },
    /// A stop has ended; the process is reaped.
    StopDone {
        /// Which replica.
        replica: ReplicaId,
        /// Of which load.
        generation: Generation,
    },
    /// A ready replica went away by itself; the process is reaped.
    Exited {
        /// Which replica.
        replica: ReplicaId,
        /// Of which load.
        generation: Generation,
        /// Why, for the client.
        failure: Failure,
    },
    /// A ready replica has told of its own work.
    Sample {
        /// Which replica.
        replica: ReplicaId,
        /// Of which load.
        generation: Generation,
        /// What it told.
        sample: Sample,
        /// How many requests it had been sent when it was asked, by the count that came with its load.
        sent: u64,
    },
    /// A replica was looked at because somebody suspected that it is gone; if it is, that has been told before this.
    Checked(oneshot::Sender<()>),
}

/// Why a model server is not there.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// One sentence, then the last lines of the server's output where there are any.
    pub message: Arc<str>,
}

impl Failure {
    fn new(message: impl Into<Arc<str>>) -> Self {
        Self { message: message.into() }
    }
}

/// The state of a replica's process, for people; nothing decides by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendState {
    /// Not running.
    Stopped,
    /// Started, its health check does not say 200 yet.
    Starting,
    /// Serves.
    Ready,
    /// Asked to stop, not reaped yet.
    Stopping,
    /// The last load failed or it crashed.
    Failed,
}

/// A replica's process, for people.
#[derive(Clone, Debug)]
pub struct BackendSnapshot {
    /// Which.
    pub replica: ReplicaId,
    /// Of which load.
    pub generation: Generation,
    /// Its model's id.
    pub model: String,
    /// Its state.
    pub state: BackendState,
    /// The process's id while there is one.
    pub pid: Option<u32>,
    /// When it entered that state.
    pub since: SystemTime,
    /// How many times it was started.
    pub starts: u64,
    /// Where it answers.
    pub upstream: Upstream,
    /// What it last told of its own work, while it is ready.
    pub sample: Option<Sample>,
}
