//! Clients that leave, at any time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::raw::{Raw, Upstream, post};
use crate::support::{Gateway, demo_model, eventually};

/// One request runs until it is told to end; the rest waits.
async fn occupied() -> (Gateway, Raw) {
    let config = format!("models:\n{}\n    concurrencyLimit: 1\n", demo_model("m", "").trim_end());
    let gateway = Gateway::start(&config);
    let mut running = Raw::connect(gateway.address).await;
    running
        .send(post("/v1/chat/completions", "", &json!({"model": "m", "stream": true, "demo": {"fail": "stall=1"}})))
        .await;
    running.read_until(|bytes| bytes.windows(5).any(|bytes| bytes == b"data:")).await;
    (gateway, running)
}

async fn row(gateway: &Gateway, id: &str) -> Value {
    gateway.activity(id).await["request"].clone()
}

fn unix_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(now.as_millis()).expect("a time")
}

#[tokio::test]
async fn who_leaves_while_waiting_leaves_the_queue_at_once() {
    let (gateway, _running) = occupied().await;
    // Other tests run beside this one: the best of some tries is what the gateway takes.
    let mut best = i64::MAX;
    for (n, half_close) in [false, true, false, true, false, true].into_iter().enumerate() {
        let id = format!("leaver-{n}");
        let mut client = Raw::connect(gateway.address).await;
        client.send(post("/v1/chat/completions", &format!("x-request-id: {id}\r\n"), &json!({"model": "m"}))).await;
        gateway.wait_until_waiting(1.0).await;
        let left = unix_ms();
        if half_close {
            client.stream.shutdown().await.expect("a half-close");
            assert!(client.is_closed().await);
        } else {
            drop(client);
        }
        let row = row(&gateway, &id).await;
        assert_eq!((&row["outcome"], &row["status"]), (&json!("cancelled"), &json!(0)));
        best = best.min(row["ended_ms"].as_i64().expect("a time") - left);
    }
    assert!(best < 50, "the fastest left after {best} ms");
    gateway.wait_until_waiting(0.0).await;
}

#[tokio::test]
async fn a_stream_of_h2_that_is_reset_while_waiting_leaves_the_queue() {
    let (gateway, _running) = occupied().await;
    let client = reqwest::Client::builder().http2_prior_knowledge().build().expect("a client");
    let request = client.post(gateway.url("/v1/chat/completions")).header("x-request-id", "reset");
    let request = tokio::spawn(request.json(&json!({"model": "m"})).send());
    gateway.wait_until_waiting(1.0).await;
    request.abort();
    gateway.wait_until_waiting(0.0).await;
    assert_eq!(row(&gateway, "reset").await["outcome"], "cancelled");
}

#[tokio::test]
async fn who_leaves_in_mid_stream_takes_the_upstream_connection_along() {
    let upstream = Upstream::bind().await;
    let gateway = Gateway::start(&upstream.model());
    for after_header in [true, false] {
        let id = format!("gone-{after_header}");
        let mut client = Raw::connect(gateway.address).await;
        client.send(post("/v1/completions", &format!("x-request-id: {id}\r\n"), &json!({"model": "m"}))).await;
        let mut server = upstream.accept().await;
        server.message().await.expect("a request");
        if after_header {
            server.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n").await;
            client.read_until(|bytes| bytes.ends_with(b"hi\r\n")).await;
        }
        drop(client);
        let closed = tokio::time::timeout(Duration::from_secs(5), server.is_closed()).await;
        assert!(closed.expect("the connection is closed long before"), "nothing more is sent to the model server");
        let row = row(&gateway, &id).await;
        assert_eq!(row["outcome"], "dispatched");
        assert_eq!(row["status"], if after_header { 200 } else { 0 });
        assert_eq!(row["error"], "the client closed the connection");
    }
    eventually("no slot is held", async || (gateway.metric("switchyard_running").await == 0.0).then_some(())).await;
}

#[tokio::test]
async fn a_client_that_breaks_off_its_body_is_not_queued() {
    let (gateway, _running) = occupied().await;
    let mut client = Raw::connect(gateway.address).await;
    client
        .send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nx-request-id: half\r\nContent-Length: 100\r\n\r\n{\"mo")
        .await;
    drop(client);
    let row = row(&gateway, "half").await;
    assert_eq!((&row["outcome"], &row["seq"]), (&json!("cancelled"), &json!(0)));
}
