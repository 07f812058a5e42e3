//! Why a request is not forwarded, in words for its caller.

use std::{sync::Arc, time::Duration};

use switchyard_scheduler::{FlowDecision, Outcome, RequestId};

use crate::backend::Failure;

/// The scheduler's no.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The request's number.
    pub seq: RequestId,
    /// Why.
    pub outcome: Outcome,
    /// How long it waited.
    pub waited: Duration,
    /// When it is worth coming back.
    pub retry_after: Option<Duration>,
    /// What it waited for last (`flow`).
    pub flow: Option<Box<FlowDecision>>,
    /// For the caller: what happened and what to do about it.
    pub message: Arc<str>,
}

impl Refusal {
    pub(super) fn new(
        seq: RequestId,
        outcome: Outcome,
        waited: Duration,
        retry_after: Option<Duration>,
        failure: Option<&Failure>,
        waiting_limit: Option<u32>,
    ) -> Self {
        let message = match (outcome, failure) {
            (Outcome::LoadFailed, Some(failure)) => Arc::clone(&failure.message),
            (Outcome::LoadFailed, None) => "the model could not be loaded; see /logs".into(),
            (Outcome::RejectedCapacity, _) => {
                "the queue is full and nothing in it is less urgent; try again later, or raise routing.admission".into()
            }
            (Outcome::RejectedLimit, _) => {
                let limit = waiting_limit.map_or_else(String::new, |limit| format!(" ({limit})"));
                format!("as many requests with this key wait already as may{limit}; try again when one of them is done")
                    .into()
            }
            (Outcome::RejectedShed, _) => {
                "the servers are saturated and this request may be shed; try again later".into()
            }
            (Outcome::RejectedTtl, _) => {
                format!("waited {:.1} s in the queue, longer than its time to live allows", waited.as_secs_f64()).into()
            }
            (Outcome::Evicted, _) => "displaced from the full queue by a more urgent request; try again later".into(),
            (Outcome::UnknownModel, _) => "the model is no longer configured".into(),
            (Outcome::Shutdown, _) => "the gateway is shutting down; try again shortly".into(),
        };
        Self { seq, outcome, waited, retry_after, flow: None, message }
    }
}
