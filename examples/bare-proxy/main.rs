//! The yardstick of `tests/bench.sh`: the least that a Pingora proxy can do. Usage: `bare_proxy LISTEN UPSTREAM`.

use async_trait::async_trait;
use pingora::prelude::*;
use pingora::server::configuration::ServerConf;

/// The gateway's, so that proxies are compared and not allocators.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct BareProxy(String);

#[async_trait]
impl ProxyHttp for BareProxy {
    type CTX = ();
    fn new_ctx(&self) {}
    async fn upstream_peer(&self, _session: &mut Session, _ctx: &mut ()) -> Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(self.0.as_str(), false, String::new())))
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(listen), Some(upstream)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: bare_proxy LISTEN UPSTREAM");
        std::process::exit(2);
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let conf = ServerConf {
        threads,
        // Pingora would sleep for five minutes before it exits.
        grace_period_seconds: Some(0),
        graceful_shutdown_timeout_seconds: Some(0),
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let mut service = http_proxy_service(&server.configuration, BareProxy(upstream));
    service.add_tcp(&listen);
    server.add_service(service);
    server.run_forever();
}
