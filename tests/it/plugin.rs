//! `examples/pingora-plugin`: the queue and the policy in somebody's own proxy.

use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::{
    proxy::raw::{Raw, Upstream},
    support::{eventually, example, free_ports},
};

const CONFIG: &str = "allowPlain: true
keys:
  - {key: sk-pro, tenant: acme, tier: pro}
  - {key: sk-max, tenant: bigco, tier: max}
routing: {scheduler: {use: serial}, admission: {maxRequests: 2}}
models: {gpu: {proxy: 'http://127.0.0.1:1', checkEndpoint: none}}
";

struct Plugin {
    child: Child,
    url: String,
    _dir: tempfile::TempDir,
}

impl Plugin {
    async fn start(upstream: &str) -> Self {
        let program = example("pingora_plugin");
        let dir = tempfile::tempdir().expect("a temporary folder");
        let config = dir.path().join("queue.yaml");
        std::fs::write(&config, CONFIG).expect("written");
        let listen = format!("127.0.0.1:{}", free_ports());
        let child = Command::new(program).args([&listen, upstream]).arg(&config).stdin(Stdio::null()).spawn();
        let plugin = Self { child: child.expect("it starts"), url: format!("http://{listen}/v1/x"), _dir: dir };
        eventually("it listens", async || tokio::net::TcpStream::connect(&listen).await.ok()).await;
        plugin
    }

    fn ask(&self, key: &str, priority: &str) -> tokio::task::JoinHandle<(u16, Value)> {
        let request = reqwest::Client::new().post(&self.url).bearer_auth(key).header("x-llamaswap-priority", priority);
        let request = request.body("a body");
        tokio::spawn(async move {
            let answer = request.send().await.expect("an answer");
            (answer.status().as_u16(), answer.json().await.expect("JSON"))
        })
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn forty_lines_give_a_proxy_a_queue_and_keys() {
    let server = Upstream::bind().await;
    let plugin = Plugin::start(&server.address().to_string()).await;
    let next = async || -> (Raw, String) {
        let mut raw = server.accept().await;
        let request = raw.message().await.expect("a request");
        assert_eq!(request.header("authorization"), None, "the key stays");
        let priority = request.header("x-llamaswap-priority").expect("the stamp").to_owned();
        (raw, priority)
    };
    let answer = async |mut raw: Raw| {
        raw.send("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}").await;
    };

    let (status, body) = plugin.ask("sk-other", "normal").await.expect("no panic");
    assert_eq!((status, &body["error"]["code"]), (401, &json!("invalid_api_key")));

    // One at a time, the most urgent first; what does not fit is refused.
    let first = plugin.ask("sk-pro", "batch");
    let (running, priority) = next().await;
    assert_eq!(priority, "-99");
    // Two may wait. Of three, one of the less urgent is refused, or displaced when it was there first.
    let urgent = plugin.ask("sk-max", "batch");
    let (mut one, mut other) = (plugin.ask("sk-pro", "batch"), plugin.ask("sk-pro", "batch"));
    let (refused, waits) = tokio::select! {
        refused = &mut one => (refused, other),
        refused = &mut other => (refused, one),
    };
    let (status, body) = refused.expect("no panic");
    let code = body["error"]["code"].as_str().expect("a code");
    assert!(status == 429 && ["rejected_capacity", "evicted"].contains(&code), "{status} {body}");
    answer(running).await;
    assert_eq!(first.await.expect("no panic").0, 200);
    for expected in ["-98", "-99"] {
        let (running, priority) = next().await;
        assert_eq!(priority, expected);
        answer(running).await;
    }
    for waiting in [urgent, waits] {
        assert_eq!(waiting.await.expect("no panic").0, 200);
    }
}
