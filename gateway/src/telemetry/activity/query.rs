//! Which rows somebody wants to see.

use rusqlite::{Connection, ToSql};
use switchyard_scheduler::Band;

use super::record::{ActivityRecord, COLUMNS};

/// Rows in a page unless the filter says otherwise.
const DEFAULT_LIMIT: u32 = 100;
/// Rows in a page at the most.
const MAX_LIMIT: u32 = 1000;

/// Which rows, in which order. All conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Requests for this model.
    pub model: Option<String>,
    /// Of this band.
    pub band: Option<Band>,
    /// That ended so.
    pub outcome: Option<String>,
    /// Of this tenant.
    pub tenant: Option<String>,
    /// Of callers of this tier.
    pub tier: Option<String>,
    /// Answered with this status.
    pub status: Option<u16>,
    /// That arrived at this Unix time in milliseconds or later.
    pub since_ms: Option<i64>,
    /// That arrived before this Unix time in milliseconds.
    pub until_ms: Option<i64>,
    /// That waited at least so many milliseconds.
    pub min_wait_ms: Option<i64>,
    /// At most so many rows; 100 by default and 1000 at the most.
    pub limit: Option<u32>,
    /// Go on where a page ended: its [`Page::next`].
    pub before: Option<i64>,
    /// In which order.
    pub order: Order,
}

/// The order of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Latest end first.
    #[default]
    Newest,
    /// Earliest end first.
    Oldest,
    /// Longest wait first; has no pages after the first.
    LongestWait,
}

/// Some rows.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Page {
    /// The rows.
    pub requests: Vec<ActivityRecord>,
    /// Give this as `before` for the next page; none when this was the last.
    pub next: Option<i64>,
}

/// A filter that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct FilterError {
    /// The query parameter.
    pub key: String,
    /// What would be right.
    pub reason: String,
}

impl Filter {
    /// Reads the parameters of a URL's query, already decoded.
    ///
    /// # Errors
    /// When a parameter is unknown or its value does not fit.
    pub fn from_pairs<K: AsRef<str>, V: AsRef<str>>(
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, FilterError> {
        let mut filter = Self::default();
        for (key, value) in pairs {
            filter
                .set(key.as_ref(), value.as_ref())
                .map_err(|reason| FilterError { key: key.as_ref().to_owned(), reason })?;
        }
        Ok(filter)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "model" => self.model = Some(value.to_owned()),
            "outcome" => self.outcome = Some(value.to_owned()),
            "tenant" => self.tenant = Some(value.to_owned()),
            "tier" => self.tier = Some(value.to_owned()),
            "band" => {
                let band = Band::ALL.into_iter().find(|band| band.as_str() == value);
                self.band = Some(band.ok_or("expected interactive, normal or batch")?);
            }
            "status" => self.status = Some(number(value)?),
            "since" => self.since_ms = Some(time(value)?),
            "until" => self.until_ms = Some(time(value)?),
            "min_wait_ms" => self.min_wait_ms = Some(number(value)?),
            "limit" => match number(value)? {
                limit @ 1..=MAX_LIMIT => self.limit = Some(limit),
                _ => return Err(format!("expected 1 to {MAX_LIMIT}")),
            },
            "before" => self.before = Some(number(value)?),
            "order" => {
                self.order = match value {
                    "newest" => Order::Newest,
                    "oldest" => Order::Oldest,
                    "longest_wait" => Order::LongestWait,
                    _ => return Err("expected newest, oldest or longest_wait".to_owned()),
                }
            }
            _ => {
                return Err("unknown; there are model, band, outcome, tenant, tier, status, since, until, \
                            min_wait_ms, limit, before and order"
                    .to_owned());
            }
        }
        Ok(())
    }
}

fn number<T: std::str::FromStr>(value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("`{value}` is not a fitting whole number"))
}

/// Unix milliseconds, or a time such as `2026-11-30T08:00:00Z`.
fn time(value: &str) -> Result<i64, String> {
    value.parse().or_else(|_| value.parse::<jiff::Timestamp>().map(jiff::Timestamp::as_millisecond)).map_err(|_| {
        format!("`{value}` is neither Unix milliseconds nor a time such as 2026-11-30T08:00:00Z (`+` is written %2B)")
    })
}

/// Reads one page.
pub(super) fn run(connection: &Connection, filter: &Filter) -> rusqlite::Result<Page> {
    let limit = filter.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT);
    let band = filter.band.map(Band::as_str);
    let (cursor, order) = match filter.order {
        Order::Newest => ("row < ", "row DESC"),
        Order::Oldest => ("row > ", "row"),
        Order::LongestWait => ("row < ", "serial_queue_wait_ms DESC, row DESC"),
    };
    let mut conditions = Vec::new();
    let mut values: Vec<&dyn ToSql> = Vec::new();
    add(&mut conditions, &mut values, "model = ", &filter.model);
    add(&mut conditions, &mut values, "serial_band = ", &band);
    add(&mut conditions, &mut values, "outcome = ", &filter.outcome);
    add(&mut conditions, &mut values, "tenant = ", &filter.tenant);
    add(&mut conditions, &mut values, "tier = ", &filter.tier);
    add(&mut conditions, &mut values, "status = ", &filter.status);
    add(&mut conditions, &mut values, "arrived_ms >= ", &filter.since_ms);
    add(&mut conditions, &mut values, "arrived_ms < ", &filter.until_ms);
    add(&mut conditions, &mut values, "serial_queue_wait_ms >= ", &filter.min_wait_ms);
    add(&mut conditions, &mut values, cursor, &filter.before);
    let conditions = if conditions.is_empty() { "true".to_owned() } else { conditions.join(" AND ") };
    let columns = COLUMNS.join(", ");
    // One more than asked for tells whether there is a next page.
    let sql = format!("SELECT row, {columns} FROM activity WHERE {conditions} ORDER BY {order} LIMIT {}", limit + 1);

    let mut statement = connection.prepare(&sql)?;
    let mut rows = statement.query(values.as_slice())?;
    let mut page = Page::default();
    let mut last = None;
    while let Some(row) = rows.next()? {
        if page.requests.len() == limit as usize {
            page.next = last.filter(|_| filter.order != Order::LongestWait);
            break;
        }
        last = Some(row.get("row")?);
        page.requests.push(ActivityRecord::from_row(row)?);
    }
    Ok(page)
}

/// Adds a condition when there is a value for it.
fn add<'a, T: ToSql>(
    conditions: &mut Vec<String>,
    values: &mut Vec<&'a dyn ToSql>,
    condition: &str,
    value: &'a Option<T>,
) {
    if let Some(value) = value {
        values.push(value);
        conditions.push(format!("{condition}?{}", values.len()));
    }
}
