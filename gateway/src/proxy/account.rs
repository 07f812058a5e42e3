//! What is written down about a request, whatever becomes of it.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use http::{HeaderValue, StatusCode};
use switchyard_scheduler::{Decision, FairnessSettings, Priority, Usage};

use super::{
    caller::Caller,
    error::{ApiError, Dialect},
};
use crate::{
    dispatcher::{Refusal, Slot},
    telemetry::{ActivityLog, ActivityRecord, Metrics, UsageScanner},
};

/// A request's record while it runs. Dropping it writes the record, so that no ending goes unrecorded: an answer, a
/// refusal, a client that left, a panic.
pub(crate) struct Account {
    pub(crate) request_id: HeaderValue,
    pub(crate) dialect: Dialect,
    pub(super) caller: Caller,
    record: ActivityRecord,
    arrived: Instant,
    dispatched: Option<Instant>,
    /// From its dispatch to the first byte of a stream.
    first_token: Option<Duration>,
    usage: Option<UsageScanner>,
    metrics: Arc<Metrics>,
    activity: ActivityLog,
}

impl Account {
    /// A request has arrived. Until more is known it counts as cancelled by its client.
    pub(super) fn open(
        metrics: &Arc<Metrics>,
        activity: &ActivityLog,
        request_id: HeaderValue,
        path: Cow<'static, str>,
        dialect: Dialect,
        caller: Caller,
        unread_priority: Option<Box<str>>,
    ) -> Self {
        let record = ActivityRecord {
            unread_priority,
            id: String::from_utf8_lossy(request_id.as_bytes()).into_owned(),
            arrived_ms: unix_ms(),
            path,
            outcome: "cancelled".into(),
            ..ActivityRecord::default()
        };
        Self {
            request_id,
            dialect,
            caller,
            record,
            arrived: Instant::now(),
            dispatched: None,
            first_token: None,
            usage: None,
            metrics: Arc::clone(metrics),
            activity: activity.clone(),
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.record.id
    }

    pub(super) fn model(&mut self, id: &str) {
        id.clone_into(&mut self.record.model);
    }

    pub(super) fn body(&mut self, bytes: usize) {
        self.record.request_bytes = signed(bytes);
    }

    pub(super) fn queued(&mut self, seq: u64, priority: Priority) {
        self.record.seq = seq;
        self.record.serial_priority = priority.0;
        self.record.serial_score = priority.0 as f64;
    }

    pub(super) fn dispatched(&mut self, decision: &Decision, replica: u32) {
        self.dispatched = Some(Instant::now());
        let record = &mut self.record;
        record.replica = Some(replica);
        if let Some(flow) = &decision.flow {
            record.fairness = Some(fairness(flow.fairness).into());
            record.fairness_ahead = Some(flow.ahead);
            record.saturation = flow.saturation;
            record.ceiling = Some(flow.ceiling);
        }
        record.dispatched_ms = Some(unix_ms());
        record.outcome = "dispatched".into();
        record.serial_score = decision.score;
        record.serial_queue_wait_ms = millis(decision.waited);
        record.affinity = i64::from(decision.affinity);
        record.aging = decision.aging;
        record.model_priority = decision.model_priority;
        record.swap_ms = decision.swap.map(millis);
        record.passed_by_aging = decision.passed_by_aging.map(|id| id.0);
        record.passed_by_affinity = decision.passed_by_affinity.map(|id| id.0);
    }

    /// Its server turned out to be gone: it waits for another.
    pub(super) fn requeued(&mut self) {
        self.record.outcome = "cancelled".into();
        self.dispatched = None;
        // How full the servers were then says nothing of what it waits for now.
        (self.record.dispatched_ms, self.record.saturation, self.record.ceiling) = (None, None, None);
    }

    pub(super) fn refused(&mut self, refusal: &Refusal) {
        self.record.outcome = refusal.outcome.as_str().into();
        self.record.serial_queue_wait_ms = millis(refusal.waited);
        if let Some(flow) = &refusal.flow {
            self.record.saturation = flow.saturation;
            self.record.ceiling = Some(flow.ceiling);
        }
    }

    /// The request is answered with an error.
    pub(super) fn failed(&mut self, error: &ApiError) {
        if self.record.seq == 0 {
            self.record.outcome = "invalid".into();
        }
        if self.record.status == 0 {
            self.record.status = error.status.as_u16();
        }
        self.record.error = Some(error.message.clone().into_owned());
    }

    /// The client went away.
    pub(super) fn abandoned(&mut self) {
        self.record.error.get_or_insert_with(|| "the client closed the connection".to_owned());
    }

    /// The model server's header is there.
    pub(super) fn answered(&mut self, status: StatusCode, events: bool) {
        self.record.status = status.as_u16();
        self.record.stream = events;
        self.usage = Some(UsageScanner::new(events));
    }

    /// A piece of the model server's body.
    pub(super) fn chunk(&mut self, bytes: &[u8]) {
        if self.record.response_bytes == 0 {
            let first_byte = self.dispatched.map(|at| at.elapsed());
            self.record.first_byte_ms = first_byte.map(millis);
            self.first_token = first_byte.filter(|_| self.record.stream);
        }
        self.record.response_bytes += signed(bytes.len());
        if let Some(usage) = &mut self.usage {
            usage.feed(bytes);
        }
    }

    /// Gives the slot back, with what was used.
    pub(super) fn release(&mut self, slot: &mut Option<Slot>) {
        if let Some(mut slot) = slot.take() {
            slot.set_usage(self.settle());
        }
    }

    /// Writes the tokens into the record.
    fn settle(&mut self) -> Usage {
        let Some(usage) = self.usage.take() else { return Usage::default() };
        let usage = usage.usage();
        let tokens = |count: Option<u64>| count.and_then(|count| i64::try_from(count).ok());
        self.record.prompt_tokens = tokens(usage.prompt_tokens);
        self.record.completion_tokens = tokens(usage.completion_tokens);
        Usage { first_token: self.first_token, ..usage.into() }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.settle();
        let mut record = std::mem::take(&mut self.record);
        record.serial_band = Priority(record.serial_priority).band().as_str().into();
        record.tenant = self.caller.tenant.take();
        record.tier = self.caller.tier.take();
        record.ended_ms = unix_ms();
        record.duration_ms = millis(self.arrived.elapsed());
        if record.seq != 0 && record.outcome == "cancelled" {
            record.serial_queue_wait_ms = record.duration_ms;
        }
        self.metrics.on_finished(&record);
        self.activity.record(record);
    }
}

fn fairness(policy: FairnessSettings) -> &'static str {
    match policy {
        FairnessSettings::GlobalStrict => "global-strict",
        FairnessSettings::RoundRobin => "round-robin",
        FairnessSettings::Weighted => "weighted",
    }
}

fn unix_ms() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, millis)
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
