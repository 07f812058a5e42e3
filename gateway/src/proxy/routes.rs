//! Every path that the gateway knows, in one table.

use http::Method;

use super::error::Dialect;
use crate::admin::Endpoint;

/// What a path leads to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Route<'a> {
    /// A request for a model named in it.
    Inference(&'static Inference),
    /// `/upstream/…`: a request for the model named in the path; what follows the prefix, percent-encoded.
    Upstream(&'a str),
    /// An answer of the gateway's own.
    Admin(Endpoint, &'a str),
}

/// A path on which models are asked.
#[derive(Debug, PartialEq)]
pub(crate) struct Inference {
    pub(crate) path: &'static str,
    /// Where the model's name is.
    pub(crate) model_in: ModelIn,
    /// What the model server is asked for instead of `path`.
    pub(crate) upstream: &'static str,
    /// The shape of its errors.
    pub(crate) dialect: Dialect,
}

/// Where a request names its model, and with it its method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelIn {
    /// `POST`, in the JSON or form body.
    Body,
    /// `GET`, in the query.
    Query,
}

impl ModelIn {
    const fn method(self) -> Method {
        match self {
            Self::Body => Method::POST,
            Self::Query => Method::GET,
        }
    }
}

/// Why a path leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoRoute {
    /// No such path.
    Path,
    /// The path exists for these methods only.
    Method(&'static str),
}

const fn body(path: &'static str) -> Inference {
    Inference { path, model_in: ModelIn::Body, upstream: path, dialect: Dialect::OpenAi }
}

const fn query(path: &'static str) -> Inference {
    Inference { path, model_in: ModelIn::Query, upstream: path, dialect: Dialect::OpenAi }
}

const fn anthropic(path: &'static str) -> Inference {
    Inference { path, model_in: ModelIn::Body, upstream: path, dialect: Dialect::Anthropic }
}

impl Inference {
    const fn sent_to(mut self, upstream: &'static str) -> Self {
        self.upstream = upstream;
        self
    }
}

/// The most frequent first: the table is searched from its beginning.
static INFERENCE: &[Inference] = &[
    body("/v1/chat/completions"),
    body("/v1/completions"),
    body("/v1/embeddings"),
    body("/v1/responses"),
    anthropic("/v1/messages"),
    anthropic("/v1/messages/count_tokens"),
    body("/v1/rerank"),
    body("/v1/reranking"),
    body("/rerank"),
    body("/reranking"),
    body("/infill"),
    body("/completion"),
    body("/v1/audio/speech"),
    body("/v1/audio/transcriptions"),
    body("/v1/audio/translations"),
    body("/v1/audio/voices"),
    query("/v1/audio/voices"),
    body("/v1/images/generations"),
    body("/v1/images/edits"),
    body("/v1/images/variations"),
    body("/sdapi/v1/txt2img"),
    body("/sdapi/v1/img2img"),
    query("/sdapi/v1/loras"),
    query("/props"),
    body("/audioapi/v1/tasks/run").sent_to("/v1/tasks/run"),
    // For servers whose paths have no version: `/v` is taken off.
    body("/v/chat/completions").sent_to("/chat/completions"),
    body("/v/completions").sent_to("/completions"),
    body("/v/embeddings").sent_to("/embeddings"),
    body("/v/responses").sent_to("/responses"),
    anthropic("/v/messages").sent_to("/messages"),
    anthropic("/v/messages/count_tokens").sent_to("/messages/count_tokens"),
    body("/v/rerank").sent_to("/rerank"),
    body("/v/reranking").sent_to("/reranking"),
];

/// A path of the gateway's own. One that ends in `/` stands for everything below it.
struct Own {
    path: &'static str,
    allow: &'static str,
    endpoint: Endpoint,
}

const fn get(path: &'static str, endpoint: Endpoint) -> Own {
    Own { path, allow: "GET, HEAD", endpoint }
}

const fn post(path: &'static str, endpoint: Endpoint) -> Own {
    Own { path, allow: "POST", endpoint }
}

static OWN: &[Own] = &[
    get("/health", Endpoint::Health),
    get("/wol-health", Endpoint::Health),
    get("/metrics", Endpoint::Metrics),
    get("/v1/models", Endpoint::Models),
    get("/models", Endpoint::Models),
    get("/running", Endpoint::Running),
    Own { path: "/unload", allow: "GET, HEAD, POST", endpoint: Endpoint::Unload },
    post("/api/models/unload", Endpoint::UnloadAll),
    post("/api/models/unload/", Endpoint::UnloadModel),
    get("/logs", Endpoint::Logs),
    get("/logs/stream", Endpoint::LogStream),
    get("/logs/stream/", Endpoint::LogStream),
    get("/api/activity", Endpoint::ActivityList),
    get("/api/activity/", Endpoint::ActivityItem),
    get("/api/version", Endpoint::Version),
];

/// The table, for people.
pub(crate) fn listing() -> String {
    let mut text = String::from("switchyard\n\n");
    for inference in INFERENCE {
        text.push_str(&format!("{:14}{}\n", inference.model_in.method().as_str(), inference.path));
    }
    text.push_str("any           /upstream/MODEL/...\n");
    for known in OWN {
        let rest = if known.path.ends_with('/') { "..." } else { "" };
        text.push_str(&format!("{:14}{}{rest}\n", known.allow.replace(", ", " "), known.path));
    }
    text
}

/// Finds what `method path` leads to. `path` is without its query, percent-encoded as it came.
pub(crate) fn find<'a>(method: &Method, path: &'a str) -> Result<Route<'a>, NoRoute> {
    let mut allow = None;
    for inference in INFERENCE.iter().filter(|inference| inference.path == path) {
        let wanted = inference.model_in.method();
        if *method == wanted {
            return Ok(Route::Inference(inference));
        }
        allow = Some(match (allow, inference.model_in) {
            (Some(_), _) => "GET, POST",
            (None, ModelIn::Body) => "POST",
            (None, ModelIn::Query) => "GET",
        });
    }
    if let Some(rest) = path.strip_prefix("/upstream/") {
        return Ok(Route::Upstream(rest));
    }
    if path == "/" {
        return own(method, "GET, HEAD", Endpoint::Root, "");
    }
    for known in OWN {
        let rest = match path.strip_prefix(known.path) {
            Some("") if !known.path.ends_with('/') => "",
            Some(rest) if known.path.ends_with('/') && !rest.is_empty() => rest,
            _ => continue,
        };
        return own(method, known.allow, known.endpoint, rest);
    }
    Err(allow.map_or(NoRoute::Path, NoRoute::Method))
}

fn own<'a>(method: &Method, allow: &'static str, endpoint: Endpoint, rest: &'a str) -> Result<Route<'a>, NoRoute> {
    if allow.split(", ").any(|allowed| allowed == method.as_str()) {
        Ok(Route::Admin(endpoint, rest))
    } else {
        Err(NoRoute::Method(allow))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn inference(method: &Method, path: &'static str) -> &'static Inference {
        match find(method, path) {
            Ok(Route::Inference(inference)) => inference,
            other => panic!("{method} {path}: {other:?}"),
        }
    }

    #[test]
    fn no_entry_is_hidden_behind_another() {
        let mut seen = HashSet::new();
        for entry in INFERENCE {
            assert!(seen.insert((entry.path, entry.model_in == ModelIn::Body)), "{} twice", entry.path);
            assert_eq!(inference(&entry.model_in.method(), entry.path), entry);
        }
        for known in OWN {
            let path: &'static str = if known.path.ends_with('/') { "/x/y" } else { "" };
            let path = format!("{}{}", known.path.trim_end_matches('/'), path);
            let method = Method::from_bytes(known.allow.split(", ").next().unwrap_or_default().as_bytes());
            let found = find(&method.expect("a method"), &path).expect("a route");
            assert!(matches!(found, Route::Admin(endpoint, _) if endpoint == known.endpoint), "{path}: {found:?}");
        }
    }

    #[test]
    fn the_listing_has_them_all() {
        let listing = listing();
        for line in ["POST          /v1/chat/completions", "GET HEAD      /logs/stream/...", "GET HEAD POST /unload"] {
            assert!(listing.lines().any(|listed| listed == line), "{line} is not in\n{listing}");
        }
        assert_eq!(listing.lines().count(), 2 + INFERENCE.len() + 1 + OWN.len());
    }

    #[test]
    fn versionless_paths_lose_their_v() {
        assert_eq!(inference(&Method::POST, "/v/chat/completions").upstream, "/chat/completions");
        assert_eq!(inference(&Method::POST, "/v1/chat/completions").upstream, "/v1/chat/completions");
        assert_eq!(inference(&Method::POST, "/audioapi/v1/tasks/run").upstream, "/v1/tasks/run");
    }

    #[test]
    fn the_wrong_method_says_which_are_right() {
        assert_eq!(find(&Method::GET, "/v1/chat/completions"), Err(NoRoute::Method("POST")));
        assert_eq!(find(&Method::PUT, "/v1/audio/voices"), Err(NoRoute::Method("GET, POST")));
        assert_eq!(find(&Method::DELETE, "/sdapi/v1/loras"), Err(NoRoute::Method("GET")));
        assert_eq!(find(&Method::POST, "/metrics"), Err(NoRoute::Method("GET, HEAD")));
        assert_eq!(find(&Method::PUT, "/unload"), Err(NoRoute::Method("GET, HEAD, POST")));
    }

    #[test]
    fn whatever_is_below_upstream_goes_to_a_model() {
        assert_eq!(find(&Method::PATCH, "/upstream/a/b/c"), Ok(Route::Upstream("a/b/c")));
        assert_eq!(find(&Method::GET, "/upstream/"), Ok(Route::Upstream("")));
        assert_eq!(find(&Method::GET, "/upstream"), Err(NoRoute::Path));
    }

    #[test]
    fn what_follows_is_handed_on() {
        assert_eq!(find(&Method::POST, "/api/models/unload/org/m"), Ok(Route::Admin(Endpoint::UnloadModel, "org/m")));
        assert_eq!(find(&Method::GET, "/logs/stream/m"), Ok(Route::Admin(Endpoint::LogStream, "m")));
        assert_eq!(find(&Method::GET, "/logs/stream"), Ok(Route::Admin(Endpoint::LogStream, "")));
    }

    #[test]
    fn unknown_paths() {
        for path in ["/v1/chat/completions/", "/nothing", "//", "", "/api/activity/"] {
            assert_eq!(find(&Method::GET, path), Err(NoRoute::Path), "{path:?}");
        }
    }
}
