//! What the gateway asks of model servers for itself, over HTTP/1.1.

use std::{fmt, net::SocketAddr, sync::LazyLock, time::Duration};

use pingora::{
    ErrorType,
    connectors::TransportConnector,
    http::RequestHeader,
    protocols::{Stream, http::v1::client::HttpSession},
    upstreams::peer::HttpPeer,
};
use tokio::net::lookup_host;

use crate::config::{Model, Upstream};

/// Makes every connection. It is made when first needed itself, since it reads the certificates of the machine.
static CONNECTOR: LazyLock<TransportConnector> = LazyLock::new(|| TransportConnector::new(None));

/// A connection that is kept for the next time.
pub(super) struct Kept {
    address: SocketAddr,
    stream: Stream,
}

/// What went wrong; clients read it, so it has no addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    text: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Refusal,
    Breach,
    Other,
}

impl Fault {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), kind: Kind::Other }
    }

    pub(super) fn refused() -> Self {
        Self { text: "connection refused".to_owned(), kind: Kind::Refusal }
    }

    /// Nobody is there.
    pub(super) fn is_refusal(&self) -> bool {
        self.kind == Kind::Refusal
    }

    /// Somebody listened, and broke the connection off: perhaps a process that was just ending.
    pub(super) fn is_breach(&self) -> bool {
        self.kind == Kind::Breach
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
            (ErrorType::ConnectNoRoute, _) => Self { text: "no route to it".to_owned(), kind: Kind::Refusal },
            (
                kind @ (ErrorType::ConnectError
                | ErrorType::ConnectionClosed
                | ErrorType::ReadError
                | ErrorType::WriteError),
                _,
            ) => Self { text: kind.as_str().to_owned(), kind: Kind::Breach },
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
        let stream = CONNECTOR.new_stream(&self.peer(address)).await?;
        self.ask(&mut HttpSession::new(stream), path, true).await
    }

    /// The status of `GET path`, over a connection that is kept for the next time; its body goes into `body`.
    pub(super) async fn get(
        &self,
        address: SocketAddr,
        path: &str,
        kept: &mut Option<Kept>,
        limit: usize,
        body: &mut Vec<u8>,
    ) -> Result<u16, Fault> {
        // The server may have closed it meanwhile, or may just be about to.
        if let Some(Kept { stream, .. }) = kept.take().filter(|kept| kept.address == address)
            && let Ok(status) = self.get_over(stream, address, path, kept, limit, body).await
        {
            return Ok(status);
        }
        let stream = CONNECTOR.new_stream(&self.peer(address)).await?;
        self.get_over(stream, address, path, kept, limit, body).await
    }

    async fn get_over(
        &self,
        stream: Stream,
        address: SocketAddr,
        path: &str,
        kept: &mut Option<Kept>,
        limit: usize,
        body: &mut Vec<u8>,
    ) -> Result<u16, Fault> {
        let mut session = HttpSession::new(stream);
        let status = self.read(&mut session, path, limit, body).await?;
        session.respect_keepalive();
        *kept = session.reuse().await.map(|stream| Kept { address, stream });
        Ok(status)
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
