//! Bodies of any size and framing arrive as they were sent, or are refused.

use futures_util::stream;
use reqwest::{
    Body, Client,
    multipart::{Form, Part},
};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::raw::Raw;
use crate::support::{Gateway, demo_model};

const MIB: usize = 1 << 20;

/// Bytes in which no two megabytes are alike.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    (0..bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state.to_le_bytes()[1]
        })
        .collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Sent without a length in advance.
fn chunked(bytes: &[u8]) -> Body {
    let chunks: Vec<_> = bytes.chunks(100_000).map(|chunk| Ok::<_, std::io::Error>(chunk.to_vec())).collect();
    Body::wrap_stream(stream::iter(chunks))
}

fn clients() -> [(&'static str, Client); 2] {
    let h2c = Client::builder().http2_prior_knowledge().build().expect("a client");
    [("HTTP/1.1", Client::new()), ("h2c", h2c)]
}

#[tokio::test]
async fn twenty_mebibytes_arrive_byte_for_byte() {
    let gateway = Gateway::start(&format!("models:\n{}", demo_model("m", "")));
    let bytes = noise(20 * MIB);
    let digest = sha256(&bytes);
    for (protocol, client) in clients() {
        for (framing, body) in [("length", Body::from(bytes.clone())), ("chunked", chunked(&bytes))] {
            let answer = client.post(gateway.url("/upstream/m/echo")).body(body).send().await.expect("an answer");
            let answer: Value = answer.json().await.expect("JSON");
            assert_eq!(answer["body_sha256"], digest.as_str(), "{protocol}, {framing}");
            assert_eq!(answer["headers"]["transfer-encoding"], Value::Null, "{protocol}, {framing}");
        }
    }
}

#[tokio::test]
async fn a_large_form_finds_its_model_and_keeps_its_file() {
    let renamed = demo_model("asr", "").trim_end().to_owned() + "\n    useModelName: whisper-1\n";
    let gateway = Gateway::start(&format!("models:\n{renamed}"));
    let file = noise(20 * MIB);
    for (protocol, client) in clients() {
        let part = Part::bytes(file.clone()).file_name("speech.wav").mime_str("audio/wav").expect("a type");
        // The model comes last, as some clients have it.
        let form = Form::new().part("file", part).text("model", "asr");
        let answer = client.post(gateway.url("/v1/audio/transcriptions")).multipart(form).send().await;
        let answer: Value = answer.expect("an answer").json().await.expect("JSON");
        assert_eq!(answer["form"]["file"]["sha256"], sha256(&file).as_str(), "{protocol}: {answer}");
        assert_eq!(answer["form"]["file"]["file_name"], "speech.wav", "{protocol}");
        assert_eq!(answer["form"]["model"], "whisper-1", "{protocol}");
    }
}

#[tokio::test]
async fn more_than_the_limit_is_refused_and_said_so() {
    let gateway = Gateway::start(&format!("models:\n{}", demo_model("m", "")));
    let bytes = vec![b' '; 33 * MIB];
    for (protocol, client) in clients() {
        for (framing, body) in [("length", Body::from(bytes.clone())), ("chunked", chunked(&bytes))] {
            let answer = client.post(gateway.url("/v1/chat/completions")).body(body).send().await;
            let answer = answer.unwrap_or_else(|error| panic!("{protocol}, {framing}: {error:?}"));
            assert_eq!(answer.status(), 413, "{protocol}, {framing}");
            let error: Value = answer.json().await.expect("JSON");
            assert_eq!(error["error"]["code"], "body_too_large", "{protocol}, {framing}");
        }
    }
}

#[tokio::test]
async fn a_client_that_asks_first_is_told_before_it_sends() {
    let gateway = Gateway::start(&format!("models:\n{}", demo_model("m", "--tokens 1")));
    let mut client = Raw::connect(gateway.address).await;
    let head = |length: usize| {
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
        )
    };
    let body = r#"{"model":"m"}"#;
    client.send(head(body.len())).await;
    assert_eq!(client.message().await.expect("an answer").status(), 100);
    client.send(body).await;
    assert_eq!(client.message().await.expect("an answer").status(), 200);

    client.send(head(33 * MIB)).await;
    assert_eq!(client.message().await.expect("an answer").status(), 413);
    assert!(client.is_closed().await, "the rest of the body may still come");
}
