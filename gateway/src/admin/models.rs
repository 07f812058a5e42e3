//! The models: which there are, which run, and out with them.

use std::time::{SystemTime, UNIX_EPOCH};

use http::{HeaderMap, StatusCode};
use serde_json::{Map, Value, json};
use switchyard_scheduler::Load;

use crate::{
    backend::{BackendSnapshot, BackendState},
    config::{Capabilities, Model, Upstream},
    dispatcher::Dispatcher,
    proxy::{caller, error::ApiError, reply::Reply},
};

/// `GET /v1/models`, as llama-swap answers it, with the models that the caller may use.
pub(super) fn list(dispatcher: &Dispatcher, headers: &HeaderMap) -> Reply {
    let settings = dispatcher.settings();
    let may_use = |model: &Model| {
        let aliases = model.aliases.iter().map(String::as_str);
        let names: Vec<_> = std::iter::once(model.id.as_str()).chain(aliases).collect();
        caller::may_use(&settings.headers, headers, &names)
    };
    let backends = dispatcher.fleet().snapshots();
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let mut data = Vec::new();
    for model in settings.models.iter().filter(|model| !model.unlisted && may_use(model)) {
        let loaded = backends.iter().any(|backend| backend.model == model.id && is_running(backend));
        let entry = |id: &str, about: Value| {
            let mut entry = json!({
                "id": id,
                "object": "model",
                "created": created,
                "owned_by": "switchyard",
                "status": { "value": if loaded { "loaded" } else { "unloaded" } },
                "meta": { "llamaswap": meta(model, about) },
            });
            for (key, text) in [("name", &model.name), ("description", &model.description)] {
                if !text.trim().is_empty() {
                    entry[key] = text.trim().into();
                }
            }
            describe(&model.capabilities, &mut entry);
            entry
        };
        let own = match &*model.aliases {
            [] => json!({ "type": "model" }),
            aliases => json!({ "type": "model", "aliases": aliases }),
        };
        data.push(entry(&model.id, own));
        if settings.include_aliases_in_list {
            data.extend(
                model.aliases.iter().map(|alias| entry(alias, json!({ "type": "alias", "modelID": model.id }))),
            );
        }
    }
    data.sort_by(|a, b| a["id"].as_str().cmp(&b["id"].as_str()));
    Reply::json(StatusCode::OK, json!({ "object": "list", "data": data }).to_string())
}

/// Adds what a model can do, under the names that OpenRouter and llama-swap use.
fn describe(model: &Capabilities, entry: &mut Value) {
    let Capabilities { input, output, tools, reranker, context } = model;
    let can = |from: &str, to: &str| input.contains(&from) && output.contains(&to);
    let abilities = [
        ("vision", input.contains(&"image")),
        ("audio_transcriptions", can("audio", "text")),
        ("audio_speech", can("text", "audio")),
        ("image_generation", can("text", "image")),
        ("image_to_image", can("image", "image")),
        ("function_calling", *tools),
        ("reranker", *reranker),
    ];
    let abilities: Map<String, Value> =
        abilities.into_iter().filter(|(_, able)| *able).map(|(name, _)| (name.to_owned(), true.into())).collect();
    if !abilities.is_empty() {
        entry["capabilities"] = abilities.into();
    }
    let mut architecture = Map::new();
    for (key, modalities) in [("input_modalities", input), ("output_modalities", output)] {
        if !modalities.is_empty() {
            architecture.insert(key.to_owned(), json!(modalities));
        }
    }
    if !input.is_empty() && !output.is_empty() {
        architecture.insert("modality".to_owned(), format!("{}->{}", input.join("+"), output.join("+")).into());
    }
    if !architecture.is_empty() {
        entry["architecture"] = architecture.into();
    }
    if *tools {
        entry["supported_parameters"] = json!(["tools", "tool_choice"]);
    }
    if let Some(context) = context {
        entry["context_length"] = (*context).into();
        entry["meta"]["n_ctx"] = (*context).into();
    }
}

/// The model's own metadata, and what the gateway knows about it.
fn meta(model: &Model, about: Value) -> Value {
    let mut meta = match &model.metadata {
        Value::Object(metadata) => metadata.clone(),
        Value::Null => Map::new(),
        other => Map::from_iter([("metadata".to_owned(), other.clone())]),
    };
    if let Value::Object(about) = about {
        meta.extend(about);
    }
    meta.into()
}

/// `GET /running`, as llama-swap answers it.
pub(super) fn running(dispatcher: &Dispatcher) -> Reply {
    let settings = dispatcher.settings();
    let mut backends: Vec<_> = dispatcher.fleet().snapshots().into_iter().filter(is_running).collect();
    backends.sort_by(|a, b| (&a.model, a.replica).cmp(&(&b.model, b.replica)));
    let running: Vec<_> = backends
        .iter()
        .map(|backend| {
            let model = settings.find(&backend.model);
            let served = model.map(|model| model.replica(backend.replica.index));
            let launch = served.as_ref().and_then(|model| model.launch.as_ref());
            let command = launch.map(|launch| shell_words::join(&launch.argv));
            json!({
                "model": backend.model,
                "replica": backend.replica.index,
                "state": backend.state,
                "cmd": command.unwrap_or_default(),
                "proxy": url(&backend.upstream),
                "ttl": model.and_then(|model| model.ttl).map_or(0, |ttl| ttl.as_secs()),
                "name": model.map(|model| model.name.as_str()).unwrap_or_default(),
                "description": model.map(|model| model.description.as_str()).unwrap_or_default(),
                "pid": backend.pid,
                "starts": backend.starts,
                "load": backend.sample.map(|sample| {
                    let Load { running, waiting, kv_cache } = sample.load;
                    json!({ "running": running, "waiting": waiting, "kv_cache": kv_cache })
                }),
            })
        })
        .collect();
    Reply::json(StatusCode::OK, json!({ "running": running }).to_string())
}

/// `POST /api/models/unload/MODEL`.
pub(super) fn unload(dispatcher: &Dispatcher, name: &str) -> Result<Reply, ApiError> {
    let settings = dispatcher.settings();
    let Some(model) = settings.find(name) else {
        return Err(crate::proxy::unknown_model(&settings, name));
    };
    if model.launch.is_none() {
        let message = format!("`{name}` is served elsewhere; the gateway neither loads nor unloads it");
        return Err(ApiError::new(StatusCode::NOT_FOUND, "model_not_local", message));
    }
    dispatcher.unload(Some(model));
    Ok(Reply::text("OK"))
}

fn is_running(backend: &BackendSnapshot) -> bool {
    !matches!(backend.state, BackendState::Stopped | BackendState::Failed)
}

fn url(upstream: &Upstream) -> String {
    let Upstream { tls, host, port, prefix } = upstream;
    let scheme = if *tls { "https" } else { "http" };
    let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    format!("{scheme}://{host}:{port}{prefix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_told_under_the_names_that_clients_know() {
        let mut entry = json!({});
        describe(&Capabilities::default(), &mut entry);
        assert_eq!(entry, json!({}), "nothing known, nothing told");
        let model = Capabilities {
            input: vec!["text", "image"],
            output: vec!["text"],
            tools: true,
            reranker: false,
            context: Some(8192),
        };
        describe(&model, &mut entry);
        let expected = json!({
            "capabilities": { "vision": true, "function_calling": true },
            "architecture": {
                "input_modalities": ["text", "image"],
                "output_modalities": ["text"],
                "modality": "text+image->text",
            },
            "supported_parameters": ["tools", "tool_choice"],
            "context_length": 8192,
            "meta": { "n_ctx": 8192 },
        });
        assert_eq!(entry, expected);
    }
}
