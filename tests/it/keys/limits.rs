//! Limits on the requests of one key.

use serde_json::{Value, json};

use crate::{
    proxy::raw::{Raw, Upstream},
    support::Gateway,
};

const KEYS: &str = "allowPlain: true
tiers:
  free: {limits: {running: 1, waiting: 1}}
  pro: {offset: 1}
keys:
  - {key: sk-free, tenant: hobby, tier: free}
  - {key: sk-free-2, tenant: hobby, tier: free}
  - {key: sk-pro, tenant: acme, tier: pro, scope: [inference, read]}
";

type Answer = tokio::task::JoinHandle<(u16, Value)>;

/// Sends a request with a key and a priority.
fn ask(gateway: &Gateway, key: &str, priority: &str) -> Answer {
    let request = gateway.chat("m", priority).bearer_auth(key);
    tokio::spawn(async move {
        let answer = request.send().await.expect("an answer");
        (answer.status().as_u16(), answer.json().await.expect("JSON"))
    })
}

async fn metric(gateway: &Gateway, name: &str) -> f64 {
    let answer = gateway.client.get(gateway.url("/metrics")).bearer_auth("sk-pro").send().await.expect("an answer");
    let text = answer.text().await.expect("a body");
    let lines = text.lines().filter(|line| line.starts_with(name));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

async fn until(gateway: &Gateway, waiting: f64, running: f64) {
    crate::support::eventually(&format!("{waiting} wait and {running} run"), async || {
        let now =
            (metric(gateway, "llamaswap_scheduler_queue_depth{").await, metric(gateway, "switchyard_running ").await);
        (now == (waiting, running)).then_some(())
    })
    .await;
}

/// The next request that reaches the model server.
async fn arrived(upstream: &Upstream) -> Raw {
    let mut raw = upstream.accept().await;
    raw.message().await.expect("a request");
    raw
}

async fn finish(mut request: Raw) {
    request.send("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}").await;
}

#[tokio::test]
async fn a_key_runs_and_keeps_waiting_no_more_than_it_may() {
    let upstream = Upstream::bind().await;
    let gateway = Gateway::start(&format!("{KEYS}{}", upstream.model()));
    let first = ask(&gateway, "sk-free", "normal");
    let first_runs = arrived(&upstream).await;
    let second = ask(&gateway, "sk-free", "batch");
    until(&gateway, 1.0, 1.0).await;
    let (status, refused) = ask(&gateway, "sk-free", "interactive").await.expect("no panic");
    assert_eq!((status, &refused["error"]["code"]), (429, &json!("rejected_limit")));
    let message = refused["error"]["message"].as_str().expect("a message");
    assert!(message.contains("as many requests with this key wait already as may (1)"), "{message}");

    // Another key of the same tenant, and other callers, go on.
    let others = [ask(&gateway, "sk-free-2", "batch"), ask(&gateway, "sk-pro", "normal")];
    let others_run = [arrived(&upstream).await, arrived(&upstream).await];
    until(&gateway, 1.0, 3.0).await;
    assert!(!second.is_finished());

    finish(first_runs).await;
    finish(arrived(&upstream).await).await;
    for answer in [first, second] {
        assert_eq!(answer.await.expect("no panic").0, 200);
    }
    for request in others_run {
        finish(request).await;
    }
    for answer in others {
        assert_eq!(answer.await.expect("no panic").0, 200);
    }
    until(&gateway, 0.0, 0.0).await;
}
