//! The wire formats in which a generated answer is told, whole or as events.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::plan::Plan;

/// An answer and who gives it.
pub(super) struct Answer<'a> {
    pub(super) fingerprint: &'a str,
    pub(super) plan: &'a Plan,
}

impl Answer<'_> {
    fn prompt_tokens(&self) -> u32 {
        self.plan.prompt_tokens
    }

    fn completion_tokens(&self) -> usize {
        self.plan.tokens.len()
    }

    fn usage(&self) -> Value {
        let (prompt, completion) = (self.prompt_tokens(), self.completion_tokens());
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": u64::from(prompt) + completion as u64,
        })
    }

    fn usage_in_out(&self) -> Value {
        let (input, output) = (self.prompt_tokens(), self.completion_tokens());
        json!({ "input_tokens": input, "output_tokens": output, "total_tokens": u64::from(input) + output as u64 })
    }

    fn finish_reason(&self) -> &'static str {
        if self.plan.cut_short { "length" } else { "stop" }
    }

    /// What every OpenAI object has in common.
    fn object(&self, prefix: &str, kind: &str) -> Value {
        json!({
            "id": format!("{prefix}-{}", self.fingerprint),
            "object": kind,
            "created": unix_seconds(),
            "model": self.plan.model,
            "system_fingerprint": self.fingerprint,
        })
    }
}

/// A wire format.
pub(super) trait Dialect: Sync {
    /// The answer as one document.
    fn whole(&self, answer: &Answer<'_>, text: &str) -> Value;

    /// The media type of the stream.
    fn media_type(&self) -> &'static str {
        "text/event-stream"
    }

    /// The stream's bytes before the first token.
    fn open(&self, _answer: &Answer<'_>) -> String {
        String::new()
    }

    /// The stream's bytes for one token.
    fn token(&self, answer: &Answer<'_>, text: &str) -> String;

    /// The stream's bytes after the last token.
    fn close(&self, answer: &Answer<'_>, text: &str) -> String;
}

fn data(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// An event whose name is also its `type`.
fn event(value: &Value) -> String {
    format!("event: {}\ndata: {value}\n\n", value["type"].as_str().unwrap_or_default())
}

pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Adds the keys of `more` to `object`.
fn with(mut object: Value, more: Value) -> Value {
    if let (Some(object), Value::Object(more)) = (object.as_object_mut(), more) {
        object.extend(more);
    }
    object
}

/// `/v1/chat/completions`
pub(super) struct Chat;

impl Chat {
    fn chunk(answer: &Answer<'_>, choices: &Value) -> Value {
        let chunk = with(answer.object("chatcmpl", "chat.completion.chunk"), json!({ "choices": choices }));
        if answer.plan.include_usage { with(chunk, json!({ "usage": null })) } else { chunk }
    }
}

impl Dialect for Chat {
    fn whole(&self, answer: &Answer<'_>, text: &str) -> Value {
        let message = json!({ "role": "assistant", "content": text });
        let choice = json!({ "index": 0, "message": message, "finish_reason": answer.finish_reason() });
        with(answer.object("chatcmpl", "chat.completion"), json!({ "choices": [choice], "usage": answer.usage() }))
    }

    fn open(&self, answer: &Answer<'_>) -> String {
        let delta = json!({ "role": "assistant", "content": "" });
        data(&Self::chunk(answer, &json!([{ "index": 0, "delta": delta, "finish_reason": null }])))
    }

    fn token(&self, answer: &Answer<'_>, text: &str) -> String {
        data(&Self::chunk(answer, &json!([{ "index": 0, "delta": { "content": text }, "finish_reason": null }])))
    }

    fn close(&self, answer: &Answer<'_>, _text: &str) -> String {
        let choices = json!([{ "index": 0, "delta": {}, "finish_reason": answer.finish_reason() }]);
        close_openai(answer, &Self::chunk(answer, &choices))
    }
}

/// `/v1/completions`
pub(super) struct Completion;

impl Completion {
    fn chunk(answer: &Answer<'_>, text: &str, finish_reason: Option<&str>) -> Value {
        let choice = json!({ "index": 0, "text": text, "finish_reason": finish_reason });
        let chunk = with(answer.object("cmpl", "text_completion"), json!({ "choices": [choice] }));
        if answer.plan.include_usage { with(chunk, json!({ "usage": null })) } else { chunk }
    }
}

impl Dialect for Completion {
    fn whole(&self, answer: &Answer<'_>, text: &str) -> Value {
        with(Self::chunk(answer, text, Some(answer.finish_reason())), json!({ "usage": answer.usage() }))
    }

    fn token(&self, answer: &Answer<'_>, text: &str) -> String {
        data(&Self::chunk(answer, text, None))
    }

    fn close(&self, answer: &Answer<'_>, _text: &str) -> String {
        close_openai(answer, &Self::chunk(answer, "", Some(answer.finish_reason())))
    }
}

/// The last chunk with a choice, the usage where it was asked for, and the end mark.
fn close_openai(answer: &Answer<'_>, last: &Value) -> String {
    let usage = with(last.clone(), json!({ "choices": [], "usage": answer.usage() }));
    let usage = if answer.plan.include_usage { data(&usage) } else { String::new() };
    data(last) + &usage + "data: [DONE]\n\n"
}

/// `/v1/responses`
pub(super) struct Responses;

impl Responses {
    fn response(answer: &Answer<'_>, status: &str, output: &Value, usage: &Value) -> Value {
        let response = with(answer.object("resp", "response"), json!({ "created_at": unix_seconds() }));
        with(response, json!({ "status": status, "output": output, "usage": usage }))
    }
}

impl Dialect for Responses {
    fn whole(&self, answer: &Answer<'_>, text: &str) -> Value {
        let content = json!([{ "type": "output_text", "text": text, "annotations": [] }]);
        let output = json!([{ "type": "message", "id": "msg", "role": "assistant", "status": "completed",
            "content": content }]);
        let status = if answer.plan.cut_short { "incomplete" } else { "completed" };
        Self::response(answer, status, &output, &answer.usage_in_out())
    }

    fn open(&self, answer: &Answer<'_>) -> String {
        let response = Self::response(answer, "in_progress", &json!([]), &Value::Null);
        event(&json!({ "type": "response.created", "response": response }))
    }

    fn token(&self, _answer: &Answer<'_>, text: &str) -> String {
        event(&json!({ "type": "response.output_text.delta", "item_id": "msg", "output_index": 0, "content_index": 0,
            "delta": text }))
    }

    fn close(&self, answer: &Answer<'_>, text: &str) -> String {
        let kind = if answer.plan.cut_short { "response.incomplete" } else { "response.completed" };
        event(&json!({ "type": kind, "response": self.whole(answer, text) }))
    }
}

/// `/v1/messages`
pub(super) struct Messages;

impl Messages {
    fn message(answer: &Answer<'_>, content: &Value, stop_reason: Option<&str>, output_tokens: usize) -> Value {
        json!({
            "id": format!("msg-{}", answer.fingerprint),
            "type": "message",
            "role": "assistant",
            "model": answer.plan.model,
            "system_fingerprint": answer.fingerprint,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": null,
            "usage": { "input_tokens": answer.prompt_tokens(), "output_tokens": output_tokens },
        })
    }

    fn stop_reason(answer: &Answer<'_>) -> &'static str {
        if answer.plan.cut_short { "max_tokens" } else { "end_turn" }
    }
}

impl Dialect for Messages {
    fn whole(&self, answer: &Answer<'_>, text: &str) -> Value {
        let content = json!([{ "type": "text", "text": text }]);
        Self::message(answer, &content, Some(Self::stop_reason(answer)), answer.completion_tokens())
    }

    fn open(&self, answer: &Answer<'_>) -> String {
        let message = Self::message(answer, &json!([]), None, 1);
        event(&json!({ "type": "message_start", "message": message }))
            + &event(&json!({ "type": "content_block_start", "index": 0,
                "content_block": { "type": "text", "text": "" } }))
    }

    fn token(&self, _answer: &Answer<'_>, text: &str) -> String {
        let delta = json!({ "type": "text_delta", "text": text });
        event(&json!({ "type": "content_block_delta", "index": 0, "delta": delta }))
    }

    fn close(&self, answer: &Answer<'_>, _text: &str) -> String {
        let delta = json!({ "stop_reason": Self::stop_reason(answer), "stop_sequence": null });
        let usage = json!({ "output_tokens": answer.completion_tokens() });
        [
            json!({ "type": "content_block_stop", "index": 0 }),
            json!({ "type": "message_delta", "delta": delta, "usage": usage }),
            json!({ "type": "message_stop" }),
        ]
        .iter()
        .map(event)
        .collect()
    }
}

/// llama-server's own `/completion` and `/infill`
pub(super) struct Llama;

impl Llama {
    fn last(answer: &Answer<'_>, text: &str) -> Value {
        let (prompt, predicted) = (answer.prompt_tokens(), answer.completion_tokens());
        json!({
            "index": 0,
            "content": text,
            "stop": true,
            "stop_type": if answer.plan.cut_short { "limit" } else { "eos" },
            "model": answer.plan.model,
            "system_fingerprint": answer.fingerprint,
            "tokens_predicted": predicted,
            "tokens_evaluated": prompt,
            "timings": { "prompt_n": prompt, "predicted_n": predicted },
        })
    }
}

impl Dialect for Llama {
    fn whole(&self, answer: &Answer<'_>, text: &str) -> Value {
        Self::last(answer, text)
    }

    fn token(&self, answer: &Answer<'_>, text: &str) -> String {
        data(&json!({ "index": 0, "content": text, "stop": false, "tokens_evaluated": answer.prompt_tokens() }))
    }

    fn close(&self, answer: &Answer<'_>, _text: &str) -> String {
        data(&Self::last(answer, ""))
    }
}

/// `/v1/audio/speech`: bytes that arrive over time.
pub(super) struct Speech;

impl Dialect for Speech {
    fn whole(&self, _answer: &Answer<'_>, text: &str) -> Value {
        text.into()
    }

    fn media_type(&self) -> &'static str {
        "audio/mpeg"
    }

    fn token(&self, _answer: &Answer<'_>, text: &str) -> String {
        text.to_owned()
    }

    fn close(&self, _answer: &Answer<'_>, _text: &str) -> String {
        String::new()
    }
}

/// `/v1/audio/transcriptions`
pub(super) struct Transcription;

impl Dialect for Transcription {
    fn whole(&self, answer: &Answer<'_>, text: &str) -> Value {
        let usage = with(json!({ "type": "tokens" }), answer.usage_in_out());
        json!({ "text": text, "usage": usage, "system_fingerprint": answer.fingerprint })
    }

    fn token(&self, _answer: &Answer<'_>, text: &str) -> String {
        data(&json!({ "type": "transcript.text.delta", "delta": text }))
    }

    fn close(&self, answer: &Answer<'_>, text: &str) -> String {
        data(&with(json!({ "type": "transcript.text.done" }), self.whole(answer, text)))
    }
}
