//! Somebody's Pingora proxy, in front of one server, with Switchyard's queue and policy in it: the lines between `+++`
//! and `---` are all that it takes. Usage: `pingora_plugin LISTEN UPSTREAM CONFIG`, where the configuration has the
//! keys, the scheduler, and a model `gpu` that stands for the upstream.

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use pingora::prelude::*;
// +++
use switchyard::{
    config,
    dispatcher::{Arrival, Dispatcher, Slot},
    proxy::{self, ApiError},
    telemetry::Metrics,
};
// ---

struct MyProxy {
    upstream: String,
    // +++
    queue: Dispatcher,
    // ---
}

#[async_trait]
impl ProxyHttp for MyProxy {
    // +++ Pingora drops it when the request has ended, however it ends, and with it the slot is free.
    type CTX = Option<Slot>;
    fn new_ctx(&self) -> Self::CTX {
        None
    }

    async fn request_filter(&self, session: &mut Session, slot: &mut Self::CTX) -> Result<bool> {
        let settings = self.queue.settings();
        let caller = match proxy::identify(&settings.callers.policy, session.req_header_mut()) {
            Ok(Some(caller)) => caller,
            Ok(None) => return Ok(false), // health checks
            Err(denied) => return denied.send(session).await,
        };
        let Some(gpu) = settings.find("gpu").cloned() else { return Error::e_explain(InternalError, "no model `gpu`") };
        match self.queue.submit(Arrival::new(gpu).by(&caller)).await {
            Ok(turn) => *slot = Some(turn),
            Err(refusal) => return ApiError::from(refusal).send(session).await,
        }
        Ok(false)
    }
    // ---

    async fn upstream_peer(&self, _: &mut Session, _: &mut Self::CTX) -> Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(self.upstream.as_str(), false, String::new())))
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [listen, upstream, file] = &arguments[..] else { panic!("usage: pingora_plugin LISTEN UPSTREAM CONFIG") };
    // +++
    let settings = config::load(Path::new(file)).unwrap_or_else(|problems| panic!("{problems}"));
    let runtime = tokio::runtime::Runtime::new().expect("threads for the queue");
    let queue = runtime.block_on(async { Dispatcher::new(Arc::new(settings), Arc::new(Metrics::new())) });
    // ---
    let mut server = Server::new(None).expect("a server");
    server.bootstrap();
    let mut service = http_proxy_service(&server.configuration, MyProxy { upstream: upstream.clone(), queue });
    service.add_tcp(listen);
    server.add_service(service);
    server.run_forever();
}
