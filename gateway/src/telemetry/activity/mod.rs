//! The activity log: a row for each request in SQLite, and the answer to "why did it wait".
//!
//! Rows are written by one thread, out of a bounded channel: the request's path never waits for the disk, and a
//! disk that is full or gone costs rows, never requests. In memory, rows get into a table when somebody asks for them.

mod explain;
mod query;
mod record;
mod store;
mod story;
mod writer;

use std::{
    fmt,
    sync::{
        Arc,
        mpsc::{SyncSender, sync_channel},
    },
    thread::{self, Thread},
    time::Duration,
};

use prometheus::IntCounter;

pub use explain::{Explanation, Group, LogExtent, Neighbour, PassedBy, Reason, Term};
pub use query::{Filter, FilterError, Order, Page};
pub use record::ActivityRecord;
pub use store::OpenError;

use crate::config::Store;
use store::Location;
use writer::{Message, Writer};

/// Rows that can wait for the writer; more are dropped and counted.
const CHANNEL: usize = 8192;
/// How long a query waits for rows on their way to be written, before it does without.
const FRESHNESS_PATIENCE: Duration = Duration::from_secs(1);

/// The activity log. Cheap to clone; the writer ends, having written what it had, when the last clone is dropped.
#[derive(Clone)]
pub struct ActivityLog {
    inner: Arc<Inner>,
}

struct Inner {
    messages: SyncSender<Message>,
    writer: Thread,
    location: Location,
    keep_rows: u64,
    dropped: IntCounter,
}

/// The log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// By SQLite.
    #[error("cannot read the activity log: {0}")]
    Database(#[from] rusqlite::Error),
    /// The reading thread died.
    #[error("reading the activity log was broken off")]
    Aborted,
}

impl ActivityLog {
    /// Opens the file, or creates it and its folders; without a path the log is kept in memory.
    ///
    /// # Errors
    /// When the file cannot be opened for writing, or is not an activity log.
    pub fn open(store: &Store) -> Result<Self, OpenError> {
        let location = Location::new(store.path.as_deref());
        let connection = location.open_writer()?;
        let dropped = IntCounter::new(
            "switchyard_activity_dropped_total",
            "Rows that the activity log lost because they came too fast or could not be written.",
        )
        .expect("a constant name is valid");
        let (messages, received) = sync_channel(CHANNEL);
        let writer = Writer::new(location.clone(), connection, store.rows, dropped.clone());
        let writer = thread::Builder::new()
            .name("activity-log".to_owned())
            .spawn(move || writer.run(received))
            .map_err(|error| OpenError {
                path: store.path.clone().unwrap_or_else(|| ":memory:".into()),
                reason: format!("cannot start its thread: {error}"),
            })?;
        let writer = writer.thread().clone();
        Ok(Self { inner: Arc::new(Inner { messages, writer, location, keep_rows: store.rows.max(1), dropped }) })
    }

    /// Hands a row to the writer. Never waits: a row that does not fit is dropped and counted.
    pub fn record(&self, record: ActivityRecord) {
        if self.inner.messages.try_send(Message::Row(Box::new(record))).is_err() {
            self.inner.dropped.inc();
        }
    }

    /// Rows lost so far.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.inner.dropped.get()
    }

    /// The same, for the metrics.
    pub(super) fn dropped_counter(&self) -> IntCounter {
        self.inner.dropped.clone()
    }

    /// Returns when every row recorded before has been written, or could not be.
    pub async fn flush(&self) {
        self.ask(Message::Flush).await;
    }

    /// The same, and closes the database: rows that are recorded later are dropped.
    pub async fn close(&self) {
        self.ask(Message::Close).await;
    }

    async fn ask(&self, message: fn(SyncSender<()>) -> Message) {
        let inner = Arc::clone(&self.inner);
        let _ = tokio::task::spawn_blocking(move || inner.ask(message, None)).await;
    }

    /// The rows that match, up to the limit; every row recorded before is considered.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn query(&self, filter: Filter) -> Result<Page, QueryError> {
        self.read(move |connection, _| query::run(connection, &filter)).await
    }

    /// Why a request waited and how it ended; `None` when the log has no row of that id.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn explain(&self, id: &str) -> Result<Option<Explanation>, QueryError> {
        let id = id.to_owned();
        self.read(move |connection, keep_rows| explain::run(connection, &id, keep_rows)).await
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&rusqlite::Connection, u64) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, QueryError> {
        let inner = Arc::clone(&self.inner);
        let reading = tokio::task::spawn_blocking(move || {
            inner.ask(Message::Flush, Some(FRESHNESS_PATIENCE));
            let connection = inner.location.open_reader()?;
            read(&connection, inner.keep_rows)
        });
        Ok(reading.await.map_err(|_| QueryError::Aborted)??)
    }
}

impl Inner {
    /// Blocks until the writer has done it, or patience runs out.
    fn ask(&self, message: fn(SyncSender<()>) -> Message, patience: Option<Duration>) {
        let (done, written) = sync_channel(1);
        let sent = match patience {
            Some(_) => self.messages.try_send(message(done)).is_ok(),
            None => self.messages.send(message(done)).is_ok(),
        };
        if sent {
            self.writer.unpark();
            // An error means that the writer is gone or too slow; there is nothing more to wait for.
            let _ = match patience {
                Some(patience) => written.recv_timeout(patience).is_ok(),
                None => written.recv().is_ok(),
            };
        }
    }
}

impl fmt::Debug for ActivityLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActivityLog").field("location", &self.inner.location).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
