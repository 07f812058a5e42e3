//! Every key of the configuration file: its name, its kind, its default and what it is for.

use std::{net::SocketAddr, time::Duration};

use http::HeaderName;
use serde_json::{Map, Value as Json};
use switchyard_policy::HeaderSettings;

use super::{
    callers::CallersFile,
    flow::{self, DetectorFile},
    kinds::{Bytes, Flag, Free, OneOf, POSITIVE_TIME, Scalar, TIME, Text, TimeOrDefault, int, parsed},
    parse,
    reader::{At, Named, Section},
    settings::{Capabilities, ForwardPriority, LogLevel, Upstream},
};

pub(super) use super::routing::{GroupFile, MatrixFile, RoutingFile};

/// The first port that `${PORT}` stands for unless `startPort` says otherwise.
pub(super) const START_PORT: u16 = 5800;
/// More servers of one model on this machine are taken for a slip.
pub(super) const MAX_REPLICAS: u32 = 256;

/// A whole file: of the right types, but not yet checked for what its parts say of each other.
pub(super) struct File {
    pub(super) listen: Option<At<SocketAddr>>,
    pub(super) health_check_timeout: At<Duration>,
    pub(super) unload_timeout: At<Duration>,
    pub(super) global_ttl: At<Duration>,
    pub(super) include_aliases_in_list: bool,
    pub(super) send_loading_state: At<bool>,
    pub(super) api_keys: Vec<At<String>>,
    pub(super) log_level: LogLevel,
    pub(super) log_time_format: Option<At<String>>,
    pub(super) log_to_stdout: Option<At<bool>>,
    pub(super) log_requests: Option<At<bool>>,
    pub(super) log_buffer: u64,
    pub(super) capture_buffer: Option<At<u64>>,
    pub(super) metrics_max_in_memory: Option<At<u64>>,
    pub(super) store_path: Option<At<String>>,
    pub(super) store_rows: Option<At<u64>>,
    pub(super) limits: LimitsFile,
    pub(super) headers: HeadersFile,
    pub(super) callers: CallersFile,
    pub(super) preload: Vec<At<String>>,
    pub(super) models: Vec<(At<String>, ModelFile)>,
    pub(super) peers: Vec<(At<String>, PeerFile)>,
    pub(super) groups: Vec<(At<String>, GroupFile)>,
    pub(super) matrix: Option<MatrixFile>,
    pub(super) routing: RoutingFile,
    pub(super) selectors: Vec<(At<String>, SelectorFile)>,
    pub(super) profiles: Vec<(At<String>, ProfileFile)>,
    pub(super) ignore_paths: Vec<At<String>>,
    pub(super) session_id: Option<At<()>>,
    pub(super) performance: Option<At<()>>,
}

pub(super) struct HeadersFile {
    /// `priority` is there.
    pub(super) priority: Option<At<()>>,
    /// The other names that are there.
    pub(super) given: Vec<At<()>>,
    pub(super) names: HeaderSettings,
    pub(super) forward_priority: bool,
    pub(super) forward_identity: bool,
    pub(super) session: HeaderName,
}

pub(super) struct LimitsFile {
    pub(super) body: At<u64>,
    pub(super) body_read_timeout: At<Duration>,
}

pub(super) struct ModelFile {
    pub(super) cmd: Option<At<String>>,
    /// `cmd` is there, whether readable or not.
    pub(super) has_cmd: bool,
    pub(super) cmd_stop: Option<At<String>>,
    pub(super) env: Vec<At<(String, String)>>,
    pub(super) proxy: Option<At<Upstream>>,
    /// `proxy` is there, whether readable or not.
    pub(super) has_proxy: bool,
    pub(super) endpoints: Vec<At<Upstream>>,
    /// `endpoints` is there, whether readable or not.
    pub(super) has_endpoints: Option<At<()>>,
    pub(super) replicas: Option<At<u32>>,
    pub(super) detector: Option<DetectorFile>,
    pub(super) forward_priority: Option<ForwardPriority>,
    pub(super) check_endpoint: At<Option<String>>,
    pub(super) health_check_timeout: Option<At<Duration>>,
    pub(super) ttl: Option<Duration>,
    pub(super) unload_timeout: Option<At<Duration>>,
    pub(super) name: String,
    pub(super) description: String,
    pub(super) aliases: Vec<At<String>>,
    pub(super) unlisted: bool,
    pub(super) use_model_name: Option<At<String>>,
    pub(super) concurrency_limit: u32,
    pub(super) filters: FiltersFile,
    pub(super) timeouts: TimeoutsFile,
    pub(super) metadata: Option<At<Map<String, Json>>>,
    pub(super) send_loading_state: Option<At<bool>>,
    pub(super) ignore_websockets: At<bool>,
    pub(super) capabilities: Capabilities,
}

pub(super) struct FiltersFile {
    pub(super) strip_params: Option<At<String>>,
    pub(super) set_params: Option<At<Map<String, Json>>>,
    pub(super) set_params_by_id: Vec<Named<Map<String, Json>>>,
}

pub(super) struct TimeoutsFile {
    pub(super) connect: Duration,
    pub(super) keepalive: Option<At<Duration>>,
    pub(super) response_header: Duration,
    pub(super) response_idle: Duration,
    pub(super) tls_handshake: Duration,
    pub(super) idle_connection: Duration,
}

pub(super) struct PeerFile {
    pub(super) proxy: Option<At<Upstream>>,
    pub(super) api_key: Option<At<String>>,
    pub(super) models: Vec<At<String>>,
    pub(super) concurrency_limit: u32,
    pub(super) filters: FiltersFile,
    pub(super) timeouts: TimeoutsFile,
}

pub(super) struct SelectorFile {
    pub(super) targets: Vec<At<String>>,
}

pub(super) struct ProfileFile {
    pub(super) pins: Vec<Named<String>>,
}

/// Whether a file can have this key at its top.
pub(super) fn is_key(name: &str) -> bool {
    static KEYS: std::sync::LazyLock<Vec<String>> = std::sync::LazyLock::new(|| {
        let schema = Section::describe(read);
        schema["properties"].as_object().map(|keys| keys.keys().cloned().collect()).unwrap_or_default()
    });
    KEYS.iter().any(|key| key == name)
}

/// Reads a file.
pub(super) fn read(s: &mut Section<'_>) -> File {
    let (store_path, store_rows) = s.section("store", "The activity log: one row a request.", |s| {
        let path = s.opt("path", "A SQLite file that keeps the log over restarts; in memory without it.", Text);
        (path, s.opt("rows", "Rows kept, the newest; metricsMaxInMemory or 10000 without it.", int(1..=u64::MAX)))
    });
    let session_id = s.section("ui", "The embedded pages.", |s| {
        s.section("activity", "The page that lists requests.", |s| {
            let list = s.list("session_id", "Request headers that name a session, the first that is there.", Text);
            list.into_iter().next().map(|first| At { value: (), place: first.place, path: first.path })
        })
    });
    let performance = s.section("performance", "Samples of CPU, memory and GPU.", |s| {
        let disabled = s.or("disabled", "Take none.", Flag, false);
        let every = s.opt("every", "The time between two samples.", POSITIVE_TIME);
        every.filter(|_| !*disabled).map(|every| At { value: (), place: every.place, path: every.path })
    });
    let ignore_paths = s.section("upstream", "Requests to /upstream/MODEL/….", |s| {
        s.list(
            "ignorePaths",
            "Regular expressions; a path that matches one never loads a model, but gets 409 while it is not loaded.",
            parsed("a regular expression", parse::regex),
        )
    });
    let headers = s.section("headers", "Request headers that steer, and those that say who is calling.", |s| {
        let forward_identity = "With keys or trust: pass tenant, tier, objective and models on to the model server.";
        HeadersFile {
            priority: s.place_of("priority"),
            given: super::callers::given_names(s),
            names: super::callers::names(s),
            forward_priority: s.or("forwardPriority", "Pass the priority on to the model server.", Flag, false).value,
            forward_identity: s.or("forwardIdentity", forward_identity, Flag, false).value,
            session: s
                .or(
                    "session",
                    "Names a conversation, which then stays on one replica.",
                    parsed("the name of a header", parse::header),
                    "x-session-id",
                )
                .value,
        }
    });
    let preload = s.section("hooks", "What to do when something happens.", |s| {
        s.section("on_startup", "At start.", |s| s.list("preload", "Models to load, by id or alias.", Text))
    });
    File {
        listen: s.opt(
            "listen",
            "Where to listen; --listen wins.",
            parsed("an address and a port, such as 127.0.0.1:8080", parse::listen),
        ),
        health_check_timeout: s.or("healthCheckTimeout", "The longest a model may take to load.", POSITIVE_TIME, 120),
        unload_timeout: s.or("unloadTimeout", "From the request to stop to the kill; 0 is the default.", TIME, 10),
        global_ttl: s.or("globalTTL", "Unload a model after this long without a request; 0 is never.", TIME, 0),
        include_aliases_in_list: s
            .or("includeAliasesInList", "List aliases as models of their own.", Flag, false)
            .value,
        send_loading_state: s.or("sendLoadingState", "Tell waiting clients how far the load is.", Flag, false),
        api_keys: s.list(
            "apiKeys",
            "Keys that clients must present one of; none lets everybody in.",
            parsed("a key without spaces", parse::api_key),
        ),
        log_level: s
            .or("logLevel", "The least important of the gateway's own messages that are shown.", LOG_LEVELS, "info")
            .value,
        log_time_format: s
            .opt("logTimeFormat", "How llama-swap writes times.", Text)
            .filter(|format| !format.is_empty()),
        log_to_stdout: s.opt("logToStdout", "What llama-swap writes to standard output.", LOG_TO_STDOUT),
        log_requests: s.opt("logRequests", "Ignored by llama-swap too.", Flag),
        log_buffer: s.or("logBuffer", "How much of each model's output is kept.", Bytes, "128KiB").value,
        capture_buffer: s.opt("captureBuffer", "Megabytes for captures of requests and responses.", int(0..=u64::MAX)),
        metrics_max_in_memory: s.opt(
            "metricsMaxInMemory",
            "Rows of the activity log when it is in memory; 0 is the default.",
            int(0..=u64::MAX),
        ),
        store_path,
        store_rows,
        limits: s.section("limits", "Bounds on what a client can send.", |s| LimitsFile {
            body: s.or("body", "The largest body of a request.", Bytes, "32MiB"),
            body_read_timeout: s.or("bodyReadTimeout", "The longest pause while a body arrives.", POSITIVE_TIME, 60),
        }),
        headers,
        callers: super::callers::read(s),
        preload,
        models: {
            s.opt("startPort", "The first port that ${PORT} stands for.", int(1..=u16::MAX));
            macros(s, "Pieces of text that every value can use as ${NAME}.");
            s.sections("models", "The models, by the id that requests ask for.", model)
        },
        peers: s.sections("peers", "Other gateways or providers, by name.", peer),
        groups: super::routing::groups(s),
        matrix: super::routing::matrix(s),
        routing: s.section("routing", "Who goes next, and which models run together.", super::routing::read),
        selectors: s.sections("selectors", "Names that choose among models at each request.", selector),
        profiles: s.sections("profiles", "Sets of replacements for model names.", profile),
        ignore_paths,
        session_id,
        performance,
    }
}

const LOG_LEVELS: OneOf<LogLevel> = OneOf(&[
    ("debug", LogLevel::Debug),
    ("info", LogLevel::Info),
    ("warn", LogLevel::Warn),
    ("error", LogLevel::Error),
]);

/// `true` for what llama-swap does without the key.
const LOG_TO_STDOUT: OneOf<bool> = OneOf(&[("proxy", true), ("upstream", false), ("both", false), ("none", false)]);

const FORWARD_PRIORITY: OneOf<ForwardPriority> = OneOf(&[("vllm", ForwardPriority::Vllm)]);

const MODALITIES: OneOf<&str> = OneOf(&[("text", "text"), ("audio", "audio"), ("image", "image")]);

fn macros(s: &mut Section<'_>, about: &str) {
    for (name, _) in s.map("macros", about, Scalar) {
        if let Err((message, cure)) = parse::macro_name(&name) {
            name.problem(s.sink, message, cure);
        }
    }
}

/// Reads one model.
pub(super) fn model(s: &mut Section<'_>) -> ModelFile {
    macros(s, "Macros of this model; they win over those of the same name above.");
    let has = [s.has("cmd"), s.has("proxy")];
    let has_endpoints = s.place_of("endpoints");
    ModelFile {
        cmd: s.opt("cmd", "Starts the model server; without it the model is remote.", Text),
        has_cmd: has[0],
        cmd_stop: s.opt("cmdStop", "Stops it in place of SIGTERM; ${PID} is its process id.", Text),
        env: s.list("env", "Environment variables, each as NAME=value.", parsed("NAME=value", parse::env)),
        proxy: s.opt(
            "proxy",
            "The server's URL; http://localhost:${PORT} without it.",
            parsed("a URL such as http://localhost:9000", parse::url),
        ),
        has_proxy: has[1],
        endpoints: s.list(
            "endpoints",
            "URLs of servers that run elsewhere and all have this model, in place of proxy.",
            parsed("a URL such as http://10.0.0.7:8000", parse::url),
        ),
        has_endpoints,
        replicas: s.opt("replicas", "How many servers cmd starts, each on its own ${PORT}.", int(1..=MAX_REPLICAS)),
        detector: flow::detector(s, "How full its replicas are (flow), if not as routing says."),
        forward_priority: s
            .opt("forwardPriority", "Write the priority into bodies as this server reads it.", FORWARD_PRIORITY)
            .map(|at| at.value),
        check_endpoint: s.or(
            "checkEndpoint",
            "The path that answers 200 once the model is ready, or none.",
            parsed("a path such as /health, or none", parse::check_endpoint),
            "/health",
        ),
        health_check_timeout: s.opt("healthCheckTimeout", "The longest this model may take to load.", POSITIVE_TIME),
        ttl: s
            .or("ttl", "Unload after this long without a request; 0 is never, -1 is globalTTL.", TimeOrDefault, -1)
            .value,
        unload_timeout: s
            .opt("unloadTimeout", "As above, for this model; 0 is the one above.", TIME)
            .filter(|time| !time.is_zero()),
        name: s.or("name", "Shown by /v1/models.", Text, "").value,
        description: s.or("description", "Shown by /v1/models.", Text, "").value,
        aliases: s.list("aliases", "Other names that requests may ask for.", parsed("a name", parse::name)),
        unlisted: s.or("unlisted", "Leave it out of /v1/models.", Flag, false).value,
        use_model_name: s.opt("useModelName", "What the server calls the model.", Text).filter(|name| !name.is_empty()),
        concurrency_limit: s
            .or("concurrencyLimit", "Requests that a replica runs at once; 0 is 10. More wait.", int(0..=u32::MAX), 0)
            .value,
        filters: s.section("filters", "Changes to the JSON body of requests.", |s| filters(s, true)),
        timeouts: s.section("timeouts", "Times of the connection to the server; 0 is no limit.", |s| timeouts(s, 0)),
        metadata: s.opt("metadata", "Anything; passed on by /v1/models.", Free),
        send_loading_state: s.opt("sendLoadingState", "As above, for this model.", Flag),
        ignore_websockets: s.section("compat", "For servers with ways of their own.", |s| {
            s.or("ignoreWebsockets", "Websockets neither load the model nor keep it loaded.", Flag, false)
        }),
        capabilities: s.section("capabilities", "What the model can do, for /v1/models.", |s| {
            let modalities = |list: Vec<At<&'static str>>| list.into_iter().map(|at| at.value).collect();
            let context = "Tokens it can look at; 0 is unknown.";
            Capabilities {
                input: modalities(s.list("in", "What it understands.", MODALITIES)),
                output: modalities(s.list("out", "What it makes.", MODALITIES)),
                tools: s.or("tools", "It calls functions.", Flag, false).value,
                reranker: s.or("reranker", "It answers /v1/rerank.", Flag, false).value,
                context: Some(s.or("context", context, int(0..=u64::MAX), 0).value).filter(|tokens| *tokens > 0),
            }
        }),
    }
}

fn filters(s: &mut Section<'_>, of_model: bool) -> FiltersFile {
    let strip_params = s.opt("stripParams", "Parameters to remove, with commas between them.", Text);
    let set_params = s.opt("setParams", "Parameters to set, whatever the client sent.", Free);
    let (older, set_params_by_id) = if of_model {
        let older = s.opt("strip_params", "The older name of stripParams.", Text);
        (
            older,
            s.map("setParamsByID", "Further parameters for requests that ask by this name; it becomes an alias.", Free),
        )
    } else {
        (None, Vec::new())
    };
    FiltersFile { strip_params: strip_params.or(older), set_params, set_params_by_id }
}

fn timeouts(s: &mut Section<'_>, response_header: u64) -> TimeoutsFile {
    s.opt("expectContinue", "Without meaning here: bodies are sent without asking.", TIME);
    TimeoutsFile {
        connect: s.or("connect", "To connect.", TIME, 30).value,
        keepalive: s.opt("keepalive", "Between TCP keep-alive probes.", TIME),
        response_header: s
            .or("responseHeader", "From the whole request to the response's header.", TIME, response_header)
            .value,
        response_idle: s
            .or("responseIdle", "The longest silence in a response; websockets may be silent.", TIME, 0)
            .value,
        tls_handshake: s.or("tlsHandshake", "For the TLS handshake.", TIME, 10).value,
        idle_connection: s.or("idleConn", "Keep an unused connection open.", TIME, 90).value,
    }
}

fn peer(s: &mut Section<'_>) -> PeerFile {
    PeerFile {
        proxy: s.required(
            "proxy",
            "Its URL; a request's path goes after it.",
            parsed("a URL such as http://192.168.1.2:8080", parse::url),
        ),
        api_key: s.opt(
            "apiKey",
            "Sent with each request as bearer token and as x-api-key.",
            parsed("a key without spaces", parse::api_key),
        ),
        models: s.required_list(
            "models",
            "Its models; each is PEER/MODEL here, and MODEL where that is unambiguous.",
            parsed("a name", parse::name),
        ),
        concurrency_limit: s
            .or(
                "concurrencyLimit",
                "Requests to one of its models at once; 0 is 1000. More wait.",
                int(0..=u32::MAX),
                0,
            )
            .value,
        filters: s.section("filters", "Changes to the JSON body of requests.", |s| filters(s, false)),
        timeouts: s.section("timeouts", "Times of the connection to the peer; 0 is no limit.", |s| timeouts(s, 60)),
    }
}

fn selector(s: &mut Section<'_>) -> SelectorFile {
    s.required("strategy", "How it chooses.", OneOf(&[("warm", ()), ("pin", ()), ("spillover", ())]));
    s.opt("name", "Shown by /v1/models.", Text);
    s.opt("description", "Shown by /v1/models.", Text);
    s.or("unlisted", "Leave it out of /v1/models.", Flag, false);
    s.opt("metadata", "Anything; passed on by /v1/models.", Free);
    s.section("settings", "Of the strategy.", |s| {
        s.or("spillover", "Requests that a model takes before the next one is used.", int(1..=u32::MAX), 1);
    });
    SelectorFile { targets: s.required_list("targets", "The models it chooses among.", parsed("a name", parse::name)) }
}

fn profile(s: &mut Section<'_>) -> ProfileFile {
    s.opt("description", "For people.", Text);
    ProfileFile { pins: s.map("pins", "The model to use in place of each name; empty switches the name off.", Text) }
}
