//! Model servers that break, at any time.

use serde_json::{Value, json};

use super::raw::{Raw, Upstream, post};
use crate::support::{Gateway, demo_model};

async fn crash_in_mid_stream(gateway: &Gateway, path: &str) -> String {
    let body = json!({"model": "m", "stream": true, "max_tokens": 9, "demo": {"fail": "crash=2"}});
    let answer = gateway.client.post(gateway.url(path)).json(&body).send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    answer.text().await.expect("the stream has an end")
}

/// The name and the data of the last event.
fn last_event(stream: &str) -> (&str, Value) {
    let event = stream.trim_end().rsplit("\n\n").next().expect("an event");
    let (name, data) = event.split_once('\n').expect("two lines");
    (name, serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON"))
}

#[tokio::test]
async fn a_crash_in_mid_stream_becomes_an_error_event() {
    let gateway = Gateway::start(&format!("models:\n{}", demo_model("m", "")));
    let stream = crash_in_mid_stream(&gateway, "/v1/chat/completions").await;
    let (name, error) = last_event(&stream);
    assert_eq!(name, "event: error", "{stream}");
    assert_eq!(
        (&error["error"]["type"], &error["error"]["code"]),
        (&json!("server_error"), &json!("model_server_failed"))
    );
    let message = error["error"]["message"].as_str().expect("a message");
    assert!(message.contains("demo-backend: fatal"), "the last lines of its log are in: {message}");

    let stream = crash_in_mid_stream(&gateway, "/v1/messages").await;
    let (name, error) = last_event(&stream);
    assert_eq!(name, "event: error", "{stream}");
    assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!("api_error")));

    let answer = gateway.chat("m", "normal").send().await.expect("an answer");
    assert_eq!(answer.status(), 200, "the next request has it started again");
}

#[tokio::test]
async fn a_server_that_falls_silent_may_be_given_up() {
    let model = demo_model("m", "--slots 1");
    let gateway = Gateway::start(&format!("models:\n{model}    timeouts: {{ responseIdle: 200ms }}\n"));
    let body = json!({"model": "m", "stream": true, "demo": {"fail": "stall=2"}});
    let answer = gateway.chat_with(body, "normal").header("x-request-id", "silent").send().await.expect("an answer");
    let stream = answer.text().await.expect("the stream has an end");
    let (name, error) = last_event(&stream);
    assert_eq!((name, &error["error"]["code"]), ("event: error", &json!("model_server_timeout")), "{stream}");
    let message = error["error"]["message"].as_str().expect("a message");
    assert!(message.contains("was silent for 0.2 s in the middle of its answer"), "{message}");
    let row = gateway.activity("silent").await["request"].clone();
    assert_eq!((&row["error"], &row["status"]), (&json!(message), &json!(200)));
    // Its slot is free, here and there.
    assert_eq!(gateway.chat("m", "normal").send().await.expect("an answer").status(), 200);
}

#[tokio::test]
async fn a_crash_before_the_answer_becomes_502() {
    let gateway = Gateway::start(&format!("models:\n{}", demo_model("m", "")));
    let body = json!({"model": "m", "demo": {"fail": "crash=2"}});
    let answer = gateway.chat_with(body, "normal").header("x-request-id", "crash").send().await.expect("an answer");
    assert_eq!(answer.status(), 502);
    let error: Value = answer.json().await.expect("JSON");
    let message = error["error"]["message"].as_str().expect("a message");
    assert!(message.contains("demo-backend: fatal"), "{message}");
    let row = gateway.activity("crash").await["request"].clone();
    assert_eq!((&row["outcome"], &row["status"]), (&json!("dispatched"), &json!(502)));
    assert_eq!(row["error"], message);
}

#[tokio::test]
async fn half_a_document_does_not_pass_for_a_whole_one() {
    let upstream = Upstream::bind().await;
    let gateway = Gateway::start(&upstream.model());
    let mut client = Raw::connect(gateway.address).await;
    client.send(post("/v1/completions", "", &json!({"model": "m"}))).await;
    let mut server = upstream.accept().await;
    server.message().await.expect("a request");
    server
        .send("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"a\":\r\n")
        .await;
    drop(server);
    let answer = client.read_to_end().await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains("{\"a\":") && !answer.ends_with("0\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn an_event_that_was_cut_is_not_glued_to_the_error() {
    let upstream = Upstream::bind().await;
    let gateway = Gateway::start(&upstream.model());
    let mut client = Raw::connect(gateway.address).await;
    client.send(post("/v1/completions", "", &json!({"model": "m"}))).await;
    let mut server = upstream.accept().await;
    server.message().await.expect("a request");
    server
        .send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\nc\r\ndata: {\"half\r\n")
        .await;
    drop(server);
    let answer = client.read_until(|bytes| bytes.ends_with(b"0\r\n\r\n")).await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains("\n\nevent: error\ndata: {\"error\":"), "{answer}");
}

#[tokio::test]
async fn an_answer_before_the_body_was_taken_is_passed_on() {
    let upstream = Upstream::bind().await;
    let gateway = Gateway::start(&upstream.model());
    let body = json!({"model": "m", "prompt": "x".repeat(8 << 20)});
    let request = tokio::spawn(gateway.client.post(gateway.url("/v1/completions")).json(&body).send());
    let mut server = upstream.accept().await;
    server.read_until(|bytes| bytes.len() > 1_000).await;
    server.send("HTTP/1.1 400 Bad Request\r\nContent-Length: 8\r\nConnection: close\r\n\r\ntoo long").await;
    // Closing with unread bytes would reset the connection and take the answer with it.
    server.discard(8 << 20).await;
    drop(server);
    let answer = request.await.expect("no panic").expect("an answer");
    assert_eq!(answer.status(), 400);
    assert_eq!(answer.text().await.expect("a body"), "too long");
}

#[tokio::test]
async fn a_model_that_cannot_start_says_why() {
    let models = [demo_model("broken", "--fail exit-at-start=3"), demo_model("m", "")].concat();
    let gateway = Gateway::start(&format!("models:\n{models}"));
    let answer = gateway.chat("broken", "normal").send().await.expect("an answer");
    assert_eq!(answer.status(), 502);
    let error: Value = answer.json().await.expect("JSON");
    let message = error["error"]["message"].as_str().expect("a message");
    assert!(message.contains("failed to load model 'broken'"), "{message}");
    assert_eq!(error["error"]["code"], "load_failed");
    assert_eq!(gateway.chat("m", "normal").send().await.expect("an answer").status(), 200);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_a_bad_gateway_without_its_address() {
    let address = { Upstream::bind().await.model() };
    let gateway = Gateway::start(&address);
    let answer = gateway.chat("m", "normal").send().await.expect("an answer");
    assert_eq!(answer.status(), 502);
    let error: Value = answer.json().await.expect("JSON");
    let message = error["error"]["message"].as_str().expect("a message");
    assert!(message.contains("`m`") && !message.contains("127.0.0.1"), "{message}");
}

#[tokio::test]
async fn an_unload_ends_running_requests_with_words() {
    let gateway = Gateway::start(&format!("models:\n{}", demo_model("m", "")));
    let body = json!({"model": "m", "stream": true, "demo": {"fail": "stall=1"}});
    let mut answer = gateway.chat_with(body, "normal").send().await.expect("an answer");
    answer.chunk().await.expect("a chunk").expect("a chunk");
    let unloaded = gateway.client.post(gateway.url("/api/models/unload/m")).send().await.expect("an answer");
    assert_eq!(unloaded.text().await.expect("a body"), "OK");
    let rest = answer.text().await.expect("the stream has an end");
    let (name, error) = last_event(&rest);
    assert_eq!(name, "event: error", "{rest}");
    let message = error["error"]["message"].as_str().expect("a message");
    assert!(message.contains("unloaded"), "{message}");
}
