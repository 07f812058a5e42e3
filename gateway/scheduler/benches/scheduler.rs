//! What one request costs: arrive + dispatch + finish, with so many others waiting.
//!
//! Every model is ready. Each cycle one request arrives, one that runs finishes, and the best that waits is dispatched,
//! so that as many wait after it as before.

use std::{hint::black_box, time::Duration};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use switchyard_scheduler::{
    Action, Bounds, Event, EvictionSettings, FifoSettings, GroupSettings, ModelId, ModelSettings, PolicySettings,
    Priority, Request, RequestId, Scheduler, SerialSettings, Settings, Timestamp, Usage,
};

/// How urgent the arrivals are.
#[derive(Clone, Copy)]
enum Mix {
    /// All alike.
    Uniform,
    /// Evenly spread over -100 to 100: 201 levels for each model.
    Mixed,
}

struct Load {
    scheduler: Scheduler,
    mix: Mix,
    models: u32,
    now: u64,
    next: u64,
    /// The running requests, one for each that runs at once.
    running: Vec<RequestId>,
    random: u64,
}

impl Load {
    fn new(policy: PolicySettings, models: u32, waiting: u64, mix: Mix) -> Self {
        let ids: Vec<_> = (0..models).map(ModelId).collect();
        let mut settings = Settings { policy, ..Settings::default() };
        let mut model = ModelSettings { ttl: Some(Duration::from_secs(3600)), ..ModelSettings::default() };
        if let PolicySettings::Fifo(_) = settings.policy {
            // So that every model is full and somebody waits for it.
            model.concurrency = 1;
        }
        settings.models = ids.iter().map(|&id| (id, model.clone())).collect();
        let together = GroupSettings { swap: false, exclusive: false, persistent: false, members: ids.clone() };
        settings.eviction = EvictionSettings::Groups(vec![together]);
        let unbounded = Bounds { requests: u64::MAX, bytes: u64::MAX };
        settings.admission.total = unbounded;
        settings.admission.bands.iter_mut().for_each(|band| band.bounds = unbounded);

        let scheduler = Scheduler::new(settings);
        let mut load = Self { scheduler, mix, models, now: 0, next: 0, running: Vec::new(), random: 1 };
        load.scheduler.handle(Timestamp(0), Event::Preload { models: ids });
        while let Some(action) = load.scheduler.poll_action() {
            if let Action::Load { replica, generation, .. } = action {
                load.scheduler.handle(Timestamp(0), Event::LoadDone { replica, generation, ok: true });
            }
        }
        // Every model has its share of those who wait.
        while load.waiting() < waiting {
            load.arrive((load.next % u64::from(models)) as u32);
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

    fn arrive(&mut self, model: u32) {
        let priority = match self.mix {
            Mix::Uniform => 0,
            Mix::Mixed => (self.random() >> 32) as i64 % 201 - 100,
        };
        self.now += 100;
        let id = RequestId(self.next);
        self.next += 1;
        let request = Request { bytes: 1_000, ..Request::new(id, ModelId(model), Priority(priority)) };
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

    fn cycle(&mut self) {
        let model = (self.random() >> 32) as u32 % self.models;
        self.arrive(model);
        self.now += 100;
        let place = (self.random() >> 32) as usize % self.running.len();
        let id = self.running.swap_remove(place);
        self.scheduler.handle(Timestamp(self.now), Event::Finished { id, usage: Usage::default() });
        self.poll();
    }
}

fn bench(criterion: &mut Criterion) {
    for (policy, settings) in [
        ("serial", PolicySettings::Serial(SerialSettings::default())),
        ("fifo", PolicySettings::Fifo(FifoSettings::default())),
    ] {
        for (mix, name) in [(Mix::Uniform, "uniform"), (Mix::Mixed, "mixed")] {
            let mut group = criterion.benchmark_group(format!("{policy}/{name}"));
            group.throughput(Throughput::Elements(1));
            group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
            for models in [1, 10, 100, 1_000] {
                for waiting in [10, 1_000, 100_000, 1_000_000] {
                    let id = BenchmarkId::new(format!("{models} models"), format!("{waiting} waiting"));
                    group.bench_function(id, |bencher| {
                        let mut load = Load::new(settings.clone(), models, waiting, mix);
                        bencher.iter(|| load.cycle());
                    });
                }
            }
            group.finish();
        }
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
