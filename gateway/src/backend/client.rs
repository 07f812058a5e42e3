//! What the gateway asks of model servers for itself, over HTTP/1.1.

use std::{fmt, net::SocketAddr, sync::LazyLock, time::Duration};

use pingora::{
    ErrorType,
    connectors::{ConnectorOptions, http::v1::Connector},
    http::RequestHeader,
    protocols::http::v1::client::HttpSession,
    upstreams::peer::HttpPeer,
};
use tokio::net::lookup_host;

use crate::config::{Model, Upstream};

/// Connections that are kept between two looks at metrics; one for each replica.
const KEPT: usize = 4096;
/// How long such a connection is kept at least as idle.
const IDLE: Duration = Duration::from_secs(30);

/// For what is asked once, over a connection of its own. It is made when first needed, since it reads the certificates
/// of the machine.
static ONCE: LazyLock<Connector> = LazyLock::new(|| Connector::new(None));
/// For what is asked again and again.
static AGAIN: LazyLock<Connector> = LazyLock::new(|| Connector::new(Some(ConnectorOptions::new(KEPT))));

/// What went wrong; clients read it, so it has no addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    text: String,
    /// Nobody listens there.
    pub(super) is_refusal: bool,
}

impl Fault {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_refusal: false }
    }

    pub(super) fn refused() -> Self {
        Self { text: "connection refused".to_owned(), is_refusal: true }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Box<pingora::Error>> for Fault {
    /// The kind of the error, and of TLS its words too, since only they help.
    fn from(error: Box<pingora::Error>) -> Self {
        match (error.etype(), &error.context) {
            (ErrorType::ConnectRefused, _) => Self::refused(),
            (ErrorType::TLSHandshakeFailure | ErrorType::InvalidCert, Some(context)) => Self::new(context.as_str()),
            (kind, _) => Self::new(kind.as_str()),
        }
    }
}

/// Asks one server.
pub(super) struct Client {
    pub(super) upstream: Upstream,
    key: Option<String>,
    connect_timeout: Duration,
}

impl Client {
    pub(super) fn of(model: &Model, connect_timeout: Duration) -> Self {
        Self { upstream: model.upstream.clone(), key: model.upstream_key.clone(), connect_timeout }
    }

    pub(super) async fn addresses(&self) -> Result<Vec<SocketAddr>, Fault> {
        addresses(&self.upstream).await
    }

    /// The status of `GET path`, without its body: what that says does not count.
    pub(super) async fn status(&self, address: SocketAddr, path: &str) -> Result<u16, Fault> {
        let (mut session, _) = ONCE.get_http_session(&self.peer(address)).await?;
        self.ask(&mut session, path, true).await
    }

    /// The status of `GET path`, over a connection that is kept for the next time; its body goes into `body`.
    pub(super) async fn get(
        &self,
        address: SocketAddr,
        path: &str,
        limit: usize,
        body: &mut Vec<u8>,
    ) -> Result<u16, Fault> {
        let peer = self.peer(address);
        loop {
            let (mut session, reused) = AGAIN.get_http_session(&peer).await?;
            match self.read(&mut session, path, limit, body).await {
                Ok(status) => {
                    AGAIN.release_http_session(session, &peer, Some(IDLE)).await;
                    return Ok(status);
                }
                // The server may just have closed it.
                Err(_) if reused => {}
                Err(fault) => return Err(fault),
            }
        }
    }

    async fn read(
        &self,
        session: &mut HttpSession,
        path: &str,
        limit: usize,
        body: &mut Vec<u8>,
    ) -> Result<u16, Fault> {
        let status = self.ask(session, path, false).await?;
        body.clear();
        while let Some(chunk) = session.read_body_ref().await? {
            if body.len() + chunk.len() > limit {
                return Err(Fault::new(format!("more than {limit} bytes")));
            }
            body.extend_from_slice(chunk);
        }
        Ok(status)
    }

    async fn ask(&self, session: &mut HttpSession, path: &str, last: bool) -> Result<u16, Fault> {
        let path = format!("{}/{}", self.upstream.prefix, path.trim_start_matches('/'));
        session.write_request_header(Box::new(self.request(&path, last)?)).await?;
        session.read_response().await?;
        Ok(session.get_status().map_or(0, |status| status.as_u16()))
    }

    fn peer(&self, address: SocketAddr) -> HttpPeer {
        let mut peer = HttpPeer::new(address, self.upstream.tls, self.upstream.host.clone());
        peer.options.connection_timeout = Some(self.connect_timeout);
        peer
    }

    fn request(&self, path: &str, last: bool) -> pingora::Result<RequestHeader> {
        let mut request = RequestHeader::build("GET", path.as_bytes(), None)?;
        request.insert_header("host", authority(&self.upstream))?;
        request.insert_header("user-agent", concat!("switchyard/", env!("CARGO_PKG_VERSION")))?;
        if last {
            request.insert_header("connection", "close")?;
        }
        if let Some(key) = &self.key {
            request.insert_header("authorization", format!("Bearer {key}"))?;
            request.insert_header("x-api-key", key)?;
        }
        Ok(request)
    }
}

pub(super) async fn addresses(upstream: &Upstream) -> Result<Vec<SocketAddr>, Fault> {
    let addresses = lookup_host((upstream.host.as_str(), upstream.port)).await;
    addresses.map(Iterator::collect).map_err(|error| Fault::new(error.to_string()))
}

fn authority(upstream: &Upstream) -> String {
    let Upstream { host, port, .. } = upstream;
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
