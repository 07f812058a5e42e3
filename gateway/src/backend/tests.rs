//! Real processes: shells that pretend to be model servers, while the test listens in their place.

use std::{
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use switchyard_scheduler::{Generation, ModelId, ReplicaId};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::mpsc,
    task::JoinHandle,
};

use super::{BackendEvent, BackendSnapshot, BackendState, Fleet, FleetOptions, procfs::Stat};
use crate::config::{Capabilities, Detector, Filters, Launch, Model, Timeouts, Upstream};

mod pools;

const G1: Generation = Generation(1);
const G2: Generation = Generation(2);
const LONG: Duration = Duration::from_secs(30);
/// Far less than any grace in these tests, far more than anything that is meant to be quick.
const QUICK: Duration = Duration::from_secs(10);

fn replica(model: u32) -> ReplicaId {
    ReplicaId { model: ModelId(model), index: 0 }
}

/// Every model has a loopback address of its own, so that tests cannot take each other's ports.
fn own_address() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let [_, _, a, b] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let [.., c] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, c, a, b)
}

fn remote_model(id: &str) -> Model {
    Model {
        id: id.to_owned(),
        name: String::new(),
        description: String::new(),
        aliases: Vec::new(),
        unlisted: false,
        metadata: serde_json::Value::Null,
        capabilities: Capabilities::default(),
        launch: None,
        upstream: Upstream { tls: false, host: own_address().to_string(), port: 8001, prefix: String::new() },
        number: 0,
        others: Vec::new(),
        check_endpoint: Some("/health".to_owned()),
        health_check_timeout: LONG,
        ttl: None,
        unload_timeout: LONG,
        use_model_name: None,
        concurrency: 1,
        detector: Detector::default(),
        forward_priority: None,
        takes_slot: true,
        filters: Filters::default(),
        timeouts: Timeouts::default(),
        upstream_key: None,
        revision: 0,
    }
}

fn model(id: &str, script: &str) -> Model {
    let argv = ["sh", "-c", script].map(str::to_owned).to_vec();
    Model { launch: Some(Launch { argv, env: Vec::new(), stop_argv: None }), ..remote_model(id) }
}

fn with_stop_command(mut model: Model, script: &str) -> Model {
    let stop_argv = ["sh", "-c", script].map(str::to_owned).to_vec();
    model.launch.as_mut().unwrap().stop_argv = Some(stop_argv);
    model
}

/// What the dispatcher sees.
struct Yard {
    fleet: Fleet,
    events: mpsc::UnboundedReceiver<BackendEvent>,
}

impl Yard {
    fn new() -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let options = FleetOptions { log_buffer_bytes: 1 << 16 };
        let fleet = Fleet::with_remote_check_period(sender, options, Duration::from_millis(20));
        Self { fleet, events }
    }

    async fn event(&mut self) -> BackendEvent {
        tokio::time::timeout(LONG, self.events.recv()).await.expect("an event in time").expect("a fleet")
    }

    async fn ready(&mut self, generation: Generation) {
        match self.event().await {
            BackendEvent::LoadDone { generation: of, result: Ok(()), .. } if of == generation => {}
            other => panic!("not ready: {other:?}"),
        }
    }

    async fn load_failure(&mut self) -> String {
        match self.event().await {
            BackendEvent::LoadDone { result: Err(failure), .. } => failure.message.to_string(),
            other => panic!("not a failed load: {other:?}"),
        }
    }

    async fn crash(&mut self) -> String {
        match self.event().await {
            BackendEvent::Exited { failure, .. } => failure.message.to_string(),
            other => panic!("not a crash: {other:?}"),
        }
    }

    async fn stopped(&mut self) -> (ReplicaId, Generation) {
        match self.event().await {
            BackendEvent::StopDone { replica, generation } => (replica, generation),
            other => panic!("not stopped: {other:?}"),
        }
    }

    fn no_event(&mut self) {
        assert!(self.events.try_recv().is_err());
    }

    fn snapshot(&self, replica: ReplicaId) -> BackendSnapshot {
        self.fleet.snapshots().into_iter().find(|snapshot| snapshot.replica == replica).unwrap()
    }

    fn lines(&self, model: &str) -> Lines {
        Lines(Box::pin(self.fleet.logs().subscribe(model)))
    }

    /// Loads the model and serves in its place once it says `up`.
    async fn load_and_serve(&mut self, replica: ReplicaId, model: Model) -> (Server, Lines) {
        let mut lines = self.lines(&model.id);
        let model = Arc::new(model);
        self.fleet.load(replica, G1, Arc::clone(&model), Arc::default());
        lines.until("up").await;
        let server = Server::start(&model.upstream, 200).await;
        self.ready(G1).await;
        (server, lines)
    }
}

struct Lines(Pin<Box<dyn Stream<Item = Bytes> + Send>>);

impl Lines {
    /// The rest of the next line that begins like this.
    async fn until(&mut self, start: &str) -> String {
        let found = async {
            while let Some(lines) = self.0.next().await {
                let text = String::from_utf8_lossy(&lines).into_owned();
                if let Some(rest) = text.lines().find_map(|line| line.strip_prefix(start)) {
                    return rest.trim().to_owned();
                }
            }
            panic!("the log ended before `{start}`");
        };
        tokio::time::timeout(LONG, found).await.unwrap_or_else(|_| panic!("no line `{start}`"))
    }

    async fn pid(&mut self, start: &str) -> Pid {
        Pid::from_raw(self.until(start).await.parse().unwrap())
    }
}

/// Answers every request with one status, and keeps the last request.
struct Server {
    task: JoinHandle<()>,
    status: Arc<AtomicU16>,
    requests: mpsc::UnboundedReceiver<String>,
}

impl Server {
    async fn start(upstream: &Upstream, status: u16) -> Self {
        let address: SocketAddr = format!("{}:{}", upstream.host, upstream.port).parse().unwrap();
        let listener = TcpListener::bind(address).await.unwrap();
        let status = Arc::new(AtomicU16::new(status));
        let answer = Arc::clone(&status);
        let (heard, requests) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 4096];
                let read = client.read(&mut request).await.unwrap_or(0);
                let _ = heard.send(String::from_utf8_lossy(&request[..read]).to_lowercase());
                let response = format!("HTTP/1.1 {} X\r\ncontent-length: 0\r\n\r\n", answer.load(Ordering::Relaxed));
                let _ = client.write_all(response.as_bytes()).await;
            }
        });
        Self { task, status, requests }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn is_gone(pid: Pid) -> bool {
    Stat::of(pid).is_none_or(|stat| stat.dead)
}

fn pid_of(snapshot: &BackendSnapshot) -> Pid {
    Pid::from_raw(i32::try_from(snapshot.pid.unwrap()).unwrap())
}

#[tokio::test]
async fn starts_gets_ready_and_stops() {
    let mut yard = Yard::new();
    let mut model = model("m", "echo value $NAME; echo up; exec sleep 60");
    model.launch.as_mut().unwrap().env.push(("NAME".to_owned(), "a b".to_owned()));
    let (_server, _) = yard.load_and_serve(replica(1), model).await;

    let snapshot = yard.snapshot(replica(1));
    assert_eq!((snapshot.state, snapshot.generation, snapshot.starts), (BackendState::Ready, G1, 1));
    let pid = pid_of(&snapshot);
    assert_eq!(Stat::of(pid).unwrap().group, pid, "it leads its own group");

    yard.fleet.stop(replica(1), G1);
    assert_eq!(yard.stopped().await, (replica(1), G1));
    assert!(is_gone(pid));
    let snapshot = yard.snapshot(replica(1));
    assert_eq!((snapshot.state, snapshot.pid), (BackendState::Stopped, None));
    let log = String::from_utf8(yard.fleet.logs().tail("m").to_vec()).unwrap();
    let words = ["[switchyard] starting: sh -c", "value a b\nup\n", "[switchyard] ready\n", "[switchyard] ended\n"];
    let places: Vec<_> = words.iter().map(|word| log.find(word).unwrap_or_else(|| panic!("{word} in {log}"))).collect();
    assert!(places.is_sorted(), "{log}");
}

#[tokio::test]
async fn a_model_that_ignores_sigterm_is_killed_and_delays_nobody() {
    let mut yard = Yard::new();
    let mut stubborn = model("stubborn", "trap '' TERM; echo up; while :; do sleep 60; done");
    stubborn.unload_timeout = Duration::from_millis(700);
    let (_a, _) = yard.load_and_serve(replica(1), stubborn).await;
    let (_b, _) = yard.load_and_serve(replica(2), model("polite", "echo up; exec sleep 60")).await;
    let pid = pid_of(&yard.snapshot(replica(1)));

    let began = Instant::now();
    yard.fleet.stop(replica(1), G1);
    yard.fleet.stop(replica(2), G1);
    assert_eq!(yard.stopped().await, (replica(2), G1));
    assert_eq!(yard.snapshot(replica(1)).state, BackendState::Stopping);
    assert_eq!(yard.stopped().await, (replica(1), G1));
    assert!(began.elapsed() >= Duration::from_millis(700) && began.elapsed() < QUICK);
    assert!(is_gone(pid));
}

#[tokio::test]
async fn a_command_that_ends_fails_the_load_with_its_last_lines() {
    let mut yard = Yard::new();
    let script = "echo first; echo CUDA error: out of memory >&2; exit 3";
    yard.fleet.load(replica(1), G1, Arc::new(model("m", script)), Arc::default());
    let message = yard.load_failure().await;
    assert_eq!(
        message,
        "model `m` exited with status 3 before it was ready. Its last lines:\nfirst\nCUDA error: out of memory"
    );
    let snapshot = yard.snapshot(replica(1));
    assert_eq!((snapshot.state, snapshot.pid), (BackendState::Failed, None));

    // No state is terminal.
    yard.fleet.load(replica(1), G2, Arc::new(model("m", "exit 4")), Arc::default());
    assert_eq!(yard.load_failure().await, "model `m` exited with status 4 before it was ready");
    assert_eq!(yard.snapshot(replica(1)).starts, 2);
}

#[tokio::test]
async fn a_program_that_is_not_there_is_named() {
    let mut yard = Yard::new();
    let mut model = model("m", "");
    model.launch.as_mut().unwrap().argv = vec!["no-such-program".to_owned()];
    yard.fleet.load(replica(1), G1, Arc::new(model), Arc::default());
    let message = yard.load_failure().await;
    assert!(message.starts_with("model `m` cannot be started: `no-such-program`: No such file"), "{message}");
}

#[tokio::test]
async fn a_model_that_never_gets_healthy_is_given_up_and_gone() {
    let mut yard = Yard::new();
    let mut model = model("m", "echo up; exec sleep 60");
    model.health_check_timeout = Duration::from_millis(600);
    let model = Arc::new(model);
    let mut lines = yard.lines("m");
    yard.fleet.load(replica(1), G1, Arc::clone(&model), Arc::default());
    lines.until("up").await;
    let _server = Server::start(&model.upstream, 503).await;
    let pid = pid_of(&yard.snapshot(replica(1)));
    let message = yard.load_failure().await;
    assert!(is_gone(pid));
    assert!(
        message.contains("not ready within 0.6 s") && message.contains("`GET /health`, last got: status 503"),
        "{message}"
    );
    assert!(message.ends_with("Its last lines:\nup"), "{message}");
}

#[tokio::test]
async fn loading_goes_on_while_the_server_says_503() {
    let mut yard = Yard::new();
    let model = Arc::new(model("m", "echo up; exec sleep 60"));
    let mut lines = yard.lines("m");
    yard.fleet.load(replica(1), G1, Arc::clone(&model), Arc::default());
    lines.until("up").await;
    let mut server = Server::start(&model.upstream, 503).await;
    for _ in 0..3 {
        server.requests.recv().await.unwrap();
    }
    yard.no_event();
    server.status.store(200, Ordering::Relaxed);
    yard.ready(G1).await;
}

#[tokio::test]
async fn a_stop_while_loading_is_answered_once_and_alone() {
    let mut yard = Yard::new();
    let mut lines = yard.lines("m");
    yard.fleet.load(replica(1), G1, Arc::new(model("m", "echo up; exec sleep 60")), Arc::default());
    lines.until("up").await;
    let pid = pid_of(&yard.snapshot(replica(1)));
    yard.fleet.stop(replica(1), G1);
    assert_eq!(yard.stopped().await, (replica(1), G1));
    assert!(is_gone(pid));
    // The next event is that of the next load.
    yard.fleet.load(replica(1), G2, Arc::new(model("m", "exit 1")), Arc::default());
    yard.load_failure().await;
    yard.no_event();
}

#[tokio::test]
async fn a_crash_while_serving_is_told_and_leaves_no_worker() {
    let mut yard = Yard::new();
    let script = "sleep 60 & echo worker $!; echo up; wait";
    let (_server, _) = yard.load_and_serve(replica(1), model("m", script)).await;
    let worker = yard.lines("m").pid("worker").await;
    assert!(!is_gone(worker));
    kill(pid_of(&yard.snapshot(replica(1))), Signal::SIGSEGV).unwrap();
    let message = yard.crash().await;
    assert!(message.starts_with("model `m` was ended by SIGSEGV while it served. Its last lines:\n"), "{message}");
    assert!(is_gone(worker));
    assert_eq!(yard.snapshot(replica(1)).state, BackendState::Failed);
    // A stop that crossed the news is answered too.
    yard.fleet.stop(replica(1), G1);
    assert_eq!(yard.stopped().await, (replica(1), G1));
    yard.no_event();
}

#[tokio::test]
async fn a_stop_waits_for_workers_even_in_other_sessions() {
    let mut yard = Yard::new();
    let script = "setsid sh -c 'trap \"\" TERM; echo worker $$; while :; do sleep 60; done' & sleep 0.1; echo up; wait";
    let mut model = model("m", script);
    model.unload_timeout = Duration::from_millis(300);
    let (_server, _) = yard.load_and_serve(replica(1), model).await;
    let worker = yard.lines("m").pid("worker").await;
    assert_eq!(Stat::of(worker).unwrap().group, worker, "it has left the group");
    yard.fleet.stop(replica(1), G1);
    yard.stopped().await;
    assert!(is_gone(worker));
}

#[tokio::test]
async fn a_crash_is_told_though_something_holds_the_pipe_open() {
    let mut yard = Yard::new();
    // Neither the group nor the mark finds this one.
    let script = "env -i setsid sleep 60 & echo holder $!; echo up; wait";
    let (_server, _) = yard.load_and_serve(replica(1), model("m", script)).await;
    let holder = yard.lines("m").pid("holder").await;
    kill(pid_of(&yard.snapshot(replica(1))), Signal::SIGKILL).unwrap();
    let began = Instant::now();
    yard.crash().await;
    assert!(began.elapsed() < QUICK);
    assert!(!is_gone(holder));
    kill(holder, Signal::SIGKILL).unwrap();
}

#[tokio::test]
async fn the_stop_command_takes_the_place_of_sigterm() {
    let mut yard = Yard::new();
    let script = "trap '' TERM; echo up; while :; do sleep 60; done";
    let model = with_stop_command(model("m", script), "echo asked ${PID}; kill -9 -${PID}");
    let (_server, mut lines) = yard.load_and_serve(replica(1), model).await;
    let pid = pid_of(&yard.snapshot(replica(1)));
    let began = Instant::now();
    yard.fleet.stop(replica(1), G1);
    assert_eq!(lines.pid("asked").await, pid);
    yard.stopped().await;
    assert!(began.elapsed() < QUICK && is_gone(pid));
}

#[tokio::test]
async fn a_stop_command_that_fails_is_followed_by_sigterm() {
    let mut yard = Yard::new();
    let model = with_stop_command(model("m", "echo up; exec sleep 60"), "exit 7");
    let (_server, mut lines) = yard.load_and_serve(replica(1), model).await;
    let began = Instant::now();
    yard.fleet.stop(replica(1), G1);
    lines.until("[switchyard] the stop command exited with status 7; sending SIGTERM").await;
    yard.stopped().await;
    assert!(began.elapsed() < QUICK);
}

#[tokio::test]
async fn a_stop_command_that_hangs_has_no_more_time_than_the_model() {
    let mut yard = Yard::new();
    let mut model = with_stop_command(model("m", "echo up; exec sleep 60"), "echo hangs $$; sleep 60");
    model.unload_timeout = Duration::from_millis(300);
    let (_server, mut lines) = yard.load_and_serve(replica(1), model).await;
    yard.fleet.stop(replica(1), G1);
    let command = lines.pid("hangs").await;
    let began = Instant::now();
    yard.stopped().await;
    assert!(began.elapsed() < QUICK && is_gone(command));
}

#[tokio::test]
async fn stale_generations_change_nothing() {
    let mut yard = Yard::new();
    yard.fleet.stop(replica(9), G1);
    assert_eq!(yard.stopped().await, (replica(9), G1), "never loaded: its process is gone");

    let model = Arc::new(model("m", "echo up; exec sleep 60"));
    let mut lines = yard.lines("m");
    yard.fleet.load(replica(1), G2, Arc::clone(&model), Arc::default());
    lines.until("up").await;
    let _server = Server::start(&model.upstream, 200).await;
    yard.ready(G2).await;
    let pid = pid_of(&yard.snapshot(replica(1)));
    yard.fleet.load(replica(1), G1, Arc::clone(&model), Arc::default());
    yard.fleet.stop(replica(1), G1);
    assert_eq!(yard.stopped().await, (replica(1), G1));
    assert!(!is_gone(pid));
    yard.fleet.stop(replica(1), G2);
    assert_eq!(yard.stopped().await, (replica(1), G2));
    yard.no_event();
}

#[tokio::test]
async fn a_port_in_use_is_named_and_nothing_is_started() {
    let mut yard = Yard::new();
    let model = model("m", "echo up; exec sleep 60");
    let _foreign = Server::start(&model.upstream, 200).await;
    yard.fleet.load(replica(1), G1, Arc::new(model), Arc::default());
    let message = yard.load_failure().await;
    assert!(message.contains("another program listens on port 8001 already"), "{message}");
    assert!(yard.fleet.logs().tail("m").windows(2).all(|pair| pair != b"up"));
}

#[tokio::test]
async fn without_a_health_path_a_connection_is_enough() {
    let mut yard = Yard::new();
    let mut model = model("m", "echo up; exec sleep 60");
    model.check_endpoint = None;
    let (_server, _) = yard.load_and_serve(replica(1), model).await;
}

#[tokio::test]
async fn a_remote_server_is_checked_and_missed() {
    let mut yard = Yard::new();
    let mut model = remote_model("far");
    model.upstream.prefix = "/api".to_owned();
    model.upstream_key = Some("secret".to_owned());
    let mut server = Server::start(&model.upstream, 200).await;
    yard.fleet.load(replica(1), G1, Arc::new(model), Arc::default());
    yard.ready(G1).await;
    let request = server.requests.recv().await.unwrap();
    assert!(request.starts_with("get /api/health http/1.1\r\n"), "{request}");
    assert!(request.contains("authorization: bearer secret\r\n"), "{request}");

    server.status.store(500, Ordering::Relaxed);
    let message = yard.crash().await;
    assert!(message.contains("`far` is not there any more") && message.contains("status 500"), "{message}");
}

#[tokio::test]
async fn a_remote_server_is_let_go_at_once() {
    let mut yard = Yard::new();
    let mut unchecked = remote_model("far");
    unchecked.check_endpoint = None;
    yard.fleet.load(replica(1), G1, Arc::new(unchecked), Arc::default());
    yard.ready(G1).await;
    yard.fleet.load(replica(2), G1, Arc::new(remote_model("not there")), Arc::default());
    yard.fleet.stop(replica(1), G1);
    assert_eq!(yard.stopped().await, (replica(1), G1));
    yard.fleet.stop(replica(2), G1);
    assert_eq!(yard.stopped().await, (replica(2), G1));

    let mut absent = remote_model("absent");
    absent.health_check_timeout = Duration::from_millis(200);
    yard.fleet.load(replica(3), G1, Arc::new(absent), Arc::default());
    let message = yard.load_failure().await;
    assert!(message.contains("`absent` was not ready within 0.2 s"), "{message}");
}

#[tokio::test]
async fn shutdown_kills_everything_now_and_answers_everything() {
    let mut yard = Yard::new();
    let deaf = "trap '' TERM; echo up; while :; do sleep 60; done";
    let (_a, _) = yard.load_and_serve(replica(1), model("stopping", deaf)).await;
    let (_b, _) = yard.load_and_serve(replica(2), model("serving", deaf)).await;
    let mut lines = yard.lines("loading");
    yard.fleet.load(replica(3), G1, Arc::new(model("loading", deaf)), Arc::default());
    lines.until("up").await;
    yard.fleet.stop(replica(1), G1);
    while yard.snapshot(replica(1)).state != BackendState::Stopping {
        tokio::task::yield_now().await;
    }
    let pids = [1, 2, 3].map(|number| pid_of(&yard.snapshot(replica(number))));

    let began = Instant::now();
    yard.fleet.shutdown().await;
    assert!(began.elapsed() < QUICK);
    assert!(pids.into_iter().all(is_gone));
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(match yard.event().await {
            BackendEvent::StopDone { replica, .. } => (replica.model.0, "stopped"),
            BackendEvent::Exited { replica, .. } => (replica.model.0, "exited"),
            BackendEvent::LoadDone { replica, result, .. } => {
                assert!(result.is_err());
                (replica.model.0, "failed")
            }
            other => panic!("{other:?}"),
        });
    }
    answers.sort_unstable();
    assert_eq!(answers, [(1, "stopped"), (2, "exited"), (3, "failed")]);

    yard.fleet.load(replica(1), G2, Arc::new(model("late", deaf)), Arc::default());
    yard.fleet.load(replica(4), G1, Arc::new(model("new", deaf)), Arc::default());
    yard.load_failure().await;
    yard.load_failure().await;
    yard.fleet.shutdown().await;
    yard.no_event();
}

#[tokio::test]
async fn a_fleet_that_is_dropped_leaves_nothing_running() {
    let mut yard = Yard::new();
    let (_server, _) = yard.load_and_serve(replica(1), model("m", "echo up; exec sleep 60")).await;
    let pid = pid_of(&yard.snapshot(replica(1)));
    let Yard { fleet, mut events } = yard;
    drop(fleet);
    while events.recv().await.is_some() {}
    assert!(is_gone(pid));
}

#[tokio::test]
async fn models_that_are_configured_no_more_are_forgotten() {
    let mut yard = Yard::new();
    let (_server, _) = yard.load_and_serve(replica(1), model("kept", "echo up; exec sleep 60")).await;
    yard.fleet.load(replica(2), G1, Arc::new(model("gone", "exit 1")), Arc::default());
    yard.load_failure().await;
    yard.fleet.retain(|_| false);
    assert_eq!(yard.fleet.snapshots().len(), 1, "what runs stays visible");
    assert_eq!(yard.fleet.logs().tail("gone"), "");
    // A replica that was forgotten can come back.
    yard.fleet.load(replica(2), G2, Arc::new(model("gone", "exit 1")), Arc::default());
    yard.load_failure().await;
}
