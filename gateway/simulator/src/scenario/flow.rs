//! The section `flow` of the schedulers' settings: as under `routing.scheduler.settings.flow` in the gateway's
//! configuration, with the same names and defaults.

use std::{collections::BTreeMap, time::Duration};

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};
use switchyard_scheduler::{
    AdmissionSettings, BandSettings, Bounds, CeilingSettings, DetectorSettings, FairnessSettings, FlowSettings,
    HoldbackScale, LevelSettings, OrderingSettings, TenantId,
};

use super::{
    Detector,
    check::Check,
    value::{Span, Urgency},
};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Flow {
    fairness: Option<FairnessSettings>,
    ordering: Option<OrderingSettings>,
    saturation_detector: Option<DetectorFile>,
    ceilings: Option<Spanned<Ceilings>>,
    priority_bands: Vec<Spanned<PriorityBand>>,
    default_priority_band: DefaultBand,
    aging_divisor: Option<u32>,
    swap_affinity: Option<bool>,
    weights: BTreeMap<String, Spanned<u32>>,
    token_weights: TokenWeights,
    idle_timeout: Option<Span>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
enum DetectorFile {
    Concurrency(Concurrency),
    Utilization(Utilization),
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Concurrency {
    concurrency_mode: Mode,
    max_concurrency: Option<Spanned<u32>>,
    max_token_concurrency: Option<Spanned<u64>>,
    headroom: Option<Spanned<f64>>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Mode {
    #[default]
    Requests,
    Tokens,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Utilization {
    queue_depth_threshold: Option<Spanned<u32>>,
    kv_cache_util_threshold: Option<Spanned<f64>>,
    metrics_staleness_threshold: Option<Spanned<Span>>,
    refresh_metrics_interval: Option<Spanned<Span>>,
    headroom: Option<Spanned<f64>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Ceilings {
    Fixed(Spanned<f64>),
    Holdback(Holdback),
    Adaptive(Range),
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Holdback {
    least: Option<Spanned<f64>>,
    greatest: Option<Spanned<f64>>,
    by: HoldbackScale,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Range {
    least: Option<Spanned<f64>>,
    greatest: Option<Spanned<f64>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PriorityBand {
    /// For people.
    #[serde(rename = "name")]
    _name: Option<String>,
    priority: Spanned<Urgency>,
    fairness: Option<FairnessSettings>,
    ordering: Option<OrderingSettings>,
    ceiling: Option<Spanned<f64>>,
    max_requests: Option<u64>,
    max_bytes: Option<u64>,
    #[serde(rename = "defaultRequestTTL")]
    default_request_ttl: Option<Span>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct DefaultBand {
    fairness: Option<FairnessSettings>,
    ordering: Option<OrderingSettings>,
    ceiling: Option<Spanned<f64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct TokenWeights {
    prompt: Option<u32>,
    completion: Option<u32>,
}

/// A share of the whole that is not nothing.
const PART: (f64, f64, &str) = (f64::MIN_POSITIVE, 1.0, "has to be above 0 and at most 1");
/// A share that may be nothing.
const SHARE: (f64, f64, &str) = (0.0, 1.0, "has to be a share between 0 and 1");
const HEADROOM: (f64, f64, &str) = (0.0, 10.0, "has to be between 0 and 10");

impl Check<'_> {
    fn within(
        &mut self,
        value: Option<&Spanned<f64>>,
        path: &str,
        (least, most, cure): (f64, f64, &str),
        default: f64,
    ) -> f64 {
        match value {
            Some(value) if (least..=most).contains(&value.value) => value.value,
            Some(value) => {
                self.problem(value.referenced, path, cure);
                default
            }
            None => default,
        }
    }

    fn longer_than_nothing(&mut self, value: Option<&Spanned<Span>>, path: &str, default: Duration) -> Duration {
        match value {
            Some(value) if value.value.0.is_zero() => {
                self.problem(value.referenced, path, "has to be longer than 0s");
                default
            }
            Some(value) => value.value.0,
            None => default,
        }
    }

    /// Settings of `flow`, with the bounds of its bands added to those of admission.
    pub(super) fn flow(
        &mut self,
        flow: &Flow,
        path: &str,
        tenants: &BTreeMap<String, TenantId>,
        admission: &mut AdmissionSettings,
    ) -> FlowSettings {
        let path = format!("{path}.settings.flow");
        let default = FlowSettings::default();
        let template = LevelSettings {
            fairness: flow.default_priority_band.fairness.or(flow.fairness).unwrap_or_default(),
            ordering: flow.default_priority_band.ordering.or(flow.ordering).unwrap_or_default(),
            ceiling: self.ceiling(flow.default_priority_band.ceiling.as_ref(), &format!("{path}.defaultPriorityBand")),
        };
        let mut levels = BTreeMap::new();
        for (index, band) in flow.priority_bands.iter().enumerate() {
            let path = format!("{path}.priorityBands[{index}]");
            let (band, Urgency(priority)) = (&band.value, band.value.priority.value);
            let level = LevelSettings {
                fairness: band.fairness.or(flow.fairness).unwrap_or_default(),
                ordering: band.ordering.or(flow.ordering).unwrap_or_default(),
                ceiling: self.ceiling(band.ceiling.as_ref(), &path),
            };
            if levels.insert(priority, level).is_some() {
                let message = format!("has the priority {} as another band has; give each its own", priority.0);
                self.problem(band.priority.referenced, format!("{path}.priority"), message);
            }
            let around = admission.bands[priority.band().index()];
            let ttl = band.default_request_ttl.map(|Span(ttl)| ttl).filter(|ttl| !ttl.is_zero());
            if band.max_requests.is_some() || band.max_bytes.is_some() || ttl.is_some() {
                let bounds = Bounds {
                    requests: band.max_requests.unwrap_or(around.bounds.requests),
                    bytes: band.max_bytes.unwrap_or(around.bounds.bytes),
                };
                admission.levels.insert(priority, BandSettings { bounds, ttl: ttl.or(around.ttl) });
            }
        }
        let ceilings = match &flow.ceilings {
            Some(ceilings) => self.ceilings(&ceilings.value, ceilings.referenced, &format!("{path}.ceilings")),
            None => default.ceilings,
        };
        FlowSettings {
            levels,
            template,
            ceilings,
            aging_divisor: flow.aging_divisor.unwrap_or(default.aging_divisor),
            swap_affinity: flow.swap_affinity.unwrap_or(default.swap_affinity),
            weights: self.weights(&flow.weights, &format!("{path}.weights"), tenants),
            prompt_weight: flow.token_weights.prompt.unwrap_or(default.prompt_weight),
            completion_weight: flow.token_weights.completion.unwrap_or(default.completion_weight),
            idle_timeout: flow.idle_timeout.map_or(default.idle_timeout, |Span(timeout)| timeout),
        }
    }

    fn ceiling(&mut self, ceiling: Option<&Spanned<f64>>, path: &str) -> Option<f64> {
        ceiling.map(|ceiling| self.within(Some(ceiling), &format!("{path}.ceiling"), PART, 1.0))
    }

    fn ceilings(&mut self, ceilings: &Ceilings, place: Location, path: &str) -> CeilingSettings {
        match ceilings {
            Ceilings::Fixed(ceiling) => {
                CeilingSettings::Fixed(self.within(Some(ceiling), &format!("{path}.fixed"), PART, 1.0))
            }
            Ceilings::Holdback(Holdback { least, greatest, by }) => {
                let (least, greatest) =
                    self.range(least.as_ref(), greatest.as_ref(), place, &format!("{path}.holdback"));
                CeilingSettings::Holdback { least, greatest, by: *by }
            }
            Ceilings::Adaptive(Range { least, greatest }) => {
                let (least, greatest) =
                    self.range(least.as_ref(), greatest.as_ref(), place, &format!("{path}.adaptive"));
                CeilingSettings::Adaptive { least, greatest }
            }
        }
    }

    fn range(
        &mut self,
        least: Option<&Spanned<f64>>,
        greatest: Option<&Spanned<f64>>,
        place: Location,
        path: &str,
    ) -> (f64, f64) {
        let least = self.within(least, &format!("{path}.least"), SHARE, 0.5);
        let greatest = self.within(greatest, &format!("{path}.greatest"), PART, 1.0);
        if least > greatest {
            self.problem(place, path, format!("least is {least}, and has to be at most greatest, {greatest}"));
        }
        (least, greatest)
    }

    fn weights(
        &mut self,
        weights: &BTreeMap<String, Spanned<u32>>,
        path: &str,
        tenants: &BTreeMap<String, TenantId>,
    ) -> BTreeMap<TenantId, u32> {
        let mut checked = BTreeMap::new();
        for (name, weight) in weights {
            let path = format!("{path}.{name}");
            let value = self.positive(Some(weight), &path, 1);
            match tenants.get(name) {
                Some(&tenant) => {
                    checked.insert(tenant, value);
                }
                None => {
                    let known = tenants.keys().take(10).map(String::as_str).collect::<Vec<_>>().join(", ");
                    let more = if tenants.len() > 10 { ", …" } else { "" };
                    let message = format!("`{name}` is not among the tenants; they are {known}{more}");
                    self.problem(weight.referenced, path, message);
                }
            }
        }
        checked
    }

    /// The detector of all models, if there is one.
    pub(super) fn detector(&mut self, flow: &Flow, path: &str) -> Option<Detector> {
        let path = format!("{path}.settings.flow.saturationDetector");
        Some(match flow.saturation_detector.as_ref()? {
            DetectorFile::Concurrency(file) => self.concurrency(file, &format!("{path}.concurrency")),
            DetectorFile::Utilization(file) => self.utilization(file, &format!("{path}.utilization")),
        })
    }

    fn concurrency(&mut self, file: &Concurrency, path: &str) -> Detector {
        let (requests, tokens) = (file.max_concurrency.as_ref(), file.max_token_concurrency.as_ref());
        let (settings, idle) = match file.concurrency_mode {
            Mode::Requests => {
                let requests = self.positive(requests, &format!("{path}.maxConcurrency"), 100);
                let idle = tokens.map(|tokens| (tokens.referenced, "maxTokenConcurrency", "requests"));
                (DetectorSettings::Concurrency { requests }, idle)
            }
            Mode::Tokens => {
                let tokens = self.positive(tokens, &format!("{path}.maxTokenConcurrency"), 1_000_000_u64);
                let idle = requests.map(|requests| (requests.referenced, "maxConcurrency", "tokens"));
                (DetectorSettings::Tokens { tokens }, idle)
            }
        };
        if let Some((place, key, mode)) = idle {
            let message = format!("has no effect while concurrencyMode is {mode}; leave it out, or set the other mode");
            self.problem(place, format!("{path}.{key}"), message);
        }
        let headroom = self.within(file.headroom.as_ref(), &format!("{path}.headroom"), HEADROOM, 0.0);
        Detector { settings, headroom, refresh: None }
    }

    fn utilization(&mut self, file: &Utilization, path: &str) -> Detector {
        let at = |key: &str| format!("{path}.{key}");
        let (refresh, staleness) = (file.refresh_metrics_interval.as_ref(), file.metrics_staleness_threshold.as_ref());
        let refresh_path = at("refreshMetricsInterval");
        let interval = self.longer_than_nothing(refresh, &refresh_path, Duration::from_millis(100));
        let good_for =
            self.longer_than_nothing(staleness, &at("metricsStalenessThreshold"), Duration::from_millis(200));
        if let Some(place) = refresh.map(|at| at.referenced).or(staleness.map(|at| at.referenced))
            && interval >= good_for
        {
            let message = format!(
                "metrics are looked at every {interval:?} and good for {good_for:?}; let it be less than \
                 metricsStalenessThreshold, best a half"
            );
            self.problem(place, refresh_path, message);
        }
        Detector {
            settings: DetectorSettings::Utilization {
                queue_depth: self.positive(file.queue_depth_threshold.as_ref(), &at("queueDepthThreshold"), 5),
                kv_cache: self.within(file.kv_cache_util_threshold.as_ref(), &at("kvCacheUtilThreshold"), PART, 0.8),
                staleness: good_for,
            },
            headroom: self.within(file.headroom.as_ref(), &at("headroom"), HEADROOM, 0.0),
            refresh: Some(interval),
        }
    }
}
