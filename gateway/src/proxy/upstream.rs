//! Connections to model servers.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use pingora::{
    connectors::{ConnectorOptions, TransportConnector},
    protocols::{Stream, http::v1::client::HttpSession},
    upstreams::peer::HttpPeer,
};

use super::{
    corked::{Corked, Flush},
    error::ApiError,
    forward::Interrupted,
    pool::{Endpoint, Pool},
};
use crate::config::{Model, Upstream};

/// How long a name's addresses are believed.
const ADDRESS_LIFETIME: Duration = Duration::from_secs(10);
/// Model servers close idle connections after five seconds or more (uvicorn and cpp-httplib after five). Closing
/// first leaves no moment in which a request meets a connection that is just being closed. A new connection costs
/// next to nothing where there is no TLS.
const PLAIN_IDLE: Duration = Duration::from_secs(4);
const TLS_IDLE: Duration = Duration::from_secs(60);
/// A model server that takes no byte of a request for so long is not going to.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// A short request, its header included, goes out in one piece.
const REQUEST_BYTES: usize = 8 << 10;

/// The way to model servers: addresses, and a pool of connections.
pub(super) struct Upstreams {
    connector: TransportConnector,
    pool: Arc<Pool>,
    addresses: Mutex<HashMap<(String, u16), Resolved>>,
}

/// Addresses, and when they were found.
type Resolved = (Instant, Arc<[SocketAddr]>);

/// A connection that nothing has been sent on yet.
pub(super) struct Connection {
    pub(super) http: HttpSession,
    endpoint: Endpoint,
    /// It has served a request before, so the other side may be closing it at this very moment.
    pub(super) reused: bool,
}

/// HTTP over a socket that [`corked`] has made.
pub(super) fn session(stream: Stream) -> HttpSession {
    let mut http = HttpSession::new(stream);
    http.write_timeout = Some(WRITE_TIMEOUT);
    http
}

/// A request goes out when its answer is waited for.
pub(super) fn corked(stream: Stream) -> Stream {
    Box::new(Corked::new(stream, REQUEST_BYTES, Flush::OnRead))
}

/// Whether some of the header of the session's request has not been sent.
pub(super) fn is_header_unsent(http: &HttpSession) -> bool {
    // What is held is the end of what was written, which is the header and then the body.
    let held = http.stream().as_any().downcast_ref().map_or(0, Corked::held);
    held > http.body_bytes_sent()
}

impl Upstreams {
    pub(super) fn new() -> Self {
        // Nothing is ever given to its pool.
        let connector = TransportConnector::new(Some(ConnectorOptions::new(1)));
        Self { connector, pool: Arc::default(), addresses: Mutex::default() }
    }

    /// A connection to the model's server. Pooled ones that the server has closed are never handed out, as far as
    /// that is known by now; `fresh` rules out the rest.
    pub(super) async fn connect(&self, model: &Model, fresh: bool) -> Result<Connection, Interrupted> {
        let Upstream { tls, host, .. } = &model.upstream;
        for &address in self.addresses(model).await.map_err(Interrupted::Failed)?.iter() {
            let endpoint = Endpoint { address, tls: tls.then(|| host.as_str().into()) };
            while let Some(stream) = self.pool.take(&endpoint) {
                // Dropping it closes it.
                if !fresh {
                    return Ok(Connection { http: session(stream), endpoint, reused: true });
                }
            }
            // Rare and, with TLS in it, large: boxed, so that not every request has room for it.
            match Box::pin(self.open(model, address)).await {
                Ok(stream) => return Ok(Connection { http: session(corked(stream)), endpoint, reused: false }),
                Err(error) => tracing::debug!(model = model.id, %error, "cannot connect"),
            }
        }
        let error = ApiError::bad_gateway(format!("the model server of `{}` does not accept connections", model.id));
        Err(Interrupted::Lost { error, may_have_arrived: false })
    }

    async fn open(&self, model: &Model, address: SocketAddr) -> pingora::Result<Stream> {
        self.connector.new_stream(&peer(model, address)).await
    }

    /// Where the model's server is, for the ordinary path.
    pub(super) async fn peer(&self, model: &Model) -> Result<HttpPeer, ApiError> {
        let addresses = self.addresses(model).await?;
        addresses.first().map(|address| peer(model, *address)).ok_or_else(|| unresolved(model))
    }

    /// Keeps the connection for another request, if the last answer has come to its end.
    pub(super) async fn release(&self, connection: Connection, model: &Model) {
        let Connection { mut http, endpoint, .. } = connection;
        let usual = if model.upstream.tls { TLS_IDLE } else { PLAIN_IDLE };
        let idle = model.timeouts.idle_connection.map_or(usual, |configured| configured.min(usual));
        http.respect_keepalive();
        if let Some(stream) = http.reuse().await {
            self.pool.put(endpoint, stream, idle);
        }
    }

    async fn addresses(&self, model: &Model) -> Result<Arc<[SocketAddr]>, ApiError> {
        let Upstream { host, port, .. } = &model.upstream;
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok([SocketAddr::new(ip, *port)].into());
        }
        self.resolve(host, *port).await.ok_or_else(|| unresolved(model))
    }

    async fn resolve(&self, host: &str, port: u16) -> Option<Arc<[SocketAddr]>> {
        let key = (host.to_owned(), port);
        let known = self.addresses.lock().get(&key).cloned();
        if let Some((since, addresses)) = known
            && since.elapsed() < ADDRESS_LIFETIME
        {
            return Some(addresses);
        }
        let found: Arc<[SocketAddr]> = match tokio::net::lookup_host((host, port)).await {
            Ok(found) => found.collect(),
            Err(error) => {
                tracing::debug!(host, %error, "cannot resolve");
                return None;
            }
        };
        let mut addresses = self.addresses.lock();
        // Names of models that are no longer configured do not stay for ever.
        addresses.retain(|_, (since, _)| since.elapsed() < ADDRESS_LIFETIME);
        addresses.insert(key, (Instant::now(), Arc::clone(&found)));
        Some(found)
    }
}

fn peer(model: &Model, address: SocketAddr) -> HttpPeer {
    let Upstream { tls, host, .. } = &model.upstream;
    let sni = if *tls { host.clone() } else { String::new() };
    let mut peer = HttpPeer::new(address, *tls, sni);
    let timeouts = &model.timeouts;
    peer.options.connection_timeout = timeouts.connect;
    peer.options.total_connection_timeout = match (timeouts.connect, timeouts.tls_handshake) {
        (Some(connect), Some(handshake)) => Some(connect + handshake),
        _ => None,
    };
    peer
}

fn unresolved(model: &Model) -> ApiError {
    ApiError::bad_gateway(format!("the host of the model server of `{}` has no known address", model.id))
}
