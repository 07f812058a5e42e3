//! Feeds the scheduler and carries out what it decides.
//!
//! The scheduler has one owner: [`Dispatcher`], which guards it with a lock that is held for one event and the
//! actions it leads to, and never across an await. Actions are only ever channel sends, so no caller waits for
//! another's I/O. A request that can go at once is answered by the very call that submitted it.

mod arrival;
mod live;
mod refusal;
mod ticket;

use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use switchyard_policy::{Grant, LimitSettings};
use switchyard_scheduler::{
    Action, Caller, CallerId, Event, ModelId, PoolView, ReplicaId, Request, RequestId, Scheduler, StopReason, TenantId,
    Timestamp,
};
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    time::Instant,
};

pub use arrival::{Arrival, Place, Tokens};
use live::Live;
pub use refusal::Refusal;
use ticket::{Answer, Passage, Running};
pub use ticket::{Slot, Ticket};

use crate::{
    backend::{BackendEvent, Failure, Fleet, FleetOptions},
    config::{Model, Settings},
    telemetry::{Metrics, PoolState, ScrapeState},
};

/// The gateway's one dispatch queue. Cheap to clone.
#[derive(Clone)]
pub struct Dispatcher {
    shared: Arc<Shared>,
}

struct Shared {
    core: Mutex<Core>,
    settings: ArcSwap<Settings>,
    fleet: Fleet,
    metrics: Arc<Metrics>,
    origin: Instant,
    /// Wakes the timer when the scheduler's deadline has moved forward.
    deadline_moved: Notify,
    /// Numbers callers and tenants, so that nothing of a key or a name is in a number.
    names: RandomState,
    draining: AtomicBool,
    drained: watch::Sender<bool>,
}

/// What the lock guards.
struct Core {
    scheduler: Scheduler,
    next_request: u64,
    /// The number of every model name ever configured: numbers are not reused.
    numbers: HashMap<String, ModelId>,
    /// The configured models; those removed by a reload are missing.
    models: HashMap<ModelId, Arc<Model>>,
    /// Replicas from their `Load` on, until the next.
    live: HashMap<ReplicaId, Live>,
    /// Where the answer of each waiting request goes.
    waiting: HashMap<RequestId, oneshot::Sender<Answer>>,
    /// The deadline that the timer sleeps for.
    armed: Option<Timestamp>,
}

/// What an event is about, beyond what the scheduler has to know.
#[derive(Clone, Copy, Default)]
struct Cause<'a> {
    /// The request whose own call this is: its answer is returned rather than sent.
    own: Option<RequestId>,
    /// How many requests of its caller may wait, where that is limited.
    waiting_limit: Option<u32>,
    /// Why a model server is not there.
    failure: Option<&'a Failure>,
}

impl Dispatcher {
    /// Starts with nothing loaded. Must be called inside a tokio runtime.
    #[must_use]
    pub fn new(settings: Arc<Settings>, metrics: Arc<Metrics>) -> Self {
        let (events, news) = mpsc::unbounded_channel();
        let fleet = Fleet::new(events, FleetOptions { log_buffer_bytes: settings.log_buffer_bytes });
        let mut core = Core {
            scheduler: Scheduler::new(switchyard_scheduler::Settings::default()),
            next_request: 1,
            numbers: HashMap::new(),
            models: HashMap::new(),
            live: HashMap::new(),
            waiting: HashMap::new(),
            armed: None,
        };
        fleet.look(settings.looks());
        metrics.know_tenants(&settings.tenants());
        let names = RandomState::new();
        core.scheduler = Scheduler::new(core.adopt(&settings, &names));
        let shared = Arc::new(Shared {
            core: Mutex::new(core),
            settings: ArcSwap::new(settings),
            fleet,
            metrics,
            origin: Instant::now(),
            deadline_moved: Notify::new(),
            names,
            draining: AtomicBool::new(false),
            drained: watch::Sender::new(false),
        });
        tokio::spawn(Arc::clone(&shared).follow_backends(news));
        tokio::spawn(Arc::clone(&shared).follow_deadline());
        // The servers of a pool are looked for before anybody asks.
        shared.handle(&mut shared.core.lock(), Event::Tick, Cause::default());
        Self { shared }
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        self.shared.settings.load_full()
    }

    /// Has a replica looked at that does not answer. Resolves, when the scheduler knows what came of it, to whether the
    /// replica is still there.
    pub async fn check(&self, slot: &Slot) -> bool {
        self.shared.fleet.check(slot.replica, slot.generation).await
    }

    /// The model servers, for snapshots and logs.
    #[must_use]
    pub fn fleet(&self) -> &Fleet {
        &self.shared.fleet
    }

    /// The number by which the scheduler knows a tenant.
    #[must_use]
    pub fn tenant(&self, name: &str) -> TenantId {
        tenant_id(&self.shared.names, name)
    }

    /// Lets a request into the queue, or through it at once.
    pub fn submit(&self, arrival: Arrival) -> Ticket {
        self.shared.submit(arrival)
    }

    /// Takes a model out of memory, or all of them, whether they run something or not. Returns at once.
    pub fn unload(&self, model: Option<&Model>) {
        let mut core = self.shared.core.lock();
        let models = match model {
            Some(model) => core.numbers.get(&model.id).copied().into_iter().collect(),
            None => Vec::new(),
        };
        if model.is_none() || !models.is_empty() {
            self.shared.handle(&mut core, Event::Unload { models }, Cause::default());
        }
    }

    /// Loads models ahead of any request, as far as they fit.
    pub fn preload(&self, ids: &[String]) {
        let mut core = self.shared.core.lock();
        let models: Vec<_> = ids.iter().filter_map(|id| core.numbers.get(id).copied()).collect();
        if !models.is_empty() {
            self.shared.handle(&mut core, Event::Preload { models }, Cause::default());
        }
    }

    /// Puts new settings in force. Waiting requests keep their place, models that did not change keep running.
    pub fn reconfigure(&self, settings: Arc<Settings>) {
        let mut core = self.shared.core.lock();
        let adopted = core.adopt(&settings, &self.shared.names);
        // Before the new settings are in force, so that nothing more is sent to where a replica was.
        for (replica, generation) in core.moved() {
            self.shared.handle(&mut core, Event::Exited { replica, generation }, Cause::default());
        }
        let event = Event::Reconfigure(Box::new(adopted));
        self.shared.settings.store(Arc::clone(&settings));
        self.shared.fleet.look(settings.looks());
        self.shared.metrics.know_tenants(&settings.tenants());
        self.shared.handle(&mut core, event, Cause::default());
        drop(core);
        self.shared.fleet.retain(|id| settings.models.iter().any(|model| model.id == id));
    }

    /// Whether [`Dispatcher::drain`] was called.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.shared.draining.load(Ordering::Relaxed)
    }

    /// Rejects what waits and what still arrives, lets running requests end, stops every model, then returns.
    pub async fn drain(&self) {
        let mut drained = self.shared.drained.subscribe();
        if !self.shared.draining.swap(true, Ordering::Relaxed) {
            let mut core = self.shared.core.lock();
            self.shared.handle(&mut core, Event::Drain, Cause::default());
        }
        // The sender lives in `shared`, which `self` keeps alive.
        let _ = drained.wait_for(|drained| *drained).await;
    }

    /// The present state, for a scrape of `/metrics`.
    #[must_use]
    pub fn scrape_state(&self) -> ScrapeState {
        let core = self.shared.core.lock();
        let mut in_flight = BTreeMap::<ModelId, Vec<(u32, u64)>>::new();
        for view in core.scheduler.replicas() {
            in_flight.entry(view.replica.model).or_default().push((view.replica.index, view.running.into()));
        }
        let pool = |view: PoolView| PoolState {
            model: core.models.get(&view.model).map(|model| model.id.clone()).unwrap_or_default(),
            saturation: view.saturation,
            held: view.held,
            in_flight: in_flight.remove(&view.model).unwrap_or_default(),
        };
        ScrapeState {
            now: self.shared.now(),
            bands: core.scheduler.bands(),
            running: core.scheduler.running(),
            pools: core.scheduler.pools().map(pool).collect(),
            flows: core.scheduler.remembered().0,
            backends: self.shared.fleet.snapshots(),
        }
    }
}

impl Shared {
    fn now(&self) -> Timestamp {
        Timestamp(micros(self.origin.elapsed()))
    }

    fn submit(self: &Arc<Self>, arrival: Arrival) -> Ticket {
        let Arrival { model, priority, bytes, ttl, caller, tenant, tokens, ttft_goal, session, place } = arrival;
        let mut core = self.core.lock();
        let id = place.map_or(RequestId(core.next_request), |place| place.seq);
        core.next_request += u64::from(place.is_none());
        // Every model of any settings has a number, so a miss is impossible; the scheduler refuses what is gone.
        let number = core.numbers.get(&model.id).copied().unwrap_or(ModelId(u32::MAX));
        let tenant = match &caller {
            Some(grant) if tenant == TenantId::default() => tenant_id(&self.names, &grant.tenant),
            _ => tenant,
        };
        let caller = caller.and_then(|grant| self.limits(&grant));
        let request = Request {
            arrived: place.map(|place| place.arrived),
            bytes,
            ttl,
            caller,
            tenant,
            prompt_tokens: tokens.prompt,
            max_tokens: tokens.max,
            ttft_goal,
            session,
            ..Request::new(id, number, priority)
        };
        let waiting_limit = request.caller.as_ref().and_then(|caller| caller.waiting);
        let cause = Cause { own: Some(id), waiting_limit, ..Cause::default() };
        match self.handle(&mut core, Event::Arrive(request), cause) {
            Some(answer) => Ticket::answered(Arc::clone(self), id, answer),
            None => {
                let (sender, receiver) = oneshot::channel();
                core.waiting.insert(id, sender);
                Ticket::waiting(Arc::clone(self), id, receiver)
            }
        }
    }

    fn limits(&self, grant: &Grant) -> Option<Caller> {
        let LimitSettings { waiting, running } = grant.limits;
        let id = CallerId(grant.number(&self.names));
        (waiting.is_some() || running.is_some()).then_some(Caller { id, waiting, running })
    }

    fn leave(&self, id: RequestId) {
        let mut core = self.core.lock();
        core.waiting.remove(&id);
        self.handle(&mut core, Event::Cancel { id }, Cause::default());
    }

    fn finish(&self, id: RequestId, usage: switchyard_scheduler::Usage) {
        let mut core = self.core.lock();
        self.handle(&mut core, Event::Finished { id, usage }, Cause::default());
    }

    /// One event, and everything the scheduler wants done about it. The answer to `cause.own` is returned
    /// rather than sent.
    fn handle(&self, core: &mut Core, event: Event, cause: Cause<'_>) -> Option<Answer> {
        let now = self.now();
        let mut answered = None;
        core.scheduler.handle(now, event);
        while let Some(action) = core.scheduler.poll_action() {
            let Some((id, answer)) = self.carry_out(core, now, action, cause) else { continue };
            if cause.own == Some(id) {
                answered = Some(answer);
            } else if let Some(waiting) = core.waiting.remove(&id) {
                // A receiver that is gone has said so with a `Cancel` that waits for this lock.
                let _ = waiting.send(answer);
            }
        }
        let deadline = core.scheduler.deadline();
        if deadline.is_some_and(|deadline| core.armed.is_none_or(|armed| deadline < armed)) {
            core.armed = deadline;
            self.deadline_moved.notify_one();
        }
        answered
    }

    fn carry_out(
        &self,
        core: &mut Core,
        now: Timestamp,
        action: Action,
        cause: Cause<'_>,
    ) -> Option<(RequestId, Answer)> {
        match action {
            Action::Dispatch { id, replica, generation, decision } => {
                self.metrics.on_dispatch(&decision);
                let live = core.live.get(&replica).filter(|live| live.generation == generation)?;
                live.sent.fetch_add(1, Ordering::Relaxed);
                let failure = live.failure.subscribe();
                Some((
                    id,
                    Answer::Go(Passage {
                        replica,
                        generation,
                        model: Arc::clone(&live.model),
                        arrived: Timestamp(now.0.saturating_sub(micros(decision.waited))),
                        decision,
                        failure,
                        running: Running::begin(&live.running),
                    }),
                ))
            }
            Action::Reject { id, outcome, waited, retry_after, flow } => {
                let limit = cause.waiting_limit.filter(|_| cause.own == Some(id));
                let refusal = Refusal::new(id, outcome, waited, retry_after, cause.failure, limit);
                Some((id, Answer::No(Refusal { flow: flow.map(Box::new), ..refusal })))
            }
            Action::Load { replica, generation, request, evicted } => {
                let model = core.models.get(&replica.model)?.replica(replica.index);
                tracing::info!(model = model.id, request = request.map(|id| id.0), evicted = evicted.len(), "loading");
                if !evicted.is_empty() {
                    self.metrics.on_swap();
                }
                // What still runs there from before is not told that its server was replaced: it was not.
                let before = core.live.remove(&replica).filter(|_| model.is_pool());
                let failure = before.map_or_else(|| watch::Sender::new(None), |before| before.failure);
                let sent = Arc::new(AtomicU64::new(0));
                let live = Live {
                    generation,
                    model: Arc::clone(&model),
                    loading_since: now,
                    sent: Arc::clone(&sent),
                    running: Arc::default(),
                    failure,
                };
                core.live.insert(replica, live);
                self.fleet.load(replica, generation, model, sent);
                None
            }
            Action::Stop { replica, generation, reason } => {
                if let Some(live) = core.live.get(&replica) {
                    tracing::info!(model = live.model.id, ?reason, "stopping");
                    let message = stopped_message(&live.model.id, reason).into();
                    live.failure.send_replace(Some(Failure { message }));
                }
                self.fleet.stop(replica, generation);
                None
            }
            Action::Drained => {
                self.drained.send_replace(true);
                None
            }
        }
    }

    async fn follow_backends(self: Arc<Self>, mut news: mpsc::UnboundedReceiver<BackendEvent>) {
        while let Some(event) = news.recv().await {
            let mut core = self.core.lock();
            let mut failure = None;
            let event = match event {
                BackendEvent::LoadDone { replica, generation, result } => {
                    let ok = result.is_ok();
                    failure = result.err();
                    core.on_load_done(&self.metrics, self.now(), replica, generation, ok);
                    Event::LoadDone { replica, generation, ok }
                }
                BackendEvent::StopDone { replica, generation } => Event::StopDone { replica, generation },
                BackendEvent::Sample { replica, generation, sample, sent } => {
                    Event::Sample { replica, generation, load: core.fill_in(replica, &sample, sent) }
                }
                BackendEvent::Checked(asking) => {
                    // Whoever has gone does not want to know any more.
                    let _ = asking.send(());
                    continue;
                }
                BackendEvent::Exited { replica, generation, failure: reason } => {
                    failure = Some(reason);
                    Event::Exited { replica, generation }
                }
            };
            if let (
                Some(failure),
                Event::LoadDone { replica, generation, .. } | Event::Exited { replica, generation },
            ) = (&failure, &event)
            {
                core.on_failure(*replica, *generation, failure);
            }
            self.handle(&mut core, event, Cause { failure: failure.as_ref(), ..Cause::default() });
        }
    }

    async fn follow_deadline(self: Arc<Self>) {
        loop {
            let armed = self.core.lock().armed;
            match armed {
                None => self.deadline_moved.notified().await,
                Some(deadline) => {
                    let at = self.origin + Duration::from_micros(deadline.0);
                    tokio::select! {
                        () = tokio::time::sleep_until(at) => {
                            let mut core = self.core.lock();
                            core.armed = None;
                            self.handle(&mut core, Event::Tick, Cause::default());
                        }
                        () = self.deadline_moved.notified() => {}
                    }
                }
            }
        }
    }
}

impl Core {
    /// Takes in the models of new settings, and puts the settings into the scheduler's terms.
    fn adopt(&mut self, settings: &Settings, names: &RandomState) -> switchyard_scheduler::Settings {
        self.models.clear();
        for model in &settings.models {
            let next = ModelId(u32::try_from(self.numbers.len()).unwrap_or(u32::MAX));
            let number = *self.numbers.entry(model.id.clone()).or_insert(next);
            self.models.insert(number, Arc::clone(model));
        }
        let tenant = |name: &str| tenant_id(names, name);
        settings.scheduler_settings(|id| self.numbers.get(id).copied().unwrap_or(ModelId(u32::MAX)), tenant)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Never 0, which stands for nobody in particular.
fn tenant_id(names: &RandomState, name: &str) -> TenantId {
    TenantId(names.hash_one(name).max(1))
}

fn stopped_message(model: &str, reason: StopReason) -> String {
    let why = match reason {
        StopReason::Evicted => "to make room for another model",
        StopReason::Idle => "since it was idle",
        StopReason::Abandoned => "since nobody waits for it any more",
        StopReason::Unload => "because an operator unloaded it",
        StopReason::Reconfigured => "because its settings changed",
        StopReason::Shutdown => "because the gateway shuts down",
    };
    format!("model `{model}` was stopped {why}")
}
