//! Token usage, read out of an answer as it passes.

use memchr::{memchr, memrchr};
use serde::Deserialize;

/// Bytes kept between two chunks to recognise a key that was split: the longest, its quotes and its colon.
const OVERLAP: usize = 24;
/// A value that is longer than this is not a count, nor an object of counts.
const MAX_VALUE: usize = 8 << 10;

/// Tokens that an answer says it used; `None` where it says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// Tokens in.
    pub prompt_tokens: Option<u64>,
    /// Tokens out.
    pub completion_tokens: Option<u64>,
    /// `completion_tokens` was not reported but counted from the stream's events, one each.
    pub approximate: bool,
}

impl From<TokenUsage> for switchyard_scheduler::Usage {
    fn from(usage: TokenUsage) -> Self {
        let TokenUsage { prompt_tokens, completion_tokens, .. } = usage;
        Self { prompt_tokens, completion_tokens, first_token: None }
    }
}

/// Looks at each chunk of an answer's body once, and holds on to no more than it needs to recognise a count that is
/// split between two. It understands what OpenAI's, Anthropic's and llama-server's APIs report, whole or streamed.
///
/// It looks for the keys of a JSON document rather than parse it: an answer can be many megabytes, of which the
/// counts are a hundred bytes, and in a string the quotes around the same words would be escaped.
#[derive(Debug)]
pub struct UsageScanner {
    events: bool,
    /// The end of what came before, then the present chunk.
    window: Vec<u8>,
    /// Where in `window` to look for the next colon.
    position: usize,
    reported: Counts,
    native: Counts,
    timings: Counts,
    /// The first word of a stream about its tokens out, when it comes before any of them: Anthropic opens with a
    /// count of at most one and reports at the end.
    opening: Option<u64>,
    content_events: u64,
}

/// Counts from one kind of source.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    prompt: Option<u64>,
    completion: Option<u64>,
}

impl Counts {
    /// A stream may report several times; its counts only grow.
    fn merge(&mut self, prompt: Option<u64>, completion: Option<u64>) {
        self.prompt = self.prompt.max(prompt);
        self.completion = self.completion.max(completion);
    }
}

/// An object of counts, with the names that servers give them. Some give the same count under two names.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Report {
    prompt_tokens: Option<u64>,
    input_tokens: Option<u64>,
    prompt_n: Option<u64>,
    completion_tokens: Option<u64>,
    output_tokens: Option<u64>,
    predicted_n: Option<u64>,
    /// All there is for some rerankers.
    total_tokens: Option<u64>,
    /// Written to or read from a cache: Anthropic and llama-server leave these out of the prompt's count.
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_n: Option<u64>,
}

impl Report {
    fn prompt(&self) -> Option<u64> {
        let cached = [self.cache_creation_input_tokens, self.cache_read_input_tokens, self.cache_n];
        let uncached = self
            .input_tokens
            .or(self.prompt_n)
            .map(|tokens| cached.into_iter().flatten().fold(tokens, u64::saturating_add));
        let total = if self.completion().is_none() { self.total_tokens } else { None };
        self.prompt_tokens.or(uncached).or(total)
    }

    fn completion(&self) -> Option<u64> {
        self.completion_tokens.or(self.output_tokens).or(self.predicted_n)
    }
}

/// What came of looking at a value.
enum Seen {
    /// Whatever it was, it is dealt with.
    Done,
    /// It goes on in the next chunk.
    Cut,
}

impl UsageScanner {
    /// `events`: the answer is `text/event-stream`.
    #[must_use]
    pub fn new(events: bool) -> Self {
        Self {
            events,
            window: Vec::new(),
            position: 0,
            reported: Counts::default(),
            native: Counts::default(),
            timings: Counts::default(),
            opening: None,
            content_events: 0,
        }
    }

    /// Looks at the next bytes of the body.
    pub fn feed(&mut self, chunk: &[u8]) {
        self.window.extend_from_slice(chunk);
        let window = std::mem::take(&mut self.window);
        let keep = self.scan(&window);
        self.window = window;
        self.window.drain(..keep);
    }

    /// What the body said, as far as it has come.
    #[must_use]
    pub fn usage(&self) -> TokenUsage {
        let sources = [&self.reported, &self.native, &self.timings];
        let completion = sources.iter().find_map(|counts| counts.completion);
        let approximate = completion.is_none() && self.content_events > 0;
        TokenUsage {
            prompt_tokens: sources.iter().find_map(|counts| counts.prompt),
            completion_tokens: if approximate { Some(self.content_events) } else { completion.or(self.opening) },
            approximate,
        }
    }

    /// Looks for keys from `self.position` on. Returns how much of the window's beginning is done with.
    fn scan(&mut self, window: &[u8]) -> usize {
        while let Some(found) = memchr(b':', &window[self.position..]) {
            let colon = self.position + found;
            let value = &window[colon + 1..];
            if let Some(key) = key_before(window, colon)
                && matches!(self.look(key, value), Seen::Cut)
                && value.len() < MAX_VALUE
            {
                let keep = colon.saturating_sub(OVERLAP);
                self.position = colon - keep;
                return keep;
            }
            self.position = colon + 1;
        }
        let keep = window.len().saturating_sub(OVERLAP);
        self.position = window.len() - keep;
        keep
    }

    fn look(&mut self, key: &[u8], value: &[u8]) -> Seen {
        let value = value.trim_ascii_start();
        match key {
            b"usage" | b"timings" => {
                let report = match report(value) {
                    Ok(report) => report,
                    Err(seen) => return seen,
                };
                let mut completion = report.completion();
                if self.events && self.content_events == 0 && completion.is_some_and(|count| count <= 1) {
                    self.opening = completion.take();
                }
                let known = if key == b"usage" { &mut self.reported } else { &mut self.timings };
                known.merge(report.prompt(), completion);
            }
            b"tokens_evaluated" | b"tokens_predicted" => {
                let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
                if digits == value.len() {
                    return Seen::Cut;
                }
                let count = std::str::from_utf8(&value[..digits]).ok().and_then(|digits| digits.parse().ok());
                match key {
                    b"tokens_evaluated" => self.native.merge(count, None),
                    _ => self.native.merge(None, count),
                }
            }
            b"content" | b"text" | b"delta" | b"reasoning_content" | b"reasoning" | b"thinking" | b"arguments"
            | b"partial_json"
                if self.events =>
            {
                match value {
                    [] | [b'"'] => return Seen::Cut,
                    [b'"', first, ..] if *first != b'"' => self.content_events += 1,
                    _ => {}
                }
            }
            _ => {}
        }
        Seen::Done
    }
}

/// The key before the colon; none when it is longer than any that matters, or the colon is not a key's.
fn key_before(window: &[u8], colon: usize) -> Option<&[u8]> {
    let before = window[colon.saturating_sub(OVERLAP)..colon].strip_suffix(b"\"")?;
    memrchr(b'"', before).map(|open| &before[open + 1..])
}

/// An object of counts at the start of `value`.
fn report(value: &[u8]) -> Result<Report, Seen> {
    match value.first() {
        None => return Err(Seen::Cut),
        Some(b'{') => {}
        Some(_) => return Err(Seen::Done),
    }
    let end = object_end(value).ok_or(Seen::Cut)?;
    serde_json::from_slice(&value[..end]).map_err(|_| Seen::Done)
}

/// Where the object that `value` begins with ends, if it does.
fn object_end(value: &[u8]) -> Option<usize> {
    let (mut depth, mut in_string, mut escaped) = (0, false, false);
    for (at, byte) in value.iter().take(MAX_VALUE).enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b'{' if !in_string => depth += 1,
            b'}' if !in_string => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The usage, which must be the same however the body is split.
    #[track_caller]
    fn scan(events: bool, body: &str) -> TokenUsage {
        let whole = in_chunks(events, body.as_bytes(), body.len().max(1));
        for size in 1..body.len().min(200) {
            assert_eq!(in_chunks(events, body.as_bytes(), size), whole, "in chunks of {size}");
        }
        whole
    }

    fn in_chunks(events: bool, body: &[u8], size: usize) -> TokenUsage {
        let mut scanner = UsageScanner::new(events);
        for chunk in body.chunks(size) {
            scanner.feed(chunk);
            assert!(scanner.window.len() <= MAX_VALUE + OVERLAP + size);
        }
        scanner.usage()
    }

    fn reported(prompt: u64, completion: u64) -> TokenUsage {
        TokenUsage { prompt_tokens: Some(prompt), completion_tokens: Some(completion), approximate: false }
    }

    #[test]
    fn openai_whole_and_streamed() {
        let whole = r#"{"choices":[{"message":{"content":"hi \"usage\":{\"prompt_tokens\":99}"}}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": 4}}, "more": null}"#;
        assert_eq!(scan(false, whole), reported(5, 7));
        let stream = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}],\"usage\":null}\n\n\
            data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n\
            data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":7,\"total_tokens\":12}}\n\n\
            data: [DONE]\n\n";
        assert_eq!(scan(true, stream), reported(5, 7));
    }

    #[test]
    fn the_responses_api_at_the_end_of_a_large_event() {
        let text = "x".repeat(300_000);
        let stream = format!(
            "event: response.output_text.delta\ndata: {{\"type\":\"response.output_text.delta\",\"delta\":\"x\"}}\n\n\
             event: response.completed\ndata: {{\"type\":\"response.completed\",\"response\":{{\"output\":[{{\"text\":\
             \"{text}\"}}],\"usage\":{{\"input_tokens\":36,\"input_tokens_details\":{{\"cached_tokens\":0}},\
             \"output_tokens\":87,\"total_tokens\":123}}}}}}\n\n"
        );
        assert_eq!(in_chunks(true, stream.as_bytes(), 8192), reported(36, 87));
    }

    #[test]
    fn anthropic_streamed_with_cached_input() {
        let stream = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"content\":[],\"usage\":\
            {\"input_tokens\":10,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":32,\"output_tokens\":1}}}\n\n\
            event: content_block_start\ndata: {\"type\":\"content_block_start\",\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n\
            event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"Hel\"}}\n\n\
            event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"lo\"}}\n\n";
        let end = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":\
            {\"output_tokens\":15}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
        assert_eq!(scan(true, &format!("{stream}{end}")), reported(42, 15));
        // The same, left before its end.
        assert_eq!(scan(true, stream), TokenUsage { approximate: true, ..reported(42, 2) });
    }

    #[test]
    fn llama_servers_own_counts_win_over_its_timings() {
        let whole =
            r#"{"content":"x","tokens_predicted":3,"tokens_evaluated":40,"timings":{"prompt_n":1,"predicted_n":3}}"#;
        assert_eq!(scan(false, whole), reported(40, 3));
        let chat = r#"data: {"choices":[{"finish_reason":"stop","delta":{}}],"timings":{"cache_n":8,"prompt_n":2,"prompt_ms":1.5,"predicted_n":6}}"#;
        assert_eq!(scan(true, chat), reported(10, 6));
        assert_eq!(scan(false, r#"{"tokens_evaluated":40}"#).prompt_tokens, Some(40));
    }

    #[test]
    fn embeddings_and_rerankers_only_have_a_prompt() {
        let only_prompt = TokenUsage { prompt_tokens: Some(9), completion_tokens: None, approximate: false };
        let numbers = "0.123,".repeat(50_000);
        let first =
            format!(r#"{{"usage":{{"prompt_tokens":9,"total_tokens":9}},"data":[{{"embedding":[{numbers}0]}}]}}"#);
        assert_eq!(in_chunks(false, first.as_bytes(), 4096), only_prompt);
        let last =
            format!(r#"{{"data":[{{"embedding":[{numbers}0]}}],"usage":{{"prompt_tokens":9,"total_tokens":9}}}}"#);
        assert_eq!(in_chunks(false, last.as_bytes(), 4096), only_prompt);
        assert_eq!(scan(false, r#"{"results":[],"usage":{"total_tokens":9}}"#), only_prompt);
    }

    #[test]
    fn a_stream_without_usage_is_counted_by_its_events() {
        let stream = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
            data: {\"choices\":[{\"delta\": {\"content\": \"a \\\"content\\\":\\\"b\"}}]}\n\n\
            data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n\
            data: {\"choices\":[{\"text\":\" c\"}]}\n\ndata: [DONE]\n\n";
        let counted = TokenUsage { prompt_tokens: None, completion_tokens: Some(3), approximate: true };
        assert_eq!(scan(true, stream), counted);
        assert_eq!(scan(false, r#"{"choices":[{"message":{"content":"a"}}]}"#), TokenUsage::default());
    }

    #[test]
    fn nonsense_is_no_usage_and_is_not_held() {
        for body in
            ["", "\"", "\":", "{\"usage\":", "{\"usage\":{", "{\"usage\":3}", "{\"usage\":{\"prompt_tokens\":-1}}"]
        {
            assert_eq!(scan(false, body), TokenUsage::default(), "{body}");
        }
        let endless = format!("{{\"usage\":{{\"a\":[{}", "1,".repeat(200_000));
        assert_eq!(in_chunks(false, endless.as_bytes(), 1000), TokenUsage::default());
    }
}
