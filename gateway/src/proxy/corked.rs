//! A socket that sends what is written together in one piece.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use async_trait::async_trait;
use pingora::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, Stream, TimingDigest,
    UniqueID, UniqueIDType, raw_connect::ProxyDigest, tls::SslDigest,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufWriter, ReadBuf};

/// Holds back small writes until somebody waits for the other side: a header and a short body go out as one segment,
/// for one system call here and one wake-up there. No byte stays while the other side is waited for.
#[derive(Debug)]
pub(super) struct Corked {
    stream: BufWriter<Stream>,
    flush: Flush,
}

/// What an explicit flush means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flush {
    /// That what is held goes out.
    Now,
    /// Nothing: the next read sends it. Pingora flushes a request's header before its body is there.
    OnRead,
}

impl Corked {
    /// `capacity` in bytes; what is larger is sent past the buffer.
    pub(super) fn new(stream: Stream, capacity: usize, flush: Flush) -> Self {
        Self { stream: BufWriter::with_capacity(capacity, stream), flush }
    }

    /// Bytes that were written, but not sent so far. Once sending has failed, those that never will be.
    pub(super) fn held(&self) -> usize {
        self.stream.buffer().len()
    }

    fn socket(&self) -> &Stream {
        self.stream.get_ref()
    }
}

impl AsyncRead for Corked {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.held() > 0 {
            // When that fails the other side may have said why, which is there to be read; if not, reading fails too.
            let _ = Pin::new(&mut self.stream).poll_flush(cx);
        }
        Pin::new(self.stream.get_mut()).poll_read(cx, buf)
    }
}

impl AsyncWrite for Corked {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.flush {
            Flush::Now => Pin::new(&mut self.stream).poll_flush(cx),
            Flush::OnRead => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[async_trait]
impl Shutdown for Corked {
    async fn shutdown(&mut self) {
        // The other side may be gone.
        let _ = AsyncWriteExt::shutdown(&mut self.stream).await;
    }
}

impl UniqueID for Corked {
    fn id(&self) -> UniqueIDType {
        self.socket().id()
    }
}

impl Ssl for Corked {
    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        self.socket().get_ssl_digest()
    }

    fn selected_alpn_proto(&self) -> Option<ALPN> {
        self.socket().selected_alpn_proto()
    }
}

impl Peek for Corked {}

impl GetTimingDigest for Corked {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        self.socket().get_timing_digest()
    }
}

impl GetProxyDigest for Corked {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.socket().get_proxy_digest()
    }
}

impl GetSocketDigest for Corked {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.socket().get_socket_digest()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{
        io::{AsyncReadExt, DuplexStream, duplex},
        time::timeout,
    };

    use super::*;

    fn pair(flush: Flush) -> (Corked, DuplexStream) {
        let (near, far) = duplex(1024);
        (Corked::new(Box::new(near), 64, flush), far)
    }

    async fn write(near: &mut Corked) {
        near.write_all(b"header ").await.expect("it is taken");
        near.write_all(b"body").await.expect("it is taken");
        near.flush().await.expect("it is flushed");
    }

    async fn received(far: &mut DuplexStream) -> Option<Vec<u8>> {
        let mut seen = Vec::new();
        timeout(Duration::from_millis(1), far.read_buf(&mut seen)).await.ok()?.expect("bytes");
        Some(seen)
    }

    #[tokio::test(start_paused = true)]
    async fn writes_go_out_together_when_flushed() {
        let (mut near, mut far) = pair(Flush::Now);
        near.write_all(b"before ").await.expect("it is taken");
        assert_eq!(received(&mut far).await, None);
        write(&mut near).await;
        assert_eq!(received(&mut far).await.as_deref(), Some(&b"before header body"[..]));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_stays_while_the_other_side_is_waited_for() {
        let (mut near, mut far) = pair(Flush::OnRead);
        write(&mut near).await;
        assert_eq!(received(&mut far).await, None);
        assert_eq!(near.held(), b"header body".len());
        assert!(timeout(Duration::from_millis(1), near.read_u8()).await.is_err(), "there is nothing to read");
        assert_eq!(received(&mut far).await.as_deref(), Some(&b"header body"[..]));
        assert_eq!(near.held(), 0);
    }

    #[tokio::test]
    async fn last_words_are_read_though_nothing_can_be_sent() {
        let (mut near, mut far) = pair(Flush::OnRead);
        far.write_all(b"why").await.expect("it is taken");
        drop(far);
        write(&mut near).await;
        let mut words = String::new();
        near.read_to_string(&mut words).await.expect("words");
        assert_eq!(words, "why");
        assert_eq!(near.held(), b"header body".len());
    }
}
