//! Accepts connections and hands them to Pingora, on the runtime of the caller.

use std::{
    any::Any,
    io,
    os::fd::AsRawFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use pingora::{
    apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream, ServerApp},
    protocols::{GetSocketDigest, SocketDigest, Stream, http::ServerSession, http::v2::server::default_h2_options, l4},
    proxy::{HttpProxy, http_proxy},
    server::configuration::ServerConf,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    time::{Instant, sleep, timeout},
};

use super::{
    Gateway,
    corked::{Corked, Flush},
};

/// Connections at once; more wait to be accepted.
const MAX_CONNECTIONS: u32 = 1 << 16;
/// How long a connection may be idle between two requests.
const IDLE_SECONDS: u64 = 60;
/// From the end of a request (or the start of a connection) to the end of the next request's header, idleness
/// included: a client cannot hold a connection by sending a header one byte a minute.
const HEADER_DEADLINE: Duration = Duration::from_secs(IDLE_SECONDS + 15);
/// Streams of one HTTP/2 connection: a proxy in front may send everything over one.
const H2_STREAMS: u32 = 1024;
/// A short answer, its header included, goes out in one piece.
const ANSWER_BYTES: usize = 1460;
const H2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// After the system refused another connection, usually for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Open files beside the clients' connections: those to model servers, their output, the activity log.
const OTHER_FILES: u64 = 4096;

/// Serves HTTP/1.1 and, with prior knowledge, HTTP/2 without TLS on one port.
///
/// When `closing` turns true no connection and no further request is taken, idle connections are closed, and the
/// future resolves once the running requests have ended.
pub async fn serve(listener: TcpListener, mut gateway: Gateway, closing: watch::Receiver<bool>) {
    gateway.closing = closing.clone();
    allow_open_files(u64::from(MAX_CONNECTIONS) + OTHER_FILES);
    let threads = tokio::runtime::Handle::current().metrics().num_workers();
    let mut app = http_proxy(&Arc::new(ServerConf { threads, ..ServerConf::default() }), gateway);
    let mut options = HttpServerOptions::default();
    options.h2c = true;
    options.h2_idle_timeout = Some(Duration::from_secs(IDLE_SECONDS));
    app.server_options = Some(options);
    let mut h2 = default_h2_options();
    h2.max_concurrent_streams(H2_STREAMS);
    app.h2_options = Some(h2);
    let app = Arc::new(app);

    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS as usize));
    let mut closed = closing.clone();
    loop {
        let accepted = tokio::select! {
            biased;
            // An error means that nobody is left who could say so.
            _ = closed.wait_for(|closing| *closing) => break,
            accepted = accept(&listener, &places) => accepted,
        };
        let Some((stream, place)) = accepted else { continue };
        let (app, closing) = (Arc::clone(&app), closing.clone());
        tokio::spawn(async move {
            connection(app, stream, closing).await;
            drop(place);
        });
    }
    drop(listener);
    app.http_cleanup().await;
    // Fails only for a closed semaphore.
    let _ = places.acquire_many(MAX_CONNECTIONS).await;
}

/// Every client that waits is an open file, and the usual limit is 1,024. Takes what the system grants.
fn allow_open_files(wanted: u64) {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        let granted = wanted.min(hard);
        if granted > soft { setrlimit(Resource::RLIMIT_NOFILE, granted, hard) } else { Ok(()) }
    });
    if let Err(error) = raised {
        tracing::warn!(%error, "cannot raise the limit of open files; clients beyond it will wait to be accepted");
    }
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, place)),
        Err(error) => {
            tracing::warn!(%error, "cannot accept a connection");
            sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

async fn connection(app: Arc<HttpProxy<Gateway>>, stream: TcpStream, closing: watch::Receiver<bool>) {
    // Tokens are small and are wanted now.
    let _ = stream.set_nodelay(true);
    let mut closed = closing.clone();
    let is_h2 = tokio::select! {
        is_h2 = timeout(HEADER_DEADLINE, speaks_h2(&stream)) => is_h2,
        _ = closed.wait_for(|closing| *closing) => return,
    };
    let Ok(Ok(is_h2)) = is_h2 else { return };
    let address = SocketDigest::from_raw_fd(stream.as_raw_fd());
    let mut stream = l4::stream::Stream::from(stream);
    stream.set_socket_digest(address);
    let stream: Stream = Box::new(stream);
    if is_h2 {
        // It gathers its frames by itself.
        app.process_new(stream, &closing).await;
        return;
    }
    let stream: Stream = Box::new(Corked::new(stream, ANSWER_BYTES, Flush::Now));

    let header = Arc::new(HeaderArrived(AtomicBool::new(false)));
    let mut deadline = std::pin::pin!(sleep(HEADER_DEADLINE));
    let mut next = Some(ReusedHttpStream::new(stream, None));
    while let Some(stream) = next {
        let (stream, settings) = stream.consume();
        let mut session = ServerSession::new_http1(stream);
        match settings {
            Some(settings) => settings.apply_to_session(&mut session),
            None => session.set_keepalive(Some(IDLE_SECONDS)),
        }
        session.set_pipelining_enabled(true);
        header.0.store(false, Ordering::Relaxed);
        session.set_connection_user_context(Some(Box::new(Arc::clone(&header))));
        deadline.as_mut().reset(Instant::now() + HEADER_DEADLINE);
        next = tokio::select! {
            biased;
            next = app.process_new_http(session, &closing) => next,
            () = missed(deadline.as_mut(), &header) => None,
        };
    }
}

/// Whether the header of the present request of a connection has arrived.
struct HeaderArrived(AtomicBool);

/// Resolves if the header has not arrived by then.
async fn missed(deadline: std::pin::Pin<&mut tokio::time::Sleep>, header: &HeaderArrived) {
    deadline.await;
    if header.0.load(Ordering::Relaxed) {
        std::future::pending().await
    }
}

/// Pingora's callback between a request's header and its filters brings what [`connection`] has put there.
pub(super) fn header_arrived(connection: &dyn Any) {
    if let Some(header) = connection.downcast_ref::<Arc<HeaderArrived>>() {
        header.0.store(true, Ordering::Relaxed);
    }
}

/// Looks at the first bytes and leaves them there. Pingora's own detection would wait for 24 of them, which a small
/// HTTP/1.0 request does not have.
async fn speaks_h2(stream: &TcpStream) -> io::Result<bool> {
    const AGAIN: Duration = Duration::from_millis(5);
    let mut bytes = [0; H2_PREFACE.len()];
    loop {
        let seen = stream.peek(&mut bytes).await?;
        if seen == 0 || bytes[..seen] != H2_PREFACE[..seen] {
            return Ok(false);
        }
        if seen == bytes.len() {
            return Ok(true);
        }
        sleep(AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::{config::Settings, dispatcher::Dispatcher, telemetry};

    /// Sends the bytes, and says after how long the server closes the connection.
    async fn closed_after(bytes: &[u8]) -> Duration {
        let settings = Settings::new(Vec::new());
        let activity = telemetry::ActivityLog::open(&settings.store).expect("a log in memory");
        let metrics = Arc::new(telemetry::Metrics::new());
        let dispatcher = Dispatcher::new(Arc::new(settings), Arc::clone(&metrics));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (_close, closing) = watch::channel(false);
        tokio::spawn(serve(listener, Gateway::new(dispatcher, metrics, activity), closing));

        let start = Instant::now();
        let mut client = TcpStream::connect(address).await.expect("a connection");
        client.write_all(bytes).await.expect("the bytes are taken");
        let mut rest = Vec::new();
        // With bytes that were not read the end is a reset.
        let _ = client.read_to_end(&mut rest).await;
        assert_eq!(rest, b"");
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_header_that_does_not_come_to_its_end_is_not_waited_for() {
        for bytes in [&b""[..], b"POST /v1/x HTTP/1.1\r\nHost: t\r\nX: ", &H2_PREFACE[..10]] {
            let after = closed_after(bytes).await;
            assert!((HEADER_DEADLINE..HEADER_DEADLINE * 2).contains(&after), "{bytes:?}: {after:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_may_take_longer_than_its_header() {
        let header = HeaderArrived(AtomicBool::new(false));
        header_arrived(&Arc::new(()));
        assert!(!header.0.load(Ordering::Relaxed));
        let header = Arc::new(header);
        header_arrived(&Arc::clone(&header));
        let deadline = std::pin::pin!(sleep(HEADER_DEADLINE));
        assert!(timeout(HEADER_DEADLINE * 9, missed(deadline, &header)).await.is_err());
    }
}
