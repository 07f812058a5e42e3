//! Metrics of models' replicas, from both sides: what the scheduler lets through to them, and what they say themselves.

use parking_lot::Mutex;
use prometheus::{GaugeVec, IntCounterVec, IntGaugeVec};
use switchyard_scheduler::Band;

use super::{families::Families, metrics::ScrapeState};

/// One model, as the scheduler sees it.
#[derive(Clone, Debug)]
pub struct PoolState {
    /// Its id.
    pub model: String,
    /// How full its ready replicas are, from 0; none while none is ready.
    pub saturation: Option<f64>,
    /// How often waiting requests of each band, by [`Band::index`], came up against their ceiling.
    pub held: [u64; 3],
    /// Requests that run, by replica.
    pub in_flight: Vec<(u32, u64)>,
}

/// Reset and set anew by each scrape, so that a model that is no longer configured leaves no trace.
pub(super) struct PoolSeries(Mutex<Vecs>);

struct Vecs {
    saturation: GaugeVec,
    held: IntCounterVec,
    in_flight: IntGaugeVec,
    running: IntGaugeVec,
    waiting: IntGaugeVec,
    kv_cache: GaugeVec,
    preemptions: IntCounterVec,
}

impl PoolSeries {
    pub(super) fn new(families: &Families) -> Self {
        let (model, replica) = (["model"].as_slice(), ["model", "replica"].as_slice());
        Self(Mutex::new(Vecs {
            saturation: families.gauge(
                "switchyard_saturation",
                "How full the model's ready replicas are, from 0; at 1 and more the rest waits.",
                model,
            ),
            held: families.counter(
                "switchyard_ceiling_hits_total",
                "How often waiting requests came up against the ceiling of their band.",
                &["model", "band"],
            ),
            in_flight: families.int_gauge(
                "switchyard_replica_in_flight",
                "Requests that it was sent and that run.",
                replica,
            ),
            running: families.int_gauge("switchyard_replica_running", "Requests in its batch, as it says.", replica),
            waiting: families.int_gauge(
                "switchyard_replica_waiting",
                "Requests in its own queue, as it says.",
                replica,
            ),
            kv_cache: families.gauge(
                "switchyard_replica_kv_cache_usage_ratio",
                "The used part of its KV cache, as it says.",
                replica,
            ),
            preemptions: families.counter(
                "switchyard_replica_preemptions_total",
                "Requests that it had to interrupt for want of memory, as it says.",
                replica,
            ),
        }))
    }

    /// Sets everything, and gathers while nobody else can.
    pub(super) fn set<T>(&self, state: &ScrapeState, gather: impl FnOnce() -> T) -> T {
        let vecs = self.0.lock();
        vecs.saturation.reset();
        vecs.held.reset();
        vecs.in_flight.reset();
        for pool in &state.pools {
            let model = pool.model.as_str();
            if let Some(saturation) = pool.saturation {
                vecs.saturation.with_label_values(&[model]).set(saturation);
            }
            for band in Band::ALL {
                vecs.held.with_label_values(&[model, band.as_str()]).inc_by(pool.held[band.index()]);
            }
            for (replica, running) in &pool.in_flight {
                let running = i64::try_from(*running).unwrap_or(i64::MAX);
                vecs.in_flight.with_label_values(&[model, &replica.to_string()]).set(running);
            }
        }
        vecs.running.reset();
        vecs.waiting.reset();
        vecs.kv_cache.reset();
        vecs.preemptions.reset();
        for backend in &state.backends {
            let Some(sample) = backend.sample else { continue };
            let replica = backend.replica.index.to_string();
            let labels = [backend.model.as_str(), &replica];
            vecs.running.with_label_values(&labels).set(sample.load.running.into());
            vecs.waiting.with_label_values(&labels).set(sample.load.waiting.into());
            if let Some(used) = sample.load.kv_cache {
                vecs.kv_cache.with_label_values(&labels).set(used);
            }
            if let Some(preemptions) = sample.preemptions {
                vecs.preemptions.with_label_values(&labels).inc_by(preemptions);
            }
        }
        gather()
    }
}
