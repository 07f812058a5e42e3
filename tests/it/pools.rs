//! A pool of model servers in processes of their own, which are killed and come back while many clients ask.

use std::{
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::json;
use tokio::{sync::watch, task::JoinSet};

use crate::support::{Gateway, eventually, free_ports};

const SERVERS: usize = 4;
const CLIENTS: usize = 80;
const TOKENS: usize = 20;
/// Requests in a server's queue that make it full.
const THRESHOLD: f64 = 10.0;
const HEADROOM: f64 = 0.2;

/// One model server.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(port: u16) -> Self {
        Self::start_with(port, &["--slots", "4", "--token-time", "10ms", "--tokens", &TOKENS.to_string()])
    }

    fn start_with(port: u16, options: &[&str]) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_switchyard"))
            .args(["demo-backend", "--port", &port.to_string(), "--model", "m", "--metrics", "vllm"])
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a server");
        Self { child, port }
    }

    /// What it calls itself in every answer.
    fn name(&self) -> String {
        format!("demo-m-{}", self.child.id())
    }

    fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it is gone");
    }

    /// One series of its own metrics.
    async fn metric(&self, name: &str) -> f64 {
        let text = reqwest::get(format!("http://127.0.0.1:{}/metrics", self.port)).await.expect("it answers");
        let text = text.text().await.expect("text");
        let line = text.lines().find(|line| line.split(['{', ' ']).next() == Some(name));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What became of a request.
#[derive(Clone, Debug)]
enum End {
    /// Answered in full, by the server of that name.
    Served(String),
    /// Begun by the server of that name, and broken off with an error event.
    Broken(String),
    /// Anything else.
    Lost(String),
}

async fn ask(gateway: &Gateway, number: usize) -> End {
    let stream = number.is_multiple_of(2);
    let body = json!({
        "model": "m", "stream": stream, "max_tokens": TOKENS,
        "messages": [{ "role": "user", "content": format!("request {number}") }],
    });
    let response = match gateway.chat_with(body, "normal").send().await {
        Ok(response) => response,
        Err(error) => return End::Lost(format!("{number}: {error}")),
    };
    let status = response.status();
    let server = response.headers().get("x-demo-backend").map(|name| name.to_str().expect("ASCII").to_owned());
    let text = match response.text().await {
        Ok(text) => text,
        Err(error) => return End::Lost(format!("{number}, stream {stream}: {error}")),
    };
    let is_whole = if stream { text.ends_with("data: [DONE]\n\n") } else { text.contains("\"completion_tokens\":20") };
    match server {
        Some(server) if status == 200 && is_whole => End::Served(server),
        Some(server) if status == 200 && stream && text.contains("event: error") => End::Broken(server),
        Some(server) if status == 200 && stream && text.contains("\"error\"") => End::Broken(server),
        server => End::Lost(format!("{number}, stream {stream}, by {server:?}: {status} {text}")),
    }
}

/// Clients that ask one request after the other until they are told to stop.
struct Clients {
    ends: watch::Receiver<Vec<End>>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Clients {
    fn start(gateway: &Arc<Gateway>) -> Self {
        let (report, ends) = watch::channel(Vec::new());
        let (stop, stopped) = watch::channel(false);
        let (report, next) = (Arc::new(report), Arc::new(AtomicUsize::new(0)));
        let mut tasks = JoinSet::new();
        for _ in 0..CLIENTS {
            let (gateway, report, next, stopped) =
                (Arc::clone(gateway), Arc::clone(&report), Arc::clone(&next), stopped.clone());
            tasks.spawn(async move {
                while !*stopped.borrow() {
                    let end = ask(&gateway, next.fetch_add(1, Ordering::Relaxed)).await;
                    report.send_modify(|ends| ends.push(end));
                }
            });
        }
        Self { ends, stop, tasks }
    }

    /// Waits until so many more requests have ended.
    async fn more(&mut self, count: usize) {
        let wanted = self.ends.borrow().len() + count;
        self.ends.wait_for(|ends| ends.len() >= wanted).await.expect("clients");
    }

    /// Waits until these servers have answered something.
    async fn served_by(&mut self, names: &[String]) {
        let has = |ends: &Vec<End>, name: &String| ends.iter().any(|end| matches!(end, End::Served(by) if by == name));
        self.ends.wait_for(|ends| names.iter().all(|name| has(ends, name))).await.expect("clients");
    }

    async fn end(mut self) -> Vec<End> {
        self.stop.send_replace(true);
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("no panic");
        }
        self.ends.borrow().clone()
    }
}

fn config(ports: &[u16]) -> String {
    let endpoints: Vec<_> = ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
    format!(
        "models:\n  m:\n    endpoints: [{}]\nrouting:\n  backoff: {{ initial: 50ms, max: 200ms }}\n  scheduler:\n    use: flow\n    \
         settings:\n      flow:\n        saturationDetector:\n          utilization:\n            queueDepthThreshold: {THRESHOLD}\n            \
         headroom: {HEADROOM}\n            refreshMetricsInterval: 25ms\n            metricsStalenessThreshold: 1s\n",
        endpoints.join(", ")
    )
}

/// The ports of the pool's replicas that are ready and have told of themselves, and their numbers.
async fn ready(gateway: &Gateway) -> Vec<(u16, u64)> {
    let running = gateway.get_json("/running").await;
    let replicas = running["running"].as_array().expect("a list").iter();
    let port = |url: &str| url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let mut ready: Vec<_> = replicas
        .filter(|replica| replica["state"] == "ready" && !replica["load"].is_null())
        .map(|replica| {
            (port(replica["proxy"].as_str().expect("a URL")), replica["replica"].as_u64().expect("a number"))
        })
        .collect();
    ready.sort_unstable();
    ready
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_are_killed_and_come_back_lose_nothing_but_what_streamed_from_them() {
    let first = free_ports();
    let mut servers: Vec<_> = (0..SERVERS as u16).map(|index| Server::start(first + index)).collect();
    let ports: Vec<_> = servers.iter().map(|server| server.port).collect();
    let gateway = Arc::new(Gateway::start(&config(&ports)));
    let mut clients = Clients::start(&gateway);
    let names: Vec<_> = servers.iter().map(Server::name).collect();
    clients.served_by(&names).await;
    clients.more(100).await;

    let mut killed = Vec::new();
    for round in [[0, 1], [1, 2]] {
        for index in round {
            killed.push(servers[index].name());
            servers[index].kill();
        }
        clients.more(60).await;
        for index in round {
            servers[index] = Server::start(servers[index].port);
        }
        let back: Vec<_> = round.iter().map(|&index| servers[index].name()).collect();
        clients.served_by(&back).await;
    }
    clients.more(100).await;
    let ends = clients.end().await;

    let lost: Vec<_> = ends
        .iter()
        .filter_map(|end| match end {
            End::Lost(how) => Some(how),
            _ => None,
        })
        .collect();
    assert!(lost.is_empty(), "{} of {} were lost: {:#?}", lost.len(), ends.len(), &lost[..lost.len().min(5)]);
    let broken: Vec<_> = ends
        .iter()
        .filter_map(|end| match end {
            End::Broken(by) => Some(by),
            _ => None,
        })
        .collect();
    assert!(
        broken.iter().all(|by| killed.contains(by)),
        "only what streamed from the killed: {broken:?} of {killed:?}"
    );
    assert!(broken.len() <= 4 * killed.len(), "no more than ran there: {broken:?}");
    for server in &servers {
        let waiting = server.metric("demo_requests_waiting_max").await;
        assert!(waiting <= THRESHOLD * (1.0 + HEADROOM), "{waiting} waited in a server at once");
        assert!(waiting >= 1.0, "it was never full");
        eventually("nothing is left in the servers", async || {
            (server.metric("vllm:num_requests_running").await == 0.0).then_some(())
        })
        .await;
    }
    assert_eq!(gateway.waiting().await, 0.0);
    eprintln!("{} requests, {} broken off", ends.len(), broken.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_come_and_go_with_the_configuration_and_nothing_that_runs_notices() {
    let first = free_ports();
    let slow = ["--token-time", "100ms", "--tokens", "20"];
    let servers: Vec<_> = (0..3).map(|index| Server::start_with(first + index, &slow)).collect();
    let [a, b, c] = [first, first + 1, first + 2];
    let gateway = Arc::new(Gateway::start(&config(&[a, b])));
    eventually("both are ready", async || (ready(&gateway).await == [(a, 0), (b, 1)]).then_some(())).await;
    let mut streams = JoinSet::new();
    for number in [0, 2] {
        let gateway = Arc::clone(&gateway);
        streams.spawn(async move { ask(&gateway, number).await });
    }
    gateway.wait_until_running(2.0).await;

    std::fs::write(&gateway.config, config(&[c, b])).expect("it is written");
    gateway.signal(nix::sys::signal::Signal::SIGHUP);
    eventually("one is replaced", async || (ready(&gateway).await == [(b, 1), (c, 0)]).then_some(())).await;
    let mut ends = Vec::new();
    while let Some(end) = streams.join_next().await {
        match end.expect("no panic") {
            End::Served(by) => ends.push(by),
            other => panic!("{other:?}"),
        }
    }
    ends.sort();
    let mut expected = [servers[0].name(), servers[1].name()];
    expected.sort();
    assert_eq!(ends, expected, "what streamed from the one that is gone from the list went on");

    let (_, by) = tokio::join!(ask(&gateway, 4), ask(&gateway, 6));
    assert!(matches!(&by, End::Served(by) if *by != servers[0].name()), "{by:?}");
    assert_eq!(servers[0].metric("demo_requests_running_max").await, 1.0, "nothing more was sent there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_has_lost_its_server_is_next() {
    let first = free_ports();
    let slow = ["--token-time", "50ms", "--tokens", "20"];
    let mut servers: Vec<_> = (0..2).map(|index| Server::start_with(first + index, &slow)).collect();
    let gateway = Arc::new(Gateway::start(&format!(
        "models:\n  m:\n    endpoints: [http://127.0.0.1:{first}, http://127.0.0.1:{}]\n    concurrencyLimit: 1\n",
        first + 1
    )));
    let mut clients = JoinSet::new();
    let mut send = |id: &'static str| {
        let body = json!({ "model": "m", "messages": [{ "role": "user", "content": id }] });
        let request = gateway.chat_with(body, "normal").header("x-request-id", id);
        clients.spawn(async move { (id, request.send().await.expect("an answer").status()) });
    };
    send("one");
    gateway.wait_until_running(1.0).await;
    let lost = usize::from(servers[1].metric("vllm:num_requests_running").await == 1.0);
    send("two");
    gateway.wait_until_running(2.0).await;
    send("three");
    gateway.wait_until_waiting(1.0).await;
    servers[lost].kill();
    while let Some(ended) = clients.join_next().await {
        let (id, status) = ended.expect("no panic");
        assert_eq!(status, 200, "{id}");
    }
    let [one, three] = [gateway.activity("one").await, gateway.activity("three").await];
    let time = |row: &serde_json::Value, what: &str| row["request"][what].as_i64().expect("a number");
    assert!(time(&one, "dispatched_ms") < time(&three, "dispatched_ms"), "{one:#}\n{three:#}");
    assert!(time(&one, "seq") < time(&three, "seq"));
    let waited = time(&one, "dispatched_ms") - time(&one, "arrived_ms");
    assert!((time(&one, "serial_queue_wait_ms") - waited).abs() <= 50, "counted from its arrival: {one:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_that_stay_are_never_over_their_limits_whichever_others_go() {
    let first = free_ports();
    let slow = ["--slots", "8", "--token-time", "100ms", "--tokens", "20"];
    let servers: Vec<_> = (0..3).map(|index| Server::start_with(first + index, &slow)).collect();
    let [a, b, c] = [first, first + 1, first + 2];
    let limited = |ports: &[u16]| {
        let endpoints: Vec<_> = ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
        format!("models:\n  m:\n    endpoints: [{}]\n    concurrencyLimit: 2\n", endpoints.join(", "))
    };
    let gateway = Arc::new(Gateway::start(&limited(&[a, b, c])));
    let mut streams = JoinSet::new();
    let mut ask_for = |numbers: std::ops::Range<usize>| {
        for number in numbers {
            let gateway = Arc::clone(&gateway);
            streams.spawn(async move { ask(&gateway, 2 * number).await });
        }
    };
    ask_for(0..6);
    gateway.wait_until_running(6.0).await;

    std::fs::write(&gateway.config, limited(&[b, c])).expect("it is written");
    gateway.signal(nix::sys::signal::Signal::SIGHUP);
    eventually("it is read", async || gateway.log().contains("configuration reloaded").then_some(())).await;
    ask_for(6..12);
    while let Some(end) = streams.join_next().await {
        assert!(matches!(end.expect("no panic"), End::Served(_)));
    }
    for server in &servers {
        assert_eq!(server.metric("demo_requests_running_max").await, 2.0, "no more than it may have, and no fewer");
    }
    let running = gateway.get_json("/running").await;
    let mut numbers: Vec<_> =
        running["running"].as_array().expect("a list").iter().map(|one| &one["replica"]).collect();
    numbers.sort_by_key(|number| number.as_u64());
    assert_eq!(numbers, [1, 2], "they keep their numbers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_replica_of_a_command_is_a_process_and_a_crash_of_one_is_made_good_by_another() {
    let model = crate::support::demo_model("m", "--token-time 50ms --tokens 20");
    let gateway = Arc::new(Gateway::start(&format!(
        "models:\n{model}    replicas: 2\n    concurrencyLimit: 2\nrouting:\n  backoff: {{ initial: 50ms, max: 200ms }}\n"
    )));
    let mut asked = JoinSet::new();
    for number in 0..4 {
        let gateway = Arc::clone(&gateway);
        asked.spawn(async move { ask(&gateway, 2 * number + 1).await });
    }
    gateway.wait_until_running(4.0).await;
    let children = gateway.children();
    assert_eq!(children.len(), 2);
    let victim = nix::unistd::Pid::from_raw(i32::try_from(children[0]).expect("a pid"));
    nix::sys::signal::kill(victim, nix::sys::signal::Signal::SIGKILL).expect("it runs");
    while let Some(end) = asked.join_next().await {
        let end = end.expect("no panic");
        assert!(matches!(&end, End::Served(by) if *by != format!("demo-m-{victim}")), "{end:?}");
    }
}
