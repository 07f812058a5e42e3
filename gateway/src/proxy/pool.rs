//! Connections to model servers that are kept for the next request.
//!
//! Pingora's own pool has a task watch each idle connection, which costs a spawn and two wake-ups a request. Here one
//! task looks after all of them, and whoever takes one looks whether it is still open.

use std::{
    net::SocketAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::FutureExt;
use parking_lot::Mutex;
use pingora::protocols::Stream;
use tokio::{
    io::AsyncReadExt,
    task::unconstrained,
    time::{Instant, sleep},
};

/// Connections kept, over all model servers.
const SIZE: usize = 512;
/// How often those are closed that have been idle for too long, or that the other side has closed.
const SWEEP: Duration = Duration::from_secs(1);

/// Where a connection leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) address: SocketAddr,
    /// Whose certificate it has shown; none without TLS.
    pub(super) tls: Option<Arc<str>>,
}

#[derive(Default)]
pub(super) struct Pool(Mutex<Shelf>);

#[derive(Default)]
struct Shelf {
    /// The one that was used last is at the end.
    idle: Vec<Idle>,
    is_swept: bool,
}

struct Idle {
    endpoint: Endpoint,
    stream: Stream,
    until: Instant,
}

impl Pool {
    /// The connection that was used last, of those that the other side has not closed as far as is known by now.
    pub(super) fn take(&self, endpoint: &Endpoint) -> Option<Stream> {
        loop {
            let Idle { mut stream, until, .. } = {
                let mut shelf = self.0.lock();
                let newest = shelf.idle.iter().rposition(|idle| idle.endpoint == *endpoint)?;
                shelf.idle.remove(newest)
            };
            // What is no good is closed here, and the next one tried.
            if until > Instant::now() && is_quiet(&mut stream) {
                return Some(stream);
            }
        }
    }

    /// Keeps a connection for as long, unless it is needed or has to make room before.
    pub(super) fn put(self: &Arc<Self>, endpoint: Endpoint, mut stream: Stream, idle: Duration) {
        if !is_quiet(&mut stream) {
            return;
        }
        let idle = Idle { endpoint, stream, until: Instant::now() + idle };
        let mut shelf = self.0.lock();
        let oldest = (shelf.idle.len() >= SIZE).then(|| shelf.idle.remove(0));
        shelf.idle.push(idle);
        let is_swept = std::mem::replace(&mut shelf.is_swept, true);
        drop(shelf);
        drop(oldest);
        if !is_swept {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }
}

/// Nothing else closes a connection that nobody asks for. Ends when none is left.
async fn sweep(pool: Weak<Pool>) {
    loop {
        sleep(SWEEP).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut shelf = pool.0.lock();
        let now = Instant::now();
        let gone: Vec<_> = shelf.idle.extract_if(.., |idle| idle.until <= now || !is_quiet(&mut idle.stream)).collect();
        shelf.is_swept = !shelf.idle.is_empty();
        let is_done = !shelf.is_swept;
        drop(shelf);
        drop(gone);
        if is_done {
            return;
        }
    }
}

/// Whether it is open, as far as is known by now, and the other side has not said anything unasked.
fn is_quiet(stream: &mut Stream) -> bool {
    // With a task's budget used up, an end that is there to be read would look as if it was not.
    unconstrained(stream.read(&mut [0])).now_or_never().is_none()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncWriteExt, DuplexStream};

    use super::*;

    const IDLE: Duration = Duration::from_secs(4);

    fn endpoint(port: u16) -> Endpoint {
        Endpoint { address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)), tls: None }
    }

    /// Puts a connection into the pool and returns the model server's end of it.
    fn put(pool: &Arc<Pool>, endpoint: Endpoint) -> DuplexStream {
        let (near, far) = tokio::io::duplex(16);
        pool.put(endpoint, Box::new(near), IDLE);
        far
    }

    /// Takes a connection, if there is one, and sends a word over it.
    async fn speak(pool: &Pool, endpoint: &Endpoint) -> Option<()> {
        pool.take(endpoint)?.write_all(b"hello").await.ok()
    }

    /// What came before the end, if that is there by now.
    fn heard(mut far: DuplexStream) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        far.read_to_end(&mut bytes).now_or_never().map(|_| bytes)
    }

    #[tokio::test]
    async fn a_connection_is_found_again_by_where_it_leads() {
        let pool = Arc::default();
        let secure = |name: &str| Endpoint { tls: Some(name.into()), ..endpoint(1) };
        let [older, newer, tls] = [endpoint(1), endpoint(1), secure("a")].map(|endpoint| put(&pool, endpoint));
        for nowhere in [endpoint(2), secure("b")] {
            assert_eq!(speak(&pool, &nowhere).await, None);
        }
        assert_eq!(speak(&pool, &endpoint(1)).await, Some(()));
        assert_eq!(heard(newer).as_deref(), Some(&b"hello"[..]), "the one that was used last");
        assert_eq!(speak(&pool, &endpoint(1)).await, Some(()));
        assert_eq!(heard(older).as_deref(), Some(&b"hello"[..]));
        assert_eq!(speak(&pool, &endpoint(1)).await, None);
        assert_eq!(speak(&pool, &secure("a")).await, Some(()));
        assert_eq!(heard(tls).as_deref(), Some(&b"hello"[..]));
    }

    #[tokio::test]
    async fn what_the_other_side_has_closed_or_spoken_on_is_not_used() {
        let pool = Arc::default();
        let good = put(&pool, endpoint(1));
        drop(put(&pool, endpoint(1)));
        let mut unasked = put(&pool, endpoint(1));
        unasked.write_all(b"!").await.expect("it is taken");
        assert_eq!(speak(&pool, &endpoint(1)).await, Some(()));
        assert_eq!(heard(good).as_deref(), Some(&b"hello"[..]));
        assert_eq!(heard(unasked).as_deref(), Some(&b""[..]), "it is closed");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_stays_idle_for_longer_than_it_may() {
        let pool = Arc::default();
        let early = put(&pool, endpoint(1));
        sleep(IDLE - SWEEP).await;
        let late = put(&pool, endpoint(2));
        sleep(SWEEP).await;
        assert_eq!(speak(&pool, &endpoint(1)).await, None, "though it may not have been swept");
        assert_eq!(heard(early).as_deref(), Some(&b""[..]));
        sleep(IDLE).await;
        assert_eq!(heard(late).as_deref(), Some(&b""[..]), "nobody asked for it");

        let again = put(&pool, endpoint(1));
        sleep(IDLE + SWEEP).await;
        assert_eq!(heard(again).as_deref(), Some(&b""[..]));
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_other_side_has_closed_is_closed_soon() {
        let pool = Arc::default();
        drop(put(&pool, endpoint(1)));
        sleep(SWEEP * 2).await;
        assert!(pool.0.lock().idle.is_empty());
    }

    #[tokio::test]
    async fn the_one_that_was_not_used_for_longest_makes_room() {
        let pool = Arc::default();
        let first = put(&pool, endpoint(1));
        let mut others: Vec<_> = (0..SIZE).map(|_| put(&pool, endpoint(2))).collect();
        assert_eq!(heard(first).as_deref(), Some(&b""[..]));
        assert_eq!(speak(&pool, &endpoint(2)).await, Some(()));
        assert_eq!(heard(others.remove(SIZE - 1)).as_deref(), Some(&b"hello"[..]));
        assert_eq!(pool.0.lock().idle.len(), SIZE - 1);
    }
}
