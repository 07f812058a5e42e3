//! HTTP/1.1 by hand, since these tests send what no client library would.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use crate::Headers;

/// A message as it came over the wire.
#[derive(Debug)]
pub struct Message {
    /// The status of an answer; 0 for a request.
    pub status: u16,
    /// Names in lower case.
    pub headers: Headers,
    /// The body, where its length was known.
    pub body: Vec<u8>,
}

impl Message {
    /// Reads a message; `with_body` is false for the answer to `HEAD` and for a head whose body comes later.
    fn read(from: &mut impl BufRead, with_body: bool) -> io::Result<Self> {
        let mut line = || -> io::Result<Vec<u8>> {
            let mut line = Vec::new();
            from.read_until(b'\n', &mut line)?;
            if line.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Ok(line.trim_ascii_end().to_vec())
        };
        let first = line()?;
        let status = String::from_utf8_lossy(&first).split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        let mut headers = Headers::new();
        loop {
            let line = line()?;
            let Some(colon) = line.iter().position(|&byte| byte == b':') else { break };
            let name = String::from_utf8_lossy(&line[..colon]).to_ascii_lowercase();
            headers.push((name, line[colon + 1..].trim_ascii().to_vec()));
        }
        let mut message = Self { status, headers, body: Vec::new() };
        if with_body {
            let length = message.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
            message.body.resize(length, 0);
            from.read_exact(&mut message.body)?;
        }
        Ok(message)
    }

    /// The first value of a header, where it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(known, _)| known == name)?;
        std::str::from_utf8(value).ok()
    }
}

fn connect(to: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(Duration::from_secs(180)))?;
    Ok(BufReader::new(stream))
}

fn head(method: &str, path: &[u8], headers: &Headers) -> Vec<u8> {
    let mut head = [method.as_bytes(), b" ", path, b" HTTP/1.1\r\nhost: inference\r\ncontent-length: 0\r\n"].concat();
    for (name, value) in headers {
        head.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
    }
    head.extend(b"\r\n");
    head
}

/// Sends a request without a body and reads the answer, which says how long it is.
///
/// # Errors
/// When nobody answers, or not to the end.
pub fn send(to: SocketAddr, method: &str, path: &[u8], headers: &Headers) -> io::Result<Message> {
    let mut stream = connect(to)?;
    // An early answer, as to a header that is too long, may end the connection while this still writes.
    let _ = stream.get_mut().write_all(&head(method, path, headers));
    Message::read(&mut stream, method != "HEAD")
}

/// Gets a page; `None` when nobody answers.
#[must_use]
pub fn get(from: SocketAddr, path: &str) -> Option<Message> {
    let mut stream = connect(from).ok()?;
    stream.get_mut().write_all(&head("GET", path.as_bytes(), &vec![("connection".into(), b"close".into())])).ok()?;
    let mut answer = Message::read(&mut stream, false).ok()?;
    // The admin interface answers in chunks.
    if answer.header("transfer-encoding") == Some("chunked") {
        while let Some(chunk) = read_chunk(&mut stream).ok()? {
            answer.body.extend(chunk);
        }
    } else {
        stream.read_to_end(&mut answer.body).ok()?;
    }
    Some(answer)
}

/// Sends a request and notes when each chunk of its answer came.
///
/// # Errors
/// When nobody answers, not in chunks, or not to the end.
pub fn stream(to: SocketAddr, path: &[u8], headers: &Headers) -> io::Result<Vec<(Duration, Vec<u8>)>> {
    let start = Instant::now();
    let mut stream = connect(to)?;
    stream.get_mut().write_all(&head("POST", path, headers))?;
    Message::read(&mut stream, false)?;
    let mut chunks = Vec::new();
    while let Some(chunk) = read_chunk(&mut stream)? {
        chunks.push((start.elapsed(), chunk));
    }
    Ok(chunks)
}

fn read_chunk(from: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut size = String::new();
    from.read_line(&mut size)?;
    let size = usize::from_str_radix(size.trim(), 16).map_err(io::Error::other)?;
    let mut chunk = vec![0; size + 2];
    from.read_exact(&mut chunk)?;
    chunk.truncate(size);
    Ok((size > 0).then_some(chunk))
}

/// A server that tells the headers of each request it gets, and answers 200. Requests with `x-gaps: 17,5` are
/// answered with events that many seconds apart.
///
/// # Panics
/// When it cannot listen.
#[must_use]
pub fn upstream() -> (SocketAddr, Receiver<Headers>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let (tell, told) = channel();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let tell = tell.clone();
            thread::spawn(move || {
                let mut stream = BufReader::new(stream);
                while let Ok(request) = Message::read(&mut stream, true) {
                    let answered = match request.header("x-gaps") {
                        Some(gaps) => answer_with_gaps(stream.get_mut(), gaps),
                        None => stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
                    };
                    if tell.send(request.headers).is_err() || answered.is_err() {
                        break;
                    }
                }
            });
        }
    });
    (address, told)
}

fn answer_with_gaps(to: &mut TcpStream, gaps: &str) -> io::Result<()> {
    to.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")?;
    for gap in gaps.split(',') {
        to.write_all(b"9\r\ndata: a\n\n\r\n")?;
        thread::sleep(Duration::from_secs(gap.parse().map_err(io::Error::other)?));
    }
    to.write_all(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
}
