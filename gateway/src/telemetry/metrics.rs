//! Prometheus metrics. Counters count as things happen; gauges of the scheduler's and the backends' present state
//! are set when somebody scrapes.

use std::{fmt, time::Duration};

use parking_lot::Mutex;
use prometheus::{
    Gauge, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry, TextEncoder,
};
use switchyard_scheduler::{Band, BandView, Decision, Outcome, Priority, Timestamp};

use super::{
    ActivityLog, ActivityRecord,
    families::{Families, register},
    pools::{PoolSeries, PoolState},
    tenants::TenantSeries,
};
use crate::backend::{BackendSnapshot, BackendState};

/// The media type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// How a request can have ended, as [`ActivityRecord::outcome`] words it.
const OUTCOMES: [&str; 11] = [
    "dispatched",
    Outcome::RejectedCapacity.as_str(),
    Outcome::RejectedLimit.as_str(),
    Outcome::RejectedTtl.as_str(),
    Outcome::RejectedShed.as_str(),
    Outcome::Evicted.as_str(),
    Outcome::LoadFailed.as_str(),
    Outcome::UnknownModel.as_str(),
    Outcome::Shutdown.as_str(),
    "cancelled",
    "invalid",
];

/// Classes of HTTP statuses by their first digit; `none` when the client left before one was sent.
const CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

const STATES: [(BackendState, &str); 5] = [
    (BackendState::Stopped, "stopped"),
    (BackendState::Starting, "starting"),
    (BackendState::Ready, "ready"),
    (BackendState::Stopping, "stopping"),
    (BackendState::Failed, "failed"),
];

/// The state of things at the moment of a scrape.
#[derive(Clone, Debug)]
pub struct ScrapeState {
    /// The scheduler's now.
    pub now: Timestamp,
    /// What waits in each band, by [`Band::index`].
    pub bands: [BandView; 3],
    /// Requests that run.
    pub running: u64,
    /// Every replica's process.
    pub backends: Vec<BackendSnapshot>,
    /// Every configured model, as the scheduler sees it.
    pub pools: Vec<PoolState>,
    /// Flows that are remembered.
    pub flows: usize,
}

/// Every metric of the gateway. Handles of fixed label sets are resolved once, so that counting a request looks
/// nothing up but its model.
pub struct Metrics {
    registry: Registry,
    bands: [BandSeries; 3],
    responses: [IntCounter; CLASSES.len()],
    swaps: IntCounter,
    running: IntGauge,
    load_seconds: HistogramVec,
    load_failures: IntCounterVec,
    tokens: IntCounterVec,
    tenants: TenantSeries,
    queue_wait: HistogramVec,
    flows: IntGauge,
    pools: PoolSeries,
    callers: IntCounterVec,
    /// Reset and set anew by each scrape, so that a model that is no longer configured leaves no trace.
    backend_state: Mutex<IntGaugeVec>,
}

/// The series of one band.
struct BandSeries {
    queue_depth: Gauge,
    queue_size: Gauge,
    queue_bytes: Gauge,
    oldest_wait: Gauge,
    dispatched: IntCounter,
    reordered_by_aging: IntCounter,
    reordered_by_affinity: IntCounter,
    dispatch_wait: Histogram,
    first_byte: Histogram,
    requests: [IntCounter; OUTCOMES.len()],
}

impl Metrics {
    /// Every series of a fixed label set is there from the start, at 0.
    #[must_use]
    pub fn new() -> Self {
        let families = Families { registry: Registry::new() };
        let band = ["band"].as_slice();
        let queue_depth = families.gauge("llamaswap_scheduler_queue_depth", "Requests that wait.", band);
        let oldest_wait = families.gauge(
            "llamaswap_scheduler_queue_oldest_wait_seconds",
            "How long the request that has waited longest waits.",
            band,
        );
        let dispatched = families.counter("llamaswap_scheduler_dispatched_total", "Requests let through.", band);
        let reorders = families.counter(
            "llamaswap_scheduler_reorders_total",
            "Requests let through where another would have been without this term of the score.",
            &["band", "term"],
        );
        let queue_size = families.gauge("switchyard_queue_size", "Requests that wait.", band);
        let queue_bytes = families.gauge("switchyard_queue_bytes", "Bytes of the bodies of requests that wait.", band);
        let queue_wait = families.histogram(
            "switchyard_queue_wait_seconds",
            "From arrival to dispatch, or to whatever else ended the wait.",
            &["band", "outcome"],
        );
        let first_byte =
            families.histogram("switchyard_first_byte_seconds", "From dispatch to the answer's first byte.", band);
        let requests = families.counter("switchyard_requests_total", "Requests that ended.", &["outcome", "band"]);
        let responses = families.counter("switchyard_responses_total", "Answers by class of status.", &["code"]);
        let swaps = families.counter("switchyard_swaps_total", "Loads for which another model had to leave.", &[]);
        let build = families.int_gauge("switchyard_build_info", "Always 1; the version is in the label.", &["version"]);
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);

        Self {
            bands: Band::ALL.map(|band| {
                let band = band.as_str();
                BandSeries {
                    queue_depth: queue_depth.with_label_values(&[band]),
                    queue_size: queue_size.with_label_values(&[band]),
                    queue_bytes: queue_bytes.with_label_values(&[band]),
                    oldest_wait: oldest_wait.with_label_values(&[band]),
                    dispatched: dispatched.with_label_values(&[band]),
                    reordered_by_aging: reorders.with_label_values(&[band, "aging"]),
                    reordered_by_affinity: reorders.with_label_values(&[band, "swap_affinity"]),
                    dispatch_wait: queue_wait.with_label_values(&[band, "dispatched"]),
                    first_byte: first_byte.with_label_values(&[band]),
                    requests: OUTCOMES.map(|outcome| requests.with_label_values(&[outcome, band])),
                }
            }),
            responses: CLASSES.map(|class| responses.with_label_values(&[class])),
            swaps: swaps.with_label_values::<&str>(&[]),
            running: families.int_gauge("switchyard_running", "Requests that run.", &[]).with_label_values::<&str>(&[]),
            load_seconds: families.histogram(
                "switchyard_load_seconds",
                "From the start of a model server to its first passed health check.",
                &["model"],
            ),
            load_failures: families.counter(
                "switchyard_load_failures_total",
                "Loads that ended without a healthy model server.",
                &["model"],
            ),
            tokens: families.counter(
                "switchyard_tokens_total",
                "Tokens in (prompt) and out (completion), as model servers report them.",
                &["model", "direction"],
            ),
            tenants: TenantSeries::new(&families),
            queue_wait,
            flows: families
                .int_gauge("switchyard_flows", "Tenants at a level of priority that are remembered (flow).", &[])
                .with_label_values::<&str>(&[]),
            pools: PoolSeries::new(&families),
            callers: families.counter(
                "switchyard_caller_decisions_total",
                "Requests by what was decided about their sender, and by its tier. One that is refused for its model \
                 is counted as allowed before.",
                &["decision", "tier"],
            ),
            backend_state: Mutex::new(families.int_gauge(
                "switchyard_backend_state",
                "Replicas of the model that are in this state.",
                &["model", "state"],
            )),
            registry: families.registry,
        }
    }

    /// Adds the activity log's own count of rows that it had to drop.
    pub fn watch_activity(&self, log: &ActivityLog) {
        register(&self.registry, log.dropped_counter());
    }

    /// It was decided whether a request may come in. Both words are from a fixed set: `tier` is a configured one.
    pub fn on_caller(&self, decision: &'static str, tier: &str) {
        self.callers.with_label_values(&[decision, tier]).inc();
    }

    /// A request was let through.
    pub fn on_dispatch(&self, decision: &Decision) {
        let band = &self.bands[decision.band.index()];
        band.dispatched.inc();
        band.dispatch_wait.observe(decision.waited.as_secs_f64());
        if decision.passed_by_aging.is_some() {
            band.reordered_by_aging.inc();
        }
        if decision.passed_by_affinity.is_some() {
            band.reordered_by_affinity.inc();
        }
    }

    /// The tenants that have series of their own from now on, in the order in which they matter; of very many only the
    /// first.
    pub fn know_tenants(&self, tenants: &[String]) {
        self.tenants.configure(tenants);
    }

    /// A model is loaded for which another had to leave.
    pub fn on_swap(&self) {
        self.swaps.inc();
    }

    /// A load of a configured model has ended.
    pub fn on_load_done(&self, model: &str, took: Duration, ok: bool) {
        // Both series are there from the first load on, so that a rate over them never lacks its beginning.
        let failures = self.load_failures.with_label_values(&[model]);
        let seconds = self.load_seconds.with_label_values(&[model]);
        if ok {
            seconds.observe(took.as_secs_f64());
        } else {
            failures.inc();
        }
    }

    /// A request has ended, in whatever way.
    pub fn on_finished(&self, record: &ActivityRecord) {
        let band = &self.bands[Priority(record.serial_priority).band().index()];
        let outcome = OUTCOMES.iter().position(|outcome| *outcome == record.outcome).unwrap_or(OUTCOMES.len() - 1);
        band.requests[outcome].inc();
        self.responses[usize::from(record.status / 100).min(CLASSES.len() - 1)].inc();
        if let Some(ms) = record.first_byte_ms {
            band.first_byte.observe(ms as f64 / 1000.0);
        }
        // Only a dispatched request's model is sure to be a configured one.
        if record.dispatched_ms.is_some() {
            let tokens = [record.prompt_tokens, record.completion_tokens]
                .map(|tokens| tokens.and_then(|tokens| u64::try_from(tokens).ok()).unwrap_or(0));
            for (direction, tokens) in ["prompt", "completion"].into_iter().zip(tokens) {
                if tokens > 0 {
                    self.tokens.with_label_values(&[record.model.as_str(), direction]).inc_by(tokens);
                }
            }
            self.tenants.used(record.tenant.as_deref(), tokens);
        } else if record.seq != 0 {
            let labels = [Priority(record.serial_priority).band().as_str(), OUTCOMES[outcome]];
            self.queue_wait.with_label_values(&labels).observe(record.serial_queue_wait_ms as f64 / 1000.0);
        }
    }

    /// The text for `/metrics`, of type [`CONTENT_TYPE`].
    #[must_use]
    pub fn render(&self, state: &ScrapeState) -> String {
        for (series, view) in self.bands.iter().zip(&state.bands) {
            series.queue_depth.set(view.requests as f64);
            series.queue_size.set(view.requests as f64);
            series.queue_bytes.set(view.bytes as f64);
            series.oldest_wait.set(view.oldest.map_or(0.0, |oldest| state.now.since(oldest).as_secs_f64()));
        }
        self.running.set(i64::try_from(state.running).unwrap_or(i64::MAX));
        self.flows.set(i64::try_from(state.flows).unwrap_or(i64::MAX));
        // Held to the end, so that no other scrape sees the states half set.
        let backend_state = self.backend_state.lock();
        backend_state.reset();
        for backend in &state.backends {
            for (state, name) in STATES {
                let series = backend_state.with_label_values(&[backend.model.as_str(), name]);
                series.add(i64::from(backend.state == state));
            }
        }
        let families = self.pools.set(state, || self.registry.gather());
        // Fails only for a family without a name.
        TextEncoder::new().encode_to_string(&families).unwrap_or_default()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use switchyard_scheduler::{Generation, Load, ModelId, ReplicaId, RequestId};

    use super::*;
    use crate::{backend::Sample, config::Upstream};

    fn idle() -> ScrapeState {
        ScrapeState {
            now: Timestamp::ZERO,
            bands: [BandView::default(); 3],
            running: 0,
            backends: Vec::new(),
            pools: Vec::new(),
            flows: 0,
        }
    }

    fn backend(index: u32, state: BackendState) -> BackendSnapshot {
        BackendSnapshot {
            replica: ReplicaId { model: ModelId(0), index },
            generation: Generation(1),
            model: "m".to_owned(),
            state,
            pid: None,
            since: SystemTime::UNIX_EPOCH,
            starts: 1,
            upstream: Upstream { tls: false, host: "m".to_owned(), port: 1, prefix: String::new() },
            sample: None,
        }
    }

    fn decision(priority: i64, waited: Duration) -> Decision {
        Decision {
            priority: Priority(priority),
            band: Priority(priority).band(),
            model_priority: 0,
            affinity: 0,
            aging: 0.0,
            score: priority as f64,
            waited,
            swap: None,
            passed_by_aging: None,
            passed_by_affinity: None,
            still_waiting: 0,
            flow: None,
        }
    }

    #[track_caller]
    fn assert_line(text: &str, line: &str) {
        assert!(text.lines().any(|found| found == line), "{line}\nis not in\n{text}");
    }

    #[test]
    fn every_fixed_series_is_there_from_the_start() {
        let text = Metrics::new().render(&idle());
        for band in ["batch", "normal", "interactive"] {
            assert_line(&text, &format!("llamaswap_scheduler_queue_depth{{band=\"{band}\"}} 0"));
            assert_line(&text, &format!("llamaswap_scheduler_queue_oldest_wait_seconds{{band=\"{band}\"}} 0"));
            assert_line(&text, &format!("llamaswap_scheduler_dispatched_total{{band=\"{band}\"}} 0"));
            for term in ["aging", "swap_affinity"] {
                let labels = format!("{{band=\"{band}\",term=\"{term}\"}}");
                assert_line(&text, &format!("llamaswap_scheduler_reorders_total{labels} 0"));
            }
            for outcome in OUTCOMES {
                let labels = format!("{{band=\"{band}\",outcome=\"{outcome}\"}}");
                assert_line(&text, &format!("switchyard_requests_total{labels} 0"));
            }
            assert_line(
                &text,
                &format!("switchyard_queue_wait_seconds_count{{band=\"{band}\",outcome=\"dispatched\"}} 0"),
            );
        }
        assert_line(&text, "# TYPE llamaswap_scheduler_queue_depth gauge");
        assert_line(&text, "# TYPE llamaswap_scheduler_queue_oldest_wait_seconds gauge");
        assert_line(&text, "# TYPE llamaswap_scheduler_dispatched_total counter");
        assert_line(&text, "# TYPE llamaswap_scheduler_reorders_total counter");
        assert_line(&text, "switchyard_responses_total{code=\"5xx\"} 0");
        assert_line(&text, "switchyard_running 0");
        assert_line(&text, "switchyard_swaps_total 0");
        assert_line(&text, &format!("switchyard_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn dispatches_and_reorders_count_in_the_band_of_the_request_that_went() {
        let metrics = Metrics::new();
        metrics.on_dispatch(&decision(-100, Duration::from_secs(6000)));
        let aged = Decision { passed_by_aging: Some(RequestId(7)), ..decision(-100, Duration::from_secs(7000)) };
        metrics.on_dispatch(&aged);
        let warm = Decision { passed_by_affinity: Some(RequestId(7)), ..decision(100, Duration::ZERO) };
        metrics.on_dispatch(&warm);
        let text = metrics.render(&idle());
        assert_line(&text, "llamaswap_scheduler_dispatched_total{band=\"batch\"} 2");
        assert_line(&text, "llamaswap_scheduler_dispatched_total{band=\"interactive\"} 1");
        assert_line(&text, "llamaswap_scheduler_reorders_total{band=\"batch\",term=\"aging\"} 1");
        assert_line(&text, "llamaswap_scheduler_reorders_total{band=\"batch\",term=\"swap_affinity\"} 0");
        assert_line(&text, "llamaswap_scheduler_reorders_total{band=\"interactive\",term=\"swap_affinity\"} 1");
        assert_line(&text, "switchyard_queue_wait_seconds_bucket{band=\"batch\",outcome=\"dispatched\",le=\"3600\"} 0");
        assert_line(
            &text,
            "switchyard_queue_wait_seconds_bucket{band=\"batch\",outcome=\"dispatched\",le=\"14400\"} 2",
        );
    }

    #[test]
    fn a_scrape_shows_the_present_state_and_forgets_models_that_are_gone() {
        let metrics = Metrics::new();
        let mut state = idle();
        state.now = Timestamp::from_secs(100);
        state.running = 3;
        state.bands[Band::Batch.index()] =
            BandView { requests: 4, bytes: 9, oldest: Some(Timestamp::from_millis(500)) };
        state.backends = vec![backend(0, BackendState::Ready), backend(1, BackendState::Ready)];
        let text = metrics.render(&state);
        assert_line(&text, "llamaswap_scheduler_queue_depth{band=\"batch\"} 4");
        assert_line(&text, "llamaswap_scheduler_queue_oldest_wait_seconds{band=\"batch\"} 99.5");
        assert_line(&text, "switchyard_running 3");
        assert_line(&text, "switchyard_backend_state{model=\"m\",state=\"ready\"} 2");
        assert_line(&text, "switchyard_backend_state{model=\"m\",state=\"failed\"} 0");
        let text = metrics.render(&idle());
        assert_line(&text, "llamaswap_scheduler_queue_oldest_wait_seconds{band=\"batch\"} 0");
        assert!(!text.contains("model=\"m\""), "{text}");
    }

    #[test]
    fn an_ended_request_counts_by_outcome_status_and_tokens() {
        let metrics = Metrics::new();
        let record = ActivityRecord {
            serial_priority: 100,
            outcome: "dispatched".into(),
            status: 200,
            model: "m".to_owned(),
            dispatched_ms: Some(1),
            first_byte_ms: Some(250),
            prompt_tokens: Some(5),
            completion_tokens: Some(7),
            ..ActivityRecord::default()
        };
        metrics.on_finished(&record);
        metrics.on_finished(&record);
        let unknown = ActivityRecord {
            outcome: "invalid".into(),
            model: "whatever a client sends".to_owned(),
            status: 404,
            prompt_tokens: Some(1),
            ..ActivityRecord::default()
        };
        metrics.on_finished(&unknown);
        metrics.on_finished(&ActivityRecord { outcome: "cancelled".into(), ..ActivityRecord::default() });
        let text = metrics.render(&idle());
        assert_line(&text, "switchyard_requests_total{band=\"interactive\",outcome=\"dispatched\"} 2");
        assert_line(&text, "switchyard_requests_total{band=\"normal\",outcome=\"invalid\"} 1");
        assert_line(&text, "switchyard_requests_total{band=\"normal\",outcome=\"cancelled\"} 1");
        assert_line(&text, "switchyard_responses_total{code=\"2xx\"} 2");
        assert_line(&text, "switchyard_responses_total{code=\"4xx\"} 1");
        assert_line(&text, "switchyard_responses_total{code=\"none\"} 1");
        assert_line(&text, "switchyard_tokens_total{direction=\"prompt\",model=\"m\"} 10");
        assert_line(&text, "switchyard_tokens_total{direction=\"completion\",model=\"m\"} 14");
        assert_line(&text, "switchyard_first_byte_seconds_sum{band=\"interactive\"} 0.5");
        assert!(!text.contains("whatever a client sends"), "{text}");
    }

    #[test]
    fn pools_are_told_from_both_sides_and_forgotten() {
        let metrics = Metrics::new();
        let mut state = idle();
        let load = Load { running: 4, waiting: 2, kv_cache: Some(0.25) };
        let sample = Sample { load, has_running: true, preemptions: Some(3) };
        state.backends = vec![BackendSnapshot { sample: Some(sample), ..backend(1, BackendState::Ready) }];
        let held = [7, 0, 1];
        let in_flight = vec![(0, 5), (1, 6)];
        state.pools = vec![PoolState { model: "m".to_owned(), saturation: Some(0.75), held, in_flight }];
        state.bands[Band::Batch.index()].bytes = 9;
        state.flows = 12;
        for _ in 0..2 {
            let text = metrics.render(&state);
            assert_line(&text, "switchyard_saturation{model=\"m\"} 0.75");
            assert_line(&text, "switchyard_ceiling_hits_total{band=\"batch\",model=\"m\"} 7");
            assert_line(&text, "switchyard_ceiling_hits_total{band=\"interactive\",model=\"m\"} 1");
            assert_line(&text, "switchyard_replica_in_flight{model=\"m\",replica=\"1\"} 6");
            assert_line(&text, "switchyard_replica_running{model=\"m\",replica=\"1\"} 4");
            assert_line(&text, "switchyard_replica_waiting{model=\"m\",replica=\"1\"} 2");
            assert_line(&text, "switchyard_replica_kv_cache_usage_ratio{model=\"m\",replica=\"1\"} 0.25");
            assert_line(&text, "switchyard_replica_preemptions_total{model=\"m\",replica=\"1\"} 3");
            assert_line(&text, "switchyard_queue_bytes{band=\"batch\"} 9");
            assert_line(&text, "switchyard_flows 12");
        }
        assert!(!metrics.render(&idle()).contains("model=\"m\""));
    }

    #[test]
    fn only_configured_tenants_have_series() {
        let metrics = Metrics::new();
        let tenants: Vec<_> = (0..200).map(|number| format!("t{number}")).collect();
        metrics.know_tenants(&tenants);
        let ends = |tenant: Option<&str>| {
            metrics.on_finished(&ActivityRecord {
                tenant: tenant.map(str::to_owned),
                dispatched_ms: Some(1),
                prompt_tokens: Some(5),
                completion_tokens: Some(7),
                ..ActivityRecord::default()
            });
        };
        [Some("t0"), Some("t0"), Some("t150"), Some("stranger"), None].into_iter().for_each(ends);
        let text = metrics.render(&idle());
        assert_line(&text, "switchyard_tenant_tokens_total{direction=\"completion\",tenant=\"t0\"} 14");
        assert_line(&text, "switchyard_tenant_tokens_total{direction=\"prompt\",tenant=\"other\"} 15");
        assert!(!text.contains("stranger") && !text.contains("t150"));
        metrics.know_tenants(&tenants[1..2]);
        let text = metrics.render(&idle());
        assert!(!text.contains("\"t0\"") && text.contains("\"t1\""));
    }

    #[test]
    fn waits_that_end_otherwise_count_by_outcome() {
        let metrics = Metrics::new();
        let record = |outcome: &'static str, seq| ActivityRecord {
            outcome: outcome.into(),
            seq,
            serial_priority: -100,
            serial_queue_wait_ms: 400,
            ..ActivityRecord::default()
        };
        metrics.on_finished(&record("rejected_ttl", 1));
        metrics.on_finished(&record("cancelled", 2));
        metrics.on_finished(&record("invalid", 0));
        let text = metrics.render(&idle());
        let line = |outcome: &str| {
            format!("switchyard_queue_wait_seconds_bucket{{band=\"batch\",outcome=\"{outcome}\",le=\"0.5\"}} 1")
        };
        assert_line(&text, &line("rejected_ttl"));
        assert_line(&text, &line("cancelled"));
        assert!(!text.contains("outcome=\"invalid\",le"), "it never waited");
    }

    #[test]
    fn loads_count_by_model() {
        let metrics = Metrics::new();
        metrics.on_load_done("m", Duration::from_secs(12), true);
        metrics.on_load_done("m", Duration::from_secs(1), false);
        metrics.on_swap();
        let text = metrics.render(&idle());
        assert_line(&text, "switchyard_load_seconds_sum{model=\"m\"} 12");
        assert_line(&text, "switchyard_load_failures_total{model=\"m\"} 1");
        assert_line(&text, "switchyard_swaps_total 1");
    }
}
