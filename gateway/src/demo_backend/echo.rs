//! `/echo` and `/ws`: send back what came, so that a test can prove what a proxy did to it.

use std::collections::BTreeMap;

use axum::{
    Json,
    body::Body,
    extract::{Request, WebSocketUpgrade, ws::Message},
    response::{IntoResponse, Response},
};
use futures_util::StreamExt;
use http::StatusCode;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Method, target, headers, and length and digest of the body, which is never held as a whole.
pub(super) async fn echo(request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let (bytes, sha256) = match digest(body).await {
        Ok(digest) => digest,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("the body broke off: {error}")).into_response(),
    };
    let mut headers: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for (name, value) in &parts.headers {
        headers.entry(name.as_str()).or_default().push(String::from_utf8_lossy(value.as_bytes()).into());
    }
    Json(json!({
        "method": parts.method.as_str(),
        "path": parts.uri.path(),
        "query": parts.uri.query(),
        "version": format!("{:?}", parts.version),
        "headers": headers,
        "body_bytes": bytes,
        "body_sha256": sha256,
    }))
    .into_response()
}

async fn digest(body: Body) -> Result<(u64, String), axum::Error> {
    let (mut bytes, mut sha256) = (0, Sha256::new());
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk?;
        bytes += chunk.len() as u64;
        sha256.update(&chunk);
    }
    Ok((bytes, hex(&sha256.finalize())))
}

/// Lower-case hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A websocket that returns every text and binary message.
pub(super) async fn websocket(upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(|mut socket| async move {
        while let Some(Ok(message)) = socket.recv().await {
            if matches!(message, Message::Text(_) | Message::Binary(_)) && socket.send(message).await.is_err() {
                return;
            }
        }
    })
}
