//! The task that owns one replica: it alone starts and ends its process and changes its state.

use std::{
    convert::Infallible,
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, SystemTime},
};

use switchyard_scheduler::{Generation, ReplicaId};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::sleep,
};

use super::{
    BackendEvent, BackendSnapshot, BackendState, Failure, Logs,
    client::Fault,
    health::{self, Health},
    logs::LogWriter,
    process::{self, Process, told},
    scrape::Lookout,
    suspicion::Suspicions,
};
use crate::config::{Launch, Looks, Model};

/// How many checks of a remote server that was ready have to fail in a row.
const REMOTE_CHECK_TRIES: u32 = 3;
/// Where others can take over, a server is checked so many times as often.
const POOL_CHECK_FACTOR: u32 = 5;
/// A process that is just ending may take a connection and break it off, until it is seen to be gone.
const SUSPICION_TRIES: u32 = 10;
const SUSPICION_PAUSE: Duration = Duration::from_millis(10);
/// How long after a child was found not to answer its end may take to show.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// What the fleet wants of a replica.
pub(super) enum Command {
    Load(Load),
    Stop(Generation),
    /// Look whether it is still there.
    Check {
        generation: Generation,
        asking: oneshot::Sender<()>,
    },
}

/// A model to load.
pub(super) struct Load {
    pub(super) generation: Generation,
    pub(super) model: Arc<Model>,
    /// Counts the requests that it is sent.
    pub(super) sent: Arc<AtomicU64>,
}

/// The commands that a replica gets, and the answers it owes.
pub(super) struct Inbox {
    pub(super) replica: ReplicaId,
    /// Holds few: the scheduler waits for the answer to a `Load` or `Stop` before it says the next.
    pub(super) commands: mpsc::UnboundedReceiver<Command>,
    pub(super) events: mpsc::UnboundedSender<BackendEvent>,
    /// Set once: end everything now.
    pub(super) shutdown: watch::Receiver<bool>,
    /// Somebody looks into suspicions now.
    pub(super) is_watched: bool,
    pub(super) suspicions: Arc<Suspicions>,
}

/// The command that ends what a replica is doing.
enum Order {
    Stop,
    Load(Load),
    Quit,
}

/// How the life of one process ended.
enum End {
    Ordered(Order),
    Failed(Failure),
}

/// Why a process that still may run has to end.
enum Why {
    Ordered(Order),
    /// What is wrong with it, after "the model".
    Problem(String),
}

pub(super) struct Supervisor {
    pub(super) inbox: Inbox,
    pub(super) logs: Logs,
    pub(super) status: watch::Sender<BackendSnapshot>,
    pub(super) looks: watch::Receiver<Looks>,
    pub(super) remote_check_period: Duration,
}

impl Supervisor {
    /// Lives until the fleet is gone or shuts down; nothing of the replica runs when it returns.
    pub(super) async fn run(mut self) {
        let mut current = None;
        let mut order = self.inbox.next(current).await;
        loop {
            order = match order {
                Order::Load(load) => {
                    current = Some(load.generation);
                    match self.live(load).await {
                        Some(load) => Order::Load(load),
                        None => self.inbox.next(current).await,
                    }
                }
                Order::Stop => {
                    // It ended by itself while the stop was on its way.
                    self.inbox.stop_done(current.unwrap_or_default());
                    self.inbox.next(current).await
                }
                Order::Quit => return self.inbox.refuse_the_rest(),
            };
        }
    }

    /// One load and what comes of it, until nothing of it is left. Returns the load that took its place, if one did.
    async fn live(&mut self, Load { generation, model, sent }: Load) -> Option<Load> {
        self.status.send_modify(|status| {
            status.generation = generation;
            status.upstream.clone_from(&model.upstream);
            status.model.clone_from(&model.id);
            status.starts += 1;
        });
        self.enter(BackendState::Starting, None);
        let log = self.logs.writer(&model.id);
        let mut life = Life { generation, model: &model, log, sent: &sent, ready: false };
        let end = match &model.launch {
            Some(launch) => self.live_as_child(&mut life, launch).await,
            None => self.live_remotely(&mut life).await,
        };
        self.inbox.is_watched = false;
        let failure = match end {
            End::Ordered(order @ (Order::Stop | Order::Load(_))) => {
                self.enter(BackendState::Stopped, None);
                self.inbox.checked();
                if let Order::Load(load) = order {
                    return Some(load);
                }
                self.inbox.stop_done(generation);
                return None;
            }
            End::Ordered(Order::Quit) => {
                self.enter(BackendState::Stopped, None);
                Failure::new(format!("model `{}` was ended: the gateway shuts down", model.id))
            }
            End::Failed(failure) => {
                self.enter(BackendState::Failed, None);
                failure
            }
        };
        let replica = self.inbox.replica;
        self.inbox.send(if life.ready {
            BackendEvent::Exited { replica, generation, failure }
        } else {
            BackendEvent::LoadDone { replica, generation, result: Err(failure) }
        });
        self.inbox.checked();
        None
    }

    async fn live_as_child(&mut self, life: &mut Life<'_>, launch: &Launch) -> End {
        tokio::select! {
            biased;
            order = self.inbox.next(Some(life.generation)) => return End::Ordered(order),
            free = health::port_is_free(&life.model.upstream) => if let Err(problem) = free {
                return life.failed(&format!("was not started: {problem}"));
            },
        }
        life.log.note(&format!("starting: {}", shell_words::join(&launch.argv)));
        life.log.begin();
        let mut process = match Process::start(&launch.argv, &launch.env, life.log.clone()).await {
            Ok(process) => process,
            Err(error) => {
                let program = launch.argv.first().map_or("", String::as_str);
                return life.failed(&format!("cannot be started: `{program}`: {error}; check its `cmd`"));
            }
        };
        let pid = Some(process.id());
        self.enter(BackendState::Starting, pid);
        let why = match self.until_ready(life, &mut process).await {
            Some(why) => why,
            None => {
                self.ready(life, pid);
                let (watch, health) = (self.inbox.watch(), Health::of(life.model));
                let looks = watch.look(life, self.looks.clone(), &self.status);
                tokio::select! {
                    biased;
                    order = self.inbox.next(Some(life.generation)) => Why::Ordered(order),
                    status = process.exited() => Why::Problem(exit_problem(status, "while it served")),
                    never = watch.child(&health) => match never {},
                    never = looks => match never {},
                }
            }
        };
        let order = match why {
            Why::Ordered(order) => order,
            Why::Problem(problem) => {
                // Workers outlive a leader that crashed.
                process.kill().await;
                return life.failed(&problem);
            }
        };
        self.enter(BackendState::Stopping, pid);
        match order {
            Order::Quit => process.kill().await,
            _ => process.stop(launch, life.model.unload_timeout, &mut self.inbox.shutdown).await,
        }
        life.log.note("ended");
        End::Ordered(order)
    }

    /// `None` when it is ready, else why it has to end.
    async fn until_ready(&mut self, life: &Life<'_>, process: &mut Process) -> Option<Why> {
        const WHEN: &str = "before it was ready";
        let health = Health::of(life.model);
        let ready = tokio::select! {
            biased;
            order = self.inbox.next(Some(life.generation)) => return Some(Why::Ordered(order)),
            status = process.exited() => return Some(Why::Problem(exit_problem(status, WHEN))),
            ready = health.until_ready(life.model.health_check_timeout) => ready,
        };
        match ready {
            // The answer may be another server's, if its own has just died of a port that is taken.
            Ok(()) if process.has_exited() => Some(Why::Problem(exit_problem(process.exited().await, WHEN))),
            Ok(()) => None,
            Err(last) => Some(Why::Problem(not_ready(&health, life.model, &last))),
        }
    }

    async fn live_remotely(&mut self, life: &mut Life<'_>) -> End {
        let model = life.model;
        let health = Health::of(model);
        let checked = model.check_endpoint.is_some();
        let within = model.health_check_timeout;
        tokio::select! {
            biased;
            order = self.inbox.next(Some(life.generation)) => return End::Ordered(order),
            ready = health.until_ready(within), if checked => if let Err(last) = ready {
                return life.failed(&not_ready(&health, model, &last));
            },
            () = std::future::ready(()), if !checked => {}
        }
        self.ready(life, None);
        let watch = self.inbox.watch();
        let looks = watch.look(life, self.looks.clone(), &self.status);
        let period =
            if model.is_pool() { self.remote_check_period / POOL_CHECK_FACTOR } else { self.remote_check_period };
        tokio::select! {
            biased;
            order = self.inbox.next(Some(life.generation)) => End::Ordered(order),
            problem = watch.remote(&health, period, checked) => {
                life.failed(&format!("is not there any more: wanted {health}, got: {problem}"))
            }
            never = looks => match never {},
        }
    }

    fn ready(&mut self, life: &mut Life<'_>, pid: Option<u32>) {
        life.ready = true;
        self.inbox.is_watched = true;
        life.log.note("ready");
        self.enter(BackendState::Ready, pid);
        let (replica, generation) = (self.inbox.replica, life.generation);
        self.inbox.send(BackendEvent::LoadDone { replica, generation, result: Ok(()) });
    }

    fn enter(&self, state: BackendState, pid: Option<u32>) {
        self.status.send_modify(|status| {
            status.pid = pid;
            status.sample = None;
            if status.state != state {
                status.state = state;
                status.since = SystemTime::now();
            }
        });
    }
}

/// The life of one load.
struct Life<'a> {
    generation: Generation,
    model: &'a Model,
    log: LogWriter,
    sent: &'a AtomicU64,
    ready: bool,
}

impl Life<'_> {
    /// The message for clients is the problem and the last lines of the log; the log itself gets the problem.
    fn failed(&self, problem: &str) -> End {
        let excerpt = self.log.excerpt();
        self.log.note(&format!("the model {problem}"));
        let id = &self.model.id;
        End::Failed(Failure::new(if excerpt.is_empty() {
            format!("model `{id}` {problem}")
        } else {
            format!("model `{id}` {problem}. Its last lines:\n{excerpt}")
        }))
    }
}

fn exit_problem(status: std::io::Result<std::process::ExitStatus>, when: &str) -> String {
    let how = status.map_or_else(|error| format!("was lost ({error})"), process::describe);
    format!("{how} {when}")
}

fn not_ready(health: &Health, model: &Model, last: &Fault) -> String {
    let seconds = model.health_check_timeout.as_secs_f64();
    format!(
        "was not ready within {seconds} s: wanted {health}, last got: {last} \
         (raise `healthCheckTimeout` if it needs longer, set `checkEndpoint` if its health path is another)"
    )
}

/// What goes on beside a replica that is ready.
struct Watch {
    replica: ReplicaId,
    events: mpsc::UnboundedSender<BackendEvent>,
    suspicions: Arc<Suspicions>,
}

impl Watch {
    /// Ends when a remote server is gone: when it failed several checks in a row, or refused the connection for one that
    /// was made because somebody else had found it gone.
    async fn remote(&self, health: &Health, period: Duration, checked: bool) -> Fault {
        let mut failures = 0;
        loop {
            let suspected = tokio::select! {
                () = self.suspicions.raised() => true,
                () = sleep(period), if checked => false,
            };
            let asking = self.suspicions.take();
            let mut tries = if suspected { SUSPICION_TRIES } else { 1 };
            let answer = loop {
                let answer = health.check().await;
                tries -= 1;
                if tries == 0 || !answer.as_ref().is_err_and(Fault::is_breach) {
                    break answer;
                }
                sleep(SUSPICION_PAUSE).await;
            };
            match answer {
                Ok(()) => failures = 0,
                Err(problem) => {
                    failures += u32::from(checked);
                    tracing::debug!(replica = ?self.replica, failures, %problem, "a remote server failed its check");
                    if failures == REMOTE_CHECK_TRIES || (suspected && problem.is_refusal()) {
                        self.suspicions.put_back(asking);
                        return problem;
                    }
                }
            }
            self.checked(asking);
        }
    }

    /// Whether a child is there is seen from its process; this gives its end the time to be seen.
    async fn child(&self, health: &Health) -> Infallible {
        loop {
            self.suspicions.raised().await;
            if health.check().await.is_err() {
                sleep(END_PATIENCE).await;
            }
            self.checked(self.suspicions.take());
        }
    }

    /// Follows what the replica says of its own work.
    async fn look(
        &self,
        life: &Life<'_>,
        looks: watch::Receiver<Looks>,
        status: &watch::Sender<BackendSnapshot>,
    ) -> Infallible {
        let (replica, generation) = (self.replica, life.generation);
        let lookout =
            Lookout { model: life.model, index: replica.index, looks, sent: life.sent, suspicions: &self.suspicions };
        let tell = |sample, sent| {
            status.send_modify(|status| status.sample = sample);
            if let Some(sample) = sample {
                let _ = self.events.send(BackendEvent::Sample { replica, generation, sample, sent });
            }
        };
        lookout.watch(tell).await
    }

    fn checked(&self, asking: Vec<oneshot::Sender<()>>) {
        for asking in asking {
            let _ = self.events.send(BackendEvent::Checked(asking));
        }
    }
}

impl Inbox {
    /// The next command that matters to what runs (or last ran) as `current`. Others are answered or ignored here.
    /// Can be cancelled.
    async fn next(&mut self, current: Option<Generation>) -> Order {
        loop {
            let command = tokio::select! {
                biased;
                () = told(&mut self.shutdown) => return Order::Quit,
                command = self.commands.recv() => command,
            };
            match command {
                None => return Order::Quit,
                Some(Command::Load(load)) if Some(load.generation) > current => return Order::Load(load),
                Some(Command::Load(load)) => tracing::debug!(generation = load.generation.0, "a stale load is ignored"),
                Some(Command::Stop(generation)) if Some(generation) == current => return Order::Stop,
                Some(Command::Check { generation, asking }) if Some(generation) == current && self.is_watched => {
                    self.suspicions.raise(Some(asking));
                }
                Some(Command::Check { asking, .. }) => self.send(BackendEvent::Checked(asking)),
                // That process is reaped.
                Some(Command::Stop(generation)) => self.stop_done(generation),
            }
        }
    }

    /// Every command gets its answer, even those that come too late.
    fn refuse_the_rest(&mut self) {
        self.commands.close();
        while let Ok(command) = self.commands.try_recv() {
            self.send(refusal(self.replica, command));
        }
    }

    fn watch(&self) -> Watch {
        Watch { replica: self.replica, events: self.events.clone(), suspicions: Arc::clone(&self.suspicions) }
    }

    /// Answers all who wait for a look at the replica.
    fn checked(&self) {
        self.watch().checked(self.suspicions.take());
    }

    fn stop_done(&self, generation: Generation) {
        self.send(BackendEvent::StopDone { replica: self.replica, generation });
    }

    fn send(&self, event: BackendEvent) {
        // Without a dispatcher, nobody wants to know.
        let _ = self.events.send(event);
    }
}

/// The answer to a command that comes after the end.
pub(super) fn refusal(replica: ReplicaId, command: Command) -> BackendEvent {
    match command {
        Command::Load(Load { generation, model, .. }) => {
            let failure = Failure::new(format!("model `{}` was not loaded: the gateway shuts down", model.id));
            BackendEvent::LoadDone { replica, generation, result: Err(failure) }
        }
        Command::Stop(generation) => BackendEvent::StopDone { replica, generation },
        Command::Check { asking, .. } => BackendEvent::Checked(asking),
    }
}
