//! Why a request waited: what ran when it arrived, who went first and why, and how it ended.
//!
//! Every row tells the terms of its own score. Who went before whom, and for which of the terms, follows from
//! comparing two rows at the moment when the first of them was dispatched.

use rusqlite::{Connection, OptionalExtension, named_params};
use serde::Serialize;

use super::{
    record::{ActivityRecord, COLUMNS},
    story,
};

/// Requests named for each reason; the rest are only counted.
const EXAMPLES: usize = 20;
/// Requests looked at for one explanation.
const MAX_ROWS: u32 = 100_000;

/// The answer to "why did it wait".
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The request's id.
    pub id: String,
    /// The whole answer in sentences.
    pub summary: Vec<String>,
    /// The request's own row.
    pub request: ActivityRecord,
    /// What ran when it arrived.
    pub running_on_arrival: Vec<Neighbour>,
    /// Who was dispatched while it waited, by reason.
    pub went_first: Vec<Group>,
    /// Whom it went ahead of because of a term of its score.
    pub passed_by: Vec<PassedBy>,
    /// How much of the past the log still holds.
    pub log: LogExtent,
}

/// Another request, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Neighbour {
    /// Its id.
    pub id: String,
    /// The scheduler's number.
    pub seq: u64,
    /// Its model.
    pub model: String,
    /// Its priority.
    pub serial_priority: i64,
    /// Its score when it was dispatched.
    pub serial_score: f64,
    /// Unix time in milliseconds at which it arrived.
    pub arrived_ms: i64,
    /// Unix time in milliseconds at which it was dispatched.
    pub dispatched_ms: Option<i64>,
    /// Unix time in milliseconds at which it ended.
    pub ended_ms: i64,
}

/// Requests that went first for the same reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// Why they did.
    pub reason: Reason,
    /// How many they are.
    pub count: usize,
    /// Their lowest priority.
    pub lowest_priority: i64,
    /// Their highest priority.
    pub highest_priority: i64,
    /// The first of them.
    pub requests: Vec<Neighbour>,
}

/// Why another request went first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Its priority, with the model's, was higher.
    MoreUrgent,
    /// Equally urgent, and there before.
    ArrivedEarlier,
    /// Equally urgent, and of a tenant that had had less.
    FairShare,
    /// Equally urgent, of the same tenant, and due sooner.
    DueSooner,
    /// Less urgent, but it had waited longer.
    WaitedLonger,
    /// Its model was loaded already.
    WarmModel,
    /// Its turn had come before: its model was loaded for it.
    AlreadyChosen,
    /// It ran on another model while this request's was being loaded.
    WhileLoading,
    /// It ran on room that this request could not use.
    Beside,
}

/// A term of the score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Term {
    /// Points for having waited.
    Aging,
    /// Points for a ready model.
    SwapAffinity,
}

/// A request that would have gone in its place without one term of the score.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PassedBy {
    /// The term.
    pub term: Term,
    /// The other's number.
    pub seq: u64,
    /// The other, where it has ended and is still in the log.
    pub request: Option<Neighbour>,
}

/// How much of the past the log holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LogExtent {
    /// Rows in the log.
    pub rows: u64,
    /// Rows that it keeps.
    pub keeps: u64,
    /// Unix time in milliseconds at which the request of its oldest row ended.
    pub oldest_ended_ms: i64,
    /// Every request that has ended since this one arrived is in it.
    pub complete: bool,
}

/// Reads what is needed and puts the answer together.
pub(super) fn run(connection: &Connection, id: &str, keeps: u64) -> rusqlite::Result<Option<Explanation>> {
    let columns = COLUMNS.join(", ");
    let own = connection
        .query_row(
            &format!("SELECT row, {columns} FROM activity WHERE id = ? ORDER BY row DESC LIMIT 1"),
            [id],
            |row| Ok((row.get("row")?, ActivityRecord::from_row(row)?)),
        )
        .optional()?;
    let Some((row, request)) = own else { return Ok(None) };

    let log = extent(connection, keeps, wait(&request).0)?;
    let (running_on_arrival, went_first) = neighbours(connection, row, &request)?;
    let passed_by = [(Term::Aging, request.passed_by_aging), (Term::SwapAffinity, request.passed_by_affinity)];
    let passed_by = passed_by
        .into_iter()
        .filter_map(|(term, seq)| Some((term, seq?)))
        .map(|(term, seq)| Ok(PassedBy { term, seq, request: waiting_with(connection, &request, seq)? }))
        .collect::<rusqlite::Result<Vec<_>>>()?;

    let mut explanation = Explanation {
        id: request.id.clone(),
        summary: Vec::new(),
        request,
        running_on_arrival,
        went_first,
        passed_by,
        log,
    };
    explanation.summary = story::tell(&explanation);
    Ok(Some(explanation))
}

/// What ran when the request arrived, and who was dispatched while it waited.
fn neighbours(
    connection: &Connection,
    own_row: i64,
    request: &ActivityRecord,
) -> rusqlite::Result<(Vec<Neighbour>, Vec<Group>)> {
    let columns = COLUMNS.join(", ");
    let (queued, until) = wait(request);
    // Times in milliseconds leave ties: what was dispatched in the same one as this request counts as before it only
    // if it also ended by then. Whoever ended before this one came is of no interest.
    let mut statement = connection.prepare(&format!(
        "SELECT {columns} FROM activity
         WHERE ended_ms >= :queued AND dispatched_ms <= :until AND row <> :own
         ORDER BY dispatched_ms, seq LIMIT {MAX_ROWS}"
    ))?;
    let mut rows = statement.query(named_params! { ":queued": queued, ":until": until, ":own": own_row })?;
    let (mut running, mut groups) = (Vec::new(), Vec::<Group>::new());
    while let Some(row) = rows.next()? {
        let other = ActivityRecord::from_row(row)?;
        let Some(dispatched) = other.dispatched_ms else { continue };
        if dispatched < queued || (dispatched == queued && other.seq < request.seq) {
            if other.ended_ms > queued {
                running.push(Neighbour::from(other));
            }
        } else if dispatched < until || (other.ended_ms <= until && queued < until) {
            let reason = reason(request, &other, dispatched);
            add(&mut groups, reason, other);
        }
    }
    groups.sort_by_key(|group| group.reason);
    Ok((running, groups))
}

fn add(groups: &mut Vec<Group>, reason: Reason, other: ActivityRecord) {
    let priority = other.serial_priority;
    let at = groups.iter().position(|group| group.reason == reason).unwrap_or_else(|| {
        let requests = Vec::new();
        groups.push(Group { reason, count: 0, lowest_priority: priority, highest_priority: priority, requests });
        groups.len() - 1
    });
    let group = &mut groups[at];
    group.count += 1;
    group.lowest_priority = group.lowest_priority.min(priority);
    group.highest_priority = group.highest_priority.max(priority);
    if group.requests.len() < EXAMPLES {
        group.requests.push(Neighbour::from(other));
    }
}

/// When the request entered the queue and when it left it: reading a body or a key comes before the first.
fn wait(request: &ActivityRecord) -> (i64, i64) {
    let until = request.dispatched_ms.unwrap_or(request.ended_ms);
    (until.saturating_sub(request.serial_queue_wait_ms), until)
}

/// Why `other`, dispatched at `dispatched` while `request` waited, went first.
fn reason(request: &ActivityRecord, other: &ActivityRecord, dispatched: i64) -> Reason {
    let urgency = |record: &ActivityRecord| i128::from(record.serial_priority) + i128::from(record.model_priority);
    // Numbers are given in the order of arrival; they start anew with the gateway, but then nobody waits.
    let came_first = other.seq < request.seq;
    if urgency(other) > urgency(request) {
        return Reason::MoreUrgent;
    }
    let is_others_turn =
        other.fairness.as_deref().is_some_and(|fairness| fairness != "global-strict") && other.tenant != request.tenant;
    if urgency(other) == urgency(request) && came_first && !is_others_turn {
        return Reason::ArrivedEarlier;
    }
    if urgency(other) == urgency(request) && other.fairness.is_some() {
        return if is_others_turn { Reason::FairShare } else { Reason::DueSooner };
    }
    // What the other's terms had to make up for: this request's lead in urgency and in points for waiting.
    let waited = (dispatched - wait(request).0) as f64;
    let lead = (urgency(request) - urgency(other)) as f64 + aging_rate(request, other) * waited - other.aging;
    // Both rows have their times in milliseconds, the scheduler compared microseconds.
    const ROUNDING: f64 = 0.01;
    if came_first && lead <= ROUNDING {
        return Reason::WaitedLonger;
    }
    if other.affinity > 0 && lead <= other.affinity as f64 + ROUNDING {
        return Reason::WarmModel;
    }
    // A model stays until it has served the request that it was loaded for, whoever else comes meanwhile.
    if other.swap_ms.is_some() && other.affinity == 0 {
        return Reason::AlreadyChosen;
    }
    let loading_since = request.dispatched_ms.zip(request.swap_ms).map(|(dispatched, swap)| dispatched - swap);
    if loading_since.is_some_and(|since| since <= dispatched) && other.model != request.model {
        return Reason::WhileLoading;
    }
    Reason::Beside
}

/// Points that a waiting request gains each millisecond: the same for all, so either row can tell.
fn aging_rate(request: &ActivityRecord, other: &ActivityRecord) -> f64 {
    [request, other]
        .into_iter()
        .filter(|record| record.serial_queue_wait_ms > 0)
        .map(|record| record.aging / record.serial_queue_wait_ms as f64)
        .fold(0.0, f64::max)
}

/// The request of that number which waited when this one was dispatched.
fn waiting_with(connection: &Connection, request: &ActivityRecord, seq: u64) -> rusqlite::Result<Option<Neighbour>> {
    let columns = COLUMNS.join(", ");
    let (_, then) = wait(request);
    connection
        .query_row(
            &format!(
                "SELECT {columns} FROM activity
                 WHERE ended_ms >= :then AND arrived_ms <= :then AND seq = :seq ORDER BY row LIMIT 1"
            ),
            named_params! { ":then": then, ":seq": seq },
            |row| ActivityRecord::from_row(row).map(Neighbour::from),
        )
        .optional()
}

fn extent(connection: &Connection, keeps: u64, since: i64) -> rusqlite::Result<LogExtent> {
    connection.query_row(
        "SELECT row, ended_ms, (SELECT max(row) FROM activity) FROM activity ORDER BY row LIMIT 1",
        [],
        |row| {
            let (oldest, oldest_ended_ms, newest): (u64, i64, u64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            // The first row ever has number 1; once it is gone, older rows have been dropped.
            let complete = oldest == 1 || oldest_ended_ms <= since;
            Ok(LogExtent { rows: newest - oldest + 1, keeps, oldest_ended_ms, complete })
        },
    )
}

impl From<ActivityRecord> for Neighbour {
    fn from(record: ActivityRecord) -> Self {
        Self {
            id: record.id,
            seq: record.seq,
            model: record.model,
            serial_priority: record.serial_priority,
            serial_score: record.serial_score,
            arrived_ms: record.arrived_ms,
            dispatched_ms: record.dispatched_ms,
            ended_ms: record.ended_ms,
        }
    }
}
