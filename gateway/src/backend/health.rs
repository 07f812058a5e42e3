//! Asks a server whether it is ready.

use std::{fmt, net::SocketAddr, sync::LazyLock, time::Duration};

use pingora::{ErrorType, connectors::http::v1::Connector, http::RequestHeader, upstreams::peer::HttpPeer};
use tokio::{
    net::{TcpListener, TcpStream, lookup_host},
    time::{sleep, timeout},
};

use crate::config::{Model, Upstream};

/// The longest that one check may take.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two checks of a server that starts: first, factor and last.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const PAUSE_GROWTH: f64 = 1.25;
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// How long a port may stay taken after a stop, such as by a container's proxy.
const PORT_PATIENCE: Duration = Duration::from_secs(2);

/// The client of every check. It is made when first needed, since it reads the certificates of the machine.
static CONNECTOR: LazyLock<Connector> = LazyLock::new(|| Connector::new(None));

/// How to see whether a model's server is ready.
pub(super) struct Health {
    upstream: Upstream,
    /// `None`: ready when it accepts a connection.
    path: Option<String>,
    key: Option<String>,
}

impl Health {
    pub(super) fn of(model: &Model) -> Self {
        let upstream = model.upstream.clone();
        let path = model.check_endpoint.as_ref();
        let path = path.map(|path| format!("{}/{}", upstream.prefix, path.trim_start_matches('/')));
        Self { upstream, path, key: model.upstream_key.clone() }
    }

    /// One check, bounded in time. An error says what is wrong.
    pub(super) async fn check(&self) -> Result<(), String> {
        match timeout(CHECK_TIMEOUT, self.ask()).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("no answer within {} s", CHECK_TIMEOUT.as_secs())),
        }
    }

    /// Checks until the server is ready. An error says what it answered last.
    pub(super) async fn until_ready(&self, within: Duration) -> Result<(), String> {
        let mut last = "nothing was heard of it".to_owned();
        let ready = timeout(within, async {
            let mut pause = FIRST_PAUSE;
            while let Err(problem) = self.check().await {
                last = problem;
                sleep(pause).await;
                pause = pause.mul_f64(PAUSE_GROWTH).min(LAST_PAUSE);
            }
        });
        match ready.await {
            Ok(()) => Ok(()),
            Err(_) => Err(last),
        }
    }

    async fn ask(&self) -> Result<(), String> {
        let mut problem = "its name has no address".to_owned();
        // A server may listen on only one of its name's addresses, as with `localhost`.
        for address in addresses(&self.upstream).await? {
            let answer = match &self.path {
                Some(path) => self.get(address, path).await,
                None => TcpStream::connect(address).await.map(drop).map_err(|error| error.to_string()),
            };
            match answer {
                Ok(()) => return Ok(()),
                Err(error) => problem = error,
            }
        }
        Err(problem)
    }

    /// Only the response's header is read: what the body says does not count.
    async fn get(&self, address: SocketAddr, path: &str) -> Result<(), String> {
        let mut peer = HttpPeer::new(address, self.upstream.tls, self.upstream.host.clone());
        peer.options.connection_timeout = Some(CHECK_TIMEOUT);
        let request = self.request(path).map_err(|error| error.to_string())?;
        match status(&peer, request).await {
            Ok(200) => Ok(()),
            Ok(status) => Err(format!("status {status}")),
            Err(error) => Err(describe(&error)),
        }
    }

    fn request(&self, path: &str) -> pingora::Result<RequestHeader> {
        let mut request = RequestHeader::build("GET", path.as_bytes(), None)?;
        request.insert_header("host", authority(&self.upstream))?;
        request.insert_header("user-agent", concat!("switchyard/", env!("CARGO_PKG_VERSION")))?;
        request.insert_header("connection", "close")?;
        if let Some(key) = &self.key {
            request.insert_header("authorization", format!("Bearer {key}"))?;
            request.insert_header("x-api-key", key)?;
        }
        Ok(request)
    }
}

/// What is asked for, for people; clients read it, so no addresses.
impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "status 200 from `GET {path}`"),
            None => write!(f, "a connection to port {}", self.upstream.port),
        }
    }
}

/// Waits until nothing listens where a model server is about to. A server that somebody else runs there would answer
/// in its place. An error is the sentence for people.
pub(super) async fn port_is_free(upstream: &Upstream) -> Result<(), String> {
    let free = timeout(PORT_PATIENCE, async {
        let mut pause = FIRST_PAUSE;
        while listens_here(upstream).await {
            sleep(pause).await;
            pause *= 2;
        }
    });
    free.await.map_err(|_| {
        format!(
            "another program listens on port {port} already: stop it (`ss -ltnp 'sport = :{port}'` names it), \
             or give the model another port",
            port = upstream.port
        )
    })
}

async fn status(peer: &HttpPeer, request: RequestHeader) -> pingora::Result<u16> {
    let (mut session, _) = CONNECTOR.get_http_session(peer).await?;
    session.write_request_header(Box::new(request)).await?;
    session.read_response().await?;
    Ok(session.get_status().map_or(0, |status| status.as_u16()))
}

/// On another machine, nothing is known about whose server it is.
async fn listens_here(upstream: &Upstream) -> bool {
    for address in addresses(upstream).await.unwrap_or_default() {
        let here = TcpListener::bind((address.ip(), 0)).await.is_ok();
        if here && matches!(timeout(CHECK_TIMEOUT, TcpStream::connect(address)).await, Ok(Ok(_))) {
            return true;
        }
    }
    false
}

async fn addresses(upstream: &Upstream) -> Result<Vec<SocketAddr>, String> {
    let addresses = lookup_host((upstream.host.as_str(), upstream.port)).await;
    addresses.map(Iterator::collect).map_err(|error| error.to_string())
}

fn authority(upstream: &Upstream) -> String {
    let Upstream { host, port, .. } = upstream;
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Clients read it, so no addresses: the kind of the error, and of TLS its words too, since only they help.
fn describe(error: &pingora::Error) -> String {
    match (error.etype(), &error.context) {
        (ErrorType::ConnectRefused, _) => "connection refused".to_owned(),
        (ErrorType::TLSHandshakeFailure | ErrorType::InvalidCert, Some(context)) => context.as_str().to_owned(),
        (kind, _) => kind.as_str().to_owned(),
    }
}
