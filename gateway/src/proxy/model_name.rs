//! Finds out which model a request is for, and how much it asks for, without building the document it came in.

use std::{convert::Infallible, fmt};

use bytes::Bytes;
use futures_util::stream;
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::error::ApiError;

/// A longer name is nobody's.
const MAX_NAME_BYTES: usize = 1024;
/// The form reader copies what it is given; this much at a time.
const FORM_CHUNK_BYTES: usize = 64 << 10;

/// How a body is written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// JSON, whatever the content type claims: many a client leaves the default of its HTTP library.
    Json,
    /// `multipart/form-data` with this boundary.
    Multipart(String),
    /// `application/x-www-form-urlencoded`.
    UrlEncoded,
}

impl Encoding {
    pub(super) fn of(content_type: &[u8], body: &[u8]) -> Result<Self, ApiError> {
        let content_type = String::from_utf8_lossy(content_type);
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        if media_type.eq_ignore_ascii_case("multipart/form-data") {
            return multer::parse_boundary(&*content_type).map(Self::Multipart).map_err(|_| {
                ApiError::bad_request("invalid_form", "the content type multipart/form-data has no `boundary`")
            });
        }
        let looks_like_json = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
        if media_type.eq_ignore_ascii_case("application/x-www-form-urlencoded") && !looks_like_json {
            return Ok(Self::UrlEncoded);
        }
        Ok(Self::Json)
    }
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// The model, as the request names it.
    pub(super) model: String,
    /// The most tokens out that it allows.
    pub(super) max_tokens: Option<u64>,
}

/// What a body asks for.
pub(super) async fn in_body(encoding: &Encoding, body: &Bytes) -> Result<Asked, ApiError> {
    let model = match encoding {
        Encoding::Json => return in_json(body),
        Encoding::Multipart(boundary) => in_form(body, boundary).await?,
        Encoding::UrlEncoded => in_pairs(body)?,
    };
    Ok(Asked { model, max_tokens: None })
}

/// The model named in a query.
pub(super) fn in_query(query: &str) -> Result<String, ApiError> {
    in_pairs(query.as_bytes())
}

fn in_json(body: &[u8]) -> Result<Asked, ApiError> {
    let probe: Probe<'_> = serde_json::from_slice(body)
        .map_err(|error| ApiError::bad_request("invalid_json", format!("the body is not a JSON object: {error}")))?;
    let Some(model) = probe.model else { return Err(missing()) };
    let name: Option<String> = serde_json::from_str(model.get())
        .map_err(|_| ApiError::bad_request("model_invalid", "`model` must be a string").on("model"))?;
    let model = checked(name.ok_or_else(missing)?)?;
    Ok(Asked { model, max_tokens: probe.max_tokens })
}

/// The members of a JSON object that matter here; the others are passed over.
#[derive(Default)]
struct Probe<'a> {
    model: Option<&'a RawValue>,
    max_tokens: Option<u64>,
}

impl<'de> Deserialize<'de> for Probe<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Probe<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut probe = Probe::default();
                while let Some(member) = map.next_key()? {
                    match member {
                        Member::Model if probe.model.is_some() => return Err(A::Error::duplicate_field("model")),
                        Member::Model => probe.model = Some(map.next_value()?),
                        // What is no count is the model server's to complain about.
                        Member::MaxTokens => {
                            let count: &RawValue = map.next_value()?;
                            probe.max_tokens = count.get().parse().ok().or(probe.max_tokens);
                        }
                        Member::Other => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(probe)
            }
        }
        deserializer.deserialize_map(Members)
    }
}

/// The name of a member, by what it is to us.
#[derive(Deserialize)]
#[serde(field_identifier)]
enum Member {
    #[serde(rename = "model")]
    Model,
    /// As OpenAI's three APIs, Anthropic's and llama-server's own call it.
    #[serde(rename = "max_tokens", alias = "max_completion_tokens", alias = "max_output_tokens", alias = "n_predict")]
    MaxTokens,
    #[serde(other)]
    Other,
}

async fn in_form(body: &Bytes, boundary: &str) -> Result<String, ApiError> {
    let mut form = form(body, boundary);
    while let Some(field) = form.next_field().await.map_err(invalid_form)? {
        if field.name() == Some("model") && field.file_name().is_none() {
            return checked(field.text().await.map_err(invalid_form)?);
        }
    }
    Err(missing())
}

/// Reads a form that is in memory.
pub(super) fn form(body: &Bytes, boundary: &str) -> multer::Multipart<'static> {
    let body = body.clone();
    let chunks = (0..body.len()).step_by(FORM_CHUNK_BYTES).map(move |from| {
        let to = body.len().min(from + FORM_CHUNK_BYTES);
        Ok::<_, Infallible>(body.slice(from..to))
    });
    multer::Multipart::new(stream::iter(chunks), boundary)
}

pub(super) fn invalid_form(error: multer::Error) -> ApiError {
    ApiError::bad_request("invalid_form", format!("the body is not the form that it claims to be: {error}"))
}

fn in_pairs(text: &[u8]) -> Result<String, ApiError> {
    match form_urlencoded::parse(text).find(|(key, _)| key == "model") {
        Some((_, name)) => checked(name.into_owned()),
        None => Err(missing()),
    }
}

fn checked(name: String) -> Result<String, ApiError> {
    if name.trim().is_empty() {
        return Err(missing());
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(ApiError::bad_request("model_invalid", "`model` is too long for a model's name").on("model"));
    }
    Ok(name)
}

fn missing() -> ApiError {
    let message = "the request names no model; set `model` to one of the ids in GET /v1/models";
    ApiError::bad_request("model_missing", message).on("model")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &str = "multipart/form-data; boundary=XX";

    async fn find(content_type: &str, body: &str) -> Result<String, (&'static str, String)> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let found = match Encoding::of(content_type.as_bytes(), &body) {
            Ok(encoding) => in_body(&encoding, &body).await,
            Err(error) => Err(error),
        };
        found.map(|asked| asked.model).map_err(|error| (error.code, error.message.into_owned()))
    }

    #[test]
    fn the_most_tokens_out() {
        let most = |more: &str| {
            in_json(format!(r#"{{"model":"m",{more}"x":1}}"#).as_bytes()).ok().map(|asked| asked.max_tokens)
        };
        assert_eq!(most(""), Some(None));
        for key in ["max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"] {
            assert_eq!(most(&format!("\"{key}\" : 128 ,")), Some(Some(128)), "{key}");
        }
        assert_eq!(most(r#""max_tokens":7,"max_tokens":9,"#), Some(Some(9)), "as parsers that read on take it");
        for nonsense in ["null", "-1", "\"7\"", "1.5", "[1]", "99999999999999999999"] {
            assert_eq!(most(&format!(r#""max_tokens":{nonsense},"#)), Some(None), "{nonsense}");
        }
    }

    #[tokio::test]
    async fn json() {
        for body in [
            r#"{"model":"a"}"#,
            r#" {"messages":[{"model":"b"}],"model" : "a", "x":{"model":"c"}}"#,
            r#"{"model":"\u0061"}"#,
        ] {
            for content_type in ["application/json", "", "text/plain", "application/x-www-form-urlencoded"] {
                assert_eq!(find(content_type, body).await.as_deref(), Ok("a"), "{content_type} {body}");
            }
        }
    }

    #[tokio::test]
    async fn json_that_does_not_say() {
        for (body, code) in [
            ("", "invalid_json"),
            ("[]", "invalid_json"),
            (r#""model""#, "invalid_json"),
            (r#"{"model":"a""#, "invalid_json"),
            (r#"{"model":"a","model":"b"}"#, "invalid_json"),
            (r#"{"model":"a"} trailing"#, "invalid_json"),
            ("{}", "model_missing"),
            (r#"{"model":null}"#, "model_missing"),
            (r#"{"model":"  "}"#, "model_missing"),
            (r#"{"model":7}"#, "model_invalid"),
            (r#"{"model":["a"]}"#, "model_invalid"),
        ] {
            let error = find("application/json", body).await.expect_err(body);
            assert_eq!(error.0, code, "{body}: {}", error.1);
        }
        let long = format!(r#"{{"model":"{}"}}"#, "x".repeat(MAX_NAME_BYTES + 1));
        assert_eq!(find("application/json", &long).await.expect_err("too long").0, "model_invalid");
    }

    #[tokio::test]
    async fn multipart_after_a_file_larger_than_a_chunk() {
        let file = "f".repeat(3 * FORM_CHUNK_BYTES);
        let body = format!(
            "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"model\"\r\n\r\n{file}\r\n\
             --XX\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n--XX--\r\n"
        );
        assert_eq!(find(FORM, &body).await.as_deref(), Ok("whisper"));
    }

    #[tokio::test]
    async fn multipart_that_does_not_say() {
        let file = "--XX\r\nContent-Disposition: form-data; name=\"model\"; filename=\"m\"\r\n\r\na\r\n--XX--\r\n";
        for (content_type, body, code) in [
            ("multipart/form-data", "", "invalid_form"),
            (FORM, "", "invalid_form"),
            (FORM, "no form at all", "invalid_form"),
            (FORM, file, "model_missing"),
        ] {
            assert_eq!(find(content_type, body).await.expect_err(body).0, code, "{body}");
        }
    }

    #[tokio::test]
    async fn url_encoded_and_query() {
        assert_eq!(find("application/x-www-form-urlencoded", "a=1&model=org%2Fm+x").await.as_deref(), Ok("org/m x"));
        assert_eq!(in_query("model=m&x").ok().as_deref(), Some("m"));
        assert_eq!(in_query("").map_err(|error| error.code), Err("model_missing"));
    }
}
