//! HTTP by hand: clients and model servers that do what no library lets one do.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// A connection, and what came over it and was not looked at yet.
pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
    buffer: Vec<u8>,
}

/// A request or an answer.
#[derive(Debug)]
pub(crate) struct Message {
    /// The first line.
    pub(crate) start: String,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Message {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub(crate) fn status(&self) -> u16 {
        self.start.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status line")
    }

    pub(crate) fn json_or_null(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("a JSON body")
    }
}

impl Raw {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::from(TcpStream::connect(address).await.expect("a connection"))
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.expect("the bytes are taken");
    }

    /// Reads until `enough` of what came.
    pub(crate) async fn read_until(&mut self, enough: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        while !enough(&self.buffer) {
            assert!(self.more().await, "closed after {:?}", String::from_utf8_lossy(&self.buffer));
        }
        std::mem::take(&mut self.buffer)
    }

    /// Reads to the end of the connection.
    pub(crate) async fn read_to_end(&mut self) -> Vec<u8> {
        while self.more().await {}
        std::mem::take(&mut self.buffer)
    }

    /// Reads at least so many bytes, and throws them away.
    pub(crate) async fn discard(&mut self, bytes: usize) {
        let mut read = std::mem::take(&mut self.buffer).len();
        while read < bytes && self.more().await {
            read += std::mem::take(&mut self.buffer).len();
        }
    }

    /// Whether the other side closes without another byte.
    pub(crate) async fn is_closed(&mut self) -> bool {
        self.buffer.is_empty() && !self.more().await
    }

    /// The next message, if one comes before the end. Its body is one with a length, or none.
    pub(crate) async fn message(&mut self) -> Option<Message> {
        let mut message = self.head().await?;
        let length = message.header("content-length").map_or(0, |length| length.parse().expect("a length"));
        while self.buffer.len() < length {
            if !self.more().await {
                return None;
            }
        }
        message.body = self.buffer.drain(..length).collect();
        Some(message)
    }

    /// The next message without its body, if one comes before the end.
    pub(crate) async fn head(&mut self) -> Option<Message> {
        let end = loop {
            if let Some(at) = self.buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break at + 4;
            }
            if !self.more().await {
                return None;
            }
        };
        let head = String::from_utf8(self.buffer.drain(..end).collect()).expect("UTF-8");
        let mut lines = head.split("\r\n").filter(|line| !line.is_empty());
        let start = lines.next().unwrap_or_default().to_owned();
        let headers = lines
            .filter_map(|line| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned())))
            .collect();
        Some(Message { start, headers, body: Vec::new() })
    }

    async fn more(&mut self) -> bool {
        // A reset is an end, too.
        self.stream.read_buf(&mut self.buffer).await.is_ok_and(|read| read > 0)
    }
}

impl From<TcpStream> for Raw {
    fn from(stream: TcpStream) -> Self {
        Self { stream, buffer: Vec::new() }
    }
}

/// A POST of JSON.
pub(crate) fn post(path: &str, headers: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    format!("POST {path} HTTP/1.1\r\nHost: test\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// A model server made by hand.
pub(crate) struct Upstream {
    listener: TcpListener,
}

impl Upstream {
    pub(crate) async fn bind() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").await.expect("a port") }
    }

    /// The configuration of a model `m` that is served here.
    pub(crate) fn model(&self) -> String {
        let address = self.address();
        format!("models:\n  m:\n    proxy: http://{address}\n    checkEndpoint: none\n")
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("an address")
    }

    pub(crate) async fn accept(&self) -> Raw {
        self.listener.accept().await.expect("a connection").0.into()
    }
}
