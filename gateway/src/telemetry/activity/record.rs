//! The row of the activity log.

use std::borrow::Cow;

use rusqlite::{Row, ToSql};

/// One request's row in the activity log, written once when it has ended, however it ended.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct ActivityRecord {
    /// `x-request-id`, the client's own where it sent one.
    pub id: String,
    /// The scheduler's number; 0 for a request that never reached it.
    pub seq: u64,
    /// Unix time in milliseconds at which it arrived.
    pub arrived_ms: i64,
    /// Unix time in milliseconds at which it was dispatched.
    pub dispatched_ms: Option<i64>,
    /// Unix time in milliseconds at which it ended.
    pub ended_ms: i64,
    /// The path without its query.
    pub path: Cow<'static, str>,
    /// The model's id after aliases; as asked when unknown.
    pub model: String,
    /// The tenant, where known.
    pub tenant: Option<String>,
    /// Its caller's tier, where known.
    pub tier: Option<String>,
    /// The priority as understood.
    pub serial_priority: i64,
    /// What the caller's priority header said, where it could not be read.
    pub unread_priority: Option<Box<str>>,
    /// Its band.
    pub serial_band: Cow<'static, str>,
    /// The score at dispatch; the priority alone when it never was.
    pub serial_score: f64,
    /// Milliseconds from arrival to dispatch, or to the end when it never was.
    pub serial_queue_wait_ms: i64,
    /// Points for a ready model.
    pub affinity: i64,
    /// Points for having waited.
    pub aging: f64,
    /// Points of the model.
    pub model_priority: i64,
    /// Milliseconds of the wait in which its model was made ready for it.
    pub swap_ms: Option<i64>,
    /// Who would have gone in its place without aging.
    pub passed_by_aging: Option<u64>,
    /// Who would have gone in its place without swap affinity.
    pub passed_by_affinity: Option<u64>,
    /// The replica that it went to.
    pub replica: Option<u32>,
    /// What chose its tenant (`flow`).
    pub fairness: Option<Cow<'static, str>>,
    /// How far after the latest turn before it its tenant's turn was: in turns, or in weighted tokens over its share.
    pub fairness_ahead: Option<f64>,
    /// How full the model's replicas were when it was dispatched or refused, from 0.
    pub saturation: Option<f64>,
    /// The saturation at which it would have had to wait.
    pub ceiling: Option<f64>,
    /// `dispatched`, or the scheduler's outcome, or `cancelled`, or `invalid` for one refused before the queue.
    pub outcome: Cow<'static, str>,
    /// The HTTP status sent; 0 when the client left before one was.
    pub status: u16,
    /// Milliseconds from dispatch to the first byte of the answer's body.
    pub first_byte_ms: Option<i64>,
    /// Milliseconds from arrival to the end.
    pub duration_ms: i64,
    /// Whether the answer was streamed as server-sent events.
    pub stream: bool,
    /// Tokens in, as the model server reports.
    pub prompt_tokens: Option<i64>,
    /// Tokens out, as the model server reports.
    pub completion_tokens: Option<i64>,
    /// Bytes of the request's body.
    pub request_bytes: i64,
    /// Bytes of the answer's body.
    pub response_bytes: i64,
    /// What went wrong, where something did.
    pub error: Option<String>,
}

/// Ties the columns of the table to the fields of the same names.
macro_rules! columns {
    ($($name:ident),+ $(,)?) => {
        /// Every column that is a field, in one order.
        pub(super) const COLUMNS: &[&str] = &[$(stringify!($name)),+];

        impl ActivityRecord {
            /// The row's number, and the values of [`COLUMNS`].
            pub(super) fn values<'a>(&'a self, row: &'a i64) -> [&'a dyn ToSql; 1 + COLUMNS.len()] {
                [row, $(&self.$name),+]
            }

            /// Reads a row that has at least [`COLUMNS`].
            pub(super) fn from_row(row: &Row<'_>) -> rusqlite::Result<Self> {
                Ok(Self { $($name: row.get(stringify!($name))?),+ })
            }
        }
    };
}

columns! {
    id, seq, arrived_ms, dispatched_ms, ended_ms, path, model, tenant, tier, serial_priority, serial_band, serial_score,
    serial_queue_wait_ms, affinity, aging, model_priority, swap_ms, passed_by_aging, passed_by_affinity, replica, fairness,
    unread_priority, fairness_ahead, saturation, ceiling, outcome, status, first_byte_ms, duration_ms, stream, prompt_tokens, completion_tokens, request_bytes, response_bytes, error,
}
