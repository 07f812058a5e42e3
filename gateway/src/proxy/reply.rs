//! Answers of the gateway's own.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use pingora::{http::ResponseHeader, protocols::http::ServerSession};

/// What is read and thrown away after a refusal, so that the client comes to read it: closing a socket with unread
/// bytes resets the connection, and the reset can destroy the answer on its way.
const LINGER_BYTES: usize = 64 << 20;
const LINGER_TIME: Duration = Duration::from_secs(5);

/// An answer whose body is at hand.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn new(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        let headers = vec![(header::CONTENT_TYPE, HeaderValue::from_static(content_type))];
        Self { status, headers, body: body.into() }
    }

    pub(crate) fn text(body: impl Into<Bytes>) -> Self {
        Self::new(StatusCode::OK, "text/plain; charset=utf-8", body)
    }

    pub(crate) fn json(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self::new(status, "application/json", body)
    }

    pub(crate) fn empty(status: StatusCode) -> Self {
        Self { status, headers: Vec::new(), body: Bytes::new() }
    }

    pub(crate) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Sends it. Errors are the client's going away.
    pub(crate) async fn send(self, session: &mut ServerSession) -> pingora::Result<()> {
        let mut header = ResponseHeader::build(self.status, Some(self.headers.len() + 4))?;
        if self.status != StatusCode::NO_CONTENT {
            header.insert_header(header::CONTENT_LENGTH, self.body.len())?;
        }
        for (name, value) in self.headers {
            header.insert_header(name, value)?;
        }
        let head = session.req_header().method == Method::HEAD;
        session.write_response_header(Box::new(header)).await?;
        session.write_response_body(if head { Bytes::new() } else { self.body }, true).await?;
        // A client that waits for `100 Continue` will not send what it was not asked for.
        if !session.is_body_done() && session.get_header(header::EXPECT).is_none() {
            discard_body(session).await;
        }
        Ok(())
    }
}

async fn discard_body(session: &mut ServerSession) {
    let mut read = 0;
    let _ = tokio::time::timeout(LINGER_TIME, async {
        while let Ok(Some(chunk)) = session.read_request_body().await {
            read += chunk.len();
            if read > LINGER_BYTES {
                break;
            }
        }
    })
    .await;
}
