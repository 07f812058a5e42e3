//! Changes to a request's body, made on its text: what is not changed goes upstream byte for byte.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use bytes::Bytes;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::{Value, value::RawValue};
use switchyard_scheduler::Priority;

use super::{
    error::ApiError,
    model_name::{Encoding, form, invalid_form},
};
use crate::config::{ForwardPriority, Model};

/// The body as `model` wants it. `asked` is the name by which the request asked for it.
pub(super) async fn body(
    model: &Model,
    asked: &str,
    encoding: &Encoding,
    body: Bytes,
    priority: Priority,
) -> Result<Bytes, ApiError> {
    match encoding {
        Encoding::Json => json(model, asked, body, priority),
        Encoding::Multipart(boundary) => match &model.use_model_name {
            Some(name) if name != asked => multipart(name, boundary, &body).await,
            _ => Ok(body),
        },
        Encoding::UrlEncoded => Ok(match &model.use_model_name {
            Some(name) if name != asked => pairs(name, &body).into(),
            _ => body,
        }),
    }
}

/// The query as `model` wants it.
pub(super) fn query(model: &Model, asked: &str, query: &str) -> Option<String> {
    model.use_model_name.as_deref().filter(|name| *name != asked).map(|name| pairs(name, query.as_bytes()))
}

fn json(model: &Model, asked: &str, body: Bytes, priority: Priority) -> Result<Bytes, ApiError> {
    let filters = &model.filters;
    let by_id = filters.set_params_by_id.get(asked);
    let rename = model.use_model_name.as_deref().filter(|name| *name != asked);
    // There, lower goes first.
    let priority = model.forward_priority.map(|ForwardPriority::Vllm| Value::from(priority.0.saturating_neg()));
    if rename.is_none()
        && priority.is_none()
        && filters.strip_params.is_empty()
        && filters.set_params.is_empty()
        && by_id.is_none()
    {
        return Ok(body);
    }
    let Members(mut members) = serde_json::from_slice(&body)
        .map_err(|error| ApiError::bad_request("invalid_json", format!("the body is not a JSON object: {error}")))?;
    members.retain(|(key, _)| key == "model" || !filters.strip_params.contains(key));
    let mut out = Vec::with_capacity(body.len() + 256);
    let rename = rename.map(|name| ("model".to_owned(), Value::from(name)));
    let none = BTreeMap::new();
    // Later ones win.
    let mut set: BTreeMap<&str, &Value> =
        filters.set_params.iter().chain(by_id.unwrap_or(&none)).map(|(key, value)| (key.as_str(), value)).collect();
    if let Some((key, value)) = &rename {
        set.insert(key, value);
    }
    if let Some(priority) = &priority {
        set.insert("priority", priority);
    }
    // A key that is set stands once, where it stood first.
    let mut done = BTreeSet::new();
    for (key, value) in &members {
        match set.get(key.as_str()) {
            Some(value) if done.insert(key.as_str()) => member(&mut out, key, &value.to_string()),
            Some(_) => {}
            None => member(&mut out, key, value.get()),
        }
    }
    for (key, value) in set {
        if !done.contains(key) {
            member(&mut out, key, &value.to_string());
        }
    }
    out.extend_from_slice(if out.is_empty() { b"{}" } else { b"}" });
    Ok(out.into())
}

fn member(out: &mut Vec<u8>, key: &str, value: &str) {
    out.push(if out.is_empty() { b'{' } else { b',' });
    out.extend_from_slice(Value::from(key).to_string().as_bytes());
    out.push(b':');
    out.extend_from_slice(value.as_bytes());
}

/// A JSON object's members in their order, the values as written.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// The form with another text in its field `model`. Its parts keep their headers, order and contents.
async fn multipart(name: &str, boundary: &str, body: &Bytes) -> Result<Bytes, ApiError> {
    let mut out = Vec::with_capacity(body.len() + 256);
    let mut form = form(body, boundary);
    while let Some(field) = form.next_field().await.map_err(invalid_form)? {
        out.extend_from_slice(format!("--{boundary}\r\n").as_bytes());
        for (key, value) in field.headers() {
            out.extend_from_slice(key.as_str().as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
        if field.name() == Some("model") && field.file_name().is_none() {
            out.extend_from_slice(name.as_bytes());
        } else {
            let mut field = field;
            while let Some(chunk) = field.chunk().await.map_err(invalid_form)? {
                out.extend_from_slice(&chunk);
            }
        }
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    Ok(out.into())
}

fn pairs(name: &str, text: &[u8]) -> String {
    let mut out = form_urlencoded::Serializer::new(String::with_capacity(text.len() + name.len()));
    for (key, value) in form_urlencoded::parse(text) {
        let value = if key == "model" { name } else { &*value };
        out.append_pair(&key, value);
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::proxy::testing;

    fn changed(model: &Model, asked: &str, text: &str) -> String {
        let out = json(model, asked, Bytes::copy_from_slice(text.as_bytes()), Priority(100)).expect("JSON");
        String::from_utf8(out.to_vec()).expect("UTF-8")
    }

    #[test]
    fn nothing_to_change_is_nothing_touched() {
        let model = testing::model("m");
        let text = "{ \"model\" : \"m\",\n\t\"n\": 1.50, \"n\": 2 }";
        let body = Bytes::from_static(text.as_bytes());
        let out = json(&model, "m", body.clone(), Priority(100)).expect("JSON");
        assert_eq!(out.as_ptr(), body.as_ptr());
        let renamed_to_itself = Model { use_model_name: Some("m".to_owned()), ..model };
        assert_eq!(changed(&renamed_to_itself, "m", text), text);
    }

    #[test]
    fn the_model_is_renamed_and_all_else_kept_as_written() {
        let model = Model { use_model_name: Some("real \"name\"".to_owned()), ..testing::model("m") };
        let out = changed(&model, "m", r#"{"n":1.50e2, "model":"m", "s":"\u00e9\/", "deep":{ "model": "m" }, "n":0}"#);
        assert_eq!(out, r#"{"n":1.50e2,"model":"real \"name\"","s":"\u00e9\/","deep":{ "model": "m" },"n":0}"#);
    }

    #[test]
    fn parameters_are_stripped_then_set_then_set_by_the_name_asked_for() {
        let mut model = testing::model("m");
        model.filters.strip_params = vec!["temperature".to_owned(), "top_p".to_owned(), "model".to_owned()];
        model.filters.set_params = BTreeMap::from([
            ("top_p".to_owned(), json!(0.5)),
            ("seed".to_owned(), json!(1)),
            ("k".to_owned(), json!(1)),
        ]);
        model.filters.set_params_by_id =
            BTreeMap::from([("alias".to_owned(), BTreeMap::from([("k".to_owned(), json!({ "a": [2] }))]))]);
        let text = r#"{"model":"alias","temperature":1,"top_p":2,"k":7,"x":[],"k":8}"#;
        assert_eq!(changed(&model, "alias", text), r#"{"model":"alias","k":{"a":[2]},"x":[],"seed":1,"top_p":0.5}"#);
        assert_eq!(changed(&model, "m", text), r#"{"model":"alias","k":1,"x":[],"seed":1,"top_p":0.5}"#);
    }

    #[test]
    fn the_priority_is_written_as_vllm_reads_it() {
        let model = Model { forward_priority: Some(ForwardPriority::Vllm), ..testing::model("m") };
        let out = changed(&model, "m", r#"{"model":"m","priority":-1000000,"x":[1]}"#);
        assert_eq!(out, r#"{"model":"m","priority":-100,"x":[1]}"#, "whatever the client wrote");
        assert_eq!(changed(&model, "m", r#"{"model":"m"}"#), r#"{"model":"m","priority":-100}"#);
        let lowest = json(&model, "m", Bytes::from_static(b"{}"), Priority(i64::MIN)).expect("JSON");
        assert_eq!(lowest, format!(r#"{{"priority":{}}}"#, i64::MAX));
        let text = r#"{"model":"m","priority":5}"#;
        assert_eq!(changed(&testing::model("m"), "m", text), text, "nothing is added or taken away unasked");
    }

    #[tokio::test]
    async fn a_form_keeps_its_other_parts() {
        let binary: Vec<u8> = (0..=255).cycle().take(200_000).collect();
        let mut form = b"--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\
            Content-Type: audio/wav\r\n\r\n"
            .to_vec();
        form.extend_from_slice(&binary);
        form.extend_from_slice(
            b"\r\n--XX\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nasked\r\n--XX--\r\n",
        );
        let encoding = Encoding::Multipart("XX".to_owned());
        let model = Model { use_model_name: Some("real".to_owned()), ..testing::model("m") };
        let out = body(&model, "asked", &encoding, form.into(), Priority(0)).await.expect("a form");

        let mut out = super::form(&out, "XX");
        let file = out.next_field().await.expect("a form").expect("the file");
        assert_eq!(file.file_name(), Some("a.wav"));
        assert_eq!(file.content_type().map(ToString::to_string).as_deref(), Some("audio/wav"));
        assert_eq!(file.bytes().await.expect("bytes"), binary);
        let name = out.next_field().await.expect("a form").expect("the model");
        assert_eq!(name.text().await.expect("text"), "real");
        assert!(out.next_field().await.expect("a form").is_none());
    }

    #[test]
    fn a_query_is_renamed() {
        let model = Model { use_model_name: Some("a b".to_owned()), ..testing::model("m") };
        assert_eq!(query(&model, "m", "x=1&model=m").as_deref(), Some("x=1&model=a+b"));
        assert_eq!(query(&testing::model("m"), "m", "x=1&model=m"), None);
    }
}
