//! What model servers print: the last bytes of each, kept over restarts, and a live stream.

use std::{collections::BTreeMap, collections::VecDeque, sync::Arc};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, future, stream};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader},
    sync::broadcast,
};
use tokio_stream::wrappers::{BroadcastStream, errors::BroadcastStreamRecvError};

/// A longer line is split.
const MAX_LINE: u64 = 8 << 10;
/// Lines that a slow reader of the live stream may fall behind before it misses some.
const MAX_LAG: usize = 256;
/// Begins a line of the gateway's own.
const NOTE: &str = "[switchyard] ";
/// How much of the log a failure's message quotes.
const EXCERPT_LINES: usize = 20;
const EXCERPT_BYTES: usize = 2 << 10;

/// The output of all model servers. Cheap to clone.
#[derive(Clone)]
pub struct Logs {
    shared: Arc<Shared>,
}

struct Shared {
    capacity: usize,
    /// Everything, each line with its model's id before it.
    all: Arc<Ring>,
    models: Mutex<BTreeMap<String, Arc<Ring>>>,
}

impl Logs {
    pub(super) fn new(capacity: usize) -> Self {
        let shared = Shared { capacity, all: Arc::new(Ring::new(capacity)), models: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// The last lines that the model printed; empty when it never ran.
    #[must_use]
    pub fn tail(&self, model: &str) -> Bytes {
        self.shared.models.lock().get(model).map_or_else(Bytes::new, |ring| ring.since(0))
    }

    /// The last lines of all models together.
    #[must_use]
    pub fn tail_all(&self) -> Bytes {
        self.shared.all.since(0)
    }

    /// The last lines of the model, then what it prints from now on, line by line. A reader that is too slow is told
    /// how many lines it missed. Takes room for any name: check that the model is configured.
    pub fn subscribe(&self, model: &str) -> impl Stream<Item = Bytes> + Send + use<> {
        self.ring(model).subscribe()
    }

    /// As [`Logs::subscribe`], of all models together.
    pub fn subscribe_all(&self) -> impl Stream<Item = Bytes> + Send + use<> {
        self.shared.all.subscribe()
    }

    /// Forgets the models that are not to be kept; their streams end.
    pub(super) fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.shared.models.lock().retain(|model, _| keep(model));
    }

    /// For one run of a model server.
    pub(super) fn writer(&self, model: &str) -> LogWriter {
        let mut writer =
            LogWriter { model: model.into(), ring: self.ring(model), all: Arc::clone(&self.shared.all), start: 0 };
        writer.begin();
        writer
    }

    fn ring(&self, model: &str) -> Arc<Ring> {
        let mut models = self.shared.models.lock();
        let ring = models.entry(model.to_owned()).or_insert_with(|| Arc::new(Ring::new(self.shared.capacity)));
        Arc::clone(ring)
    }
}

/// Writes what one run of a model server prints.
#[derive(Clone)]
pub(super) struct LogWriter {
    model: Arc<str>,
    ring: Arc<Ring>,
    all: Arc<Ring>,
    /// Where in the ring the output of this run begins.
    start: u64,
}

impl LogWriter {
    /// The excerpt does not reach back beyond this point.
    pub(super) fn begin(&mut self) {
        self.start = self.ring.inner.lock().written;
    }

    /// Copies lines until the other end is closed.
    pub(super) async fn copy(self, output: impl AsyncRead + Unpin) {
        let mut output = BufReader::new(output);
        let mut buffer = Vec::new();
        loop {
            buffer.clear();
            match (&mut output).take(MAX_LINE).read_until(b'\n', &mut buffer).await {
                Ok(0) => return,
                Ok(_) => {
                    // A progress bar returns the carriage instead of ending its line.
                    let text = buffer.strip_suffix(b"\n").unwrap_or(&buffer);
                    let text = text.strip_suffix(b"\r").unwrap_or(text);
                    text.split(|&byte| byte == b'\r').for_each(|line| self.line(line));
                }
                Err(error) => {
                    tracing::debug!(model = %self.model, %error, "cannot read the model server's output");
                    return;
                }
            }
        }
    }

    /// The id of the model.
    pub(super) fn model(&self) -> &str {
        &self.model
    }

    /// A line of the gateway's own between those of the model server.
    pub(super) fn note(&self, text: &str) {
        self.line(format!("{NOTE}{text}").as_bytes());
    }

    /// The last lines of this run without colours, for a failure's message.
    pub(super) fn excerpt(&self) -> String {
        let bytes = self.ring.since(self.start);
        let text = String::from_utf8_lossy(&bytes);
        let text = anstream::adapter::strip_str(&text).to_string();
        let lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty() && !line.starts_with(NOTE));
        let lines: Vec<&str> = lines.collect();
        let text = lines[lines.len().saturating_sub(EXCERPT_LINES)..].join("\n");
        let start = text.ceil_char_boundary(text.len().saturating_sub(EXCERPT_BYTES));
        text[start..].to_owned()
    }

    fn line(&self, line: &[u8]) {
        tracing::debug!(target: "switchyard::model", model = %self.model, "{}", String::from_utf8_lossy(line));
        self.ring.push(&[line, b"\n"]);
        self.all.push(&[self.model.as_bytes(), b"| ", line, b"\n"]);
    }
}

/// The last bytes that were written, cut at a line's start, and a stream of what is written.
pub(crate) struct Ring {
    capacity: usize,
    inner: Mutex<RingInner>,
}

struct RingInner {
    bytes: VecDeque<u8>,
    /// Bytes ever written: the position of the end.
    written: u64,
    live: broadcast::Sender<Bytes>,
}

impl Ring {
    pub(crate) fn new(capacity: usize) -> Self {
        let live = broadcast::Sender::new(MAX_LAG);
        Self { capacity, inner: Mutex::new(RingInner { bytes: VecDeque::new(), written: 0, live }) }
    }

    pub(crate) fn push(&self, parts: &[&[u8]]) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        for part in parts {
            inner.bytes.extend(*part);
            inner.written += part.len() as u64;
        }
        // The last byte that has to go; the rest of its line goes too.
        if let Some(last) = inner.bytes.len().checked_sub(self.capacity + 1) {
            let rest = inner.bytes.range(last..).position(|&byte| byte == b'\n');
            let keep_from = rest.map_or(inner.bytes.len(), |rest| last + rest + 1);
            inner.bytes.drain(..keep_from);
        }
        if inner.live.receiver_count() > 0 {
            // The last receiver may leave meanwhile.
            let _ = inner.live.send(parts.concat().into());
        }
    }

    /// What was written from the position on, as far as it is still there.
    pub(crate) fn since(&self, position: u64) -> Bytes {
        self.inner.lock().since(position)
    }

    pub(crate) fn subscribe(&self) -> impl Stream<Item = Bytes> + Send + use<> {
        let (history, live) = {
            let inner = self.inner.lock();
            (inner.since(0), inner.live.subscribe())
        };
        let live = BroadcastStream::new(live).map(|line| match line {
            Ok(line) => line,
            Err(BroadcastStreamRecvError::Lagged(lines)) => {
                format!("{NOTE}{lines} lines were too fast for this reader\n").into()
            }
        });
        stream::once(future::ready(history)).filter(|history| future::ready(!history.is_empty())).chain(live)
    }
}

impl RingInner {
    fn since(&self, position: u64) -> Bytes {
        let start = self.written - self.bytes.len() as u64;
        let skip = usize::try_from(position.saturating_sub(start)).unwrap_or(usize::MAX).min(self.bytes.len());
        let (head, tail) = self.bytes.as_slices();
        let (head, tail) =
            if skip < head.len() { (&head[skip..], tail) } else { (&[][..], &tail[skip - head.len()..]) };
        [head, tail].concat().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn written(capacity: usize, output: &[u8]) -> Logs {
        let logs = Logs::new(capacity);
        logs.writer("m").copy(output).await;
        logs
    }

    #[tokio::test]
    async fn keeps_the_last_whole_lines_within_its_bytes() {
        let logs = written(12, b"one\ntwo\nthree\nfour\n").await;
        assert_eq!(logs.tail("m"), "three\nfour\n");
        let logs = written(11, b"one\ntwo\nthree\nfour\n").await;
        assert_eq!(logs.tail("m"), "three\nfour\n");
        let logs = written(10, b"one\ntwo\nthree\nfour\n").await;
        assert_eq!(logs.tail("m"), "four\n");
        assert_eq!(written(3, b"longer\n").await.tail("m"), "");
        assert_eq!(written(9, b"a\nb\n").await.tail_all(), "m| b\n");
        assert_eq!(written(9, b"").await.tail("other"), "");
    }

    #[tokio::test]
    async fn any_flood_stays_within_its_bytes() {
        let flood: Vec<u8> = (0..200_000u32).map(|n| if n % 977 == 0 { b'\n' } else { b'x' }).collect();
        let logs = written(4096, &flood).await;
        let tail = logs.tail("m");
        assert!(tail.len() <= 4096 && tail.len() > 3000, "{}", tail.len());
        assert!(logs.shared.all.inner.lock().bytes.len() <= 4096);
    }

    #[tokio::test]
    async fn splits_what_does_not_end() {
        let mut output = vec![b'x'; 3 * MAX_LINE as usize];
        output.extend(b"\r\nend");
        let tail = written(1 << 20, &output).await.tail("m");
        assert_eq!(tail.split(|&byte| byte == b'\n').map(<[u8]>::len).max(), Some(MAX_LINE as usize));
        assert!(tail.ends_with(b"\nend\n"));
        assert_eq!(written(99, b"10%\r20%\r\n\ndone").await.tail("m"), "10%\n20%\n\ndone\n");
    }

    #[tokio::test]
    async fn an_excerpt_is_short_clean_and_of_this_run() {
        let logs = written(1 << 20, b"before\n").await;
        let writer = logs.writer("m");
        assert_eq!(writer.excerpt(), "");
        writer.clone().copy(&b"\x1b[31mred\x1b[0m \xff\n\n"[..]).await;
        writer.note("a word of the gateway");
        assert_eq!(writer.excerpt(), "red \u{fffd}");
        writer.clone().copy("a line of some words\n".repeat(50).as_bytes()).await;
        assert_eq!(writer.excerpt().lines().count(), EXCERPT_LINES);
        writer.clone().copy("é".repeat(5000).as_bytes()).await;
        assert!(writer.excerpt().len() <= EXCERPT_BYTES);
    }

    #[tokio::test]
    async fn a_stream_begins_with_the_history_and_tells_gaps() {
        let logs = written(100, b"old\n").await;
        let mut stream = Box::pin(logs.subscribe("m"));
        let mut all = Box::pin(logs.subscribe_all());
        let writer = logs.writer("m");
        writer.line(b"new");
        assert_eq!(stream.next().await.unwrap(), "old\n");
        assert_eq!(stream.next().await.unwrap(), "new\n");
        assert_eq!(all.next().await.unwrap(), "m| old\n");
        assert_eq!(all.next().await.unwrap(), "m| new\n");
        (0..MAX_LAG + 7).for_each(|_| writer.line(b"x"));
        assert!(stream.next().await.unwrap().starts_with(b"[switchyard] 7 lines"));
        assert_eq!(stream.next().await.unwrap(), "x\n");
        drop(writer);
        logs.retain(|_| false);
        assert_eq!(stream.count().await, MAX_LAG - 1, "the stream ends");
    }
}
