//! The endpoints that the gateway answers itself.

mod activity;
mod logs;
mod models;

use http::{HeaderValue, Method, StatusCode, header};
use pingora::protocols::http::ServerSession;
use serde_json::json;

use crate::{
    proxy::{
        Gateway,
        error::{ApiError, Dialect},
        headers,
        reply::Reply,
        routes,
    },
    telemetry,
};

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `/`.
    Root,
    /// `/health`, which needs no key.
    Health,
    /// `/metrics`.
    Metrics,
    /// `/v1/models`.
    Models,
    /// `/running`.
    Running,
    /// `/unload`, as llama-swap spells it.
    Unload,
    /// `/api/models/unload`.
    UnloadAll,
    /// `/api/models/unload/MODEL`.
    UnloadModel,
    /// `/logs`.
    Logs,
    /// `/logs/stream`, `/logs/stream/MODEL` and `/logs/stream/proxy`.
    LogStream,
    /// `/api/activity`.
    ActivityList,
    /// `/api/activity/ID`.
    ActivityItem,
    /// `/api/version`.
    Version,
}

/// Answers. `rest` is what follows the endpoint's path, percent-encoded.
pub(crate) async fn answer(
    gateway: &Gateway,
    session: &mut ServerSession,
    endpoint: Endpoint,
    rest: &str,
) -> pingora::Result<()> {
    let rest = percent_encoding::percent_decode_str(rest).decode_utf8_lossy();
    let dispatcher = &gateway.dispatcher;
    let reply = match endpoint {
        Endpoint::Root => Ok(Reply::text(routes::listing())),
        Endpoint::Health => Ok(Reply::text("OK")),
        Endpoint::Metrics => {
            let text = gateway.metrics.render(&dispatcher.scrape_state());
            Ok(Reply::new(StatusCode::OK, telemetry::CONTENT_TYPE, text))
        }
        Endpoint::Models => Ok(allow_origin(models::list(dispatcher, &session.req_header().headers), session)),
        Endpoint::Running => Ok(models::running(dispatcher)),
        Endpoint::Unload => {
            dispatcher.unload(None);
            Ok(Reply::text("OK"))
        }
        Endpoint::UnloadAll => {
            dispatcher.unload(None);
            Ok(Reply::json(StatusCode::OK, json!({ "msg": "ok" }).to_string()))
        }
        Endpoint::UnloadModel => models::unload(dispatcher, &rest),
        Endpoint::Logs => Ok(logs::history(gateway)),
        Endpoint::LogStream => match logs::Source::find(gateway, &rest) {
            Ok(source) => return logs::stream(gateway, session, &source).await,
            Err(error) => Err(error),
        },
        Endpoint::ActivityList => activity::list(gateway, session.req_header().uri.query()).await,
        Endpoint::ActivityItem => activity::item(gateway, &rest, wants_text(session)).await,
        Endpoint::Version => {
            Ok(Reply::json(StatusCode::OK, json!({ "version": env!("CARGO_PKG_VERSION") }).to_string()))
        }
    };
    reply.unwrap_or_else(|error| refusal(error, session)).send(session).await
}

fn refusal(error: ApiError, session: &ServerSession) -> Reply {
    error.reply(Dialect::OpenAi, &headers::request_id(&session.req_header().headers))
}

/// Pages of any origin may read the list.
fn allow_origin(reply: Reply, session: &ServerSession) -> Reply {
    match session.get_header(header::ORIGIN) {
        Some(origin) => reply.with(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone()),
        None => reply,
    }
}

/// Whether the caller asks for text before anything else.
fn wants_text(session: &ServerSession) -> bool {
    let accept = session.get_header(header::ACCEPT).map(HeaderValue::as_bytes).unwrap_or_default();
    accept.trim_ascii_start().starts_with(b"text/plain")
}

/// `HEAD` wants an answer's header only.
fn is_head(session: &ServerSession) -> bool {
    session.req_header().method == Method::HEAD
}
