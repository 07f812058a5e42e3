use std::{net::SocketAddr, time::Duration};

use clap::Parser;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::*;

async fn start(options: Options) -> SocketAddr {
    let server = Server::bind(options).await.unwrap();
    let address = server.local_addr();
    tokio::spawn(server.serve());
    address
}

async fn post(address: SocketAddr, path: &str, body: &Value) -> reqwest::Response {
    reqwest::Client::new().post(format!("http://{address}{path}")).json(body).send().await.unwrap()
}

fn ask(text: &str) -> Value {
    json!({ "model": "m", "messages": [{ "role": "user", "content": text }] })
}

fn streamed(mut body: Value, include_usage: bool) -> Value {
    body["stream"] = true.into();
    if include_usage {
        body["stream_options"] = json!({ "include_usage": true });
    }
    body
}

/// The payloads of the `data:` lines.
fn payloads(text: &str) -> Vec<Value> {
    let payloads = text.lines().filter_map(|line| line.strip_prefix("data: "));
    payloads.map(|payload| serde_json::from_str(payload).unwrap_or_else(|_| payload.into())).collect()
}

/// Asks for `/slots` until as many as wanted are busy.
async fn until_busy(address: SocketAddr, wanted: usize) {
    let poll = async {
        loop {
            let slots = reqwest::get(format!("http://{address}/slots")).await.unwrap().json::<Value>().await.unwrap();
            if slots.as_array().unwrap().iter().filter(|slot| slot["is_processing"] == true).count() == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), poll).await.expect("the slots never got there");
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    options: Options,
}

#[test]
fn the_command_lines_defaults_are_those_of_the_library() {
    let parsed = Cli::parse_from(["demo"]).options;
    assert_eq!(format!("{parsed:?}"), format!("{:?}", Options::default()));
}

#[test]
fn durations_and_failure_modes_are_read_from_text() {
    assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
    assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
    assert!(parse_duration("5").is_err());
    assert!(parse_duration("-1s").is_err());
    assert_eq!("stall=3".parse(), Ok(Fail::Stall(3)));
    assert_eq!("error".parse(), Ok(Fail::Error(500)));
    for bad in ["explode", "stall=x", "hang=1", "error=99", ""] {
        assert!(bad.parse::<Fail>().is_err(), "{bad:?} was accepted");
    }
}

#[tokio::test]
async fn a_stream_tells_the_same_text_and_usage_as_the_whole_answer() {
    let address = start(Options::default()).await;
    let whole: Value = post(address, "/v1/chat/completions", &ask("hello there")).await.json().await.unwrap();
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.starts_with("demo: hello there The signal"), "{text}");
    assert_eq!(whole["usage"], json!({ "prompt_tokens": 2, "completion_tokens": 24, "total_tokens": 26 }));
    assert_eq!(whole["system_fingerprint"], format!("demo-demo-{}", std::process::id()));

    let response = post(address, "/v1/chat/completions", &streamed(ask("hello there"), true)).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let chunks = payloads(&response.text().await.unwrap());
    let deltas: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(deltas, text);
    assert_eq!(chunks[chunks.len() - 2]["usage"], whole["usage"]);
    assert_eq!(chunks[chunks.len() - 1], "[DONE]");

    let without = post(address, "/v1/chat/completions", &streamed(ask("hello there"), false)).await;
    assert!(!without.text().await.unwrap().contains("usage"));
}

#[tokio::test]
async fn the_length_is_settable_and_max_tokens_cuts_it_short() {
    let address = start(Options { tokens: 5, ..Options::default() }).await;
    let length = async |body: &Value| {
        let answer: Value = post(address, "/v1/chat/completions", body).await.json().await.unwrap();
        (answer["usage"]["completion_tokens"].as_u64().unwrap(), answer["choices"][0]["finish_reason"].clone())
    };
    let mut body = ask("hi");
    assert_eq!(length(&body).await, (5, "stop".into()));
    body["max_tokens"] = 3.into();
    assert_eq!(length(&body).await, (3, "length".into()));
    body["max_tokens"] = 30.into();
    assert_eq!(length(&body).await, (5, "stop".into()));
    body["ignore_eos"] = true.into();
    assert_eq!(length(&body).await, (30, "stop".into()));
    body["demo"] = json!({ "tokens": 7 });
    assert_eq!(length(&body).await, (7, "stop".into()));
}

#[tokio::test]
async fn anthropic_responses_and_llama_answers_carry_their_own_usage() {
    let address = start(Options { tokens: 4, ..Options::default() }).await;
    let response = post(address, "/v1/messages", &streamed(ask("one two"), false)).await;
    let events = payloads(&response.text().await.unwrap());
    let kinds: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds.first(), Some(&"message_start"));
    assert_eq!(kinds.last(), Some(&"message_stop"));
    assert_eq!(kinds.iter().filter(|kind| **kind == "content_block_delta").count(), 4);
    assert_eq!(events[0]["message"]["usage"]["input_tokens"], 2);
    assert_eq!(events[events.len() - 2]["usage"]["output_tokens"], 4);

    let count: Value = post(address, "/v1/messages/count_tokens", &ask("one two")).await.json().await.unwrap();
    assert_eq!(count, json!({ "input_tokens": 2 }));
    let body = json!({ "input": "one two three", "stream": true });
    let events = payloads(&post(address, "/v1/responses", &body).await.text().await.unwrap());
    assert_eq!(events.last().unwrap()["response"]["usage"]["input_tokens"], 3);
    let llama: Value = post(address, "/completion", &json!({ "prompt": "a b" })).await.json().await.unwrap();
    assert_eq!((&llama["tokens_evaluated"], &llama["tokens_predicted"]), (&json!(2), &json!(4)));
}

#[tokio::test]
async fn embeddings_rerank_images_and_speech_answer() {
    let address = start(Options::default()).await;
    let body = json!({ "input": ["a", "b", "a"] });
    let answer: Value = post(address, "/v1/embeddings", &body).await.json().await.unwrap();
    assert_eq!(answer["data"][0]["embedding"], answer["data"][2]["embedding"]);
    assert_ne!(answer["data"][0]["embedding"], answer["data"][1]["embedding"]);
    for path in ["/rerank", "/v1/rerank", "/reranking", "/v1/reranking"] {
        let body = json!({ "query": "q", "documents": ["a", "b"] });
        let answer: Value = post(address, path, &body).await.json().await.unwrap();
        assert_eq!(answer["results"].as_array().unwrap().len(), 2, "{path}");
    }
    let answer: Value = post(address, "/v1/images/generations", &json!({ "prompt": "x" })).await.json().await.unwrap();
    assert!(answer["data"][0]["b64_json"].is_string());
    let speech = post(address, "/v1/audio/speech", &json!({ "input": "say this" })).await;
    assert_eq!(speech.headers()["content-type"], "audio/mpeg");
    assert!(speech.text().await.unwrap().contains("say this"));
}

#[tokio::test]
async fn a_form_is_told_back_with_the_digest_of_its_file() {
    let address = start(Options::default()).await;
    let file = vec![7_u8; 3 << 20];
    let digest = echo::hex(&Sha256::digest(&file));
    let part = reqwest::multipart::Part::bytes(file).file_name("a.wav");
    let form = reqwest::multipart::Form::new().text("model", "whisper").part("file", part);
    let url = format!("http://{address}/v1/audio/transcriptions");
    let answer: Value = reqwest::Client::new().post(url).multipart(form).send().await.unwrap().json().await.unwrap();
    assert_eq!(answer["form"]["model"], "whisper");
    assert_eq!(answer["form"]["file"], json!({ "file_name": "a.wav", "bytes": 3 << 20, "sha256": digest }));
}

#[tokio::test]
async fn requests_beyond_the_slots_wait_and_a_client_that_leaves_frees_its_slot() {
    let address = start(Options { slots: 1, ..Options::default() }).await;
    let url = format!("http://{address}/v1/chat/completions");
    let stalled = reqwest::Client::new().post(&url).header("x-demo-fail", "stall=2").json(&streamed(ask("a"), false));
    let mut stalled = stalled.send().await.unwrap();
    stalled.chunk().await.unwrap();
    until_busy(address, 1).await;
    let waiting = tokio::spawn(async move { post(address, "/v1/chat/completions", &ask("b")).await.status() });
    let metrics = async || reqwest::get(format!("http://{address}/metrics")).await.unwrap().text().await.unwrap();
    while !metrics().await.contains("llamacpp:requests_deferred 1") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(metrics().await.contains("llamacpp:requests_processing 1"));
    drop(stalled);
    let status = tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("the slot was not freed").unwrap();
    assert_eq!(status, 200);

    // The same for one that leaves before the first byte.
    let hanging = reqwest::Client::new().post(&url).header("x-demo-fail", "hang").json(&ask("a")).send();
    let hanging = tokio::spawn(hanging);
    until_busy(address, 1).await;
    hanging.abort();
    until_busy(address, 0).await;
}

#[tokio::test]
async fn vllm_metrics_carry_the_model_and_the_cache_use() {
    let options = Options { metrics: MetricsStyle::Vllm, kv_tokens: 100, model: "v".to_owned(), ..Options::default() };
    let address = start(options).await;
    let body = json!({ "prompt": "a b c", "stream": true, "demo": { "fail": "stall=2" } });
    let mut response = post(address, "/v1/completions", &body).await;
    let mut text = String::new();
    while text.matches("data: ").count() < 2 {
        text.push_str(std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap());
    }
    let metrics = reqwest::get(format!("http://{address}/metrics")).await.unwrap().text().await.unwrap();
    for line in [
        "vllm:num_requests_running{engine=\"0\",model_name=\"v\"} 1",
        "vllm:num_requests_waiting{engine=\"0\",model_name=\"v\"} 0",
        "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"v\"} 0.05",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in\n{metrics}");
    }
    assert_eq!(reqwest::get(format!("http://{address}/slots")).await.unwrap().status(), 404);
}

#[tokio::test]
async fn failures_happen_as_told() {
    let address = start(Options { fail: vec![Fail::Error(418)], ..Options::default() }).await;
    let refused = post(address, "/v1/chat/completions", &ask("a")).await;
    assert_eq!(refused.status(), 418);
    assert_eq!(refused.json::<Value>().await.unwrap()["error"]["code"], 418);

    let mut body = streamed(ask("a"), false);
    body["demo"] = json!({ "fail": "cut=2" });
    let mut cut = post(address, "/v1/chat/completions", &body).await;
    let mut text = String::new();
    let end = loop {
        match cut.chunk().await {
            Ok(Some(chunk)) => text.push_str(std::str::from_utf8(&chunk).unwrap()),
            end => break end,
        }
    };
    assert!(end.is_err(), "the stream ended as if complete");
    assert_eq!(payloads(&text).len(), 3, "the role and two tokens");

    let unknown = reqwest::Client::new().post(format!("http://{address}/v1/embeddings")).header("x-demo-fail", "nope");
    assert_eq!(unknown.json(&json!({})).send().await.unwrap().status(), 400);
}

#[tokio::test]
async fn while_it_loads_everything_is_503() {
    let address = start(Options { fail: vec![Fail::NeverHealthy], ..Options::default() }).await;
    assert_eq!(reqwest::get(format!("http://{address}/health")).await.unwrap().status(), 503);
    assert_eq!(post(address, "/v1/chat/completions", &ask("a")).await.status(), 503);
    let address = start(Options::default()).await;
    assert_eq!(reqwest::get(format!("http://{address}/health")).await.unwrap().status(), 200);
}

#[tokio::test]
async fn echo_proves_a_large_body_over_either_protocol() {
    let address = start(Options::default()).await;
    let body: Vec<u8> = (0..20 << 20).map(|i: u32| (i % 251) as u8).collect();
    let h2c = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    for (client, version) in [(reqwest::Client::new(), "HTTP/1.1"), (h2c, "HTTP/2.0")] {
        let chunks: Vec<_> = body.chunks(100_000).map(|chunk| Ok::<_, io::Error>(chunk.to_vec())).collect();
        let stream = reqwest::Body::wrap_stream(futures_util::stream::iter(chunks));
        let request = client.put(format!("http://{address}/echo/a/b?c=d")).header("x-a", "1").body(stream);
        let answer: Value = request.send().await.unwrap().json().await.unwrap();
        assert_eq!(answer["version"], version);
        assert_eq!(
            (&answer["method"], &answer["path"], &answer["query"]),
            (&json!("PUT"), &json!("/echo/a/b"), &json!("c=d"))
        );
        assert_eq!(answer["headers"]["x-a"], json!(["1"]));
        assert_eq!(answer["body_bytes"], body.len());
        assert_eq!(answer["body_sha256"], echo::hex(&Sha256::digest(&body)));
    }
}

#[tokio::test]
async fn a_websocket_returns_what_it_gets() {
    use tokio_tungstenite::tungstenite::Message;
    let address = start(Options::default()).await;
    let (mut socket, _) = tokio_tungstenite::connect_async(format!("ws://{address}/ws")).await.unwrap();
    for message in [Message::text("hello"), Message::binary(vec![0, 1, 255])] {
        socket.send(message.clone()).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), message);
    }
}
