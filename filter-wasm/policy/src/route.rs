//! Which path needs which right, and in which shape its clients read errors.

use std::borrow::Cow;

use crate::settings::Scope;

/// What a request needs before it may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing: health checks, and CORS preflights, which browsers send without a key.
    Nothing,
    /// `inference` or `read`: the list of models.
    Either,
    /// `inference`.
    Inference,
    /// `read`.
    Read,
    /// `admin`.
    Admin,
}

impl Need {
    /// What `method` on `path` (a query may follow it) needs.
    ///
    /// A path that the next hop might read in another way than it is written (percent-encoding, dot segments, doubled
    /// slashes) needs what both readings need.
    pub(crate) fn of(method: &[u8], path: &[u8]) -> Self {
        let path = without_query(path);
        let written = Self::of_plain(method, path);
        match normalized(path) {
            None => written,
            // Encoded twice, which no client of an API does.
            Some(normalized) if normalized.contains(&b'%') => Self::Admin,
            Some(normalized) => written.and(Self::of_plain(method, &normalized)),
        }
    }

    fn of_plain(method: &[u8], path: &[u8]) -> Self {
        let reads = matches!(method, b"GET" | b"HEAD");
        match path {
            b"/health" | b"/wol-health" => Self::Nothing,
            _ if method == b"OPTIONS" && !path.starts_with(b"/upstream/") => Self::Nothing,
            b"/v1/models" | b"/models" if reads => Self::Either,
            _ if reads && path.starts_with(b"/v1/models/") => Self::Either,
            b"/" | b"/favicon.ico" | b"/metrics" | b"/running" | b"/logs" | b"/ui" if reads => Self::Read,
            _ if path.starts_with(b"/api/models/unload") => Self::Admin,
            _ if reads && [&b"/ui/"[..], b"/logs/", b"/api/"].iter().any(|p| path.starts_with(p)) => Self::Read,
            // Straight through to a model server: what it serves beside inference is its operator's.
            _ => match upstream_tail(path).unwrap_or(path) {
                tail if is_inference(tail) || (reads && tail == b"/props") => Self::Inference,
                _ => Self::Admin,
            },
        }
    }

    /// What fulfils both.
    fn and(self, other: Self) -> Self {
        use Need::{Admin, Either, Inference, Nothing, Read};
        match (self, other) {
            (Nothing, need) | (need, Nothing) => need,
            (Either, need @ (Either | Inference | Read)) | (need @ (Inference | Read), Either) => need,
            (Inference, Inference) => Inference,
            (Read, Read) => Read,
            _ => Admin,
        }
    }

    /// Whether these scopes are enough.
    pub(crate) fn is_met_by(self, has: impl Fn(Scope) -> bool) -> bool {
        match self {
            Self::Nothing => true,
            Self::Either => has(Scope::Inference) || has(Scope::Read),
            Self::Inference => has(Scope::Inference),
            Self::Read => has(Scope::Read),
            Self::Admin => has(Scope::Admin),
        }
    }
}

/// Below these is inference. `/v/` is how the gateway spells the paths of servers without a version in theirs.
const VERSIONED: [&[u8]; 4] = [b"/v1/", b"/v/", b"/sdapi/v1/", b"/audioapi/v1/"];

/// … but for what changes the model server itself.
const OPERATORS: [&[u8]; 2] = [b"/v1/load_lora_adapter", b"/v1/unload_lora_adapter"];

/// Inference paths of llama-server beside `/v1/`.
const LLAMA_SERVER: [&[u8]; 12] = [
    b"/apply-template",
    b"/chat/completions",
    b"/completion",
    b"/completions",
    b"/detokenize",
    b"/embedding",
    b"/embeddings",
    b"/infill",
    b"/rerank",
    b"/reranking",
    b"/responses",
    b"/tokenize",
];

fn is_inference(path: &[u8]) -> bool {
    let versioned = VERSIONED.iter().any(|start| path.starts_with(start)) && !OPERATORS.contains(&path);
    versioned || LLAMA_SERVER.contains(&path)
}

/// Whether errors on this path are read by Anthropic's clients.
pub(crate) fn is_anthropic(path: &[u8]) -> bool {
    let path = without_query(path);
    let path = upstream_tail(path).unwrap_or(path);
    let rest = [&b"/v1/messages"[..], b"/v/messages"].iter().find_map(|start| path.strip_prefix(*start));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Whether somebody may open this path in a browser.
pub(crate) fn is_for_people(path: &[u8]) -> bool {
    !matches!(Need::of(b"GET", path), Need::Inference | Need::Either)
}

fn without_query(path: &[u8]) -> &[u8] {
    path.split(|&byte| byte == b'?').next().unwrap_or_default()
}

/// The model server's own path in `/upstream/MODEL/…`. A model's name may have slashes in it, so the tail begins at
/// the first `/v1/`, or at the last slash.
fn upstream_tail(path: &[u8]) -> Option<&[u8]> {
    let rest = path.strip_prefix(b"/upstream/")?;
    let start = match rest.windows(4).position(|w| w == b"/v1/") {
        Some(start) => start,
        None => rest.iter().rposition(|&byte| byte == b'/')?,
    };
    (start > 0).then(|| &rest[start..])
}

/// The path as a lenient server might read it, or `None` when that is how it is written.
fn normalized(path: &[u8]) -> Option<Vec<u8>> {
    let odd = |w: &[u8]| matches!(w, b"//" | b"/.");
    if !path.contains(&b'%') && !path.contains(&b'\\') && !path.windows(2).any(odd) {
        return None;
    }
    let decoded = percent_decoded(path);
    let mut segments: Vec<&[u8]> = Vec::new();
    for segment in decoded.split(|byte| matches!(byte, b'/' | b'\\')) {
        match segment {
            b"" | b"." => {}
            b".." => {
                segments.pop();
            }
            other => segments.push(other),
        }
    }
    let mut out = Vec::with_capacity(decoded.len());
    for segment in segments {
        out.push(b'/');
        out.extend_from_slice(segment);
    }
    if out.is_empty() {
        out.push(b'/');
    }
    Some(out)
}

fn percent_decoded(path: &[u8]) -> Cow<'_, [u8]> {
    let digit = |at: usize| path.get(at).and_then(|&byte| (byte as char).to_digit(16)).map(|digit| digit as u8);
    if !path.contains(&b'%') {
        return Cow::Borrowed(path);
    }
    let mut out = Vec::with_capacity(path.len());
    let mut at = 0;
    while at < path.len() {
        match (path[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push(high << 4 | low);
                at += 3;
            }
            (byte, ..) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    Cow::Owned(out)
}
