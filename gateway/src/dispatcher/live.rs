//! The replicas that are loaded, as far as the dispatcher has to know of them.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use switchyard_scheduler::{Generation, Load, ReplicaId, Timestamp};
use tokio::sync::watch;

use super::Core;
use crate::{
    backend::{Failure, Sample},
    config::Model,
    telemetry::Metrics,
};

/// A loaded replica, as it was configured when it was loaded.
pub(super) struct Live {
    pub(super) generation: Generation,
    pub(super) model: Arc<Model>,
    pub(super) loading_since: Timestamp,
    /// Counts the requests that it was sent.
    pub(super) sent: Arc<AtomicU64>,
    /// Counts those of them that have not ended.
    pub(super) running: Arc<AtomicU64>,
    /// Tells the requests that run on it why it went away.
    pub(super) failure: watch::Sender<Option<Failure>>,
}

impl Core {
    /// Puts what changed about models into force for the replicas that run, and returns those that are elsewhere now.
    pub(super) fn moved(&mut self) -> Vec<(ReplicaId, Generation)> {
        let mut moved = Vec::new();
        for (&replica, live) in &mut self.live {
            let Some(model) = self.models.get(&replica.model) else { continue };
            // Others are stopped, and started anew.
            if !model.has_replica(replica.index) || model.revision != live.model.revision {
                continue;
            }
            let now = model.replica(replica.index);
            if now.upstream == live.model.upstream {
                live.model = now;
            } else {
                moved.push((replica, live.generation));
            }
        }
        moved.sort_unstable();
        moved
    }

    pub(super) fn on_load_done(
        &self,
        metrics: &Metrics,
        now: Timestamp,
        replica: ReplicaId,
        generation: Generation,
        ok: bool,
    ) {
        let Some(live) = self.live.get(&replica).filter(|live| live.generation == generation) else { return };
        let took = now.since(live.loading_since);
        metrics.on_load_done(&live.model.id, took, ok);
        if ok {
            tracing::info!(model = live.model.id, milliseconds = super::micros(took) / 1_000, "ready");
        }
    }

    pub(super) fn on_failure(&self, replica: ReplicaId, generation: Generation, failure: &Failure) {
        let Some(live) = self.live.get(&replica).filter(|live| live.generation == generation) else { return };
        let (model, replica) = (live.model.id.as_str(), replica.index);
        tracing::warn!(model, replica, reason = %failure, "model server failed");
        // What runs on one server of many may come to its end, whatever the server's checks say.
        if !live.model.is_pool() {
            live.failure.send_replace(Some(failure.clone()));
        }
    }

    /// What a replica says of itself lacks what was on its way meanwhile: what it was sent since it was asked, and what
    /// should be there and is not. Whatever is not known to run counts as waiting.
    pub(super) fn fill_in(&self, replica: ReplicaId, sample: &Sample, sent: u64) -> Load {
        let load = sample.load;
        let Some(live) = self.live.get(&replica) else { return load };
        let since = live.sent.load(Ordering::Relaxed).saturating_sub(sent);
        let seen = u64::from(load.waiting).saturating_add(since);
        let running = live.running.load(Ordering::Relaxed);
        let owed = if sample.has_running { running.saturating_sub(load.running.into()) } else { 0 };
        Load { waiting: u32::try_from(seen.max(owed)).unwrap_or(u32::MAX), ..load }
    }
}
