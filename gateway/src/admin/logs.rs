//! What the model servers print, and what the gateway itself does.

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream::BoxStream};
use http::{HeaderName, StatusCode, Version, header};
use pingora::{http::ResponseHeader, protocols::http::ServerSession};

use super::is_head;
use crate::proxy::{Gateway, error::ApiError, reply::Reply};

/// `GET /logs`: what is kept of all of them.
pub(super) fn history(gateway: &Gateway) -> Reply {
    Reply::text(gateway.dispatcher.fleet().logs().tail_all())
}

/// Whose output to follow.
pub(super) enum Source {
    /// That of all models.
    All,
    /// That of the model with this id.
    Model(String),
    /// The gateway's own log.
    Proxy,
}

impl Source {
    /// Nothing and `upstream` mean all models, `proxy` the gateway.
    pub(super) fn find(gateway: &Gateway, name: &str) -> Result<Self, ApiError> {
        let settings = gateway.dispatcher.settings();
        match settings.find(name) {
            Some(model) => Ok(Self::Model(model.id.clone())),
            None if matches!(name, "" | "upstream") => Ok(Self::All),
            None if name == "proxy" => Ok(Self::Proxy),
            None => Err(crate::proxy::unknown_model(&settings, name)),
        }
    }

    fn follow(&self, gateway: &Gateway, with_history: bool) -> BoxStream<'static, Bytes> {
        let logs = gateway.dispatcher.fleet().logs();
        match self {
            Self::All => skip_history(logs.subscribe_all(), !with_history && !logs.tail_all().is_empty()),
            Self::Model(id) => skip_history(logs.subscribe(id), !with_history && !logs.tail(id).is_empty()),
            Self::Proxy => {
                let log = &gateway.own_log;
                skip_history(log.subscribe(), !with_history && !log.tail().is_empty())
            }
        }
    }
}

/// The history is the stream's first item where there is one.
fn skip_history(lines: impl Stream<Item = Bytes> + Send + 'static, skip: bool) -> BoxStream<'static, Bytes> {
    lines.skip(usize::from(skip)).boxed()
}

/// `GET /logs/stream…`: what is kept, unless the query says `no-history`, then what comes, until the client leaves or
/// the gateway closes.
pub(super) async fn stream(gateway: &Gateway, session: &mut ServerSession, source: &Source) -> pingora::Result<()> {
    let query = session.req_header().uri.query().unwrap_or_default();
    let with_history = !form_urlencoded::parse(query.as_bytes()).any(|(key, _)| key == "no-history");
    let mut lines = source.follow(gateway, with_history);
    let mut closing = gateway.closing.clone();

    let mut header = ResponseHeader::build(StatusCode::OK, Some(5))?;
    header.insert_header(header::CONTENT_TYPE, "text/plain; charset=utf-8")?;
    header.insert_header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")?;
    header.insert_header(HeaderName::from_static("x-accel-buffering"), "no")?;
    if session.req_header().version == Version::HTTP_11 {
        header.insert_header(header::TRANSFER_ENCODING, "chunked")?;
    }
    session.write_response_header(Box::new(header)).await?;
    if !is_head(session) {
        loop {
            let line = tokio::select! {
                biased;
                // An error means that nobody is left who could say so.
                _ = closing.wait_for(|closing| *closing) => break,
                line = lines.next() => line,
                gone = session.read_body_or_idle(true) => return gone.map(drop),
            };
            let Some(line) = line else { break };
            session.write_response_body(line, false).await?;
        }
    }
    session.write_response_body(Bytes::new(), true).await
}
