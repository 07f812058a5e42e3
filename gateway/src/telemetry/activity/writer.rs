//! The thread that writes the rows.

use std::{
    collections::VecDeque,
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender},
    thread,
    time::{Duration, Instant},
};

use prometheus::IntCounter;
use rusqlite::{Connection, TransactionBehavior, named_params, params_from_iter};

use super::{
    record::{ActivityRecord, COLUMNS},
    store::{self, Location},
};

/// How long rows gather before they are written, so that a busy gateway pays for one wake-up and one commit, not
/// for one a request.
const GATHER: Duration = Duration::from_millis(20);
/// Rows in one transaction.
const BATCH: usize = 256;
/// Rows held back while the database cannot be written; more are dropped, the oldest first.
pub(super) const MAX_PENDING: usize = 10_000;
/// Rows of a log in memory that wait for somebody to ask for them, if it keeps more than can wait.
const MAX_LAZY: usize = MAX_PENDING / 2;
/// The pause between two tries to write what could not be written.
const RETRY: Duration = Duration::from_secs(1);
/// The pause between two warnings.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// What the writer is asked to do.
pub(super) enum Message {
    /// Write a row. Boxed, so that the channel's buffer stays small.
    Row(Box<ActivityRecord>),
    /// Say when everything sent before has been written, or tried.
    Flush(SyncSender<()>),
    /// Write what is left, close the database, say so, and end.
    Close(SyncSender<()>),
    /// Do something to the connection.
    #[cfg(test)]
    Tamper(Box<dyn FnOnce(&Connection) + Send>),
}

pub(super) struct Writer {
    location: Location,
    /// `None` after a failure that a new connection may cure.
    connection: Option<Connection>,
    insert: String,
    keep_rows: usize,
    /// Rows that wait until somebody asks for them. In memory they are as safe here as in a table, which costs a good
    /// deal more, and most of them are never asked for.
    lazy_rows: usize,
    pending: VecDeque<Box<ActivityRecord>>,
    /// Rows since the last write that so many came after that they would have been deleted at once.
    skipped: i64,
    dropped: IntCounter,
    /// When to try again, after a failure.
    retry_at: Option<Instant>,
    warned_at: Option<Instant>,
    closing: bool,
}

impl Writer {
    pub(super) fn new(location: Location, connection: Connection, keep_rows: u64, dropped: IntCounter) -> Self {
        let keep_rows = usize::try_from(keep_rows.max(1)).unwrap_or(usize::MAX);
        let lazy_rows = match location {
            Location::File(_) => 0,
            // No more than that ever wait.
            Location::Memory(_) if keep_rows <= MAX_PENDING => keep_rows,
            Location::Memory(_) => MAX_LAZY,
        };
        let places = vec!["?"; COLUMNS.len()].join(", ");
        Self {
            location,
            connection: Some(connection),
            insert: format!("INSERT INTO activity (row, {}) VALUES (?, {places})", COLUMNS.join(", ")),
            keep_rows,
            lazy_rows,
            pending: VecDeque::new(),
            skipped: 0,
            dropped,
            retry_at: None,
            warned_at: None,
            closing: false,
        }
    }

    /// Writes until it is closed or every sender is gone, and then what is left.
    pub(super) fn run(mut self, messages: Receiver<Message>) {
        let mut flushed = Vec::new();
        loop {
            let first = match self.retry_at {
                None => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => messages.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match first {
                Ok(message) => self.take(message, &mut flushed),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.write(),
            }
            if flushed.is_empty() {
                // A flush ends this early.
                thread::park_timeout(GATHER);
            }
            for message in messages.try_iter().take(MAX_PENDING) {
                self.take(message, &mut flushed);
            }
            if !flushed.is_empty() || self.is_due() {
                self.write();
            }
            if self.closing {
                break;
            }
            flushed.drain(..).for_each(tell);
        }
        drop(messages);
        // The last connection to a file folds its write-ahead log into it.
        drop(self.connection);
        flushed.into_iter().for_each(tell);
    }

    fn take(&mut self, message: Message, flushed: &mut Vec<SyncSender<()>>) {
        match message {
            Message::Row(record) => {
                self.pending.push_back(record);
                if self.pending.len() > self.keep_rows {
                    self.pending.pop_front();
                    self.skipped += 1;
                } else if self.pending.len() > MAX_PENDING {
                    self.pending.pop_front();
                    self.dropped.inc();
                }
            }
            Message::Flush(done) => flushed.push(done),
            Message::Close(done) => {
                flushed.push(done);
                self.closing = true;
            }
            #[cfg(test)]
            Message::Tamper(tamper) => {
                if let Some(connection) = &self.connection {
                    tamper(connection);
                }
            }
        }
    }

    /// Whether it is time to write though nobody has asked.
    fn is_due(&self) -> bool {
        match self.retry_at {
            Some(at) => at <= Instant::now(),
            None => self.pending.len() > self.lazy_rows,
        }
    }

    /// Writes everything pending, or as much as can be written.
    fn write(&mut self) {
        while !self.pending.is_empty() {
            let rows = self.pending.len().min(BATCH);
            match self.write_batch(rows) {
                Ok(()) => {
                    self.pending.drain(..rows);
                    if self.retry_at.take().is_some() {
                        self.warned_at = None;
                        tracing::info!("the activity log is written again");
                    }
                }
                Err(Failure::Database(error)) if !store::may_pass(&error) => {
                    // It is these rows that the database will not have: keeping them would hold up all others.
                    self.pending.drain(..rows);
                    self.dropped.inc_by(rows as u64);
                    self.warn(&error);
                }
                Err(failure) => {
                    if let (Location::File(_), Failure::Database(error)) = (&self.location, &failure)
                        && store::needs_reopening(error)
                    {
                        self.connection = None;
                    }
                    self.retry_at = Some(Instant::now() + RETRY);
                    self.warn(&failure);
                    return;
                }
            }
        }
    }

    fn write_batch(&mut self, rows: usize) -> Result<(), Failure> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(self.location.open_writer()?),
        };
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        {
            // Those that were skipped count as written and deleted.
            let newest = "SELECT coalesce(max(row), 0) FROM activity";
            let newest: i64 = transaction.prepare_cached(newest)?.query_row([], |row| row.get(0))?;
            let mut insert = transaction.prepare_cached(&self.insert)?;
            for (row, record) in (newest + self.skipped + 1..).zip(self.pending.iter().take(rows)) {
                insert.execute(params_from_iter(record.values(&row)))?;
            }
            // Numbers have no gaps: only the oldest are ever deleted.
            transaction
                .prepare_cached("DELETE FROM activity WHERE row <= (SELECT max(row) FROM activity) - :rows")?
                .execute(named_params! { ":rows": i64::try_from(self.keep_rows).unwrap_or(i64::MAX) })?;
        }
        transaction.commit()?;
        self.skipped = 0;
        Ok(())
    }

    fn warn(&mut self, why: &dyn std::fmt::Display) {
        if self.warned_at.is_some_and(|at| at.elapsed() < WARN_EVERY) {
            return;
        }
        self.warned_at = Some(Instant::now());
        tracing::warn!(
            waiting = self.pending.len(),
            dropped = self.dropped.get(),
            "cannot write the activity log: {why}; up to {MAX_PENDING} rows wait in memory, then the oldest are dropped"
        );
    }
}

fn tell(done: SyncSender<()>) {
    // Whoever asked may have lost patience.
    let _ = done.try_send(());
}

/// Why a batch was not written.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Open(#[from] super::OpenError),
    #[error(transparent)]
    Database(#[from] rusqlite::Error),
}
