//! The keys under `routing.scheduler.settings.flow`, and the detector, which a model may have of its own. Where llm-d has
//! a setting, its name and its default are llm-d's.

use std::time::Duration;

use switchyard_scheduler::{FairnessSettings, HoldbackScale, OrderingSettings, Priority};

use super::{
    kinds::{Bytes, Flag, Number, OneOf, PART, POSITIVE_TIME, TIME, Text, Urgency, int, number},
    reader::{At, Named, Section},
};

pub(super) struct FlowFile {
    /// Where they are, if there are some.
    pub(super) place: Option<At<()>>,
    /// What all bands are like that do not say otherwise.
    pub(super) policies: PoliciesFile,
    pub(super) detector: Option<DetectorFile>,
    pub(super) ceilings: Option<CeilingsFile>,
    pub(super) bands: Vec<BandFile>,
    /// What the bands are like that are not listed.
    pub(super) default_band: PoliciesFile,
    pub(super) aging_divisor: u32,
    pub(super) swap_affinity: bool,
    pub(super) weights: Vec<Named<u32>>,
    pub(super) weights_at: Option<At<()>>,
    pub(super) prompt_weight: u32,
    pub(super) completion_weight: u32,
    pub(super) idle_timeout: Duration,
}

#[derive(Clone, Copy)]
pub(super) struct PoliciesFile {
    pub(super) fairness: Option<FairnessSettings>,
    pub(super) ordering: Option<OrderingSettings>,
    pub(super) ceiling: Option<f64>,
}

pub(super) struct BandFile {
    pub(super) name: Option<At<String>>,
    pub(super) priority: Option<At<Priority>>,
    pub(super) policies: PoliciesFile,
    pub(super) max_requests: Option<u64>,
    pub(super) max_bytes: Option<u64>,
    pub(super) ttl: Option<Duration>,
}

/// Exactly one of them may be there.
pub(super) struct DetectorFile {
    pub(super) place: At<()>,
    pub(super) concurrency: Option<ConcurrencyFile>,
    pub(super) utilization: Option<UtilizationFile>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Mode {
    Requests,
    Tokens,
}

pub(super) struct ConcurrencyFile {
    pub(super) mode: Mode,
    /// What is there of the setting that the mode does not look at.
    pub(super) idle: Option<At<()>>,
    pub(super) max_concurrency: u32,
    pub(super) max_token_concurrency: u64,
    pub(super) headroom: f64,
}

pub(super) struct UtilizationFile {
    pub(super) place: At<()>,
    pub(super) queue_depth: u32,
    pub(super) kv_cache: f64,
    pub(super) staleness: Duration,
    pub(super) refresh: At<Duration>,
    pub(super) headroom: f64,
}

/// Exactly one of them may be there.
pub(super) struct CeilingsFile {
    pub(super) place: At<()>,
    /// None of them is there, not even a wrong one.
    pub(super) is_empty: bool,
    pub(super) fixed: Option<At<f64>>,
    pub(super) holdback: Option<(RangeFile, HoldbackScale)>,
    pub(super) adaptive: Option<RangeFile>,
}

pub(super) struct RangeFile {
    pub(super) least: At<f64>,
    pub(super) greatest: At<f64>,
}

const FAIRNESS: OneOf<FairnessSettings> = OneOf(&[
    ("global-strict", FairnessSettings::GlobalStrict),
    ("round-robin", FairnessSettings::RoundRobin),
    ("weighted", FairnessSettings::Weighted),
]);

const ORDERING: OneOf<OrderingSettings> = OneOf(&[
    ("fcfs", OrderingSettings::Fcfs),
    ("edf", OrderingSettings::Edf),
    ("slo-deadline", OrderingSettings::SloDeadline),
]);

const MODES: OneOf<Mode> = OneOf(&[("requests", Mode::Requests), ("tokens", Mode::Tokens)]);

const SCALES: OneOf<HoldbackScale> = OneOf(&[("rank", HoldbackScale::Rank), ("value", HoldbackScale::Value)]);

/// How far over its share a single replica may be.
const HEADROOM: Number = number(0.0, 10.0);
const HEADROOM_ABOUT: &str =
    "The part by which one replica may be over its capacity while the others are below theirs.";

pub(super) fn read(s: &mut Section<'_>) -> FlowFile {
    let (prompt_weight, completion_weight) = s.section("tokenWeights", "What tokens cost a tenant (weighted).", |s| {
        let prompt = s.or("prompt", "A token in.", int(0..=1_000_000), 1).value;
        (prompt, s.or("completion", "A token out.", int(0..=1_000_000), 2).value)
    });
    FlowFile {
        place: (!s.is_empty()).then(|| here(s)),
        policies: PoliciesFile { ceiling: None, ..policies(s) },
        detector: detector(s, "How full a model's replicas are; its concurrencyLimit tells without it."),
        ceilings: s.opt_section("ceilings", "How much capacity is kept from the less urgent bands.", ceilings),
        bands: s.section_list("priorityBands", "Priorities with settings of their own.", band),
        default_band: s.section("defaultPriorityBand", "What the other priorities are like.", |s| PoliciesFile {
            ceiling: ceiling(s),
            ..policies(s)
        }),
        aging_divisor: s
            .or("agingDivisor", "Seconds of waiting that lift a band by a point; 0 is off.", int(0..=u32::MAX), 0)
            .value,
        swap_affinity: s
            .or("swapAffinity", "Of tenants equally due, one goes first whose model is loaded.", Flag, true)
            .value,
        weights_at: s.place_of("weights"),
        weights: s.map("weights", "Shares of tenants (weighted); 1 without it.", int(1..=1_000_000)),
        prompt_weight,
        completion_weight,
        idle_timeout: s
            .or("idleTimeout", "Forget a tenant without requests after this long.", POSITIVE_TIME, "5m")
            .value,
    }
}

fn policies(s: &mut Section<'_>) -> PoliciesFile {
    PoliciesFile {
        fairness: s.opt("fairness", "Which tenant is next; global-strict without it.", FAIRNESS).map(|at| at.value),
        ordering: s.opt("ordering", "Which of its requests; fcfs without it.", ORDERING).map(|at| at.value),
        ceiling: None,
    }
}

fn ceiling(s: &mut Section<'_>) -> Option<f64> {
    s.opt("ceiling", "The saturation from which on nothing of it is dispatched.", PART).map(|at| at.value)
}

fn band(s: &mut Section<'_>) -> BandFile {
    BandFile {
        name: s.opt("name", "For people.", Text),
        priority: s.required("priority", "Which.", Urgency),
        policies: PoliciesFile { ceiling: ceiling(s), ..policies(s) },
        max_requests: s.opt("maxRequests", "Waiting requests.", int(0..=u64::MAX)).map(|at| at.value),
        max_bytes: s.opt("maxBytes", "Bytes of their bodies.", Bytes).map(|at| at.value),
        ttl: s.opt("defaultRequestTTL", "The longest wait; 0 is that of routing.admission.", TIME).map(|at| at.value),
    }
}

/// A detector, if there is one.
pub(super) fn detector(s: &mut Section<'_>, about: &str) -> Option<DetectorFile> {
    s.opt_section("saturationDetector", about, |s| DetectorFile {
        place: here(s),
        concurrency: s.opt_section("concurrency", "By what runs.", concurrency),
        utilization: s.opt_section("utilization", "By what the replicas say of themselves.", utilization),
    })
}

fn concurrency(s: &mut Section<'_>) -> ConcurrencyFile {
    let mode = s.or("concurrencyMode", "What is counted.", MODES, "requests").value;
    ConcurrencyFile {
        mode,
        idle: s.place_of(if mode == Mode::Tokens { "maxConcurrency" } else { "maxTokenConcurrency" }),
        max_concurrency: s.or("maxConcurrency", "Requests that fill a replica.", int(1..=u32::MAX), 100).value,
        max_token_concurrency: s
            .or("maxTokenConcurrency", "Tokens that fill a replica.", int(1..=u64::MAX), 1_000_000)
            .value,
        headroom: s.or("headroom", HEADROOM_ABOUT, HEADROOM, 0).value,
    }
}

fn utilization(s: &mut Section<'_>) -> UtilizationFile {
    UtilizationFile {
        place: here(s),
        queue_depth: s
            .or("queueDepthThreshold", "Requests in its own queue that make a replica full.", int(1..=u32::MAX), 5)
            .value,
        kv_cache: s.or("kvCacheUtilThreshold", "The used part of its KV cache that makes it full.", PART, 0.8).value,
        staleness: s
            .or("metricsStalenessThreshold", "Without news for so long it counts as full.", POSITIVE_TIME, "200ms")
            .value,
        refresh: s.or("refreshMetricsInterval", "Between two looks at its metrics.", POSITIVE_TIME, "100ms"),
        headroom: s.or("headroom", HEADROOM_ABOUT, HEADROOM, 0).value,
    }
}

fn ceilings(s: &mut Section<'_>) -> CeilingsFile {
    CeilingsFile {
        place: here(s),
        is_empty: !["fixed", "holdback", "adaptive"].iter().any(|key| s.has(key)),
        fixed: s.opt("fixed", "The same for all.", PART),
        holdback: s.opt_section("holdback", "From the least urgent band to the most urgent one.", |s| {
            (range(s), s.or("by", "By the bands' ranks or by their priorities.", SCALES, "rank").value)
        }),
        adaptive: s.opt_section("adaptive", "As holdback, and open as far as the more urgent bands are idle.", range),
    }
}

fn range(s: &mut Section<'_>) -> RangeFile {
    RangeFile {
        least: s.or("least", "Of the least urgent band.", number(0.0, 1.0), 0.5),
        greatest: s.or("greatest", "Of the most urgent one.", PART, 1.0),
    }
}

fn here(s: &Section<'_>) -> At<()> {
    At { value: (), place: s.place, path: s.path.clone() }
}
