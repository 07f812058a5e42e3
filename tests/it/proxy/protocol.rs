//! HTTP itself: versions, pipelining, keep-alive, shutdown.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::raw::{Raw, Upstream, post};
use crate::support::{Gateway, demo_model};

fn one_model(options: &str) -> Gateway {
    Gateway::start(&format!("models:\n{}", demo_model("m", options)))
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_their_order() {
    let gateway = one_model("--tokens 1");
    let mut client = Raw::connect(gateway.address).await;
    let mut requests = Vec::new();
    for n in 0..5 {
        requests.extend(post("/v1/completions", &format!("x-request-id: {n}\r\n"), &json!({"model": "m"})));
        requests.extend(format!("GET /health HTTP/1.1\r\nHost: t\r\nx-n: {n}\r\n\r\n").bytes());
    }
    client.send(requests).await;
    for n in 0..5 {
        let answer = client.message().await.expect("an answer");
        assert_eq!((answer.status(), answer.header("x-request-id")), (200, Some(n.to_string().as_str())));
        assert_eq!(client.message().await.expect("an answer").body, b"OK");
    }
}

/// Every piece is with the client before the next one is made.
#[tokio::test]
async fn nothing_is_held_back() {
    let upstream = Upstream::bind().await;
    let gateway = Gateway::start(&upstream.model());
    let h2c = reqwest::Client::builder().http2_prior_knowledge().build().expect("a client");
    for client in [gateway.client.clone(), h2c] {
        for (framing, first, second) in [
            ("Transfer-Encoding: chunked", "4\r\none \r\n", "3\r\ntwo\r\n0\r\n\r\n"),
            ("Content-Length: 7", "one ", "two"),
            ("Connection: close", "one ", "two"),
        ] {
            let request = client.post(gateway.url("/v1/completions")).json(&json!({"model": "m"}));
            let answer = tokio::spawn(request.send());
            let mut server = upstream.accept().await;
            server.message().await.expect("a request");
            server.send(format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n")).await;
            let mut answer = answer.await.expect("no panic").expect("the header alone");
            server.send(first).await;
            assert_eq!(answer.chunk().await.expect("a chunk").expect("a chunk"), "one ", "{framing}");
            server.send(second).await;
            drop(server);
            assert_eq!(answer.text().await.expect("the rest"), "two", "{framing}");
        }
    }
}

#[tokio::test]
async fn a_connection_outlives_its_errors() {
    let gateway = one_model("--tokens 1");
    let mut client = Raw::connect(gateway.address).await;
    for (model, status) in [("x", 404), ("m", 200), ("x", 404)] {
        client.send(post("/v1/completions", "", &json!({"model": model}))).await;
        assert_eq!(client.message().await.expect("an answer").status(), status);
    }
}

#[tokio::test]
async fn a_body_with_broken_framing_ends_its_connection() {
    let gateway = one_model("");
    let mut client = Raw::connect(gateway.address).await;
    client
        .send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nGET / HTTP/1.1\r\n")
        .await;
    let answer = client.message().await.expect("an answer");
    assert_eq!((answer.status(), answer.header("connection")), (400, Some("close")));
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn a_tiny_request_of_http_1_0_is_answered() {
    let gateway = one_model("");
    let mut client = Raw::connect(gateway.address).await;
    client.send("GET / HTTP/1.0\r\n\r\n").await;
    assert_eq!(client.message().await.expect("an answer").status(), 200);
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn a_stream_to_http_1_0_ends_with_its_connection() {
    let gateway = one_model("--tokens 2");
    let mut client = Raw::connect(gateway.address).await;
    let body = json!({"model": "m", "stream": true}).to_string();
    client.send(format!("POST /v1/completions HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len())).await;
    let answer = client.message().await.expect("an answer");
    assert_eq!(answer.header("transfer-encoding"), None);
    let rest = String::from_utf8(client.read_to_end().await).expect("UTF-8");
    assert!(rest.starts_with("data: ") && rest.ends_with("data: [DONE]\n\n"), "{rest}");
}

#[tokio::test]
async fn pages_of_any_origin_may_ask() {
    let gateway = one_model("");
    let request = gateway.client.request(reqwest::Method::OPTIONS, gateway.url("/v1/chat/completions"));
    let answer =
        request.header("access-control-request-headers", "x-a, authorization").send().await.expect("an answer");
    assert_eq!(answer.status(), 204);
    assert_eq!(answer.headers()["access-control-allow-origin"], "*");
    assert_eq!(answer.headers()["access-control-allow-headers"], "x-a, authorization");
}

#[tokio::test]
async fn answers_carry_the_account_of_their_wait() {
    let gateway = one_model("");
    let answer = gateway.chat("m", "interactive").header("x-request-id", "mine").send().await.expect("an answer");
    assert_eq!(answer.headers()["x-request-id"], "mine");
    assert_eq!(answer.headers()["x-switchyard-score"], "100.000");
    answer.headers()["x-switchyard-queue-wait-ms"].to_str().expect("ASCII").parse::<u64>().expect("milliseconds");
    let row = gateway.activity("mine").await["request"].clone();
    assert_eq!((&row["model"], &row["serial_band"], &row["status"]), (&json!("m"), &json!("interactive"), &json!(200)));
    assert!(row["prompt_tokens"].as_i64() > Some(0) && row["completion_tokens"].as_i64() > Some(0), "{row}");
}

#[tokio::test]
async fn a_drain_ends_what_is_idle_and_lets_the_rest_end_by_itself() {
    let mut gateway = one_model("--tokens 200 --token-time 10ms");
    let mut idle = Raw::connect(gateway.address).await;
    idle.send("GET /health HTTP/1.1\r\nHost: t\r\n\r\n").await;
    idle.message().await.expect("an answer");
    let untouched = Raw::connect(gateway.address).await;
    let mut logs = gateway.client.get(gateway.url("/logs/stream")).send().await.expect("an answer");
    let body = json!({"model": "m", "stream": true});
    let mut running = gateway.chat_with(body, "normal").send().await.expect("an answer");
    running.chunk().await.expect("a chunk").expect("a chunk");

    gateway.signal(Signal::SIGTERM);
    assert!(idle.is_closed().await);
    assert!({ untouched }.is_closed().await);
    while logs.chunk().await.expect("the stream has an end").is_some() {}
    let rest = running.text().await.expect("the stream has an end");
    assert!(rest.ends_with("data: [DONE]\n\n"), "{rest}");
    assert!(gateway.ended().await.success());
}

#[tokio::test]
async fn what_waits_when_the_gateway_closes_is_told_to_come_back() {
    let config =
        format!("models:\n{}\n    concurrencyLimit: 1\n", demo_model("m", "--tokens 100 --token-time 10ms").trim_end());
    let gateway = Gateway::start(&config);
    let running = tokio::spawn(gateway.chat("m", "normal").send());
    gateway.wait_until_running(1.0).await;
    let waiting = tokio::spawn(gateway.chat("m", "normal").send());
    gateway.wait_until_waiting(1.0).await;
    gateway.signal(Signal::SIGTERM);
    let answer = waiting.await.expect("no panic").expect("an answer");
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.headers()["x-llm-d-request-dropped-reason"], "rejected-shutting-down");
    assert!(answer.headers().contains_key("retry-after"));
    let error: Value = answer.json().await.expect("JSON");
    assert_eq!(error["error"]["code"], "shutdown");
    assert_eq!(running.await.expect("no panic").expect("an answer").status(), 200);
}
