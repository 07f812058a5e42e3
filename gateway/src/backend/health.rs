//! Asks a server whether it is ready.

use std::{fmt, net::SocketAddr, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};

use super::client::{Client, Fault, addresses};
use crate::config::{Model, Upstream};

/// The longest that one check may take.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two checks of a server that starts: first, factor and last.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const PAUSE_GROWTH: f64 = 1.25;
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// How long a port may stay taken after a stop, such as by a container's proxy.
const PORT_PATIENCE: Duration = Duration::from_secs(2);

/// How to see whether a model's server is ready.
pub(super) struct Health {
    client: Client,
    /// `None`: ready when it accepts a connection.
    path: Option<String>,
}

impl Health {
    pub(super) fn of(model: &Model) -> Self {
        Self { client: Client::of(model, CHECK_TIMEOUT), path: model.check_endpoint.clone() }
    }

    /// One check, bounded in time. An error says what is wrong.
    pub(super) async fn check(&self) -> Result<(), Fault> {
        match timeout(CHECK_TIMEOUT, self.ask()).await {
            Ok(answer) => answer,
            Err(_) => Err(Fault::new(format!("no answer within {} s", CHECK_TIMEOUT.as_secs()))),
        }
    }

    /// Checks until the server is ready. An error says what it answered last.
    pub(super) async fn until_ready(&self, within: Duration) -> Result<(), Fault> {
        let mut last = Fault::new("nothing was heard of it");
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

    async fn ask(&self) -> Result<(), Fault> {
        let mut problem = Fault::new("its name has no address");
        // A server may listen on only one of its name's addresses, as with `localhost`.
        for address in self.client.addresses().await? {
            match self.ask_at(address).await {
                Ok(()) => return Ok(()),
                Err(error) => problem = error,
            }
        }
        Err(problem)
    }

    async fn ask_at(&self, address: SocketAddr) -> Result<(), Fault> {
        let Some(path) = &self.path else {
            return match TcpStream::connect(address).await {
                Ok(_) => Ok(()),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => Err(Fault::refused()),
                Err(error) => Err(Fault::new(error.to_string())),
            };
        };
        match self.client.status(address, path).await? {
            200 => Ok(()),
            status => Err(Fault::new(format!("status {status}"))),
        }
    }
}

/// What is asked for, for people; clients read it, so no addresses.
impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => {
                let prefix = &self.client.upstream.prefix;
                write!(f, "status 200 from `GET {prefix}/{}`", path.trim_start_matches('/'))
            }
            None => write!(f, "a connection to port {}", self.client.upstream.port),
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
