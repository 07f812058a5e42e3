//! What one request costs: arrive + dispatch + finish, with so many others waiting.
//!
//! Every model is ready. Each cycle one request arrives, one that runs finishes, and the best that waits is dispatched,
//! so that as many wait after it as before. At the end, how long the dispatch alone takes, with its rare worst.

mod cpu_time;

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use cpu_time::CpuTime;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use switchyard_scheduler::{
    Action, Bounds, Event, EvictionSettings, FairnessSettings, FifoSettings, FlowSettings, GroupSettings,
    LevelSettings, ModelId, ModelSettings, PolicySettings, Priority, Request, RequestId, Scheduler, SerialSettings,
    Settings, TenantId, Timestamp, Usage,
};

/// How urgent the arrivals are.
#[derive(Clone, Copy)]
enum Mix {
    /// All alike.
    Uniform,
    /// Evenly spread over -100 to 100: 201 levels for each model.
    Mixed,
}

/// Whom the arrivals are for.
#[derive(Clone, Copy)]
enum Tenants {
    /// Any of so many.
    Known(u64),
    /// Each for somebody else.
    New,
}

/// What is measured.
#[derive(Clone)]
struct Case {
    policy: PolicySettings,
    models: u32,
    /// Of each model, and how many requests one of them runs.
    replicas: u32,
    concurrency: u32,
    waiting: u64,
    mix: Mix,
    tenants: Tenants,
}

struct Load {
    scheduler: Scheduler,
    case: Case,
    now: u64,
    next: u64,
    /// The running requests, one for each that runs at once.
    running: Vec<RequestId>,
    random: u64,
}

impl Load {
    fn new(case: Case) -> Self {
        let ids: Vec<_> = (0..case.models).map(ModelId).collect();
        let model = ModelSettings {
            ttl: Some(Duration::from_secs(3600)),
            replicas: case.replicas,
            concurrency: case.concurrency,
            managed: case.replicas == 1,
            ..ModelSettings::default()
        };
        let mut settings = Settings { policy: case.policy.clone(), ..Settings::default() };
        settings.models = ids.iter().map(|&id| (id, model.clone())).collect();
        let together = GroupSettings { swap: false, exclusive: false, persistent: false, members: ids.clone() };
        settings.eviction = EvictionSettings::Groups(vec![together]);
        let unbounded = Bounds { requests: u64::MAX, bytes: u64::MAX };
        settings.admission.total = unbounded;
        settings.admission.bands.iter_mut().for_each(|band| band.bounds = unbounded);

        let scheduler = Scheduler::new(settings);
        let mut load = Self { scheduler, case, now: 0, next: 0, running: Vec::new(), random: 1 };
        load.scheduler.handle(Timestamp(0), Event::Preload { models: ids });
        while let Some(action) = load.scheduler.poll_action() {
            if let Action::Load { replica, generation, .. } = action {
                load.scheduler.handle(Timestamp(0), Event::LoadDone { replica, generation, ok: true });
            }
        }
        // Every model has its share of those who wait.
        while load.waiting() < load.case.waiting {
            load.arrive((load.next % u64::from(load.case.models)) as u32);
        }
        load
    }

    fn waiting(&self) -> u64 {
        self.scheduler.bands().iter().map(|band| band.requests).sum()
    }

    /// xorshift64*: the same numbers in every run.
    fn random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.random() >> 32) % bound
    }

    fn arrive(&mut self, model: u32) {
        let priority = match self.case.mix {
            Mix::Uniform => 0,
            Mix::Mixed => self.below(201) as i64 - 100,
        };
        let tenant = match self.case.tenants {
            Tenants::Known(1) => 0,
            Tenants::Known(count) => self.below(count),
            Tenants::New => self.next,
        };
        self.now += 100;
        let id = RequestId(self.next);
        self.next += 1;
        let request = Request {
            bytes: 1_000,
            tenant: TenantId(tenant),
            prompt_tokens: 512,
            max_tokens: Some(128),
            ..Request::new(id, ModelId(model), Priority(priority))
        };
        self.scheduler.handle(Timestamp(self.now), Event::Arrive(request));
        self.poll();
    }

    fn poll(&mut self) {
        while let Some(action) = self.scheduler.poll_action() {
            if let Action::Dispatch { id, .. } = black_box(action) {
                self.running.push(id);
            }
        }
    }

    fn finish(&mut self) {
        self.now += 100;
        let place = self.below(self.running.len() as u64) as usize;
        let id = self.running.swap_remove(place);
        let usage = Usage { prompt_tokens: Some(512), completion_tokens: Some(100 + id.0 % 50), ..Usage::default() };
        self.scheduler.handle(Timestamp(self.now), Event::Finished { id, usage });
        self.poll();
    }

    fn cycle(&mut self) {
        let model = self.below(self.case.models.into()) as u32;
        self.arrive(model);
        self.finish();
    }
}

fn flow(fairness: FairnessSettings) -> PolicySettings {
    let template = LevelSettings { fairness, ..LevelSettings::default() };
    PolicySettings::Flow(FlowSettings { template, ..FlowSettings::default() })
}

/// True if any of the cases was asked for.
fn run(criterion: &mut Criterion<CpuTime>, group: &str, cases: impl IntoIterator<Item = (String, Case)>) -> bool {
    let mut asked_for = false;
    let mut group = criterion.benchmark_group(group);
    group.throughput(Throughput::Elements(1));
    group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    for (name, case) in cases {
        let id = BenchmarkId::new(name, format!("{} waiting", case.waiting));
        group.bench_function(id, |bencher| {
            asked_for = true;
            let mut load = Load::new(case.clone());
            bencher.iter(|| load.cycle());
        });
    }
    group.finish();
    asked_for
}

fn orders(criterion: &mut Criterion<CpuTime>) {
    // So that every model of `fifo` is full and somebody waits for it.
    for (name, policy, concurrency) in [
        ("serial", PolicySettings::Serial(SerialSettings::default()), 10),
        ("fifo", PolicySettings::Fifo(FifoSettings::default()), 1),
        ("flow", PolicySettings::Flow(FlowSettings::default()), 1),
    ] {
        for (mix, mix_name) in [(Mix::Uniform, "uniform"), (Mix::Mixed, "mixed")] {
            let case = |models: u32, waiting| Case {
                policy: policy.clone(),
                models,
                replicas: 1,
                concurrency,
                waiting,
                mix,
                tenants: Tenants::Known(1),
            };
            let cases = [1, 10, 100, 1_000].into_iter().flat_map(|models| {
                [10, 1_000, 100_000, 1_000_000].map(|waiting| (format!("{models} models"), case(models, waiting)))
            });
            run(criterion, &format!("{name}/{mix_name}"), cases);
        }
    }
}

const FAIR: [(&str, FairnessSettings); 2] =
    [("round-robin", FairnessSettings::RoundRobin), ("weighted", FairnessSettings::Weighted)];

/// One model at one level.
fn tenants(criterion: &mut Criterion<CpuTime>) {
    for (name, fairness) in FAIR {
        let case = |waiting, tenants| Case {
            policy: flow(fairness),
            models: 1,
            replicas: 1,
            concurrency: 1,
            waiting,
            mix: Mix::Uniform,
            tenants,
        };
        let cases = [
            ("1 tenant".to_owned(), case(5_000, Tenants::Known(1))),
            ("5000 tenants".to_owned(), case(5_000, Tenants::Known(5_000))),
            ("new tenants".to_owned(), case(5_000, Tenants::New)),
            ("10000 tenants".to_owned(), case(100_000, Tenants::Known(10_000))),
        ];
        if run(criterion, &format!("flow/{name}"), cases) {
            print_dispatches(&format!("flow/{name}/5000 tenants"), case(5_000, Tenants::Known(5_000)));
        }
    }
}

/// How long the end of a request takes, and with it the dispatch of another, in a full pool of 64 servers.
fn pool(criterion: &mut Criterion<CpuTime>) {
    for (name, fairness) in FAIR {
        let case = Case {
            policy: flow(fairness),
            models: 1,
            replicas: 64,
            concurrency: 128,
            waiting: 100_000,
            mix: Mix::Uniform,
            tenants: Tenants::Known(10_000),
        };
        if !run(criterion, &format!("flow/{name}/64 replicas"), [("10000 tenants".to_owned(), case.clone())]) {
            continue;
        }
        print_dispatches(&format!("flow/{name}/64 replicas"), case);
    }
}

/// Times single dispatches: the end of a request, and what goes in its place. By the wall clock, since reading that of
/// the processor takes half as long as what is measured.
#[expect(clippy::disallowed_methods, reason = "a bench, not the scheduler, reads the clock")]
fn print_dispatches(name: &str, case: Case) {
    let mut load = Load::new(case);
    let mut nanos: Vec<_> = (0..200_000)
        .map(|_| {
            load.arrive(0);
            let begin = Instant::now();
            load.finish();
            begin.elapsed().as_nanos()
        })
        .collect();
    let mean = nanos.iter().sum::<u128>() / nanos.len() as u128;
    nanos.sort_unstable();
    let at = |part: f64| nanos[(nanos.len() as f64 * part) as usize];
    println!("{name}: dispatch mean {mean} p50 {} p99 {} p99.9 {} ns", at(0.5), at(0.99), at(0.999));
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(CpuTime);
    targets = orders, tenants, pool
}
criterion_main!(benches);
