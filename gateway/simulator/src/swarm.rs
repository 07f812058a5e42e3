//! Thousands of short random runs: models, groups, settings, clients, operators and faults are all drawn from a seed,
//! and the ledger watches every step.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use switchyard_scheduler::{
    AdmissionSettings, BackoffSettings, BandSettings, Bounds, CeilingSettings, DetectorSettings, EvictionSettings,
    FairnessSettings, FifoSettings, FlowSettings, GroupSettings, HoldbackScale, LevelSettings, MatrixSettings, ModelId,
    OrderingSettings, PolicySettings, Priority, SerialSettings, TenantId,
};

use crate::{
    Arrivals, Class, Comparison, Detector, EngineSettings, Faults, Length, Model, Operation, Policy, Scenario,
    driver::Driver,
    random::Stream,
    recording::{self, Recorder},
    run::{outcomes, settings},
};

const PRIORITIES: [i64; 10] = [i64::MIN, -200, -100, -99, -1, 0, 1, 99, 100, i64::MAX];

impl Stream {
    fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.between(0, among.len() as u64 - 1) as usize]
    }

    fn up_to(&mut self, most: u32) -> u32 {
        self.between(0, most.into()) as u32
    }

    fn millis(&mut self, most: u64) -> Duration {
        Duration::from_millis(self.between(0, most))
    }

    fn maybe<T>(&mut self, probability: f64, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.chance(probability).then(|| value(self))
    }
}

fn model(random: &mut Stream, number: usize) -> Model {
    let managed = random.chance(0.85);
    Model {
        name: format!("model-{number}"),
        replicas: 1 + random.up_to(1) * random.up_to(2),
        concurrency: random.maybe(0.7, |random| 1 + random.up_to(3)),
        managed,
        load: random.millis(3_000),
        stop: random.millis(800),
        ttl: random.maybe(0.3, |random| random.millis(4_000)),
        engine: EngineSettings {
            max_running: 1 + random.up_to(4),
            step_tokens: 1 + random.up_to(60),
            kv_tokens: 40 + random.between(0, 100),
            step_base: Duration::from_millis(20),
            step_per_sequence: Duration::from_millis(5),
            prefill_rate: 1_000.0,
            overhead: (Duration::ZERO, random.millis(50)),
        },
    }
}

fn groups(random: &mut Stream, models: usize) -> Vec<GroupSettings> {
    let mut groups: Vec<_> = (0..random.up_to(3))
        .map(|_| GroupSettings {
            swap: random.chance(0.5),
            exclusive: random.chance(0.5),
            persistent: random.chance(0.3),
            members: Vec::new(),
        })
        .collect();
    for number in 0..models as u32 {
        let group = random.up_to(groups.len() as u32) as usize;
        if let Some(group) = groups.get_mut(group) {
            group.members.push(ModelId(number));
        }
    }
    groups
}

fn eviction(random: &mut Stream, models: usize) -> EvictionSettings {
    if random.chance(0.6) {
        return EvictionSettings::Groups(groups(random, models));
    }
    let some =
        |random: &mut Stream| -> Vec<_> { (0..models as u32).map(ModelId).filter(|_| random.chance(0.5)).collect() };
    EvictionSettings::Matrix(MatrixSettings {
        sets: (0..random.up_to(3)).map(|_| some(random)).collect(),
        costs: some(random).into_iter().map(|model| (model, 1 + random.up_to(4))).collect(),
    })
}

fn class(random: &mut Stream, number: usize, models: usize) -> Class {
    Class {
        name: format!("class-{number}"),
        priority: Priority(random.pick(&PRIORITIES)),
        // Classes share tenants now and then.
        tenants: (0..=random.up_to(2)).map(|other| format!("tenant-{}", (number as u32 + other) % 5)).collect(),
        model: ModelId(random.up_to(models as u32 - 1)),
        arrivals: Arrivals {
            rates: vec![(Duration::ZERO, random.unit() * 1.5)],
            bursts: random.maybe(0.3, |random| vec![(random.millis(5_000), random.up_to(12))]).unwrap_or_default(),
        },
        prompt: Length::Uniform(1, 40),
        output: Length::Uniform(1, 8),
        max_tokens: random.maybe(0.3, |random| random.between(0, 20)),
        goal: random.maybe(0.4, |random| random.millis(3_000)),
        ttl: random.maybe(0.3, |random| random.millis(5_000)),
        patience: random.maybe(0.3, |random| random.millis(5_000)),
    }
}

fn operations(random: &mut Stream, models: usize) -> Vec<(Duration, Operation)> {
    let mut operations: Vec<_> = (0..random.up_to(5))
        .map(|_| {
            let model = ModelId(random.up_to(models as u32 - 1));
            let some = if random.chance(0.3) { Vec::new() } else { vec![model] };
            let operation = match random.up_to(9) {
                0..=3 => Operation::Unload(some),
                4..=6 => Operation::Preload(vec![model]),
                7 => Operation::Restart(model),
                8 => Operation::Leave(model),
                _ => Operation::Remove(model),
            };
            (random.millis(20_000), operation)
        })
        .collect();
    operations.extend(random.maybe(0.3, |random| (random.millis(25_000), Operation::Drain)));
    operations
}

fn bounds(random: &mut Stream) -> Bounds {
    if random.chance(0.5) {
        Bounds { requests: 10_000, bytes: 1 << 30 }
    } else {
        Bounds { requests: random.between(0, 12), bytes: random.between(0, 2_000) }
    }
}

fn policy(random: &mut Stream, models: usize) -> PolicySettings {
    match random.up_to(5) {
        0..=1 => PolicySettings::Serial(SerialSettings {
            swap_affinity_bonus: random.up_to(99),
            aging_divisor: random.up_to(2) * random.up_to(60),
            slots: 1 + random.up_to(1) * random.up_to(3),
        }),
        2..=3 => {
            let points = |random: &mut Stream| random.pick(&[-100, -1, 0, 10, i64::MAX]);
            let model_priority: BTreeMap<_, _> = (0..models as u32)
                .filter_map(|number| random.maybe(0.3, |random| (ModelId(number), points(random))))
                .collect();
            PolicySettings::Fifo(FifoSettings { model_priority })
        }
        _ => PolicySettings::Flow(flow(random)),
    }
}

fn flow(random: &mut Stream) -> FlowSettings {
    let (least, greatest) = (random.unit(), 1.0 - random.unit() * random.unit());
    let (least, greatest) = (least.min(greatest), least.max(greatest));
    FlowSettings {
        levels: PRIORITIES
            .into_iter()
            .filter_map(|priority| random.maybe(0.3, |random| (Priority(priority), level(random))))
            .collect(),
        template: level(random),
        ceilings: match random.up_to(3) {
            0 => CeilingSettings::Fixed(1.0),
            1 => CeilingSettings::Fixed(1.0 - random.unit()),
            2 => {
                let by = random.pick(&[HoldbackScale::Rank, HoldbackScale::Value]);
                CeilingSettings::Holdback { least, greatest, by }
            }
            _ => CeilingSettings::Adaptive { least, greatest },
        },
        aging_divisor: random.up_to(1) * random.up_to(60),
        swap_affinity: random.chance(0.5),
        weights: (1..=6)
            .filter_map(|tenant| random.maybe(0.4, |random| (TenantId(tenant), 1 + random.up_to(9))))
            .collect(),
        prompt_weight: random.up_to(3),
        completion_weight: random.up_to(3),
        idle_timeout: random.millis(10_000),
    }
}

fn level(random: &mut Stream) -> LevelSettings {
    use {FairnessSettings::*, OrderingSettings::*};
    LevelSettings {
        fairness: random.pick(&[GlobalStrict, RoundRobin, Weighted]),
        ordering: random.pick(&[Fcfs, Edf, SloDeadline]),
        ceiling: random.maybe(0.3, |random| 1.0 - random.unit()),
    }
}

fn detector(random: &mut Stream) -> Detector {
    let refresh = Duration::from_millis(20) + random.millis(100);
    let settings = match random.up_to(3) {
        0 => DetectorSettings::Slots,
        1 => DetectorSettings::Concurrency { requests: 1 + random.up_to(5) },
        2 => DetectorSettings::Tokens { tokens: 1 + random.between(0, 300) },
        _ => DetectorSettings::Utilization {
            queue_depth: 1 + random.up_to(4),
            kv_cache: 1.0 - random.unit(),
            staleness: refresh + random.millis(200),
        },
    };
    let looks = matches!(settings, DetectorSettings::Utilization { .. });
    Detector { settings, headroom: random.maybe(0.4, Stream::unit).unwrap_or(0.0), refresh: looks.then_some(refresh) }
}

/// A random scenario with one comparison.
fn scenario(seed: u64) -> Scenario {
    // Its own stream: those near the ends of the numbers are the run's.
    let random = &mut Stream::new(seed, 1 << 32);
    let models = 1 + random.up_to(4) as usize;
    let admission = AdmissionSettings {
        total: bounds(random),
        bands: std::array::from_fn(|_| BandSettings {
            bounds: bounds(random),
            ttl: random.maybe(0.2, |random| random.millis(6_000)),
        }),
        levels: (0..random.up_to(1) * random.up_to(3))
            .map(|_| {
                let bounds = bounds(random);
                (
                    Priority(random.pick(&PRIORITIES)),
                    BandSettings { bounds, ttl: random.maybe(0.5, |random| random.millis(6_000)) },
                )
            })
            .collect(),
        shed_when_saturated: random.chance(0.2),
    };
    let backoff = BackoffSettings { initial: random.millis(1_000), max: Duration::from_secs(4) };
    let policy = policy(random, models);
    let detector = matches!(policy, PolicySettings::Flow(_)).then(|| detector(random));
    let policy = Policy::Scheduler(policy);
    Scenario {
        name: format!("swarm-{seed}"),
        description: String::new(),
        seed,
        duration: Duration::from_secs(20),
        window: (Duration::ZERO, Duration::from_secs(20)),
        eviction: eviction(random, models),
        classes: (0..1 + random.up_to(3) as usize).map(|number| class(random, number, models)).collect(),
        models: (0..models).map(|number| model(random, number)).collect(),
        comparisons: vec![Comparison { name: "swarm".into(), policy, detector, admission, backoff }],
        faults: Faults {
            cancel: random.maybe(0.5, Stream::unit).unwrap_or(0.0) * 0.5,
            load_failure: random.maybe(0.4, Stream::unit).unwrap_or(0.0) * 0.7,
            slow_stop: random.maybe(0.4, Stream::unit).unwrap_or(0.0),
            crash_every: random.maybe(0.4, |random| Duration::from_millis(500) + random.millis(10_000)),
            stale_news: random.maybe(0.4, Stream::unit).unwrap_or(0.0),
            lost_scrapes: random.maybe(0.4, Stream::unit).unwrap_or(0.0) * 0.5,
            late_scrapes: random.maybe(0.4, Stream::unit).unwrap_or(0.0),
        },
        operations: operations(random, models),
    }
}

/// What happened in some runs: every ending and mishap, by name.
type Tally = BTreeMap<String, u64>;

fn swarm(seeds: Range<u64>) -> Tally {
    let mut tally = Tally::new();
    for seed in seeds {
        let scenario = scenario(seed);
        let outcomes = outcomes(&scenario, &scenario.comparisons[0])
            .unwrap_or_else(|error| panic!("seed {seed}: {error}\n{scenario:#?}"));
        let mut count = |what: String, number: u64| *tally.entry(what).or_default() += number;
        outcomes.lives.iter().for_each(|life| count(format!("{:?}", life.end), 1));
        count("load".into(), outcomes.loads);
        count("failed load".into(), outcomes.failed_loads);
        count("crash".into(), outcomes.crashes);
        count("preemption".into(), outcomes.preemptions);
    }
    tally
}

// In quarters, so that they run side by side.
#[test]
fn random_runs_break_no_promise_and_leave_nothing_out() {
    let tally = swarm(0..800);
    let outcomes =
        ["RejectedCapacity", "RejectedTtl", "RejectedShed", "Evicted", "LoadFailed", "UnknownModel", "Shutdown"];
    let ends = outcomes.map(|outcome| format!("Rejected({outcome})"));
    let others = ["Served", "Left", "Lost", "load", "failed load", "crash", "preemption"].map(str::to_owned);
    for what in ends.into_iter().chain(others) {
        let times = tally.get(&what).copied().unwrap_or(0);
        assert!(times >= 20, "{what} happened {times} times: {tally:#?}");
    }
}

#[test]
fn random_runs_break_no_promise_2() {
    swarm(800..1_600);
}

#[test]
fn random_runs_break_no_promise_3() {
    swarm(1_600..2_400);
}

#[test]
fn random_runs_break_no_promise_4() {
    swarm(2_400..3_200);
}

#[test]
fn a_recorded_run_replays_to_the_same_decisions() {
    for seed in (0..800).step_by(4) {
        let scenario = scenario(seed);
        let comparison = &scenario.comparisons[0];
        let Policy::Scheduler(policy) = &comparison.policy else { continue };
        let settings = settings(&scenario, comparison, policy.clone());
        let mut recorder = Recorder::new(settings.clone());
        Driver::new(&scenario, comparison, &mut recorder, settings)
            .run()
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let again = recording::replay(recorder.lines());
        for (number, (line, again)) in recorder.lines().iter().zip(again.lines()).enumerate() {
            assert_eq!(line, again, "seed {seed}, line {number}");
        }
        assert_eq!(recorder.lines().len(), again.lines().len(), "seed {seed}");
    }
}
