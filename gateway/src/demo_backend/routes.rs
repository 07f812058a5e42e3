//! The paths that the server answers.

use std::sync::Arc;

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, FromRequest, Multipart, Request, State, multipart::MultipartError},
    middleware::map_response,
    response::{IntoResponse, Response},
    routing::{any, get, post},
};
use futures_util::{StreamExt, stream};
use http::{HeaderValue, StatusCode, header};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{
    MetricsStyle,
    dialect::{self, Answer, Dialect, unix_seconds},
    echo,
    engine::{Cut, Engine, Generation},
    metrics,
    plan::{Plan, Refusal},
};

const MAX_BODY_BYTES: usize = 64 << 20;
/// A transparent pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";

type App = State<Arc<Engine>>;

/// Every path of the server.
pub(super) fn router(engine: Arc<Engine>) -> Router {
    let generate = |dialect: &'static dyn Dialect| {
        post(move |State(engine): App, request: Request| async move { generate(engine, dialect, request).await })
    };
    let backend = HeaderValue::from_str(&engine.fingerprint).unwrap_or(HeaderValue::from_static("demo"));
    Router::new()
        .route("/", get(|| async { "switchyard demo-backend\n" }))
        .route("/health", get(health))
        .route("/v1/models", get(models))
        .route("/metrics", get(metrics))
        .route("/slots", get(slots))
        .route("/v1/chat/completions", generate(&dialect::Chat))
        .route("/v1/completions", generate(&dialect::Completion))
        .route("/v1/responses", generate(&dialect::Responses))
        .route("/v1/messages", generate(&dialect::Messages))
        .route("/completion", generate(&dialect::Llama))
        .route("/infill", generate(&dialect::Llama))
        .route("/v1/audio/speech", generate(&dialect::Speech))
        .route("/v1/audio/transcriptions", generate(&dialect::Transcription))
        .route("/v1/audio/translations", generate(&dialect::Transcription))
        .route("/v1/images/generations", post(images))
        .route("/v1/images/edits", post(images))
        .route("/v1/embeddings", post(embeddings))
        .route("/v1/rerank", post(rerank))
        .route("/v1/reranking", post(rerank))
        .route("/rerank", post(rerank))
        .route("/reranking", post(rerank))
        .route("/v1/messages/count_tokens", post(count_tokens))
        .route("/tokenize", post(tokenize))
        .route("/echo", any(echo::echo))
        .route("/echo/{*rest}", any(echo::echo))
        .route("/ws", any(echo::websocket))
        .fallback(|request: Request| async move {
            let message = format!("no such path: {} {}", request.method(), request.uri().path());
            refuse((StatusCode::NOT_FOUND, message))
        })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(map_response(move |mut response: Response| {
            response.headers_mut().insert("x-demo-backend", backend.clone());
            async { response }
        }))
        .with_state(engine)
}

async fn health(State(engine): App) -> Response {
    if engine.is_ready() { Json(json!({ "status": "ok" })).into_response() } else { loading() }
}

async fn models(State(engine): App) -> Json<Value> {
    let model = json!({ "id": engine.options.model, "object": "model", "created": unix_seconds(), "owned_by": "demo" });
    Json(json!({ "object": "list", "data": [model] }))
}

async fn metrics(State(engine): App) -> Response {
    match metrics::render(&engine) {
        Some(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        None => refuse((StatusCode::NOT_FOUND, "this server has no metrics".to_owned())),
    }
}

async fn slots(State(engine): App) -> Response {
    if !matches!(engine.options.metrics, MetricsStyle::LlamaServer | MetricsStyle::Slots) {
        return refuse((StatusCode::NOT_FOUND, "this server has no slots".to_owned()));
    }
    let n_ctx = engine.options.kv_tokens / u64::from(engine.options.slots.max(1));
    let slots = engine.slots().into_iter().enumerate();
    let slot = |(id, busy)| json!({ "id": id, "n_ctx": n_ctx, "is_processing": busy });
    Json(slots.map(slot).collect::<Value>()).into_response()
}

/// A request for a generated answer, of whatever dialect.
async fn generate(engine: Arc<Engine>, dialect: &'static dyn Dialect, request: Request) -> Response {
    let (mut generation, input) = match begin(&engine, request, true).await {
        Ok(begun) => begun,
        Err(response) => return response,
    };
    // Speech is bytes over time whatever the request says.
    if generation.plan.stream || dialect.media_type() != "text/event-stream" {
        return event_stream(engine, dialect, generation);
    }
    let text = match generation.rest().await {
        Ok(text) => text,
        Err(cut) => return Response::new(Body::from_stream(stream::iter([Err::<Bytes, Cut>(cut)]))),
    };
    let plan = generation.finish();
    let mut whole = dialect.whole(&Answer { fingerprint: &engine.fingerprint, plan: &plan }, &text);
    if let (Some(form), Some(whole)) = (input.form, whole.as_object_mut()) {
        whole.insert("form".to_owned(), form);
    }
    Json(whole).into_response()
}

/// The answer as a stream. It owns the slot, so a client that goes away gives it back.
fn event_stream(engine: Arc<Engine>, dialect: &'static dyn Dialect, generation: Generation) -> Response {
    let open = dialect.open(&Answer { fingerprint: &engine.fingerprint, plan: &generation.plan });
    let open = (!open.is_empty()).then(|| Ok(Bytes::from(open)));
    let rest = stream::unfold((Some(generation), String::new()), move |(generation, mut text)| {
        let engine = Arc::clone(&engine);
        async move {
            let mut generation = generation?;
            let token = match generation.next().await {
                Ok(token) => token.map(str::to_owned),
                Err(cut) => return Some((Err(cut), (None, text))),
            };
            let fingerprint = &engine.fingerprint;
            let (chunk, generation) = if let Some(token) = token {
                text.push_str(&token);
                (dialect.token(&Answer { fingerprint, plan: &generation.plan }, &token), Some(generation))
            } else {
                (dialect.close(&Answer { fingerprint, plan: &generation.finish() }, &text), None)
            };
            Some((Ok(Bytes::from(chunk)), (generation, text)))
        }
    });
    let headers = [(header::CONTENT_TYPE, dialect.media_type()), (header::CACHE_CONTROL, "no-cache")];
    (headers, Body::from_stream(stream::iter(open).chain(rest))).into_response()
}

async fn images(State(engine): App, request: Request) -> Response {
    at_once(&engine, request, |engine, plan, input| {
        json!({
            "created": unix_seconds(),
            "data": [{ "b64_json": PNG }],
            "usage": { "input_tokens": plan.prompt_tokens, "output_tokens": 0, "total_tokens": plan.prompt_tokens },
            "system_fingerprint": engine.fingerprint,
            "form": input.form,
        })
    })
    .await
}

async fn embeddings(State(engine): App, request: Request) -> Response {
    at_once(&engine, request, |engine, plan, input| {
        let inputs = match &input.json["input"] {
            Value::Array(inputs) if !inputs.iter().all(Value::is_number) => inputs.iter().collect(),
            one => vec![one],
        };
        let vector = |input: &Value| -> Vec<f64> {
            let digest = Sha256::digest(input.to_string());
            digest.iter().take(8).map(|byte| f64::from(*byte) / 255.0).collect()
        };
        let row = |(index, input)| json!({ "object": "embedding", "index": index, "embedding": vector(input) });
        json!({
            "object": "list",
            "model": plan.model,
            "data": inputs.into_iter().enumerate().map(row).collect::<Vec<_>>(),
            "usage": { "prompt_tokens": plan.prompt_tokens, "total_tokens": plan.prompt_tokens },
            "system_fingerprint": engine.fingerprint,
        })
    })
    .await
}

async fn rerank(State(engine): App, request: Request) -> Response {
    at_once(&engine, request, |engine, plan, input| {
        let documents = input.json["documents"].as_array().map_or(0, Vec::len);
        let row = |index: usize| json!({ "index": index, "relevance_score": 1.0 / (index + 1) as f64 });
        json!({
            "object": "list",
            "model": plan.model,
            "results": (0..documents).map(row).collect::<Vec<_>>(),
            "usage": { "prompt_tokens": plan.prompt_tokens, "total_tokens": plan.prompt_tokens },
            "system_fingerprint": engine.fingerprint,
        })
    })
    .await
}

async fn count_tokens(State(engine): App, request: Request) -> Response {
    at_once(&engine, request, |_, plan, _| json!({ "input_tokens": plan.prompt_tokens })).await
}

async fn tokenize(State(engine): App, request: Request) -> Response {
    at_once(&engine, request, |_, plan, _| json!({ "tokens": (0..plan.prompt_tokens).collect::<Vec<_>>() })).await
}

/// An answer that is there as soon as the prompt is read.
async fn at_once(
    engine: &Arc<Engine>,
    request: Request,
    answer: impl FnOnce(&Engine, &Plan, Input) -> Value,
) -> Response {
    match begin(engine, request, false).await {
        Ok((generation, input)) => Json(answer(engine, &generation.finish(), input)).into_response(),
        Err(response) => response,
    }
}

/// Takes the request in, and waits for its slot and for the prompt to be read.
async fn begin(engine: &Arc<Engine>, request: Request, with_text: bool) -> Result<(Generation, Input), Response> {
    if !engine.is_ready() {
        return Err(loading());
    }
    let headers = request.headers().clone();
    let input = Input::read(request).await?;
    let mut plan = Plan::new(&engine.options, &headers, &input.json).map_err(refuse)?;
    if !with_text {
        plan.tokens.clear();
    }
    if let Some(status) = plan.fails.error() {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        return Err(refuse((status, format!("told to fail with {status}"))));
    }
    Ok((engine.start(plan).await, input))
}

/// A request's body, understood.
struct Input {
    /// The JSON document, or the text fields of a form.
    json: Value,
    /// For a form: each field's text, or file name, length and digest.
    form: Option<Value>,
}

impl Input {
    async fn read(request: Request) -> Result<Self, Response> {
        let media_type = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        if media_type.starts_with(b"multipart/form-data") {
            let form = Multipart::from_request(request, &()).await.map_err(IntoResponse::into_response)?;
            return Self::read_form(form).await.map_err(IntoResponse::into_response);
        }
        let bytes = Bytes::from_request(request, &()).await.map_err(IntoResponse::into_response)?;
        let json = serde_json::from_slice(&bytes)
            .map_err(|error| refuse((StatusCode::BAD_REQUEST, format!("the body is not JSON: {error}"))))?;
        Ok(Self { json, form: None })
    }

    async fn read_form(mut form: Multipart) -> Result<Self, MultipartError> {
        let (mut texts, mut fields) = (Map::new(), Map::new());
        while let Some(field) = form.next_field().await? {
            let name = field.name().unwrap_or_default().to_owned();
            if let Some(file_name) = field.file_name().map(str::to_owned) {
                let bytes = field.bytes().await?;
                let sha256 = echo::hex(&Sha256::digest(&bytes));
                fields.insert(name, json!({ "file_name": file_name, "bytes": bytes.len(), "sha256": sha256 }));
            } else {
                let text = field.text().await?;
                texts.insert(name.clone(), text.clone().into());
                fields.insert(name, text.into());
            }
        }
        Ok(Self { json: texts.into(), form: Some(fields.into()) })
    }
}

fn loading() -> Response {
    refuse((StatusCode::SERVICE_UNAVAILABLE, "Loading model".to_owned()))
}

fn refuse((status, message): Refusal) -> Response {
    let error = json!({ "message": message, "type": "demo_error", "code": status.as_u16(), "param": null });
    (status, Json(json!({ "error": error }))).into_response()
}
