//! Why a request is refused, and what its sender is told.

use serde::Serialize;

use crate::route;

/// Why a request is refused. [`Reason::code`] is what metrics, logs and error bodies call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No key was sent, and anonymous requests are refused.
    MissingKey,
    /// The key is not in the settings, or what was sent cannot be a key.
    UnknownKey,
    /// The key was good until its expiry.
    ExpiredKey,
    /// Two keys that differ were sent.
    AmbiguousKey,
    /// The key's scope does not cover the path.
    Scope,
    /// The key may not use the model.
    Model,
    /// The key may not ask for so urgent a band.
    Band,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 7] = [
        Self::MissingKey,
        Self::UnknownKey,
        Self::ExpiredKey,
        Self::AmbiguousKey,
        Self::Scope,
        Self::Model,
        Self::Band,
    ];

    /// The stable name, as in `error.code`.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::MissingKey => "missing_api_key",
            Self::UnknownKey => "invalid_api_key",
            Self::ExpiredKey => "expired_api_key",
            Self::AmbiguousKey => "ambiguous_api_key",
            Self::Scope => "scope_not_allowed",
            Self::Model => "model_not_allowed",
            Self::Band => "priority_not_allowed",
        }
    }

    /// The HTTP status.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::MissingKey | Self::UnknownKey | Self::ExpiredKey | Self::AmbiguousKey => 401,
            Self::Scope | Self::Model | Self::Band => 403,
        }
    }

    /// What the caller reads. Fixed text: nothing that was sent comes back.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::MissingKey => {
                "No API key was sent. Send one as `Authorization: Bearer KEY`, `x-api-key: KEY` or `api-key: KEY`."
            }
            Self::UnknownKey => "The API key that was sent is not known here. Check that it is complete.",
            Self::ExpiredKey => "The API key that was sent has expired. Ask for a new one.",
            Self::AmbiguousKey => "The request carries two different API keys. Send one.",
            Self::Scope => "The API key does not cover this path. Ask for a key with the scope it needs.",
            Self::Model => "The API key does not cover the model that was asked for.",
            Self::Band => "The API key does not cover the priority that was asked for. Ask for a lower one.",
        }
    }

    const fn param(self) -> Option<&'static str> {
        match self {
            Self::Model => Some("model"),
            _ => None,
        }
    }
}

/// A refusal, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial<'a> {
    /// 401 or 403.
    pub status: u16,
    /// Headers of the answer, in lower case.
    pub headers: Vec<(&'static str, &'static str)>,
    /// The answer's body, JSON in the shape that the path's clients read.
    pub body: String,
    /// Why.
    pub reason: Reason,
    /// The caller's tier where the key is known.
    pub tier: Option<&'a str>,
}

impl<'a> Denial<'a> {
    /// The refusal of a request for `path` (a query may follow it). Public for the one check that needs the body:
    /// whoever reads it asks [`crate::Grant::allows_model`] and answers with [`Reason::Model`].
    #[must_use]
    pub fn new(reason: Reason, path: &[u8], tier: Option<&'a str>) -> Self {
        let status = reason.status();
        let mut headers = vec![("content-type", "application/json")];
        if status == 401 {
            // A browser asks for a password only when told `Basic`; an SDK should not be given the idea.
            headers.push(("www-authenticate", if route::is_for_people(path) { BASIC } else { BEARER }));
        }
        Self { status, headers, body: body(reason, path), reason, tier }
    }
}

const BASIC: &str = r#"Basic realm="switchyard""#;
const BEARER: &str = r#"Bearer realm="switchyard""#;

fn body(reason: Reason, path: &[u8]) -> String {
    let kind = if reason.status() == 401 { "authentication_error" } else { "permission_error" };
    let message = reason.message();
    let json = if route::is_anthropic(path) {
        serde_json::to_string(&Anthropic { r#type: "error", error: AnthropicError { r#type: kind, message } })
    } else {
        let error = OpenAiError { message, r#type: kind, code: reason.code(), param: reason.param() };
        serde_json::to_string(&OpenAi { error })
    };
    json.unwrap_or_default()
}

#[derive(Serialize)]
struct OpenAi {
    error: OpenAiError,
}

#[derive(Serialize)]
struct OpenAiError {
    message: &'static str,
    r#type: &'static str,
    code: &'static str,
    param: Option<&'static str>,
}

#[derive(Serialize)]
struct Anthropic {
    r#type: &'static str,
    error: AnthropicError,
}

#[derive(Serialize)]
struct AnthropicError {
    r#type: &'static str,
    message: &'static str,
}
