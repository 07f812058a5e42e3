//! Flow control: bands, ceilings and detectors.

use std::collections::BTreeMap;

use switchyard_scheduler::{
    AdmissionSettings, BandSettings, Bounds, CeilingSettings, DetectorSettings, FlowSettings, LevelSettings, Priority,
};

use super::{Check, nonzero};
use crate::config::{
    flow::{CeilingsFile, DetectorFile, FlowFile, Mode, PoliciesFile, RangeFile},
    reader::At,
    settings::{Detector, Flow},
};

impl Check<'_> {
    /// Of all models that have none of their own.
    pub(super) fn detector(&self, file: &DetectorFile) -> Detector {
        match (&file.concurrency, &file.utilization) {
            (Some(concurrency), None) => {
                if let Some(idle) = &concurrency.idle {
                    let (is, other) = match concurrency.mode {
                        Mode::Requests => ("requests", "tokens"),
                        Mode::Tokens => ("tokens", "requests"),
                    };
                    let message = format!("has no effect while concurrencyMode is {is}");
                    idle.problem(self.sink, message, format!("leave it out, or set `concurrencyMode: {other}`"));
                }
                let settings = match concurrency.mode {
                    Mode::Requests => DetectorSettings::Concurrency { requests: concurrency.max_concurrency },
                    Mode::Tokens => DetectorSettings::Tokens { tokens: concurrency.max_token_concurrency },
                };
                Detector { settings, headroom: concurrency.headroom, refresh: None }
            }
            (None, Some(utilization)) => {
                let (refresh, staleness) = (&utilization.refresh, utilization.staleness);
                if refresh.value >= staleness {
                    let message =
                        format!("looking every {:?} at metrics that are good for {staleness:?}", refresh.value);
                    refresh.problem(self.sink, message, "let it be less than metricsStalenessThreshold, best a half");
                }
                let settings = DetectorSettings::Utilization {
                    queue_depth: utilization.queue_depth,
                    kv_cache: utilization.kv_cache,
                    staleness,
                };
                Detector { settings, headroom: utilization.headroom, refresh: Some(refresh.value) }
            }
            (None, None) => {
                let cure = "add `concurrency: {}` or `utilization: {}`";
                file.place.problem(self.sink, "the detector is not named", cure);
                Detector::default()
            }
            (Some(_), Some(utilization)) => {
                utilization.place.problem(self.sink, "there are two detectors", "keep one of them");
                Detector::default()
            }
        }
    }

    pub(super) fn flow(&self, file: &FlowFile) -> Flow {
        let mut levels = BTreeMap::new();
        for (at, band) in file.bands.iter().enumerate() {
            if let Some(name) = &band.name
                && file.bands[..at].iter().any(|earlier| earlier.name.as_ref().is_some_and(|it| it.value == name.value))
            {
                let message = format!("another band is called `{}` too", name.value);
                name.problem(self.sink, message, "give each band its own name");
            }
            let Some(priority) = &band.priority else { continue };
            if levels.insert(priority.value, level(band.policies, file.policies)).is_some() {
                let message = format!("the priority {} is here twice", priority.value.0);
                priority.problem(self.sink, message, "give each band its own");
            }
        }
        let weight =
            |(name, weight): &(At<String>, Option<At<u32>>)| Some((name.value.clone(), weight.as_ref()?.value));
        Flow {
            settings: FlowSettings {
                levels,
                template: level(file.default_band, file.policies),
                ceilings: file.ceilings.as_ref().map_or_else(CeilingSettings::default, |file| self.ceilings(file)),
                aging_divisor: file.aging_divisor,
                swap_affinity: file.swap_affinity,
                weights: BTreeMap::new(),
                prompt_weight: file.prompt_weight,
                completion_weight: file.completion_weight,
                idle_timeout: file.idle_timeout,
            },
            weights: file.weights.iter().filter_map(weight).collect(),
        }
    }

    fn ceilings(&self, file: &CeilingsFile) -> CeilingSettings {
        let CeilingsFile { place, is_empty, fixed, holdback, adaptive } = file;
        match (fixed, holdback, adaptive) {
            (Some(fixed), None, None) => CeilingSettings::Fixed(fixed.value),
            (None, Some((range, by)), None) => {
                let (least, greatest) = self.range(range);
                CeilingSettings::Holdback { least, greatest, by: *by }
            }
            (None, None, Some(range)) => {
                let (least, greatest) = self.range(range);
                CeilingSettings::Adaptive { least, greatest }
            }
            (None, None, None) => {
                if *is_empty {
                    place.problem(self.sink, "nothing is said of them", "add `fixed:`, `holdback:` or `adaptive:`");
                }
                CeilingSettings::default()
            }
            _ => {
                place.problem(self.sink, "there are several kinds of ceilings", "keep one of them");
                CeilingSettings::default()
            }
        }
    }

    fn range(&self, RangeFile { least, greatest }: &RangeFile) -> (f64, f64) {
        if least.value > greatest.value {
            let message = format!("{} is more than greatest, which is {}", least.value, greatest.value);
            least.problem(self.sink, message, "let least be at most greatest");
        }
        (least.value, greatest.value)
    }
}

fn level(own: PoliciesFile, all: PoliciesFile) -> LevelSettings {
    LevelSettings {
        fairness: own.fairness.or(all.fairness).unwrap_or_default(),
        ordering: own.ordering.or(all.ordering).unwrap_or_default(),
        ceiling: own.ceiling,
    }
}

/// The bounds of single priorities, as far as they have some.
pub(super) fn levels(file: &FlowFile, admission: &AdmissionSettings) -> BTreeMap<Priority, BandSettings> {
    let bounded = file.bands.iter().filter(|band| {
        band.max_requests.is_some() || band.max_bytes.is_some() || band.ttl.is_some_and(|ttl| !ttl.is_zero())
    });
    let level = |band: &crate::config::flow::BandFile| {
        let priority = band.priority.as_ref()?.value;
        let around = admission.bands[priority.band().index()];
        let bounds = Bounds {
            requests: band.max_requests.unwrap_or(around.bounds.requests),
            bytes: band.max_bytes.unwrap_or(around.bounds.bytes),
        };
        Some((priority, BandSettings { bounds, ttl: band.ttl.and_then(nonzero).or(around.ttl) }))
    };
    bounded.filter_map(level).collect()
}
