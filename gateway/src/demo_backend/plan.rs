//! What one request asks for, and the answer it is going to get.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use serde_json::Value;

use super::{Options, fail::Fails, parse_duration};

const FILLER: &str = "The signal is green, the points are set, and the next train leaves the yard on time.";

/// A refusal: a status and words for it.
pub(super) type Refusal = (StatusCode, String);

/// Everything about one request that is settled before it starts.
#[derive(Debug)]
pub(super) struct Plan {
    /// The model as the request names it, else the server's.
    pub(super) model: String,
    /// The words of the prompt.
    pub(super) prompt_tokens: u32,
    /// The answer, a token each.
    pub(super) tokens: Vec<String>,
    /// Whether `max_tokens` cut it short.
    pub(super) cut_short: bool,
    /// From the slot to the first token.
    pub(super) prefill: Duration,
    /// From one token to the next.
    pub(super) token_time: Duration,
    /// What goes wrong.
    pub(super) fails: Fails,
    /// Answer as a stream of events.
    pub(super) stream: bool,
    /// End an OpenAI stream with its usage.
    pub(super) include_usage: bool,
}

impl Plan {
    /// Reads the request. `body` is `Null` when it is not JSON.
    pub(super) fn new(options: &Options, headers: &HeaderMap, body: &Value) -> Result<Self, Refusal> {
        let bad = |key: &str, why: String| (StatusCode::BAD_REQUEST, format!("x-demo-{key}: {why}"));
        let number = |key: &str| {
            setting(headers, body, key)
                .map(|text| text.parse::<u32>().map_err(|error| bad(key, error.to_string())))
                .transpose()
        };
        let duration = |key: &str, default: Duration| {
            setting(headers, body, key)
                .map_or(Ok(default), |text| parse_duration(&text).map_err(|error| bad(key, error)))
        };
        let fails = match setting(headers, body, "fail") {
            Some(text) => Fails::parse(&text).map_err(|error| bad("fail", error))?,
            None => Fails::new(options.fail.iter().copied()),
        };

        let prompt_tokens = count_words(body);
        let max_tokens = ["max_completion_tokens", "max_tokens", "max_output_tokens", "n_predict"]
            .into_iter()
            .find_map(|key| body[key].as_u64())
            .map(|max| u32::try_from(max).unwrap_or(u32::MAX));
        let natural = match number("tokens")? {
            Some(tokens) => tokens,
            None if body["ignore_eos"] == true => max_tokens.unwrap_or(options.tokens),
            None => options.tokens,
        };
        let length = natural.min(max_tokens.unwrap_or(u32::MAX)).min(1 << 20);
        Ok(Self {
            model: body["model"].as_str().unwrap_or(&options.model).to_owned(),
            prompt_tokens,
            tokens: answer(&options.model, last_user_text(body), length),
            cut_short: length < natural,
            prefill: duration("prefill-time", options.prefill_time)? + options.prefill_token_time * prompt_tokens,
            token_time: duration("token-time", options.token_time)?,
            fails,
            stream: body["stream"] == true,
            include_usage: body["stream_options"]["include_usage"] == true,
        })
    }
}

/// A per-request setting: the header, else the key in the body's `demo` object.
fn setting(headers: &HeaderMap, body: &Value, key: &str) -> Option<String> {
    if let Some(value) = headers.get(format!("x-demo-{key}")) {
        return Some(String::from_utf8_lossy(value.as_bytes()).into_owned());
    }
    match &body["demo"][key] {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// The server's name, the user's words, then filler. The tokens joined give the text.
fn answer(model: &str, user: &str, length: u32) -> Vec<String> {
    std::iter::once(format!("{model}:"))
        .chain(user.split_whitespace().chain(FILLER.split(' ').cycle()).map(|word| format!(" {word}")))
        .take(length as usize)
        .collect()
}

/// The text that is answered: the last user message, or the prompt.
fn last_user_text(body: &Value) -> &str {
    fn text(content: &Value) -> Option<&str> {
        content.as_str().or_else(|| content.as_array()?.iter().find_map(|part| part["text"].as_str()))
    }
    let turns = body["messages"].as_array().or_else(|| body["input"].as_array()).into_iter().flatten();
    turns
        .rev()
        .find(|message| message["role"] == "user")
        .and_then(|message| text(&message["content"]))
        .or_else(|| ["prompt", "input", "input_prefix"].into_iter().find_map(|key| text(&body[key])))
        .unwrap_or_default()
}

/// Words in everything that a model would read.
fn count_words(body: &Value) -> u32 {
    fn words(value: &Value) -> usize {
        match value {
            Value::String(text) => text.split_whitespace().count(),
            Value::Array(items) => items.iter().map(words).sum(),
            Value::Object(object) => ["content", "text"].iter().filter_map(|key| object.get(*key)).map(words).sum(),
            Value::Number(_) => 1, // a prompt given as token ids
            _ => 0,
        }
    }
    let keys = ["system", "instructions", "messages", "prompt", "input", "query", "documents", "content"];
    let keys = keys.into_iter().chain(["input_prefix", "input_suffix"]);
    u32::try_from(keys.map(|key| words(&body[key])).sum::<usize>()).unwrap_or(u32::MAX)
}
