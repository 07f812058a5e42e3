//! Which headers travel, and what the gateway adds to them.
//!
//! What is sent on is put together in plain maps: Pingora's headers keep a second one, of the case in which each name
//! was written, which nobody may depend on (RFC 9110, section 5.1) and every change would pay for.

use std::hash::{DefaultHasher, Hasher};

use http::{HeaderMap, HeaderName, HeaderValue, Version, header};
use pingora::{
    ErrorType, OrErr,
    http::{RequestHeader, ResponseHeader},
};
use switchyard_scheduler::{Decision, SessionId};

use crate::config::{self, Model, Upstream};

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Milliseconds that the request is ready to wait; can only shorten what is configured.
pub(super) const QUEUE_TTL: HeaderName = HeaderName::from_static("x-switchyard-queue-ttl-ms");
/// Milliseconds to the first token: llm-d's name, and its older one.
pub(super) const TTFT_GOALS: [HeaderName; 2] =
    [HeaderName::from_static("x-llm-d-slo-ttft-ms"), HeaderName::from_static("x-slo-ttft-ms")];
const QUEUE_WAIT: HeaderName = HeaderName::from_static("x-switchyard-queue-wait-ms");
const SCORE: HeaderName = HeaderName::from_static("x-switchyard-score");
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Asks nginx not to hold events back.
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// About one connection, not about the message (RFC 9110, section 7.6.1); those that `Connection` names come on top.
static HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// What the client's request is turned into.
pub(super) struct Outbound<'a> {
    pub(super) model: &'a Model,
    pub(super) headers: &'a config::Headers,
    pub(super) request_id: &'a HeaderValue,
}

impl Outbound<'_> {
    /// The client's request as the model server is to get it. `target` is path and query without the upstream's
    /// prefix. With a body length the message is framed by it.
    pub(super) fn request(
        &self,
        client: &RequestHeader,
        target: &str,
        body: usize,
    ) -> pingora::Result<Box<RequestHeader>> {
        let mut parts = client.as_owned_parts();
        parts.version = Version::HTTP_11;
        let headers = &mut parts.headers;
        remove_hop_by_hop(&client.headers, headers);
        headers.remove(header::EXPECT);
        headers.remove(header::CONTENT_LENGTH);
        // Without it a POST's length would be open to guesses.
        if body > 0 || !matches!(client.method, http::Method::GET | http::Method::HEAD | http::Method::OPTIONS) {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body));
        }
        let mut request = self.adapt(parts, target)?;
        request.set_send_end_stream(body == 0);
        Ok(Box::new(request))
    }

    /// Everything but the framing.
    pub(super) fn adapt(&self, mut parts: http::request::Parts, target: &str) -> pingora::Result<RequestHeader> {
        let upstream = &self.model.upstream;
        let headers = &mut parts.headers;
        headers.insert(header::HOST, value(host(upstream))?);
        headers.insert(REQUEST_ID, self.request_id.clone());
        headers.remove(&QUEUE_TTL);
        for name in &self.headers.kept {
            headers.remove(name);
        }
        if let Some(key) = &self.model.upstream_key {
            headers.insert(header::AUTHORIZATION, value(format!("Bearer {key}"))?);
            headers.insert(API_KEY, value(key.clone())?);
        }
        let mut request = RequestHeader::from(parts);
        if upstream.prefix.is_empty() {
            request.set_raw_path(target.as_bytes())?;
        } else {
            request.set_raw_path(format!("{}{target}", upstream.prefix).as_bytes())?;
        }
        Ok(request)
    }
}

fn value(text: String) -> pingora::Result<HeaderValue> {
    HeaderValue::try_from(text).explain_err(ErrorType::InvalidHTTPHeader, |_| "invalid value of a header")
}

/// The value of `Host`.
fn host(upstream: &Upstream) -> String {
    let Upstream { tls, host, port, .. } = upstream;
    let usual = if *tls { 443 } else { 80 };
    match (host.contains(':'), *port == usual) {
        (false, true) => host.clone(),
        (false, false) => format!("{host}:{port}"),
        (true, true) => format!("[{host}]"),
        (true, false) => format!("[{host}]:{port}"),
    }
}

/// The model server's answer as the client is to get it.
pub(super) fn response(
    upstream: &ResponseHeader,
    client: Version,
    request_id: &HeaderValue,
    decision: &Decision,
) -> pingora::Result<Box<ResponseHeader>> {
    let mut parts = upstream.as_owned_parts();
    parts.version = Version::HTTP_11;
    let headers = &mut parts.headers;
    remove_hop_by_hop(&upstream.headers, headers);
    let bodiless = matches!(upstream.status.as_u16(), 204 | 304);
    // A client of HTTP/1.0 is told the end by the end of the connection.
    if client == Version::HTTP_11 && !bodiless && !headers.contains_key(header::CONTENT_LENGTH) {
        headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    if is_event_stream(headers) && !headers.contains_key(ACCEL_BUFFERING) {
        headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    }
    let mut response = explain(parts, request_id, decision)?;
    response.set_reason_phrase(upstream.get_reason_phrase())?;
    Ok(Box::new(response))
}

/// Says what the wait was about.
pub(super) fn explain(
    mut parts: http::response::Parts,
    request_id: &HeaderValue,
    decision: &Decision,
) -> pingora::Result<ResponseHeader> {
    let waited = u64::try_from(decision.waited.as_millis()).unwrap_or(u64::MAX);
    parts.headers.insert(REQUEST_ID, request_id.clone());
    parts.headers.insert(QUEUE_WAIT, HeaderValue::from(waited));
    parts.headers.insert(SCORE, value(format!("{:.3}", decision.score))?);
    Ok(ResponseHeader::from(parts))
}

/// Whether a body is server-sent events.
pub(super) fn is_event_stream(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.as_bytes().get(..17))
        .is_some_and(|start| start.eq_ignore_ascii_case(b"text/event-stream"))
}

/// Removes from `headers` what `received` says about its connection.
fn remove_hop_by_hop(received: &HeaderMap, headers: &mut HeaderMap) {
    for value in received.get_all(header::CONNECTION) {
        let names = value.as_bytes().split(|byte| *byte == b',');
        // `close` and the like are names of no header, and removing those does nothing.
        for name in names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok()) {
            headers.remove(name);
        }
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// The session that a request belongs to. The number is the same after a restart, so that a conversation finds the
/// replica again that remembers it.
pub(super) fn session(headers: &HeaderMap, name: &HeaderName) -> Option<SessionId> {
    const MAX_BYTES: usize = 256;
    let value = headers.get(name)?.as_bytes().trim_ascii();
    (1..=MAX_BYTES).contains(&value.len()).then(|| {
        let mut hasher = DefaultHasher::new();
        hasher.write(value);
        SessionId(hasher.finish())
    })
}

/// The id by which a request is known: the client's own when it can be told from noise.
pub(crate) fn request_id(headers: &HeaderMap) -> HeaderValue {
    const MAX_BYTES: usize = 128;
    let own = headers
        .get(REQUEST_ID)
        .filter(|id| (1..=MAX_BYTES).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic));
    own.cloned().unwrap_or_else(|| {
        let mut text = uuid::Uuid::encode_buffer();
        let text = uuid::Uuid::now_v7().hyphenated().encode_lower(&mut text);
        HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("-"))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::Method;
    use switchyard_scheduler::{Band, Priority};

    use super::*;
    use crate::proxy::testing;

    fn client(headers: &[(&'static str, &str)]) -> RequestHeader {
        let mut request = RequestHeader::build(Method::POST, b"/v1/x?q=1", None).expect("a request");
        for (name, value) in headers {
            request.append_header(*name, *value).expect("a header");
        }
        request
    }

    fn sent(outbound: &Outbound<'_>, client: &RequestHeader) -> Vec<(String, String)> {
        let request = outbound.request(client, "/v1/x?q=1", 3).expect("a request");
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let mut headers: Vec<_> = request.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
        headers.sort();
        headers
    }

    fn names(headers: &[(String, String)]) -> Vec<&str> {
        headers.iter().map(|(name, _)| name.as_str()).collect()
    }

    const ID: HeaderValue = HeaderValue::from_static("id");

    #[test]
    fn only_what_is_about_the_message_goes_upstream() {
        let model = testing::model("m");
        let steering = testing::settings(vec![]).headers;
        let outbound = Outbound { model: &model, headers: &steering, request_id: &ID };
        let client = client(&[
            ("connection", "keep-alive, X-Secret"),
            ("x-secret", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("trailer", "x"),
            ("upgrade", "h2c"),
            ("transfer-encoding", "chunked"),
            ("proxy-authorization", "x"),
            ("expect", "100-continue"),
            ("x-llamaswap-priority", "batch"),
            ("x-switchyard-queue-ttl-ms", "5"),
            ("authorization", "Bearer mine"),
            ("accept", "a"),
            ("accept", "b"),
        ]);
        let headers = sent(&outbound, &client);
        assert_eq!(names(&headers), ["accept", "accept", "authorization", "content-length", "host", "x-request-id"]);
        assert!(headers.contains(&("host".to_owned(), "127.0.0.1:9000".to_owned())));
        assert!(headers.contains(&("content-length".to_owned(), "3".to_owned())));
    }

    #[test]
    fn the_key_of_a_peer_takes_the_place_of_the_clients() {
        let steering = config::Headers { kept: Vec::new(), ..testing::settings(vec![]).headers };
        let client = client(&[("authorization", "Bearer mine"), ("x-api-key", "mine"), ("x-llamaswap-priority", "1")]);
        let model = testing::model("m");
        let outbound = Outbound { model: &model, headers: &steering, request_id: &ID };
        assert_eq!(
            names(&sent(&outbound, &client)),
            ["authorization", "content-length", "host", "x-api-key", "x-llamaswap-priority", "x-request-id"]
        );

        let peer = Model { upstream_key: Some("theirs".to_owned()), ..model };
        let outbound = Outbound { model: &peer, headers: &steering, request_id: &ID };
        let headers = sent(&outbound, &client);
        assert!(headers.contains(&("authorization".to_owned(), "Bearer theirs".to_owned())));
        assert!(headers.contains(&("x-api-key".to_owned(), "theirs".to_owned())));
    }

    #[test]
    fn the_upstreams_prefix_comes_first() {
        let mut model = testing::model("m");
        model.upstream.prefix = "/api".to_owned();
        let steering = testing::settings(vec![]).headers;
        let outbound = Outbound { model: &model, headers: &steering, request_id: &ID };
        let request = outbound.request(&client(&[]), "/v1/x?q=1", 0).expect("a request");
        assert_eq!(request.raw_path(), b"/api/v1/x?q=1");
    }

    #[test]
    fn host_names_the_upstream() {
        let upstream = |tls, host: &str, port| Upstream { tls, host: host.to_owned(), port, prefix: String::new() };
        assert_eq!(host(&upstream(false, "h", 80)), "h");
        assert_eq!(host(&upstream(true, "h", 443)), "h");
        assert_eq!(host(&upstream(true, "h", 80)), "h:80");
        assert_eq!(host(&upstream(false, "::1", 81)), "[::1]:81");
    }

    #[test]
    fn answers_say_what_the_wait_was_about() {
        let mut upstream = ResponseHeader::build(200, None).expect("a response");
        for (name, value) in [
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
            ("content-type", "Text/Event-Stream; charset=utf-8"),
            ("x-request-id", "theirs"),
        ] {
            upstream.append_header(name, value).expect("a header");
        }
        let decision = Decision {
            priority: Priority(100),
            band: Band::Interactive,
            model_priority: 0,
            affinity: 10,
            aging: 1.25,
            score: 111.25,
            waited: Duration::from_micros(75_900),
            swap: None,
            passed_by_aging: None,
            passed_by_affinity: None,
            still_waiting: 0,
            flow: None,
        };
        let response = response(&upstream, Version::HTTP_11, &ID, &decision).expect("a response");
        let get = |name: &str| response.headers.get(name).map(|value| value.to_str().expect("ASCII"));
        assert_eq!(get("x-request-id"), Some("id"));
        assert_eq!(get("x-switchyard-queue-wait-ms"), Some("75"));
        assert_eq!(get("x-switchyard-score"), Some("111.250"));
        assert_eq!(get("transfer-encoding"), Some("chunked"));
        assert_eq!(get("x-accel-buffering"), Some("no"));
        assert_eq!((get("connection"), get("x-hop")), (None, None));
    }

    #[test]
    fn a_client_may_bring_its_own_id_if_it_is_one() {
        let id = |value: &'static [u8]| {
            let value = HeaderValue::from_bytes(value).expect("a value");
            let headers = HeaderMap::from_iter([(REQUEST_ID, value)]);
            request_id(&headers)
        };
        assert_eq!(id(b"abc-1"), "abc-1");
        for noise in [&b""[..], b"a b", "\u{e9}".as_bytes(), &[b'x'; 129]] {
            assert_eq!(id(noise).len(), 36, "{noise:?}");
        }
        assert_ne!(request_id(&HeaderMap::new()), request_id(&HeaderMap::new()));
    }
}
