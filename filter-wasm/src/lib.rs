//! The caller policy as a proxy-wasm filter. Everything that is decided is decided in `switchyard-policy`; this is
//! the way in and out of the proxy.
//!
//! Settings come as JSON. Bad ones fail `on_configure` with one line in the log, and the proxy refuses them. The
//! decision falls in the headers phase. Nothing that a request can contain makes this code panic: a trap would take
//! the VM down, and some hosts with it. So headers are bytes here, never `String`s.

mod counters;
mod host;

use std::{cell::Cell, rc::Rc, time::UNIX_EPOCH};

use proxy_wasm::{
    hostcalls,
    traits::{Context, HttpContext, RootContext},
    types::{Action, BufferType, ContextType, LogLevel, MapType},
};
use switchyard_policy::{Allowed, Decision, Denial, Policy, PolicySettings, Problem, RequestView};

use counters::Counters;

// The macro writes the entry point, which has no room for a comment.
#[allow(missing_docs)]
mod entry {
    proxy_wasm::main! {{
        proxy_wasm::set_root_context(|_| Box::<super::Root>::default());
    }}
}

/// One for each place in the proxy's configuration that names the filter.
#[derive(Default)]
struct Root {
    checked: Option<Rc<Checked>>,
}

/// What all requests share.
struct Checked {
    policy: Policy,
    counters: Counters,
    /// Whether decisions are logged, and for how many more requests that holds without asking the host anew.
    logs: Cell<(bool, u32)>,
}

/// Every call into the host costs as much as a good part of a decision, so the log level is asked for now and then.
const REQUESTS_A_LEVEL: u32 = 64;

impl Checked {
    fn logs_decisions(&self) -> bool {
        let (logs, left) = match self.logs.get() {
            (_, 0) => (matches!(hostcalls::get_log_level(), Ok(LogLevel::Trace | LogLevel::Debug)), REQUESTS_A_LEVEL),
            known => known,
        };
        self.logs.set((logs, left - 1));
        logs
    }
}

impl Context for Root {}

impl RootContext for Root {
    fn on_configure(&mut self, _size: usize) -> bool {
        let json = hostcalls::get_buffer(BufferType::PluginConfiguration, 0, usize::MAX).ok().flatten();
        match configure(json.unwrap_or_default()) {
            Ok(policy) => {
                let keys = policy.key_count();
                log(LogLevel::Info, &format!("switchyard: {keys} keys in {} tiers", policy.tiers().len()));
                let counters = Counters::define(&policy);
                self.checked = Some(Rc::new(Checked { policy, counters, logs: Cell::default() }));
                true
            }
            Err(problems) => {
                let more = match problems.len() {
                    0 | 1 => String::new(),
                    n => format!(" (and {} more)", n - 1),
                };
                let first = problems.first().map_or_else(String::new, Problem::to_string);
                log(LogLevel::Critical, &format!("switchyard: settings refused: {first}{more}"));
                false
            }
        }
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }

    fn create_http_context(&self, _id: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Request { checked: self.checked.clone() }))
    }
}

fn configure(json: Vec<u8>) -> Result<Policy, Vec<Problem>> {
    let settings = PolicySettings::from_json(&json).map_err(|problem| vec![problem])?;
    // A VM's memory never shrinks. With 100,000 keys the text has 12 MB, which the policy may as well use.
    drop(json);
    Policy::new(settings)
}

struct Request {
    /// `None` only where a host sends requests in spite of a failed `on_configure`.
    checked: Option<Rc<Checked>>,
}

impl Context for Request {}

impl HttpContext for Request {
    fn on_http_request_headers(&mut self, _count: usize, _end_of_stream: bool) -> Action {
        let (Some(checked), Some(pairs)) = (&self.checked, host::request_headers()) else {
            let _ = hostcalls::send_http_response(503, vec![], None);
            return Action::Pause;
        };
        let headers = host::parse(&pairs);
        let pseudo = |wanted: &[u8]| headers.iter().find(|(name, _)| *name == wanted).map_or(&b""[..], |(_, v)| *v);
        let request = RequestView { method: pseudo(b":method"), path: pseudo(b":path"), headers: &headers };
        let decision = checked.policy.decide_by(&request, now_unix);
        checked.counters.count(&decision);
        if checked.logs_decisions() {
            log_decision(&decision);
        }
        match decision {
            Decision::Allow(allowed) => pass(&allowed),
            Decision::Deny(denial) => refuse(&denial),
        }
    }
}

fn pass(allowed: &Allowed<'_>) -> Action {
    for name in &allowed.remove {
        let _ = hostcalls::remove_map_value(MapType::HttpRequestHeaders, name);
    }
    // Whatever had one of these names is gone, and to add is less work for the host than to set.
    for (name, value) in &allowed.set {
        let _ = hostcalls::add_map_value_bytes(MapType::HttpRequestHeaders, name, value.as_bytes());
    }
    Action::Continue
}

fn refuse(denial: &Denial<'_>) -> Action {
    let body = Some(denial.body.as_bytes());
    let _ = hostcalls::send_http_response(denial.status.into(), denial.headers.clone(), body);
    Action::Pause
}

/// One line a request, where somebody wants it. Names only: no key, no path, nothing that was sent.
fn log_decision(decision: &Decision<'_>) {
    let line = match decision {
        Decision::Allow(Allowed { identity: Some(caller), .. }) => {
            let grant = &caller.grant;
            let name = grant.name.as_deref().unwrap_or("-");
            let (tenant, tier, priority) = (&grant.tenant, &grant.tier.name, caller.priority);
            format!("switchyard: allowed tenant={tenant} tier={tier} key={name} priority={priority}")
        }
        Decision::Allow(_) => "switchyard: allowed, open path".to_owned(),
        Decision::Deny(denial) => {
            let (status, code) = (denial.status, denial.reason.code());
            format!("switchyard: denied {status} {code} tier={}", denial.tier.unwrap_or("-"))
        }
    };
    log(LogLevel::Debug, &line);
}

fn log(level: LogLevel, line: &str) {
    let _ = hostcalls::log(level, line);
}

/// Unix seconds. A clock that cannot be read counts as past every expiry.
fn now_unix() -> i64 {
    let now = hostcalls::get_current_time().ok().and_then(|now| now.duration_since(UNIX_EPOCH).ok());
    now.and_then(|since| i64::try_from(since.as_secs()).ok()).unwrap_or(i64::MAX - 1)
}
