//! The request's way from its socket to a model server and back.
//!
//! Requests for models are forwarded from inside Pingora's request filter with Pingora's own connector, so that one
//! function owns a request from its first byte to its last; only websockets take pingora-proxy's ordinary path.
//! Whatever a request holds (its place in the queue, its slot, its record) is given back by `Drop`.

mod account;
mod body;
pub(crate) mod caller;
mod corked;
pub(crate) mod error;
mod forward;
pub(crate) mod headers;
mod infer;
mod model_name;
mod passthrough;
mod pool;
mod preflight;
pub(crate) mod reply;
mod rewrite;
pub(crate) mod routes;
mod server;
#[cfg(test)]
pub(crate) mod testing;
mod upstream;

use std::{any::Any, sync::Arc, time::Duration};

use async_trait::async_trait;
use http::{HeaderValue, Method, StatusCode, header};
use pingora::{
    Error, ErrorType,
    http::{RequestHeader, ResponseHeader},
    modules::http::HttpModules,
    protocols::http::ServerSession,
    proxy::{FailToProxy, ProxyHttp, Session},
    upstreams::peer::HttpPeer,
};
use tokio::sync::watch;

use account::Account;
pub use caller::identify;
pub use error::ApiError;
use error::Dialect;
use forward::Interrupted;
pub(crate) use infer::unknown_model;
use passthrough::{Passed, Tunnel};
use routes::{NoRoute, Route};
pub use server::serve;

use crate::{
    admin,
    dispatcher::{Dispatcher, Slot},
    telemetry::{ActivityLog, Metrics, OwnLog},
};

/// A client that takes no byte for so long gives up its slot.
const CLIENT_PATIENCE: Duration = Duration::from_secs(60);

/// The gateway as Pingora sees it.
pub struct Gateway {
    pub(crate) dispatcher: Dispatcher,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) activity: ActivityLog,
    pub(crate) own_log: OwnLog,
    /// Turns true when the gateway is to close.
    pub(crate) closing: watch::Receiver<bool>,
    upstreams: upstream::Upstreams,
}

impl Gateway {
    /// Serves nothing before it is given to [`serve`].
    #[must_use]
    pub fn new(dispatcher: Dispatcher, metrics: Arc<Metrics>, activity: ActivityLog) -> Self {
        let (_, closing) = watch::channel(false);
        let own_log = OwnLog::new(0);
        Self { dispatcher, metrics, activity, own_log, closing, upstreams: upstream::Upstreams::new() }
    }

    /// Shows this log as the gateway's own.
    #[must_use]
    pub fn with_own_log(self, own_log: OwnLog) -> Self {
        Self { own_log, ..self }
    }

    /// Answers a request, or leaves it to Pingora's ordinary path.
    async fn handle(&self, session: &mut ServerSession, ctx: &mut Context) -> Result<bool, Interrupted> {
        let settings = self.dispatcher.settings();
        // Before it is replaced by what the caller's key allows.
        let unread_priority = caller::unread_priority(&session.req_header().headers, &settings.headers.priority);
        let (caller, admitted) = match caller::admit(&settings, session) {
            Ok(caller) => (caller, Ok(())),
            Err(denied) => (denied.caller, Err(Interrupted::Failed(denied.error))),
        };
        self.metrics.on_caller(caller.decision, caller.tier_label(&settings));
        let request = session.req_header();
        if request.method == Method::OPTIONS && admitted.is_ok() {
            let reply = preflight::reply(&request.headers);
            return answered(reply.send(session).await);
        }
        let path = request.uri.path().to_owned();
        let route = routes::find(&request.method, &path);
        if let (Ok(Route::Upstream(rest)), Ok(())) = (&route, &admitted)
            && let Some(reply) = passthrough::redirect(&settings, request, rest)
        {
            return answered(reply.send(session).await);
        }
        drop(settings);
        let request_id = headers::request_id(&request.headers);
        ctx.request_id = Some(request_id.clone());
        let account = |path, dialect| {
            Account::open(&self.metrics, &self.activity, request_id, path, dialect, caller, unread_priority)
        };
        match route {
            Ok(Route::Inference(inference)) => {
                let account = ctx.account.insert(account(inference.path.into(), inference.dialect));
                admitted?;
                self.infer(session, account, &mut ctx.slot, inference).await.map(|()| true)
            }
            Ok(Route::Upstream(rest)) => {
                let account = ctx.account.insert(account(path.clone().into(), Dialect::OpenAi));
                admitted?;
                match self.pass(session, account, &mut ctx.slot, rest).await? {
                    Passed::Answered => Ok(true),
                    Passed::Tunnel(tunnel) => {
                        ctx.tunnel = Some(tunnel);
                        Ok(false)
                    }
                }
            }
            Ok(Route::Admin(endpoint, rest)) => {
                admitted?;
                answered(Box::pin(admin::answer(self, session, endpoint, rest)).await)
            }
            Err(no_route) => {
                admitted?;
                Err(Interrupted::Failed(not_found(&no_route, &path)))
            }
        }
    }
}

/// What a request holds. Its parts give themselves back when it is dropped, which Pingora does on every ending.
#[derive(Default)]
pub struct Context {
    slot: Option<Slot>,
    tunnel: Option<Box<Tunnel>>,
    account: Option<Account>,
    request_id: Option<HeaderValue>,
}

impl Context {
    async fn answer_with(&mut self, session: &mut ServerSession, error: ApiError) -> pingora::Result<()> {
        let dialect = self.account.as_ref().map_or_else(Dialect::default, |account| account.dialect);
        if let Some(account) = &mut self.account {
            account.failed(&error);
        }
        // The slot is not to wait for a slow reader.
        self.slot = None;
        let id = self.request_id.clone().unwrap_or_else(|| headers::request_id(&session.req_header().headers));
        error.reply(dialect, &id).send(session).await
    }
}

#[async_trait]
impl ProxyHttp for Gateway {
    type CTX = Context;

    fn new_ctx(&self) -> Self::CTX {
        Context::default()
    }

    fn init_downstream_modules(&self, _: &mut HttpModules) {}

    /// Called between a request's header and its filters.
    fn on_connection_reuse(&self, _: &mut Session, _: &mut Context, connection: Box<dyn Any + Send + Sync>) {
        server::header_arrived(&*connection);
    }

    async fn request_filter(&self, session: &mut Session, ctx: &mut Context) -> pingora::Result<bool> {
        let session = &mut *session.downstream_session;
        session.set_write_timeout(Some(CLIENT_PATIENCE));
        match self.handle(session, ctx).await {
            Ok(answered) => Ok(answered),
            Err(Interrupted::Failed(error) | Interrupted::Lost { error, .. }) => {
                ctx.answer_with(session, error).await?;
                Ok(true)
            }
            // An error ends the connection as it is, so that nobody takes half an answer for a whole one.
            Err(Interrupted::BrokenOff(error)) => {
                if let Some(account) = &mut ctx.account {
                    account.failed(&error);
                }
                Error::e_explain(ErrorType::InternalError, "the answer broke off")
            }
            Err(Interrupted::ClientGone) => {
                if let Some(account) = &mut ctx.account {
                    account.abandoned();
                }
                Error::e_explain(ErrorType::ConnectionClosed, "the client is gone")
            }
        }
    }

    async fn upstream_peer(&self, _: &mut Session, ctx: &mut Context) -> pingora::Result<Box<HttpPeer>> {
        match &ctx.tunnel {
            Some(tunnel) => Ok(Box::new(tunnel.peer.clone())),
            None => Error::e_explain(ErrorType::InternalError, "only websockets come this way"),
        }
    }

    async fn upstream_request_filter(
        &self,
        _: &mut Session,
        request: &mut RequestHeader,
        ctx: &mut Context,
    ) -> pingora::Result<()> {
        match (&ctx.tunnel, &ctx.account) {
            (Some(tunnel), Some(account)) => tunnel.adapt(self, account, request),
            _ => Ok(()),
        }
    }

    async fn response_filter(
        &self,
        _: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut Context,
    ) -> pingora::Result<()> {
        match &mut ctx.account {
            Some(account) => Tunnel::explain(account, ctx.slot.as_ref(), response),
            None => Ok(()),
        }
    }

    async fn fail_to_proxy(&self, session: &mut Session, error: &Error, ctx: &mut Context) -> FailToProxy {
        let nothing_sent = session.response_written().is_none();
        if let Some(tunnel) = ctx.tunnel.take()
            && nothing_sent
            && *error.etype() != ErrorType::ConnectionClosed
        {
            let message = format!("the model server of `{}` did not take the websocket", tunnel.model.id);
            // The client may be gone, too.
            let _ = ctx.answer_with(&mut session.downstream_session, ApiError::bad_gateway(message)).await;
        }
        FailToProxy { error_code: 0, can_reuse_downstream: false }
    }

    /// The activity log says it better.
    fn suppress_error_log(&self, _: &Session, _: &Context, _: &Error) -> bool {
        true
    }
}

fn answered(sent: pingora::Result<()>) -> Result<bool, Interrupted> {
    sent.map(|()| true).map_err(|_| Interrupted::ClientGone)
}

fn not_found(no_route: &NoRoute, path: &str) -> ApiError {
    match no_route {
        NoRoute::Path => {
            let message = format!("there is nothing at {path}; the paths are listed at /");
            ApiError::new(StatusCode::NOT_FOUND, "path_not_found", message)
        }
        NoRoute::Method(allow) => {
            let message = format!("{path} takes {allow}");
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
                .with(header::ALLOW, HeaderValue::from_static(allow))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    /// Ten thousand requests may wait, so what each of them holds beside its body is watched.
    #[tokio::test]
    async fn a_waiting_request_is_small() {
        let settings = Settings::new(Vec::new());
        let activity = ActivityLog::open(&settings.store).expect("a log in memory");
        let metrics = Arc::new(Metrics::new());
        let gateway = Gateway::new(Dispatcher::new(Arc::new(settings), Arc::clone(&metrics)), metrics, activity);
        let mut session = ServerSession::new_http1(Box::new(tokio::io::duplex(1).0));
        let mut context = Context::default();
        let waits = size_of_val(&gateway.handle(&mut session, &mut context));
        assert!(waits + size_of::<Context>() <= 2_850, "{waits} + {} bytes", size_of::<Context>());
    }
}
