//! Who is calling: who is let in, and what is believed of what a request says of its sender.
//!
//! Afterwards the request's own headers tell the truth, as far as the gateway can know it, just as they do behind an
//! Envoy with the filter: priority, tenant, tier and models are read from them.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use pingora::{http::RequestHeader, protocols::http::ServerSession};
use switchyard_policy::{Allowed, Decision, Denial, Grant, Identity, Policy, Reason, RequestView};
use switchyard_scheduler::Priority;

use super::{Gateway, error::ApiError, forward::Interrupted};
use crate::config::{Callers, Gate, Headers, Model, OLDER_TENANT, Settings};

/// The addresses that a request has come from, the client's first.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Who is calling, as far as anybody knows.
#[derive(Default)]
pub(crate) struct Caller {
    /// The tenant that the request counts for.
    pub(super) tenant: Option<String>,
    pub(super) tier: Option<String>,
    /// What the key stands for, where the gateway has seen it.
    pub(super) grant: Option<Arc<Grant>>,
    /// What was decided: a name for metrics.
    pub(super) decision: &'static str,
}

impl Caller {
    /// The tier if it is one of those configured, or a word for why it is not: what a metric may have as a label.
    pub(super) fn tier_label<'a>(&self, settings: &'a Settings) -> &'a str {
        let Some(tier) = self.tier.as_deref() else { return "none" };
        let known = settings.callers.policy.tiers().iter().find(|known| *known.name == *tier);
        known.map_or("other", |known| &known.name)
    }
}

/// Who is not let in.
pub(super) struct Denied {
    /// Who it is, where the key is known.
    pub(super) caller: Caller,
    pub(super) error: ApiError,
}

/// Has a policy decide about a request in somebody's own Pingora proxy, and makes its headers true: what it says of its
/// sender is replaced by what the policy knows, and the key removed unless it is to go on. Call it first in the
/// request filter. There is no identity on paths that are open to everyone.
///
/// # Errors
/// The answer to a request that may not pass.
pub fn identify(policy: &Policy, request: &mut RequestHeader) -> Result<Option<Identity>, ApiError> {
    let entry = decide(policy, request).map_err(|denied| denied.error)?;
    entry.apply(request);
    Ok(entry.identity)
}

/// Lets a request in and makes its headers true.
pub(super) fn admit(settings: &Settings, session: &mut ServerSession) -> Result<Caller, Box<Denied>> {
    let callers = &settings.callers;
    let (mut grant, mut decision) = (None, "believed");
    let peer = || session.client_addr()?.as_inet().map(std::net::SocketAddr::ip);
    let client = peer();
    match &callers.trust {
        Some(trust) if trust.covers(peer, &session.req_header().headers) => {
            if let Some((name, _)) = &trust.secret {
                session.req_header_mut().remove_header(name);
            }
        }
        _ => {
            let entry = judge(callers, session.req_header())?;
            entry.apply(session.req_header_mut());
            decision = entry.decision;
            grant = entry.identity.map(|identity| identity.grant);
            if callers.trust.is_some() {
                session.req_header_mut().remove_header(&FORWARDED_FOR);
            }
        }
    }
    if let Some(client) = client {
        add_client(session.req_header_mut(), client);
    }
    let headers = &session.req_header().headers;
    let Headers { tenant, tier, .. } = &settings.headers;
    let tenant = text(headers, tenant).or_else(|| text(headers, &OLDER_TENANT));
    Ok(Caller { tenant, tier: text(headers, tier), grant, decision })
}

/// Adds the client to the addresses that the request has come from so far.
fn add_client(request: &mut RequestHeader, client: IpAddr) {
    let mut addresses = String::new();
    for earlier in request.headers.get_all(FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok()) {
        addresses.extend([earlier, ", "]);
    }
    addresses.push_str(&client.to_canonical().to_string());
    // Fails only when there are more headers than a request can have.
    let _ = request.insert_header(FORWARDED_FOR, addresses);
}

fn judge(callers: &Callers, request: &RequestHeader) -> Result<Entry, Box<Denied>> {
    let strip = || Entry::from(callers.policy.strip(&view(request, &headers(request))));
    match &callers.gate {
        Gate::Policy => decide(&callers.policy, request),
        Gate::ApiKeys { ring, forward } => {
            let is_open = request.method == Method::OPTIONS || matches!(request.uri.path(), "/health" | "/wol-health");
            if !is_open {
                ring.admit(headers(request)).map_err(|reason| Denial::new(reason, request.raw_path(), None))?;
            }
            let entry = if callers.trust.is_some() { strip() } else { Entry::without_key(*forward) };
            Ok(Entry { decision: if is_open { "open" } else { "allowed" }, ..entry })
        }
        Gate::Open => {
            let entry = if callers.trust.is_some() { strip() } else { Entry::default() };
            Ok(Entry { decision: "believed", ..entry })
        }
    }
}

fn decide(policy: &Policy, request: &RequestHeader) -> Result<Entry, Box<Denied>> {
    match policy.decide(&view(request, &headers(request)), now_unix()) {
        Decision::Allow(allowed) => Ok(allowed.into()),
        Decision::Deny(denial) => Err(denial.into()),
    }
}

fn view<'a>(request: &'a RequestHeader, headers: &'a [(&'a [u8], &'a [u8])]) -> RequestView<'a> {
    RequestView { method: request.method.as_str().as_bytes(), path: request.raw_path(), headers }
}

fn headers(request: &RequestHeader) -> Vec<(&[u8], &[u8])> {
    request.headers.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes())).collect()
}

fn now_unix() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

impl From<Denial<'_>> for Box<Denied> {
    fn from(denial: Denial<'_>) -> Self {
        let tier = denial.tier.map(str::to_owned);
        let caller = Caller { tier, decision: denial.reason.code(), ..Caller::default() };
        Self::new(Denied { caller, error: ApiError::denied(denial) })
    }
}

/// How a request enters.
#[derive(Default)]
struct Entry {
    remove: Vec<HeaderName>,
    set: Vec<(HeaderName, HeaderValue)>,
    identity: Option<Identity>,
    /// A name for metrics.
    decision: &'static str,
}

impl Entry {
    /// As it came, without its key unless that goes on.
    fn without_key(forward: bool) -> Self {
        let keys = [header::AUTHORIZATION, HeaderName::from_static("x-api-key"), HeaderName::from_static("api-key")];
        Self { remove: if forward { Vec::new() } else { keys.into() }, ..Self::default() }
    }

    fn apply(&self, request: &mut RequestHeader) {
        for name in &self.remove {
            request.remove_header(name);
        }
        for (name, value) in &self.set {
            // Fails only when there are more headers than a request can have.
            let _ = request.insert_header(name, value);
        }
    }
}

impl From<Allowed<'_>> for Entry {
    fn from(Allowed { remove, set, identity }: Allowed<'_>) -> Self {
        let remove = remove.into_iter().filter_map(|name| name.parse().ok()).collect();
        let pair = |(name, value): (&str, std::borrow::Cow<'_, str>)| {
            Some((name.parse().ok()?, HeaderValue::from_str(&value).ok()?))
        };
        let decision = if identity.is_some() { "allowed" } else { "open" };
        Self { remove, set: set.into_iter().filter_map(pair).collect(), identity, decision }
    }
}

fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    /// What a client says of itself is written down, but not without end.
    const MAX_BYTES: usize = 128;
    let text = headers.get(name)?.to_str().ok()?.trim();
    (1..=MAX_BYTES).contains(&text.len()).then(|| text.to_owned())
}

/// What a priority header says, if that is no priority.
pub(super) fn unread_priority(headers: &HeaderMap, name: &HeaderName) -> Option<Box<str>> {
    const MOST: usize = 64;
    let value = headers.get(name)?.as_bytes();
    Priority::parse(value).is_none().then(|| String::from_utf8_lossy(value).chars().take(MOST).collect())
}

/// Whether the caller may use a model by one of these names.
pub(crate) fn may_use(names: &Headers, headers: &HeaderMap, models: &[&str]) -> bool {
    let Some(allowed) = headers.get(&names.models) else { return true };
    let mut allowed = allowed.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    allowed.any(|allowed| models.iter().any(|model| model.as_bytes() == allowed))
}

impl Gateway {
    /// Refuses a caller that may not use the model it asks for.
    pub(super) fn check_model(
        &self,
        settings: &Settings,
        request: &RequestHeader,
        caller: &Caller,
        asked: &str,
        model: Option<&Model>,
    ) -> Result<(), Interrupted> {
        if may_use(&settings.headers, &request.headers, &[asked, model.map_or(asked, |model| &model.id)]) {
            return Ok(());
        }
        // It was let in before its body was read, and counted so.
        self.metrics.on_caller(Reason::Model.code(), caller.tier_label(settings));
        let denial = Denial::new(Reason::Model, request.uri.path().as_bytes(), None);
        Err(Interrupted::Failed(ApiError::denied(denial)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn a_client_is_added_to_those_before_it() {
        let mut request = RequestHeader::build("GET", b"/", None).expect("a request");
        add_client(&mut request, "::ffff:10.0.0.1".parse().expect("an address"));
        assert_eq!(request.headers["x-forwarded-for"], "10.0.0.1");
        request.append_header("X-Forwarded-For", "b").expect("a header");
        add_client(&mut request, "::1".parse().expect("an address"));
        let all: Vec<_> = request.headers.get_all("x-forwarded-for").iter().collect();
        assert_eq!(all, ["10.0.0.1, b, ::1"]);
    }

    #[test]
    fn a_priority_that_cannot_be_read_is_kept_to_be_told() {
        let unread =
            |value| unread_priority(&headers(&[("x-llamaswap-priority", value)]), &Headers::default().priority);
        for fine in ["5", " Interactive ", "-9223372036854775808"] {
            assert_eq!(unread(fine), None, "{fine}");
        }
        assert_eq!(unread("9223372036854775808").as_deref(), Some("9223372036854775808"));
        assert_eq!(unread("urgent").as_deref(), Some("urgent"));
        assert_eq!(unread_priority(&headers(&[]), &Headers::default().priority), None);
    }

    #[test]
    fn models_are_compared_whole() {
        let names = Headers::default();
        let some = headers(&[("x-switchyard-models", "a, b/c")]);
        assert!(may_use(&names, &some, &["x", "b/c"]) && may_use(&names, &some, &["a"]));
        assert!(!may_use(&names, &some, &["b", "c", "", "a,"]));
        assert!(!may_use(&names, &headers(&[("x-switchyard-models", "")]), &["a"]));
        assert!(may_use(&names, &headers(&[]), &["a"]));
    }
}
