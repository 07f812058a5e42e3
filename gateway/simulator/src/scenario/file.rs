//! The scenario file as it is written.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::{
    Problem,
    flow::Flow,
    place,
    value::{Length, Span, SpanRange, Timeline, Urgency},
};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct File {
    pub(super) name: Option<String>,
    #[serde(default)]
    pub(super) description: String,
    #[serde(default = "one")]
    pub(super) seed: u64,
    pub(super) duration: Spanned<Span>,
    pub(super) window: Option<Spanned<SpanRange>>,
    pub(super) replicas: Spanned<Replicas>,
    pub(super) classes: Spanned<Vec<Spanned<Class>>>,
    pub(super) comparisons: Spanned<Vec<Spanned<Comparison>>>,
    #[serde(default)]
    pub(super) faults: Faults,
}

const fn one() -> u64 {
    1
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Replicas {
    /// Servers of one model that are always there.
    Pool(Box<Pool>),
    /// One machine on which models take turns.
    Swap(Swap),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Pool {
    #[serde(default = "model_name")]
    pub(super) model: String,
    pub(super) count: Option<Spanned<u32>>,
    pub(super) concurrency: Option<Spanned<u32>>,
    #[serde(default)]
    pub(super) engine: Engine,
}

fn model_name() -> String {
    "model".to_owned()
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Swap {
    pub(super) models: BTreeMap<String, Spanned<SwapModel>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct SwapModel {
    pub(super) load: Span,
    pub(super) stop: Option<Span>,
    pub(super) ttl: Option<Span>,
    pub(super) concurrency: Option<Spanned<u32>>,
    #[serde(default)]
    pub(super) engine: Engine,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Engine {
    pub(super) max_running: Option<Spanned<u32>>,
    pub(super) step_tokens: Option<Spanned<u32>>,
    pub(super) kv_tokens: Option<Spanned<u64>>,
    pub(super) step_base: Option<Span>,
    pub(super) step_per_sequence: Option<Span>,
    pub(super) prefill_rate: Option<Spanned<f64>>,
    pub(super) overhead: Option<SpanRange>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Class {
    pub(super) name: Spanned<String>,
    pub(super) priority: Option<Urgency>,
    pub(super) tenant: Option<String>,
    pub(super) tenants: Option<Spanned<u32>>,
    pub(super) model: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) rate: Timeline,
    pub(super) burst: Option<Spanned<Timeline>>,
    pub(super) prompt: Spanned<Length>,
    pub(super) output: Spanned<Length>,
    pub(super) max_tokens: Option<u64>,
    pub(super) slo_ttft: Option<Span>,
    pub(super) ttl: Option<Span>,
    pub(super) patience: Option<Span>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Comparison {
    pub(super) name: Option<String>,
    #[serde(rename = "use")]
    pub(super) used: Use,
    #[serde(default)]
    pub(super) settings: SchedulerSettings,
    #[serde(default)]
    pub(super) admission: Admission,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Use {
    NoGate,
    Fifo,
    Serial,
    Flow,
}

/// As under `routing.scheduler.settings` in the gateway's configuration.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct SchedulerSettings {
    #[serde(default)]
    pub(super) serial: Serial,
    #[serde(default)]
    pub(super) fifo: Fifo,
    #[serde(default)]
    pub(super) flow: Flow,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Serial {
    pub(super) swap_affinity_bonus: Option<Spanned<u32>>,
    pub(super) aging_divisor: Option<u32>,
    pub(super) slots: Option<Spanned<u32>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Fifo {
    #[serde(default)]
    pub(super) priority: BTreeMap<String, Spanned<i64>>,
}

/// As under `routing.admission` in the gateway's configuration.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Admission {
    pub(super) max_requests: Option<u64>,
    pub(super) max_bytes: Option<u64>,
    #[serde(rename = "defaultRequestTTL")]
    pub(super) default_request_ttl: Option<Span>,
    pub(super) shed_when_saturated: Option<bool>,
    #[serde(default)]
    pub(super) bands: Bands,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Bands {
    #[serde(default)]
    pub(super) batch: Band,
    #[serde(default)]
    pub(super) normal: Band,
    #[serde(default)]
    pub(super) interactive: Band,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Band {
    pub(super) max_requests: Option<u64>,
    pub(super) max_bytes: Option<u64>,
    pub(super) ttl: Option<Span>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Faults {
    pub(super) cancel: Option<Spanned<f64>>,
    pub(super) load_failure: Option<Spanned<f64>>,
    pub(super) slow_stop: Option<Spanned<f64>>,
    pub(super) crash_every: Option<Spanned<Span>>,
    pub(super) stale_news: Option<Spanned<f64>>,
    pub(super) lost_scrapes: Option<Spanned<f64>>,
    pub(super) late_scrapes: Option<Spanned<f64>>,
}

/// Reads the YAML; what cannot be read is one problem.
pub(super) fn read(name: &str, text: &str) -> Result<File, Vec<Problem>> {
    let mut steps = Vec::new();
    let file = serde_saphyr::with_deserializer_from_str(text, |deserializer| {
        serde_path_to_error::deserialize(deserializer).map_err(|error| {
            steps = place::steps(error.path());
            error.into_inner()
        })
    });
    file.map_err(|error: serde_saphyr::Error| {
        let options = serde_saphyr::render_options! { snippets: serde_saphyr::SnippetMode::Off };
        let message = error.without_snippet().render_with_options(options);
        // The place is said in front, and nobody who reads it can set the reader's options.
        let end = [" at line ", ", set DuplicateKeyPolicy"].iter().filter_map(|tail| message.find(tail)).min();
        let message = message[..end.unwrap_or(message.len())].to_owned();
        let unknown_key = message.starts_with("unknown field");
        let place = place::find(text, &steps, unknown_key).or_else(|| error.location());
        let (line, column) = place.map_or((0, 0), |place| (place.line(), place.column()));
        let path = place::written(&steps);
        vec![Problem { file: name.to_owned(), line, column, path, message: with_suggestion(message) }]
    })
}

/// Adds the nearest known word to the message about an unknown one.
fn with_suggestion(message: String) -> String {
    let words = message.split_once('`').and_then(|(start, rest)| {
        let (wrong, rest) = rest.split_once('`')?;
        let (_, known) = rest.split_once("expected one of ")?;
        start.starts_with("unknown ").then_some((wrong.to_lowercase(), known))
    });
    let Some((wrong, known)) = words else { return message };
    let nearest = known
        .split(", ")
        .map(|known| known.trim_matches('`'))
        .map(|known| (strsim::damerau_levenshtein(&wrong, &known.to_lowercase()), known))
        .min()
        .filter(|&(distance, known)| distance <= known.len().div_ceil(3));
    match nearest {
        Some((_, known)) => format!("{message}; did you mean `{known}`?"),
        None => message,
    }
}
