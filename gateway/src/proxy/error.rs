//! Refusals in the words and the shape that the caller's client library expects.

use std::{borrow::Cow, time::Duration};

use http::{HeaderName, HeaderValue, StatusCode, header};
use pingora::proxy::Session;
use serde_json::json;
use switchyard_policy::Denial;
use switchyard_scheduler::Outcome;

use super::{
    headers,
    reply::Reply,
    routes::{self, Route},
};
use crate::dispatcher::Refusal;

/// Which API a path belongs to, and with it the shape of its errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `{"error":{"message","type","code","param"}}`.
    #[default]
    OpenAi,
    /// `{"type":"error","error":{"type","message"},"request_id"}`.
    Anthropic,
}

/// Why a request is refused or has failed: the answer to it, in the shape that its client reads.
#[derive(Debug)]
pub struct ApiError {
    pub(crate) status: StatusCode,
    /// For programs; stable.
    pub(crate) code: &'static str,
    /// For people: what is wrong and what would be right.
    pub(crate) message: Cow<'static, str>,
    /// The part of the request that is at fault.
    pub(crate) param: Option<&'static str>,
    /// What goes with it, such as `Allow`.
    pub(crate) headers: Vec<(header::HeaderName, HeaderValue)>,
    /// The body where somebody else has written it.
    body: Option<String>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self { status, code, message: message.into(), param: None, headers: Vec::new(), body: None }
    }

    /// The policy's no, in its own words.
    pub(crate) fn denied(denial: Denial<'_>) -> Self {
        let status = StatusCode::from_u16(denial.status).unwrap_or(StatusCode::FORBIDDEN);
        let headers = denial.headers.into_iter().filter(|(name, _)| *name != header::CONTENT_TYPE.as_str());
        let headers = headers.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        let mut error = Self::new(status, denial.reason.code(), denial.reason.message());
        error.headers = headers.collect();
        error.body = Some(denial.body);
        error
    }

    pub(crate) fn bad_request(code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// The model server is gone, could not be reached, or broke off.
    pub(crate) fn bad_gateway(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, "model_server_failed", message)
    }

    pub(crate) fn on(mut self, param: &'static str) -> Self {
        self.param = Some(param);
        self
    }

    pub(crate) fn with(mut self, name: header::HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// The scheduler's no.
    pub(crate) fn refused(refusal: &Refusal, no_endpoint: bool) -> Self {
        let (status, dropped) = match refusal.outcome {
            Outcome::RejectedCapacity | Outcome::RejectedLimit | Outcome::RejectedShed => {
                (StatusCode::TOO_MANY_REQUESTS, Some("rejected-saturated"))
            }
            Outcome::Evicted => (StatusCode::TOO_MANY_REQUESTS, Some("evicted-priority")),
            Outcome::RejectedTtl if no_endpoint => (StatusCode::SERVICE_UNAVAILABLE, Some("rejected-no-endpoints")),
            Outcome::RejectedTtl => (StatusCode::TOO_MANY_REQUESTS, Some("rejected-ttl-expired")),
            Outcome::LoadFailed => (StatusCode::BAD_GATEWAY, None),
            Outcome::UnknownModel => (StatusCode::NOT_FOUND, None),
            Outcome::Shutdown => (StatusCode::SERVICE_UNAVAILABLE, Some("rejected-shutting-down")),
        };
        let hint = match dropped {
            Some("rejected-no-endpoints") => "; no server of its model is ready: see GET /running",
            _ => "",
        };
        let mut error = Self::new(status, refusal.outcome.as_str(), format!("{}{hint}", refusal.message));
        if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            error = error.with(header::RETRY_AFTER, retry_after(refusal.retry_after));
        }
        if let Some(dropped) = dropped {
            error = error.with(DROPPED_REASON, HeaderValue::from_static(dropped));
        }
        error
    }

    /// Answers a request in somebody's own Pingora proxy, from its request filter: what this returns says that the
    /// request is done with.
    ///
    /// # Errors
    /// The client's going away.
    pub async fn send(self, session: &mut Session) -> pingora::Result<bool> {
        let session = &mut *session.downstream_session;
        let request = session.req_header();
        let dialect = match routes::find(&request.method, request.uri.path()) {
            Ok(Route::Inference(inference)) => inference.dialect,
            _ => Dialect::default(),
        };
        let id = headers::request_id(&request.headers);
        self.reply(dialect, &id).send(session).await.map(|()| true)
    }

    /// The answer in the caller's dialect.
    pub(crate) fn reply(self, dialect: Dialect, request_id: &HeaderValue) -> Reply {
        let body = self.to_json(dialect, request_id.to_str().unwrap_or_default());
        let mut reply = Reply::json(self.status, body).with(headers::REQUEST_ID, request_id.clone());
        reply.headers.extend(self.headers);
        reply
    }

    /// The body in the caller's dialect.
    pub(crate) fn to_json(&self, dialect: Dialect, request_id: &str) -> String {
        if let Some(body) = &self.body {
            return body.clone();
        }
        match dialect {
            Dialect::OpenAi => {
                let Self { code, message, param, .. } = self;
                json!({ "error": { "message": message, "type": self.openai_type(), "code": code, "param": param } })
            }
            Dialect::Anthropic => json!({
                "type": "error",
                "error": { "type": self.anthropic_type(), "message": self.message },
                "request_id": request_id,
            }),
        }
        .to_string()
    }

    /// The body as an event of a stream whose header is out already.
    pub(crate) fn to_event(&self, dialect: Dialect, request_id: &str) -> String {
        format!("event: error\ndata: {}\n\n", self.to_json(dialect, request_id))
    }

    fn openai_type(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "server_error",
        }
    }

    fn anthropic_type(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "api_error",
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        Self::refused(&refusal, false)
    }
}

const DROPPED_REASON: header::HeaderName = header::HeaderName::from_static("x-llm-d-request-dropped-reason");

/// Whole seconds, at least one.
fn retry_after(estimate: Option<Duration>) -> HeaderValue {
    let seconds = estimate.map_or(1, |estimate| estimate.as_secs() + u64::from(estimate.subsec_nanos() > 0));
    HeaderValue::from(seconds.max(1))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use switchyard_scheduler::RequestId;

    use super::*;

    fn refusal(outcome: Outcome, retry_after: Option<Duration>) -> Refusal {
        let (seq, waited) = (RequestId(1), Duration::ZERO);
        Refusal { seq, outcome, waited, retry_after, flow: None, message: "why".into() }
    }

    fn header<'a>(error: &'a ApiError, name: &str) -> Option<&'a str> {
        error.headers.iter().find(|(known, _)| known == name).and_then(|(_, value)| value.to_str().ok())
    }

    #[test]
    fn openai_shape() {
        let error = ApiError::bad_request("model_missing", "no model").on("model");
        let body: Value = serde_json::from_str(&error.to_json(Dialect::OpenAi, "id")).expect("JSON");
        let expected = json!({ "error": {
            "message": "no model", "type": "invalid_request_error", "code": "model_missing", "param": "model",
        } });
        assert_eq!(body, expected);
    }

    #[test]
    fn anthropic_shape() {
        let error = ApiError::bad_gateway("gone");
        let body: Value = serde_json::from_str(&error.to_json(Dialect::Anthropic, "id")).expect("JSON");
        let expected =
            json!({ "type": "error", "error": { "type": "api_error", "message": "gone" }, "request_id": "id" });
        assert_eq!(body, expected);
    }

    #[test]
    fn an_event_is_one_data_line() {
        let event = ApiError::bad_gateway("two\nlines").to_event(Dialect::OpenAi, "id");
        let lines: Vec<_> = event.split('\n').collect();
        assert_eq!(lines.len(), 4);
        assert_eq!((lines[0], lines[2], lines[3]), ("event: error", "", ""));
        let data = lines[1].strip_prefix("data: ").expect("data");
        let body: Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(body["error"]["message"], "two\nlines");
    }

    #[test]
    fn refusals_have_the_documented_status_and_headers() {
        for (outcome, no_endpoint, status, dropped) in [
            (Outcome::RejectedCapacity, false, 429, Some("rejected-saturated")),
            (Outcome::RejectedLimit, false, 429, Some("rejected-saturated")),
            (Outcome::RejectedShed, false, 429, Some("rejected-saturated")),
            (Outcome::Evicted, false, 429, Some("evicted-priority")),
            (Outcome::RejectedTtl, false, 429, Some("rejected-ttl-expired")),
            (Outcome::RejectedTtl, true, 503, Some("rejected-no-endpoints")),
            (Outcome::LoadFailed, false, 502, None),
            (Outcome::UnknownModel, false, 404, None),
            (Outcome::Shutdown, false, 503, Some("rejected-shutting-down")),
        ] {
            let error = ApiError::refused(&refusal(outcome, Some(Duration::from_millis(2_001))), no_endpoint);
            assert_eq!(error.status.as_u16(), status, "{outcome:?}");
            assert_eq!(error.message.contains("no server of its model"), no_endpoint, "{outcome:?}");
            assert_eq!(header(&error, "x-llm-d-request-dropped-reason"), dropped, "{outcome:?}");
            let retry = matches!(status, 429 | 503).then_some("3");
            assert_eq!(header(&error, "retry-after"), retry, "{outcome:?}");
        }
    }

    #[test]
    fn retry_after_is_never_zero() {
        let error = ApiError::refused(&refusal(Outcome::RejectedCapacity, Some(Duration::ZERO)), false);
        assert_eq!(header(&error, "retry-after"), Some("1"));
    }
}
