//! Who is calling: keys, tiers, and whose word is taken.

mod believed;
mod changes;
mod limits;
mod table;

use serde_json::Value;

use crate::{
    proxy::raw::{Message, Raw},
    support::{Gateway, demo_model},
};

/// A model `m` whose server answers every request with what it got, under other names too.
fn echoing_model(aliases: &[&str]) -> String {
    let model = demo_model("m", "");
    format!("{model}    proxy: http://127.0.0.1:${{PORT}}/echo\n    aliases: {aliases:?}\n")
}

/// Sends a request byte for byte, with the model in its body where there can be one.
async fn send(gateway: &Gateway, method: &str, path: &[u8], headers: &[(String, Vec<u8>)], model: &str) -> Message {
    let body = if method == "POST" { format!(r#"{{"model":"{model}"}}"#) } else { String::new() };
    let mut bytes = [method.as_bytes(), b" ", path, b" HTTP/1.1\r\nhost: test\r\n"].concat();
    for (name, value) in headers {
        bytes.extend([name.as_bytes(), b":", value, b"\r\n"].concat());
    }
    bytes.extend(format!("content-length: {}\r\n\r\n{body}", body.len()).into_bytes());
    let mut raw = Raw::connect(gateway.address).await;
    raw.send(bytes).await;
    let answer = if method == "HEAD" { raw.head().await } else { raw.message().await };
    answer.unwrap_or_else(|| panic!("no answer to {method} {}", String::from_utf8_lossy(path)))
}

/// A chat request for the model `m` with these headers.
async fn chat(gateway: &Gateway, headers: &[(&str, &str)]) -> Message {
    let headers: Vec<_> =
        headers.iter().map(|(name, value)| ((*name).to_owned(), format!(" {value}").into_bytes())).collect();
    send(gateway, "POST", b"/v1/chat/completions", &headers, "m").await
}

/// The row of the request that was answered so; `headers` open the log.
async fn row(gateway: &Gateway, answer: &Message, headers: &[(&str, &str)]) -> Value {
    let path = format!("/api/activity/{}", answer.header("x-request-id").expect("an id"));
    let row = crate::support::eventually("it is in the activity log", async || {
        let mut request = gateway.client.get(gateway.url(&path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = request.send().await.expect("an answer");
        assert!(!matches!(answer.status().as_u16(), 401 | 403), "the log is closed");
        if answer.status().is_success() { answer.json::<Value>().await.ok() } else { None }
    })
    .await;
    row["request"].clone()
}

/// What the model server got under a name.
fn upstream(answer: &Message, name: &str) -> Vec<String> {
    let echo = answer.json();
    let values = echo["headers"][name].as_array().into_iter().flatten();
    values.map(|value| value.as_str().expect("text").to_owned()).collect()
}
