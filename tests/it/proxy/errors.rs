//! What the gateway says when it says no.

use serde_json::{Value, json};

use super::raw::{Raw, post};
use crate::support::{Gateway, demo_model};

async fn error(request: reqwest::RequestBuilder) -> (u16, Value) {
    let answer = request.send().await.expect("an answer");
    let status = answer.status().as_u16();
    assert_eq!(answer.headers()["content-type"], "application/json");
    assert!(answer.headers().contains_key("x-request-id"));
    (status, answer.json().await.expect("JSON"))
}

#[tokio::test]
async fn every_refusal_says_what_would_be_right() {
    let gateway = Gateway::start(&format!("models:\n{}{}", demo_model("qwen-small", ""), demo_model("llama", "")));
    let post = |path: &str, body: &'static str| gateway.client.post(gateway.url(path)).body(body);
    for (request, status, code, param, words) in [
        (post("/v1/chat/completions", "{}"), 400, "model_missing", json!("model"), "GET /v1/models"),
        (post("/v1/chat/completions", r#"{"model":1}"#), 400, "model_invalid", json!("model"), "must be a string"),
        (post("/v1/chat/completions", "nonsense"), 400, "invalid_json", Value::Null, "line 1"),
        (post("/v1/embeddings", r#"{"model":"qwen-smal"}"#), 404, "model_not_found", json!("model"), "`qwen-small`?"),
        (gateway.client.get(gateway.url("/v1/audio/voices")), 400, "model_missing", json!("model"), "GET /v1/models"),
        (gateway.client.get(gateway.url("/v1/rerank")), 405, "method_not_allowed", Value::Null, "POST"),
        (gateway.client.get(gateway.url("/v2")), 404, "path_not_found", Value::Null, "/v2"),
        (gateway.client.get(gateway.url("/upstream/nobody/x")), 404, "model_not_found", json!("model"), "`nobody`"),
        (gateway.client.get(gateway.url("/api/activity?limt=1")), 400, "invalid_query", Value::Null, "limt"),
        (gateway.client.get(gateway.url("/api/activity/none")), 404, "request_not_found", Value::Null, "`none`"),
        (gateway.client.get(gateway.url("/logs/stream/none")), 404, "model_not_found", json!("model"), "`none`"),
    ] {
        let (got, body) = error(request).await;
        let message = body["error"]["message"].as_str().expect("a message").to_owned();
        assert_eq!((got, &body["error"]["code"]), (status, &json!(code)), "{message}");
        assert_eq!(body["error"]["param"], param, "{message}");
        assert_eq!(body["error"]["type"], "invalid_request_error", "{message}");
        assert!(message.contains(words), "{message}");
    }
}

#[tokio::test]
async fn anthropics_paths_get_anthropics_shape() {
    let gateway = Gateway::start(&format!("models:\n{}", demo_model("m", "")));
    for path in ["/v1/messages", "/v1/messages/count_tokens"] {
        let request =
            gateway.client.post(gateway.url(path)).json(&json!({"model": "x"})).header("x-request-id", "mine");
        let (status, body) = error(request).await;
        assert_eq!(status, 404);
        assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!("not_found_error")));
        assert_eq!(body["request_id"], "mine");
    }
}

#[tokio::test]
async fn the_allowed_methods_are_in_the_header() {
    let gateway = Gateway::start(&format!("models:\n{}", demo_model("m", "")));
    let answer = gateway.client.delete(gateway.url("/v1/audio/voices")).send().await.expect("an answer");
    assert_eq!(answer.headers()["allow"], "GET, POST");
}

#[tokio::test]
async fn a_full_queue_and_a_ttl_are_answered_with_429() {
    let config = format!(
        "routing:\n  admission:\n    maxRequests: 1\nmodels:\n{}\n    concurrencyLimit: 1\n",
        demo_model("m", "").trim_end()
    );
    let gateway = Gateway::start(&config);
    let mut running = Raw::connect(gateway.address).await;
    running
        .send(post("/v1/completions", "", &json!({"model": "m", "stream": true, "demo": {"fail": "stall=1"}})))
        .await;
    running.read_until(|bytes| bytes.windows(5).any(|bytes| bytes == b"data:")).await;

    let waiting = gateway.chat("m", "normal").header("x-switchyard-queue-ttl-ms", "1000");
    let waiting = tokio::spawn(waiting.send());
    gateway.wait_until_waiting(1.0).await;
    let answer = gateway.chat("m", "normal").send().await.expect("an answer");
    assert_eq!(answer.status(), 429);
    assert_eq!(answer.headers()["x-llm-d-request-dropped-reason"], "rejected-saturated");
    assert!(answer.headers()["retry-after"].to_str().expect("ASCII").parse::<u64>().expect("seconds") >= 1);
    let error: Value = answer.json().await.expect("JSON");
    assert_eq!(error["error"]["type"], "rate_limit_error");

    let answer = waiting.await.expect("no panic").expect("an answer");
    assert_eq!(answer.status(), 429);
    assert_eq!(answer.headers()["x-llm-d-request-dropped-reason"], "rejected-ttl-expired");
}

#[tokio::test]
async fn keys_are_wanted_once_there_are_some() {
    let gateway = Gateway::start(&format!("apiKeys: [sesame]\nmodels:\n{}", demo_model("m", "")));
    assert_eq!(gateway.get_text("/health").await, "OK");
    let preflight = gateway.client.request(reqwest::Method::OPTIONS, gateway.url("/v1/models")).send().await;
    assert_eq!(preflight.expect("an answer").status(), 204);
    for path in ["/v1/models", "/metrics", "/api/activity", "/logs", "/", "/upstream/m", "/nowhere"] {
        let (status, body) = error(gateway.client.get(gateway.url(path))).await;
        assert_eq!((status, &body["error"]["code"]), (401, &json!("missing_api_key")), "{path}");
    }
    let (status, body) = error(gateway.chat("m", "normal").bearer_auth("sesam")).await;
    assert_eq!((status, &body["error"]["type"]), (401, &json!("authentication_error")));
    assert_eq!(body["error"]["code"], "invalid_api_key");

    // The key is the gateway's and goes no further.
    let echo = gateway.client.get(gateway.url("/upstream/m/echo")).basic_auth("anyone", Some("sesame"));
    let echo: Value = echo.send().await.expect("an answer").json().await.expect("JSON");
    assert_eq!(echo["headers"]["authorization"], Value::Null);
    let answer = gateway.chat("m", "normal").header("x-api-key", "sesame").send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
}
