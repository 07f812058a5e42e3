//! What the policy reads out of a request's headers, and what it must not let through.

use std::borrow::Cow;

use crate::{
    RequestView,
    credential::{Place, Presented},
    settings::HeaderSettings,
};

/// Names that say who is calling, whatever the settings call them today.
const IDENTITY: [&str; 7] = [
    "x-llamaswap-priority",
    "x-llamaswap-tenant",
    "x-llamaswap-tier",
    "x-llm-d-inference-fairness-id",
    "x-llm-d-inference-objective",
    OLDER_TENANT,
    OLDER_OBJECTIVE,
];

/// llm-d's older name of the tenant's header.
pub(crate) const OLDER_TENANT: &str = "x-gateway-inference-fairness-id";
/// llm-d's older name of the objective's header.
pub(crate) const OLDER_OBJECTIVE: &str = "x-gateway-inference-objective";

/// What the parts of the gateway tell each other: tier, models, trust. None of it is for callers to say …
const OWN_PREFIX: &str = "x-switchyard-";
/// … but how long they are willing to wait.
const CALLERS_OWN: &str = "x-switchyard-queue-ttl-ms";

/// What may stand in `Connection:` without naming a header to drop.
const CONNECTION_OPTIONS: [&str; 6] = ["close", "keep-alive", "upgrade", "te", "trailer", "http2-settings"];
/// Dropping one of these because a caller says so would change what the message is.
const NEVER_DROPPED: [&str; 5] = ["connection", "content-length", "content-type", "host", "transfer-encoding"];

/// The checked names, in lower case.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) priority: Box<str>,
    pub(crate) tenant: Box<str>,
    pub(crate) objective: Box<str>,
    pub(crate) tier: Box<str>,
    pub(crate) models: Box<str>,
    pub(crate) model: Box<str>,
    pub(crate) older_twins: bool,
    pub(crate) forward_key: bool,
    /// Further names that callers may not send.
    stripped: Vec<Box<str>>,
}

impl Names {
    pub(crate) fn new(settings: &HeaderSettings, forward_key: bool) -> Self {
        let lower = |name: &String| name.to_ascii_lowercase().into_boxed_str();
        let HeaderSettings { priority, tenant, objective, tier, models, model, older_twins, strip } = settings;
        Self {
            priority: lower(priority),
            tenant: lower(tenant),
            objective: lower(objective),
            tier: lower(tier),
            models: lower(models),
            model: lower(model),
            older_twins: *older_twins,
            forward_key,
            // Compared with hyphens for underscores on the caller's side.
            stripped: [priority, tenant, objective, tier, models]
                .into_iter()
                .chain(strip)
                .map(|name| name.to_ascii_lowercase().replace('_', "-").into())
                .collect(),
        }
    }

    /// Whether a caller may not send this header.
    fn is_identity(&self, name: &[u8]) -> bool {
        IDENTITY.iter().any(|known| alike(name, known))
            || self.stripped.iter().any(|known| alike(name, known))
            || (name.len() > OWN_PREFIX.len()
                && alike(&name[..OWN_PREFIX.len()], OWN_PREFIX)
                && !name.eq_ignore_ascii_case(CALLERS_OWN.as_bytes()))
    }
}

/// Whether two spellings name one header to somebody who does not care: in any case, and with underscores for hyphens,
/// as gateways in the CGI tradition read them.
fn alike(name: &[u8], known: &str) -> bool {
    name.len() == known.len()
        && name.iter().zip(known.as_bytes()).all(|(&a, &b)| a.to_ascii_lowercase() == b || (a == b'_' && b == b'-'))
}

/// Where in a header of this name a key would be, if in any.
pub(crate) fn key_place(name: &[u8]) -> Option<Place> {
    match name {
        _ if alike(name, "authorization") => Some(Place::Authorization),
        _ if alike(name, "x-api-key") || alike(name, "api-key") => Some(Place::Bare),
        _ => None,
    }
}

/// What one pass over the headers found.
#[derive(Debug, Default)]
pub(crate) struct Arrived<'a> {
    pub(crate) presented: Presented<'a>,
    /// The first value of the priority header.
    pub(crate) priority: Option<&'a [u8]>,
    /// The first value of the header that names the model.
    pub(crate) model: Option<&'a [u8]>,
    /// Headers to remove, as they are spelled in the request, each once.
    pub(crate) remove: Vec<&'a str>,
    /// What to write over `connection`.
    pub(crate) connection: Option<String>,
}

impl<'a> Arrived<'a> {
    pub(crate) fn read(request: &RequestView<'a>, names: &Names) -> Self {
        let mut arrived = Self::default();
        let mut connection: Vec<&'a [u8]> = Vec::new();
        for &(name, value) in request.headers {
            if let Some(place) = key_place(name) {
                // A name with underscores is not what clients send, but it may hold a key all the same.
                if !name.contains(&b'_') {
                    arrived.presented.add(place, value);
                }
                if !names.forward_key {
                    arrived.remove(name);
                }
                continue;
            }
            if name.eq_ignore_ascii_case(b"connection") {
                connection.push(value);
            }
            if name.eq_ignore_ascii_case(names.model.as_bytes()) {
                arrived.model.get_or_insert(value);
            }
            if name.eq_ignore_ascii_case(names.priority.as_bytes()) {
                arrived.priority.get_or_insert(value);
            }
            if names.is_identity(name) {
                arrived.remove(name);
            }
        }
        if !connection.is_empty() {
            arrived.read_connection(request, &connection);
        }
        arrived
    }

    /// `Connection: x-llamaswap-priority` asks the next hop to drop what is about to be stamped. The named headers go
    /// now, and the next hop is not told.
    fn read_connection(&mut self, request: &RequestView<'a>, values: &[&'a [u8]]) {
        let tokens = || values.iter().flat_map(|value| value.split(|&byte| byte == b',')).map(<[u8]>::trim_ascii);
        let among = |list: &[&str], name: &[u8]| list.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()));
        let mut named: Vec<Cow<'a, [u8]>> = tokens()
            .filter(|token| !token.is_empty() && !among(&CONNECTION_OPTIONS, token))
            .map(|token| Cow::Owned(token.to_ascii_lowercase()))
            .collect();
        if named.is_empty() {
            return;
        }
        named.sort_unstable();
        for &(name, _) in request.headers {
            let is_named = named.binary_search_by(|token| token.as_ref().cmp(&name.to_ascii_lowercase())).is_ok();
            if is_named && !among(&NEVER_DROPPED, name) {
                self.remove(name);
            }
        }
        self.remove(b"connection");
        let kept: Vec<_> = CONNECTION_OPTIONS
            .into_iter()
            .filter(|option| tokens().any(|token| token.eq_ignore_ascii_case(option.as_bytes())))
            .collect();
        self.connection = (!kept.is_empty()).then(|| kept.join(", "));
    }

    fn remove(&mut self, name: &'a [u8]) {
        // Only names in ASCII are ever meant; anything else matches none of ours.
        let Ok(name) = std::str::from_utf8(name) else { return };
        if !self.remove.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            self.remove.push(name);
        }
    }
}
