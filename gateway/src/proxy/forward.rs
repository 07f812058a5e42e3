//! Takes a request to its model server and the answer back, without holding back a byte.

use std::{
    future::Future,
    pin::{Pin, pin},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, StatusCode, header};
use pingora::{
    ErrorType,
    http::RequestHeader,
    protocols::http::{ServerSession, v1::client::HttpSession},
};

use super::{
    account::Account,
    error::ApiError,
    headers,
    upstream::{Connection, Upstreams, is_header_unsent},
};
use crate::{backend::Failure, config::Model, dispatcher::Slot};

/// The body is given to the socket in pieces, each with its own timeout.
const WRITE_PIECE: usize = 256 << 10;
/// A connection breaks a moment before the supervisor knows why; its words are worth that moment.
const REASON_PATIENCE: Duration = Duration::from_secs(2);

/// Why a request has not been answered in full.
pub(super) enum Interrupted {
    /// Nothing is out yet: this is the answer.
    Failed(ApiError),
    /// Nothing is out yet, and nothing came: this is the answer unless another server has one.
    Lost {
        error: ApiError,
        /// The server may have had the whole request.
        may_have_arrived: bool,
    },
    /// The client went away.
    ClientGone,
    /// The answer broke off, in a form that has no way to say so: the connection must end without the answer's end.
    BrokenOff(ApiError),
}

/// A request on its way.
pub(super) struct Forward<'a> {
    pub(super) upstreams: &'a Upstreams,
    pub(super) model: &'a Model,
    pub(super) session: &'a mut ServerSession,
    pub(super) account: &'a mut Account,
    /// Given back as soon as the model server is done, not when the client has read everything.
    pub(super) slot: &'a mut Option<Slot>,
    /// The body as it came, which is let go when no other server can be asked any more.
    pub(super) original: &'a mut Bytes,
}

impl Forward<'_> {
    /// `header` makes the request's header; it may be needed twice.
    pub(super) async fn run(
        mut self,
        header: impl Fn(&RequestHeader) -> pingora::Result<Box<RequestHeader>>,
        body: Bytes,
    ) -> Result<(), Interrupted> {
        let mut connection = self.request(header, body).await?;
        *self.original = Bytes::new();
        let complete = self.answer(&mut connection.http).await?;
        if complete {
            self.upstreams.release(connection, self.model).await;
        }
        Ok(())
    }

    /// Sends the request and waits for the answer's header.
    ///
    /// It is sent a second time, over a new connection, only when the first was a pooled one and the server cannot
    /// have acted on what it got. That is certain when the kernel, which takes bytes in order, did not take all of the
    /// header: the server never had a whole one. When the header went out and the connection broke before any answer,
    /// the server may have done the work; then only methods that change nothing (RFC 9110, section 9.2.1) are sent
    /// again.
    async fn request(
        &mut self,
        header: impl Fn(&RequestHeader) -> pingora::Result<Box<RequestHeader>>,
        body: Bytes,
    ) -> Result<Connection, Interrupted> {
        let safe = matches!(self.session.req_header().method, Method::GET | Method::HEAD | Method::OPTIONS);
        let mut fresh = false;
        loop {
            let request = header(self.session.req_header()).map_err(|_| {
                Interrupted::Failed(ApiError::bad_request("invalid_request", "the request cannot be sent on as it is"))
            })?;
            let (upstreams, model) = (self.upstreams, self.model);
            let mut connection = self.unless_gone(pin!(upstreams.connect(model, fresh))).await??;
            let http = &mut connection.http;
            let attempted = self.unless_gone(pin!(attempt(http, request, body.clone(), model))).await?;
            let Err(failed) = attempted else { return Ok(connection) };
            tracing::debug!(model = model.id, reused = connection.reused, ?failed, "a request failed");
            let may_have_arrived = match failed {
                Failed::Late(error) => return Err(Interrupted::Failed(error)),
                Failed::Unsent(_) => false,
                Failed::Unanswered(_) => true,
            };
            if fresh || !connection.reused || (may_have_arrived && !safe) {
                let error = self.why("closed the connection before it answered").await;
                return Err(Interrupted::Lost { error, may_have_arrived });
            }
            fresh = true;
        }
    }

    /// Passes the answer on. Returns whether the connection can serve another request.
    async fn answer(&mut self, http: &mut HttpSession) -> Result<bool, Interrupted> {
        let Some(slot) = &*self.slot else { return Err(Interrupted::ClientGone) };
        let mut failure = pin!(slot.failure());
        let Some(upstream) = http.resp_header() else { return Err(Interrupted::ClientGone) };
        let events = headers::is_event_stream(&upstream.headers);
        let can_append = events
            && !upstream.headers.contains_key(header::CONTENT_LENGTH)
            && !upstream.headers.contains_key(header::CONTENT_ENCODING);
        let client = self.session.req_header().version;
        let response = headers::response(upstream, client, &self.account.request_id, &slot.decision)
            .map_err(|_| Interrupted::Failed(ApiError::bad_gateway("the model server's answer cannot be sent on")))?;
        self.account.answered(response.status, events);
        // llama-server closes the connection after a stream without having said so: whoever took it from the pool in
        // that moment would lose a request that must not be sent twice.
        let reusable = !events;
        let mut done = http.is_body_done();
        if done {
            self.account.release(self.slot);
        }
        self.session.write_response_header(response).await.map_err(|_| Interrupted::ClientGone)?;
        if done {
            self.end(Bytes::new()).await?;
            return Ok(reusable);
        }
        let mut at_line_start = LineStart::default();
        loop {
            let read = {
                let mut read = pin!(http.read_body_bytes());
                tokio::select! {
                    biased;
                    read = &mut read => read.map_err(|error| {
                        tracing::debug!(model = self.model.id, %error, "an answer broke off");
                        Broken::Off
                    }),
                    _ = self.session.read_body_or_idle(true) => return Err(Interrupted::ClientGone),
                    failure = &mut failure => Err(Broken::Failed(failure)),
                    limit = silence(self.model.timeouts.response_idle) => Err(Broken::Silent(limit)),
                }
            };
            match read {
                Ok(Some(chunk)) => {
                    self.account.chunk(&chunk);
                    at_line_start.follow(&chunk);
                    done = http.is_body_done();
                    if done {
                        self.account.release(self.slot);
                        self.end(chunk).await?;
                        return Ok(reusable);
                    }
                    self.session.write_response_body(chunk, false).await.map_err(|_| Interrupted::ClientGone)?;
                }
                Ok(None) => {
                    self.account.release(self.slot);
                    self.end(Bytes::new()).await?;
                    return Ok(reusable);
                }
                Err(broken) => {
                    let error = match broken {
                        Broken::Silent(limit) => {
                            let limit = limit.as_secs_f64();
                            late(self.model, &format!("was silent for {limit} s in the middle of its answer"))
                        }
                        Broken::Off => self.why("broke off in the middle of its answer").await,
                        Broken::Failed(failure) => ApiError::bad_gateway(failure.to_string()),
                    };
                    self.account.release(self.slot);
                    if !can_append {
                        return Err(Interrupted::BrokenOff(error));
                    }
                    self.account.failed(&error);
                    let event = error.to_event(self.account.dialect, self.account.id());
                    self.end(format!("{}{event}", at_line_start.blank_line()).into()).await?;
                    return Ok(false);
                }
            }
        }
    }

    /// The last piece of the answer, which may be empty.
    async fn end(&mut self, last: Bytes) -> Result<(), Interrupted> {
        self.session.write_response_body(last, true).await.map_err(|_| Interrupted::ClientGone)
    }

    /// Waits for `work`, unless the client or the model server goes away first.
    async fn unless_gone<T>(&mut self, work: Pin<&mut impl Future<Output = T>>) -> Result<T, Interrupted> {
        let Some(slot) = &*self.slot else { return Err(Interrupted::ClientGone) };
        tokio::select! {
            biased;
            done = work => Ok(done),
            _ = self.session.read_body_or_idle(true) => Err(Interrupted::ClientGone),
            failure = slot.failure() => {
                let error = ApiError::bad_gateway(failure.to_string());
                Err(Interrupted::Lost { error, may_have_arrived: true })
            }
        }
    }

    /// In the supervisor's words where it has some.
    async fn why(&self, what: &str) -> ApiError {
        let failure = match &*self.slot {
            Some(slot) if self.model.launch.is_some() => {
                tokio::time::timeout(REASON_PATIENCE, slot.failure()).await.ok()
            }
            _ => None,
        };
        ApiError::bad_gateway(match failure {
            Some(failure) => failure.to_string(),
            None => format!("the model server of `{}` {what}", self.model.id),
        })
    }
}

/// Why an answer does not go on.
enum Broken {
    /// The connection broke off.
    Off,
    /// Its server has failed.
    Failed(Failure),
    /// Nothing came for so long.
    Silent(Duration),
}

/// Why there is no answer.
#[derive(Debug)]
enum Failed {
    /// The server never had the whole header. What happened is for the log.
    Unsent(#[expect(dead_code, reason = "printed by Debug")] Box<pingora::Error>),
    /// The server may have read the request.
    Unanswered(#[expect(dead_code, reason = "printed by Debug")] Box<pingora::Error>),
    /// The server takes too long.
    Late(ApiError),
}

/// Sends a request and reads the answer's header.
async fn attempt(http: &mut HttpSession, header: Box<RequestHeader>, body: Bytes, model: &Model) -> Result<(), Failed> {
    http.write_request_header(header).await.map_err(Failed::Unsent)?;
    match send_body(http, body).await {
        Err(error) if *error.etype() == ErrorType::WriteTimedout => return Err(failed(http, error)),
        // A server that does not want all of a body says why and closes; what it said is there to be read.
        Ok(()) | Err(_) => {}
    }
    match model.timeouts.response_header {
        None => read_header(http).await.map_err(|error| failed(http, error)),
        Some(limit) => match tokio::time::timeout(limit, read_header(http)).await {
            Ok(read) => read.map_err(|error| failed(http, error)),
            Err(_) => Err(Failed::Late(late(model, &format!("did not answer within {} s", limit.as_secs_f64())))),
        },
    }
}

/// What a model server did not do within its time.
fn late(model: &Model, what: &str) -> ApiError {
    let message = format!("the model server of `{}` {what}", model.id);
    ApiError::new(StatusCode::GATEWAY_TIMEOUT, "model_server_timeout", message)
}

/// Resolves when a server has been silent for as long as it may be, if there is such a limit.
async fn silence(limit: Option<Duration>) -> Duration {
    match limit {
        Some(limit) => {
            tokio::time::sleep(limit).await;
            limit
        }
        None => std::future::pending().await,
    }
}

fn failed(http: &HttpSession, error: Box<pingora::Error>) -> Failed {
    if is_header_unsent(http) { Failed::Unsent(error) } else { Failed::Unanswered(error) }
}

async fn send_body(http: &mut HttpSession, body: Bytes) -> pingora::Result<()> {
    for piece in body.chunks(WRITE_PIECE) {
        http.write_body(piece).await?;
    }
    http.finish_body().await.map(drop)
}

async fn read_header(http: &mut HttpSession) -> pingora::Result<()> {
    loop {
        http.read_response().await?;
        match http.get_status() {
            Some(StatusCode::SWITCHING_PROTOCOLS) => {
                return pingora::Error::e_explain(ErrorType::InvalidHTTPHeader, "switched protocols unasked");
            }
            // What comes before the real header is about the connection that it came over.
            Some(status) if status.is_informational() => {}
            _ => return Ok(()),
        }
    }
}

/// Whether a stream of events stands at the start of a line or of an event.
#[derive(Default)]
struct LineStart {
    line_feeds: usize,
    begun: bool,
}

impl LineStart {
    fn follow(&mut self, chunk: &[u8]) {
        let ending =
            chunk.iter().rev().filter(|byte| **byte != b'\r').take_while(|byte| **byte == b'\n').take(2).count();
        let only = chunk.iter().all(|byte| matches!(byte, b'\n' | b'\r'));
        self.line_feeds = if only { self.line_feeds + ending } else { ending };
        self.begun |= !chunk.is_empty();
    }

    /// What ends the event that is under way, so that what follows is one of its own.
    fn blank_line(&self) -> &'static str {
        match self.line_feeds {
            _ if !self.begun => "",
            0 => "\n\n",
            1 => "\n",
            _ => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;
    use crate::proxy::{testing, upstream};

    /// One attempt to ask a server that does `serve` with its end of the connection.
    async fn ask<F: Future<Output = ()>>(body: usize, serve: impl FnOnce(DuplexStream) -> F) -> Result<(), Failed> {
        // Smaller than any header: one that is written whole has been read from.
        let (near, far) = tokio::io::duplex(16);
        let mut http = upstream::session(upstream::corked(Box::new(near)));
        let mut header = RequestHeader::build(Method::POST, b"/v1/completions", None).expect("a header");
        header.insert_header(header::CONTENT_LENGTH, body).expect("a header");
        let model = testing::model("m");
        let attempt = attempt(&mut http, Box::new(header), Bytes::from(vec![b' '; body]), &model);
        tokio::join!(attempt, serve(far)).0
    }

    async fn read(server: &mut DuplexStream, bytes: usize) {
        server.read_exact(&mut vec![0; bytes]).await.expect("a request");
    }

    const HEADER: usize = "POST /v1/completions HTTP/1.1\r\nContent-Length: 9\r\n\r\n".len();

    #[tokio::test]
    async fn without_a_whole_header_nothing_can_have_been_done() {
        assert!(matches!(ask(9, async |server| drop(server)).await, Err(Failed::Unsent(_))));
        let half = ask(9, async |mut server| read(&mut server, HEADER / 2).await).await;
        assert!(matches!(half, Err(Failed::Unsent(_))), "{half:?}");
    }

    #[tokio::test]
    async fn with_a_whole_header_anything_can_have_been_done() {
        let header = ask(9, async |mut server| read(&mut server, HEADER).await).await;
        assert!(matches!(header, Err(Failed::Unanswered(_))), "{header:?}");
        let all = ask(9, async |mut server| read(&mut server, HEADER + 9).await).await;
        assert!(matches!(all, Err(Failed::Unanswered(_))), "{all:?}");
        let half_an_answer = ask(9, async |mut server| {
            read(&mut server, HEADER + 9).await;
            server.write_all(b"HTTP/1.1 200").await.expect("it is taken");
        });
        assert!(matches!(half_an_answer.await, Err(Failed::Unanswered(_))));
    }

    #[tokio::test]
    async fn what_comes_before_the_answer_is_passed_over() {
        let answered = ask(9, async |mut server| {
            read(&mut server, HEADER + 9).await;
            for part in ["HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 103 Early Hints\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n"]
            {
                server.write_all(part.as_bytes()).await.expect("it is taken");
            }
        });
        assert!(answered.await.is_ok());
        let switched = ask(9, async |mut server| {
            read(&mut server, HEADER + 9).await;
            server.write_all(b"HTTP/1.1 101 Switching Protocols\r\n\r\n").await.expect("it is taken");
        });
        assert!(matches!(switched.await, Err(Failed::Unanswered(_))));
    }

    #[test]
    fn an_event_under_way_is_ended_first() {
        for (chunks, expected) in [
            (&[][..], ""),
            (&["data: a\n\n"], ""),
            (&["data: a\r\n\r\n"], ""),
            (&["data: a\n"], "\n"),
            (&["data: a"], "\n\n"),
            (&["data: a\n", "\n"], ""),
            (&["data: a\n\n", "data: b"], "\n\n"),
        ] {
            let mut position = LineStart::default();
            chunks.iter().for_each(|chunk| position.follow(chunk.as_bytes()));
            assert_eq!(position.blank_line(), expected, "{chunks:?}");
        }
    }
}
