//! One gateway process.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use serde_json::{Value, json};

use super::{children_of, eventually, free_ports};

/// A running `switchyard serve`. Dropping it kills the process, and with it its models.
pub(crate) struct Gateway {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) client: reqwest::Client,
    pub(crate) config: std::path::PathBuf,
    log: Arc<Mutex<Vec<String>>>,
    _dir: tempfile::TempDir,
}

/// A model of a configuration file, served by the pretend model server; `options` are added to its command.
pub(crate) fn demo_model(name: &str, options: &str) -> String {
    let program = env!("CARGO_BIN_EXE_switchyard");
    format!("  {name}:\n    cmd: {program} demo-backend --port ${{PORT}} --model {name} {options}\n")
}

impl Gateway {
    /// Starts it with a configuration, to which a free `startPort` is added, and waits until it listens.
    pub(crate) fn start(config: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let file = dir.path().join("switchyard.yaml");
        std::fs::write(&file, format!("startPort: {}\n{config}", free_ports())).expect("the configuration is written");
        let mut child = Command::new(env!("CARGO_BIN_EXE_switchyard"))
            .args(["serve", "--listen", "127.0.0.1:0", "--log-format", "json", "--config"])
            .arg(&file)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the gateway starts");
        let log = Arc::new(Mutex::new(Vec::new()));
        let (found, address) = mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
        std::thread::spawn({
            let log = Arc::clone(&log);
            move || {
                for line in stderr.lines().map_while(Result::ok) {
                    if let Ok(entry) = serde_json::from_str::<Value>(&line)
                        && entry["message"] == "listening"
                        && let Some(address) = entry["address"].as_str()
                    {
                        let _ = found.send(address.parse::<SocketAddr>().expect("an address"));
                    }
                    log.lock().expect("no panic under this lock").push(line);
                }
            }
        });
        let address = address.recv_timeout(Duration::from_secs(20)).unwrap_or_else(|_| {
            let _ = child.kill();
            panic!("the gateway does not listen:\n{}", log.lock().expect("no panic under this lock").join("\n"))
        });
        let client = reqwest::Client::new();
        Self { child, address, client, config: file, log, _dir: dir }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// What it has written to its log so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().expect("no panic under this lock").join("\n")
    }

    /// A chat request, ready for headers and changes.
    pub(crate) fn chat(&self, model: &str, priority: &str) -> reqwest::RequestBuilder {
        self.chat_with(json!({"model": model, "messages": [{"role": "user", "content": "Hello"}]}), priority)
    }

    /// A chat request with that body.
    pub(crate) fn chat_with(&self, body: Value, priority: &str) -> reqwest::RequestBuilder {
        self.client.post(self.url("/v1/chat/completions")).header("X-LlamaSwap-Priority", priority).json(&body)
    }

    pub(crate) async fn get_json(&self, path: &str) -> Value {
        let response = self.client.get(self.url(path)).send().await.expect("an answer");
        let status = response.status();
        let text = response.text().await.expect("a body");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path} answered {status} {text}: {error}"))
    }

    pub(crate) async fn get_text(&self, path: &str) -> String {
        let response = self.client.get(self.url(path)).send().await.expect("an answer");
        response.error_for_status().expect("success").text().await.expect("a body")
    }

    /// The value of one series of `/metrics`, written as there: `name{label="value"}`.
    pub(crate) async fn metric(&self, series: &str) -> f64 {
        let text = self.get_text("/metrics").await;
        text.lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.trim().parse().ok())
            .unwrap_or_else(|| panic!("no series {series} in:\n{text}"))
    }

    /// Requests that wait, over all bands.
    pub(crate) async fn waiting(&self) -> f64 {
        let text = self.get_text("/metrics").await;
        text.lines()
            .filter(|line| line.starts_with("llamaswap_scheduler_queue_depth{"))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }

    pub(crate) async fn wait_until_waiting(&self, count: f64) {
        eventually(&format!("{count} requests wait"), async || (self.waiting().await == count).then_some(())).await;
    }

    pub(crate) async fn wait_until_running(&self, count: f64) {
        eventually(&format!("{count} requests run"), async || {
            (self.metric("switchyard_running").await == count).then_some(())
        })
        .await;
    }

    /// The finished request's row in the activity log.
    pub(crate) async fn activity(&self, request_id: &str) -> Value {
        let path = format!("/api/activity/{request_id}");
        eventually(&format!("{request_id} is in the activity log"), async || {
            let response = self.client.get(self.url(&path)).send().await.expect("an answer");
            if !response.status().is_success() {
                return None;
            }
            response.json().await.ok()
        })
        .await
    }

    /// Process ids of the model servers that run now.
    pub(crate) fn children(&self) -> Vec<u32> {
        children_of(self.pid())
    }

    pub(crate) fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.pid()).expect("a pid"));
        nix::sys::signal::kill(pid, signal).expect("the gateway runs");
    }

    /// Waits until the process has ended by itself.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let child = Arc::new(Mutex::new(&mut self.child));
        eventually("the gateway has ended", async || {
            child.lock().expect("no panic under this lock").try_wait().expect("it can be waited for")
        })
        .await
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the gateway's log:\n{}", self.log());
        }
    }
}
