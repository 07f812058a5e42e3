//! `/upstream/MODEL/…`: whatever a model server offers, through the same queue.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};
use pingora::{
    http::{RequestHeader, ResponseHeader},
    protocols::http::ServerSession,
    upstreams::peer::HttpPeer,
};

use super::{
    Gateway,
    account::Account,
    error::ApiError,
    forward::Interrupted,
    headers::{self, Outbound},
    infer::{arrival, read_body, unknown_model},
    reply::Reply,
};
use crate::{
    config::{Model, Settings},
    dispatcher::Slot,
};

/// A websocket, on Pingora's own path.
pub(crate) struct Tunnel {
    pub(super) peer: HttpPeer,
    pub(super) model: Arc<Model>,
    target: String,
}

/// What becomes of a request below `/upstream/`.
pub(super) enum Passed {
    /// It is answered.
    Answered,
    /// Pingora takes it from here.
    Tunnel(Box<Tunnel>),
}

impl Gateway {
    /// `rest` is the path after `/upstream/`.
    pub(super) async fn pass(
        &self,
        session: &mut ServerSession,
        account: &mut Account,
        slot: &mut Option<Slot>,
        rest: &str,
    ) -> Result<Passed, Interrupted> {
        let settings = self.dispatcher.settings();
        let found = find(&settings, rest);
        let asked = decoded(found.as_ref().map_or_else(|| rest.split('/').next().unwrap_or_default(), |found| found.0));
        let model = found.as_ref().map(|found| &*found.1);
        self.check_model(&settings, session.req_header(), &account.caller, &asked, model)?;
        let Some((_, model, target)) = found else {
            return Err(Interrupted::Failed(unknown_model(&settings, &asked)));
        };
        account.model(&model.id);
        let path = decoded(target);
        if model.launch.is_some() && settings.ignored_paths.is_match(&path) && !self.is_ready(&model.id) {
            return Err(Interrupted::Failed(not_loaded(&model, &path)));
        }
        let query = session.req_header().uri.query();
        let target = match query {
            Some(query) => format!("{target}?{query}"),
            None => target.to_owned(),
        };
        let websocket = is_websocket(session.req_header());
        let body = match websocket {
            true => Bytes::new(),
            false => read_body(session, account, &settings).await?,
        };
        let arrival = arrival(&settings, &model, &session.req_header().headers, body.len());
        drop((settings, model));
        let granted = self.wait(session, account, &arrival).await?;
        let model = Arc::clone(&granted.model);
        *slot = Some(granted);
        if websocket {
            let peer = self.upstreams.peer(&model).await.map_err(Interrupted::Failed)?;
            return Ok(Passed::Tunnel(Box::new(Tunnel { peer, model, target })));
        }
        Box::pin(self.forward(session, account, slot, &model, &target, body, &mut Bytes::new())).await?;
        Ok(Passed::Answered)
    }
}

impl Tunnel {
    /// Changes the request that Pingora is going to send.
    pub(super) fn adapt(
        &self,
        gateway: &Gateway,
        account: &Account,
        request: &mut RequestHeader,
    ) -> pingora::Result<()> {
        let settings = gateway.dispatcher.settings();
        let outbound = Outbound { model: &self.model, headers: &settings.headers, request_id: &account.request_id };
        *request = outbound.adapt(request.as_owned_parts(), &self.target)?;
        Ok(())
    }

    /// Changes the answer that Pingora is going to pass on.
    pub(super) fn explain(
        account: &mut Account,
        slot: Option<&Slot>,
        response: &mut ResponseHeader,
    ) -> pingora::Result<()> {
        if let Some(slot) = slot {
            *response = headers::explain(response.as_owned_parts(), &account.request_id, &slot.decision)?;
        }
        account.answered(response.status, false);
        Ok(())
    }
}

/// The longest beginning of a path that names a model, since names may contain slashes; and the path that is left:
/// empty, or from its slash on, percent-encoded as it came.
fn find<'a>(settings: &Settings, rest: &'a str) -> Option<(&'a str, Arc<Model>, &'a str)> {
    let ends = rest.char_indices().filter(|(_, char)| *char == '/').map(|(at, _)| at).chain([rest.len()]);
    let mut ends: Vec<_> = ends.filter(|end| *end > 0).collect();
    ends.reverse();
    ends.into_iter().find_map(|end| {
        let (name, target) = rest.split_at(end);
        settings.find(&decoded(name)).map(|model| (name, Arc::clone(model), target))
    })
}

fn not_loaded(model: &Model, path: &str) -> ApiError {
    let message = format!("`{}` is not loaded, and {path} does not load it: see upstream.ignorePaths", model.id);
    ApiError::new(StatusCode::CONFLICT, "model_not_loaded", message)
}

fn decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

fn is_websocket(request: &RequestHeader) -> bool {
    request.method == Method::GET
        && request.version == http::Version::HTTP_11
        && request.headers.get(header::UPGRADE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// Sends a path that is a model's name alone to the same with a slash: relative links of the server's pages only work
/// below it.
pub(super) fn redirect(settings: &Settings, request: &RequestHeader, rest: &str) -> Option<Reply> {
    let (asked, _, "") = find(settings, rest)? else { return None };
    let query = request.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let location = HeaderValue::from_str(&format!("/upstream/{asked}/{query}")).ok()?;
    let status = match request.method {
        Method::GET | Method::HEAD => StatusCode::MOVED_PERMANENTLY,
        _ => StatusCode::PERMANENT_REDIRECT,
    };
    Some(Reply::empty(status).with(header::LOCATION, location))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::testing;

    #[test]
    fn the_longest_name_wins() {
        let settings = testing::settings(["a", "a/b", "a/b/c d", "z"].map(testing::model).into());
        let found = |rest| find(&settings, rest).map(|(asked, model, target)| (asked, model.id.clone(), target));
        let is = |asked, id: &str, target| Some((asked, id.to_owned(), target));
        assert_eq!(found("a"), is("a", "a", ""));
        assert_eq!(found("a/"), is("a", "a", "/"));
        assert_eq!(found("a/x/y"), is("a", "a", "/x/y"));
        assert_eq!(found("a/b/x%2Fy"), is("a/b", "a/b", "/x%2Fy"));
        assert_eq!(found("a%2Fb/x"), is("a%2Fb", "a/b", "/x"));
        assert_eq!(found("a/b/c%20d/"), is("a/b/c%20d", "a/b/c d", "/"));
        assert_eq!(found("ab/x"), None);
        assert_eq!(found(""), None);
        assert_eq!(found("/a/x"), None);
    }
}
