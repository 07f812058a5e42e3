//! Reads a request's body into memory, as far as it may.

use std::time::Duration;

use bytes::Bytes;
use http::{StatusCode, header};
use pingora::protocols::http::ServerSession;

use super::error::ApiError;
use crate::config::Limits;

/// Trusted in advance from a client's `Content-Length`; beyond, memory grows with what really comes.
const MAX_PREALLOCATION: u64 = 1 << 20;

/// Why there is no body.
pub(super) enum BodyError {
    /// It will not be read.
    Refused(ApiError),
    /// The client went away in the middle of it.
    Gone,
}

pub(super) async fn read(session: &mut ServerSession, limits: &Limits) -> Result<Bytes, BodyError> {
    let length = content_length(session);
    if length.is_some_and(|length| length > limits.body_bytes) {
        return Err(too_large(limits.body_bytes));
    }
    let waits =
        session.get_header(header::EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    if waits {
        // Pingora takes this for the whole answer, and would close a connection whose body was not read before it.
        let keepalive = session.get_keepalive();
        session.write_continue_response().await.map_err(|_| BodyError::Gone)?;
        session.set_keepalive(keepalive);
    }
    let Some(first) = chunk(session, limits.body_read_timeout).await? else { return Ok(Bytes::new()) };
    if first.len() as u64 > limits.body_bytes {
        return Err(too_large(limits.body_bytes));
    }
    // What came in one piece stays where it is.
    if length == Some(first.len() as u64) {
        return Ok(first);
    }
    let expected = length.unwrap_or(0).min(MAX_PREALLOCATION).max(first.len() as u64);
    let mut body = Vec::with_capacity(usize::try_from(expected).unwrap_or_default());
    body.extend_from_slice(&first);
    drop(first);
    while let Some(chunk) = chunk(session, limits.body_read_timeout).await? {
        if (body.len() + chunk.len()) as u64 > limits.body_bytes {
            return Err(too_large(limits.body_bytes));
        }
        body.extend_from_slice(&chunk);
    }
    // It may wait for long.
    body.shrink_to_fit();
    Ok(body.into())
}

async fn chunk(session: &mut ServerSession, pause: Duration) -> Result<Option<Bytes>, BodyError> {
    match tokio::time::timeout(pause, session.read_request_body()).await {
        Ok(Ok(chunk)) => Ok(chunk),
        Ok(Err(error)) if is_framing_error(&error) => {
            Err(BodyError::Refused(ApiError::bad_request("invalid_framing", "the body is not framed as HTTP wants it")))
        }
        Ok(Err(_)) => Err(BodyError::Gone),
        Err(_) => {
            let message = format!("no part of the body came for {} s", pause.as_secs_f64());
            Err(BodyError::Refused(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message)))
        }
    }
}

fn is_framing_error(error: &pingora::Error) -> bool {
    // Pingora names these two only within itself.
    matches!(error.etype().as_str(), "InvalidChunk" | "InvalidTrailerEnd")
}

fn content_length(session: &ServerSession) -> Option<u64> {
    session.get_header(header::CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
}

fn too_large(limit: u64) -> BodyError {
    let message =
        format!("the body is larger than {limit} bytes; the limit can be raised in the gateway's configuration");
    BodyError::Refused(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message))
}
