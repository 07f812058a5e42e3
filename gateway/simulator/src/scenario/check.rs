//! From the file to the checked scenario: every problem at once.

use std::{collections::BTreeMap, path::Path, time::Duration};

use serde_saphyr::{Location, Spanned};
use switchyard_scheduler::{
    AdmissionSettings, BackoffSettings, BandSettings, Bounds, EvictionSettings, FifoSettings, ModelId, PolicySettings,
    SerialSettings, TenantId,
};

use super::{
    Arrivals, Class, Comparison, Length, Model, Policy, Problem, Scenario,
    file::{self, File},
    tenants,
    value::Span,
};
use crate::{engine::EngineSettings, faults::Faults};

/// More requests than this in one scenario is taken for a slip.
const MAX_REQUESTS: f64 = 2_000_000.0;

pub(super) fn check(name: &str, file: File) -> Result<Scenario, Vec<Problem>> {
    let mut check = Check { file: name, problems: Vec::new() };
    let duration = file.duration.value.0;
    if duration.is_zero() {
        check.problem(file.duration.referenced, "duration", "has to be longer than 0s");
    }
    let window = match &file.window {
        Some(window) if window.value.1 > duration || window.value.0 == window.value.1 => {
            check.problem(window.referenced, "window", format!("has to be a part of 0s..{duration:?}"));
            (Duration::ZERO, duration)
        }
        Some(window) => (window.value.0, window.value.1),
        None => (Duration::ZERO, duration),
    };
    let models = check.models(&file.replicas);
    let classes = check.classes(&file.classes, &models, duration);
    let comparisons = check.comparisons(&file.comparisons, &models, &tenants(&classes));
    let faults = check.faults(&file.faults);
    if !check.problems.is_empty() {
        check.problems.sort_by_key(|problem| (problem.line, problem.column));
        return Err(check.problems);
    }
    let stem = || Path::new(name).file_stem().map_or_else(|| name.into(), |stem| stem.to_string_lossy().into_owned());
    Ok(Scenario {
        name: file.name.unwrap_or_else(stem),
        description: file.description.trim().to_owned(),
        seed: file.seed,
        duration,
        window,
        models,
        eviction: EvictionSettings::default(),
        classes,
        comparisons,
        faults,
        operations: Vec::new(),
    })
}

pub(super) struct Check<'a> {
    file: &'a str,
    problems: Vec<Problem>,
}

impl Check<'_> {
    pub(super) fn problem(&mut self, place: Location, path: impl Into<String>, message: impl Into<String>) {
        self.problems.push(Problem {
            file: self.file.to_owned(),
            line: place.line(),
            column: place.column(),
            path: path.into(),
            message: message.into(),
        });
    }

    /// The number, or the default; zero is a problem.
    pub(super) fn positive<N: Copy + PartialOrd + From<u8>>(
        &mut self,
        value: Option<&Spanned<N>>,
        path: &str,
        default: N,
    ) -> N {
        match value {
            Some(value) if value.value > N::from(0) => value.value,
            Some(value) => {
                self.problem(value.referenced, path, "has to be more than 0");
                default
            }
            None => default,
        }
    }

    fn concurrency_limit(&mut self, limit: Option<&Spanned<u32>>, path: &str) -> Option<u32> {
        limit.map(|limit| self.positive(Some(limit), &format!("{path}.concurrency"), 1))
    }

    fn share(&mut self, value: Option<&Spanned<f64>>, path: &str) -> f64 {
        match value {
            Some(value) if !(0.0..=1.0).contains(&value.value) => {
                self.problem(value.referenced, path, "has to be a share between 0 and 1");
                0.0
            }
            Some(value) => value.value,
            None => 0.0,
        }
    }

    fn models(&mut self, replicas: &Spanned<file::Replicas>) -> Vec<Model> {
        match &replicas.value {
            file::Replicas::Pool(pool) => {
                let path = "replicas.pool";
                let engine = self.engine(&pool.engine, path);
                vec![Model {
                    name: pool.model.clone(),
                    replicas: self.positive(pool.count.as_ref(), &format!("{path}.count"), 1),
                    concurrency: self.concurrency_limit(pool.concurrency.as_ref(), path),
                    managed: false,
                    load: Duration::ZERO,
                    stop: Duration::ZERO,
                    ttl: None,
                    engine,
                }]
            }
            file::Replicas::Swap(swap) => {
                if swap.models.is_empty() {
                    self.problem(replicas.referenced, "replicas.swap.models", "needs at least one model");
                }
                swap.models.iter().map(|(name, model)| self.swap_model(name, &model.value)).collect()
            }
        }
    }

    fn swap_model(&mut self, name: &str, model: &file::SwapModel) -> Model {
        let path = format!("replicas.swap.models.{name}");
        let engine = self.engine(&model.engine, &path);
        Model {
            name: name.to_owned(),
            replicas: 1,
            concurrency: self.concurrency_limit(model.concurrency.as_ref(), &path),
            managed: true,
            load: model.load.0,
            stop: model.stop.map_or(Duration::ZERO, |stop| stop.0),
            ttl: model.ttl.map(|ttl| ttl.0),
            engine,
        }
    }

    fn engine(&mut self, engine: &file::Engine, path: &str) -> EngineSettings {
        let default = EngineSettings::default();
        let path = |key: &str| format!("{path}.engine.{key}");
        if let Some(kv) = &engine.kv_tokens
            && kv.value < 2
        {
            self.problem(kv.referenced, path("kvTokens"), "has to be at least 2");
        }
        EngineSettings {
            max_running: self.positive(engine.max_running.as_ref(), &path("maxRunning"), default.max_running),
            step_tokens: self.positive(engine.step_tokens.as_ref(), &path("stepTokens"), default.step_tokens),
            kv_tokens: engine.kv_tokens.as_ref().map_or(default.kv_tokens, |kv| kv.value),
            step_base: engine.step_base.map_or(default.step_base, |span| span.0),
            step_per_sequence: engine.step_per_sequence.map_or(default.step_per_sequence, |span| span.0),
            prefill_rate: self.positive(engine.prefill_rate.as_ref(), &path("prefillRate"), default.prefill_rate),
            overhead: engine.overhead.map_or(default.overhead, |range| (range.0, range.1)),
        }
    }

    fn classes(
        &mut self,
        classes: &Spanned<Vec<Spanned<file::Class>>>,
        models: &[Model],
        duration: Duration,
    ) -> Vec<Class> {
        if classes.value.is_empty() {
            self.problem(classes.referenced, "classes", "needs at least one class of clients");
        }
        let mut names = BTreeMap::new();
        let mut expected = 0.0;
        let mut checked = Vec::with_capacity(classes.value.len());
        for (index, class) in classes.value.iter().enumerate() {
            let path = format!("classes[{index}]");
            let name = &class.value.name;
            if let Some(first) = names.insert(name.value.clone(), index) {
                self.problem(
                    name.referenced,
                    format!("{path}.name"),
                    format!("`{}` is the name of classes[{first}] too; give each class its own", name.value),
                );
            }
            let class = self.class(&path, class, models, duration);
            expected += class.arrivals.expected(duration);
            checked.push(class);
        }
        if expected > MAX_REQUESTS {
            self.problem(
                classes.referenced,
                "classes",
                format!(
                    "about {expected:.0} requests would come, more than {MAX_REQUESTS}; lower the rates or the duration"
                ),
            );
        }
        checked
    }

    fn class(&mut self, path: &str, spanned: &Spanned<file::Class>, models: &[Model], duration: Duration) -> Class {
        let class = &spanned.value;
        let model = match &class.model {
            Some(name) => models.iter().position(|model| model.name == name.value).unwrap_or_else(|| {
                let known: Vec<_> = models.iter().map(|model| model.name.as_str()).collect();
                self.problem(
                    name.referenced,
                    format!("{path}.model"),
                    format!("`{}` is not among the models; they are {}", name.value, known.join(", ")),
                );
                0
            }),
            None if models.len() > 1 => {
                self.problem(spanned.referenced, path, "needs `model`, as there are several");
                0
            }
            None => 0,
        };
        if let Some(engine) = models.get(model).map(|model| &model.engine) {
            let longest = |length: &Spanned<Length>| u64::from(length.value.max());
            let most = longest(&class.prompt) + longest(&class.output);
            if most > engine.kv_tokens {
                self.problem(
                    class.prompt.referenced,
                    format!("{path}.prompt"),
                    format!(
                        "prompt and output can reach {most} tokens, and the engine's KV cache holds {}; shorten them, \
                         set their `max`, or raise kvTokens",
                        engine.kv_tokens
                    ),
                );
            }
        }
        let bursts = class.burst.as_ref().map_or(&[][..], |burst| &burst.value.0);
        if let Some(burst) = &class.burst
            && burst.value.0.iter().any(|&(_, count)| count.fract() != 0.0 || count > MAX_REQUESTS)
        {
            let message = format!("has to be whole numbers of requests up to {MAX_REQUESTS}");
            self.problem(burst.referenced, format!("{path}.burst"), message);
        }
        let arrivals = Arrivals {
            rates: class.rate.0.clone(),
            bursts: bursts.iter().map(|&(at, count)| (at, count as u32)).collect(),
        };
        if arrivals.expected(duration) == 0.0 {
            self.problem(spanned.referenced, path, "sends nothing; give it a `rate` or a `burst` within the duration");
        }
        let tenant = class.tenant.as_ref().unwrap_or(&class.name.value);
        let tenants = match self.positive(class.tenants.as_ref(), &format!("{path}.tenants"), 1) {
            1 => vec![tenant.clone()],
            count => (1..=count.min(100_000)).map(|number| format!("{tenant}-{number}")).collect(),
        };
        Class {
            name: class.name.value.clone(),
            priority: class.priority.map_or_else(Default::default, |priority| priority.0),
            tenants,
            model: ModelId(u32::try_from(model).unwrap_or(u32::MAX)),
            arrivals,
            prompt: class.prompt.value,
            output: class.output.value,
            max_tokens: class.max_tokens,
            goal: class.slo_ttft.map(|Span(goal)| goal),
            ttl: class.ttl.map(|Span(ttl)| ttl),
            patience: class.patience.map(|Span(patience)| patience),
        }
    }

    fn comparisons(
        &mut self,
        comparisons: &Spanned<Vec<Spanned<file::Comparison>>>,
        models: &[Model],
        tenants: &BTreeMap<String, TenantId>,
    ) -> Vec<Comparison> {
        if comparisons.value.is_empty() {
            self.problem(comparisons.referenced, "comparisons", "needs at least one, such as `- use: fifo`");
        }
        let mut names = BTreeMap::new();
        let mut checked = Vec::with_capacity(comparisons.value.len());
        for (index, spanned) in comparisons.value.iter().enumerate() {
            let path = format!("comparisons[{index}]");
            let comparison = &spanned.value;
            let mut admission = admission(&comparison.admission);
            let mut detector = None;
            let (usual, policy) = match comparison.used {
                file::Use::NoGate => ("no gate", Policy::NoGate),
                file::Use::Fifo => ("fifo", self.fifo(&comparison.settings.fifo, &path, models)),
                file::Use::Serial => ("serial", self.serial(&comparison.settings.serial, &path)),
                file::Use::Flow => {
                    let flow = &comparison.settings.flow;
                    detector = self.detector(flow, &path);
                    let flow = self.flow(flow, &path, tenants, &mut admission);
                    ("flow", Policy::Scheduler(PolicySettings::Flow(flow)))
                }
            };
            let name = comparison.name.clone().unwrap_or_else(|| usual.to_owned());
            if let Some(first) = names.insert(name.clone(), index) {
                self.problem(
                    spanned.referenced,
                    &path,
                    format!("is called `{name}` as comparisons[{first}] is; give each its own `name`"),
                );
            }
            checked.push(Comparison { name, policy, detector, admission, backoff: BackoffSettings::default() });
        }
        checked
    }

    fn serial(&mut self, serial: &file::Serial, path: &str) -> Policy {
        let path = format!("{path}.settings.serial");
        let default = SerialSettings::default();
        if let Some(bonus) = &serial.swap_affinity_bonus
            && bonus.value > 99
        {
            let message = "has to be 0 to 99, so that it never crosses a band";
            self.problem(bonus.referenced, format!("{path}.swapAffinityBonus"), message);
        }
        Policy::Scheduler(PolicySettings::Serial(SerialSettings {
            swap_affinity_bonus: serial
                .swap_affinity_bonus
                .as_ref()
                .map_or(default.swap_affinity_bonus, |bonus| bonus.value),
            aging_divisor: serial.aging_divisor.unwrap_or(default.aging_divisor),
            slots: self.positive(serial.slots.as_ref(), &format!("{path}.slots"), default.slots),
        }))
    }

    fn fifo(&mut self, fifo: &file::Fifo, path: &str, models: &[Model]) -> Policy {
        let mut model_priority = BTreeMap::new();
        for (name, points) in &fifo.priority {
            match (0..).zip(models).find(|(_, model)| model.name == *name) {
                Some((id, _)) => {
                    model_priority.insert(ModelId(id), points.value);
                }
                None => self.problem(
                    points.referenced,
                    format!("{path}.settings.fifo.priority.{name}"),
                    "is not among the models",
                ),
            }
        }
        Policy::Scheduler(PolicySettings::Fifo(FifoSettings { model_priority }))
    }

    fn faults(&mut self, faults: &file::Faults) -> Faults {
        let crash_every = faults.crash_every.as_ref().and_then(|every| {
            if every.value.0.is_zero() {
                self.problem(every.referenced, "faults.crashEvery", "has to be longer than 0s");
            }
            Some(every.value.0).filter(|every| !every.is_zero())
        });
        Faults {
            cancel: self.share(faults.cancel.as_ref(), "faults.cancel"),
            load_failure: self.share(faults.load_failure.as_ref(), "faults.loadFailure"),
            slow_stop: self.share(faults.slow_stop.as_ref(), "faults.slowStop"),
            crash_every,
            stale_news: self.share(faults.stale_news.as_ref(), "faults.staleNews"),
            lost_scrapes: self.share(faults.lost_scrapes.as_ref(), "faults.lostScrapes"),
            late_scrapes: self.share(faults.late_scrapes.as_ref(), "faults.lateScrapes"),
        }
    }
}

fn admission(file: &file::Admission) -> AdmissionSettings {
    let default = AdmissionSettings::default();
    let total = Bounds {
        requests: file.max_requests.unwrap_or(default.total.requests),
        bytes: file.max_bytes.unwrap_or(default.total.bytes),
    };
    let ttl = |span: Option<Span>| span.map(|Span(ttl)| ttl).filter(|ttl| !ttl.is_zero());
    // In the order of `Band::index`.
    let bands = [&file.bands.batch, &file.bands.normal, &file.bands.interactive].map(|band| BandSettings {
        bounds: Bounds {
            requests: band.max_requests.unwrap_or(total.requests),
            bytes: band.max_bytes.unwrap_or(total.bytes),
        },
        ttl: ttl(band.ttl.or(file.default_request_ttl)),
    });
    AdmissionSettings {
        total,
        bands,
        levels: BTreeMap::new(),
        shed_when_saturated: file.shed_when_saturated.unwrap_or(default.shed_when_saturated),
    }
}

impl Arrivals {
    /// Requests to be expected within the duration.
    #[must_use]
    pub fn expected(&self, duration: Duration) -> f64 {
        let ends = self.rates.iter().skip(1).map(|&(from, _)| from).chain([duration]);
        let steady: f64 = self
            .rates
            .iter()
            .zip(ends)
            .map(|(&(from, rate), to)| rate * to.min(duration).saturating_sub(from).as_secs_f64())
            .sum();
        let at_once: f64 =
            self.bursts.iter().filter(|&&(at, _)| at < duration).map(|&(_, count)| f64::from(count)).sum();
        steady + at_once
    }
}
