//! One table of decisions, for whatever carries the policy: `filter-wasm/policy/tests/cases.yaml`.
//!
//! A test sends each [`Case`] through the thing it tests, describes what came out as an [`Outcome`], and asks
//! [`Case::check`].

mod build;
pub mod envoy;
pub mod http;

use std::collections::BTreeMap;

use serde::Deserialize;

pub use build::build_filter;

/// The time at which the table is to be read, in Unix seconds: 2026-11-30T12:00:00Z.
pub const NOW_UNIX: i64 = 1_796_040_000;

/// Names and values of headers, names in lower case.
pub type Headers = Vec<(String, Vec<u8>)>;

/// The whole table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Settings by name, as the policy's own reader takes them.
    pub settings: BTreeMap<String, serde_json::Value>,
    /// The cases in the order of the file.
    pub cases: Vec<Case>,
}

impl Table {
    /// Reads the table.
    ///
    /// # Panics
    /// When it cannot be read: then no test can say anything.
    #[must_use]
    pub fn load() -> Self {
        serde_saphyr::from_str(include_str!("../../policy/tests/cases.yaml")).expect("cases.yaml is readable")
    }

    /// A case's settings as JSON.
    ///
    /// # Panics
    /// When the case names settings that the table does not have.
    #[must_use]
    pub fn settings_of(&self, case: &Case) -> String {
        self.settings[case.settings_name()].to_string()
    }
}

/// One request, and what the policy must make of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Says what it is about.
    pub name: String,
    settings: Option<String>,
    send: Vec<String>,
    passes: Option<Passes>,
    denied: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Passes {
    priority: Option<i64>,
    tenant: Option<String>,
    tier: Option<String>,
    headers: Vec<String>,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It went upstream with these headers, in any order. Those that HTTP itself needs are left out.
    Passed(Headers),
    /// It was answered.
    Denied {
        /// The status.
        status: u16,
        /// The body.
        body: Vec<u8>,
    },
}

impl Case {
    /// The name of its settings.
    #[must_use]
    pub fn settings_name(&self) -> &str {
        self.settings.as_deref().unwrap_or("main")
    }

    /// Its method.
    #[must_use]
    pub fn method(&self) -> &str {
        self.send[0].split_once(' ').map_or("", |(method, _)| method)
    }

    /// Its path, with the query.
    #[must_use]
    pub fn path(&self) -> Vec<u8> {
        bytes(self.send[0].split_once(' ').map_or("", |(_, path)| path))
    }

    /// Its headers as they are sent, in order, with white space around values.
    #[must_use]
    pub fn headers(&self) -> Headers {
        self.send[1..].iter().map(|line| split(line)).collect()
    }

    /// Whether an outcome is what the table says.
    ///
    /// # Errors
    /// Says what differs.
    pub fn check(&self, outcome: &Outcome) -> Result<(), String> {
        self.check_but(outcome, |_| false)
    }

    /// The same, but for headers that whatever carries the policy writes or takes away itself.
    ///
    /// # Errors
    /// Says what differs.
    pub fn check_but(&self, outcome: &Outcome, ignored: impl Fn(&str) -> bool) -> Result<(), String> {
        let sorted = |mut headers: Headers| {
            headers.iter_mut().for_each(|(name, value)| {
                name.make_ascii_lowercase();
                *value = value.trim_ascii().to_vec();
            });
            headers.retain(|(name, _)| !ignored(name));
            headers.sort();
            headers
        };
        match (&self.passes, &self.denied, outcome) {
            (Some(passes), None, Outcome::Passed(headers)) => {
                let (wanted, got) = (sorted(passes.headers()), sorted(headers.clone()));
                if wanted == got { Ok(()) } else { Err(format!("wanted {}, got {}", show(&wanted), show(&got))) }
            }
            (None, Some(denied), Outcome::Denied { status, body }) => {
                // No answer to HEAD has a body when it comes over HTTP.
                let bare = self.method() == "HEAD" && body.is_empty() && denied.starts_with(&status.to_string());
                let got = format!("{status} {}", shape_and_code(body));
                if bare || *denied == got { Ok(()) } else { Err(format!("wanted {denied}, got {got}")) }
            }
            (.., Outcome::Passed(headers)) => Err(format!("passed with {}", show(headers))),
            (.., Outcome::Denied { status, body }) => {
                Err(format!("denied with {status} {}", String::from_utf8_lossy(body)))
            }
        }
    }
}

impl Passes {
    fn headers(&self) -> Headers {
        let stamps = [
            ("x-llamaswap-priority", self.priority.map(|number| number.to_string())),
            ("x-llm-d-inference-fairness-id", self.tenant.clone()),
            ("x-switchyard-tier", self.tier.clone()),
        ];
        let stamps = stamps.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into_bytes())));
        stamps.chain(self.headers.iter().map(|line| split(line))).collect()
    }
}

/// `openai CODE` or `anthropic CODE`. Anthropic's shape has no code: the message must be the one that goes with it.
fn shape_and_code(body: &[u8]) -> String {
    let Ok(body) = serde_json::from_slice::<serde_json::Value>(body) else { return "not JSON".into() };
    let error = &body["error"];
    let message = error["message"].as_str().unwrap_or_default();
    let code = switchyard_policy::Reason::ALL.into_iter().find(|reason| reason.message() == message);
    let code = code.map_or("unknown", switchyard_policy::Reason::code);
    if body["type"] == "error" && error["type"].is_string() {
        format!("anthropic {code}")
    } else if error["code"] == code && error["type"].is_string() && error.get("param").is_some() {
        format!("openai {code}")
    } else {
        format!("in an unknown shape: {body}")
    }
}

fn split(line: &str) -> (String, Vec<u8>) {
    let (name, value) = line.split_once(':').unwrap_or((line, ""));
    (name.to_owned(), bytes(value.strip_prefix(' ').unwrap_or(value)))
}

/// One byte a character, as HTTP reads Latin-1, with `{x*3}` spelled out.
fn bytes(text: &str) -> Vec<u8> {
    let latin = |text: &str| -> Vec<u8> { text.chars().map(|c| u8::try_from(c).unwrap_or(b'?')).collect() };
    let repeated = || {
        let (before, rest) = text.split_once('{')?;
        let (inside, after) = rest.split_once('}')?;
        let (what, times) = inside.split_once('*')?;
        Some([latin(before), latin(what).repeat(times.parse().ok()?), latin(after)].concat())
    };
    repeated().unwrap_or_else(|| latin(text))
}

fn show(headers: &Headers) -> String {
    let lines: Vec<_> = headers.iter().map(|(name, value)| format!("{name}: {}", value.escape_ascii())).collect();
    format!("[{}]", lines.join(" | "))
}
