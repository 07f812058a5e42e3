mod explanations;

use std::sync::mpsc::channel;

use switchyard_scheduler::Band;

use super::{writer::MAX_PENDING, *};

fn in_memory(rows: u64) -> ActivityLog {
    ActivityLog::open(&Store { path: None, rows }).unwrap()
}

impl ActivityLog {
    /// Does something to the writer's connection, on the writer's thread.
    fn tamper(&self, tamper: impl FnOnce(&rusqlite::Connection) + Send + 'static) {
        assert!(self.inner.messages.send(Message::Tamper(Box::new(tamper))).is_ok());
    }

    /// Returns when the writer has taken every row.
    fn taken(&self) {
        let (taken, is_taken) = channel();
        self.tamper(move |_| taken.send(()).unwrap());
        is_taken.recv().unwrap();
    }

    async fn ids(&self, filter: Filter) -> Vec<String> {
        self.query(filter).await.unwrap().requests.into_iter().map(|record| record.id).collect()
    }

    async fn count(&self) -> usize {
        self.query(Filter { limit: Some(1000), ..Filter::default() }).await.unwrap().requests.len()
    }
}

fn row(id: impl ToString) -> ActivityRecord {
    ActivityRecord { id: id.to_string(), ..ActivityRecord::default() }
}

#[tokio::test]
async fn a_row_comes_back_as_it_was_recorded() {
    let log = in_memory(10);
    let record = ActivityRecord {
        id: "a".to_owned(),
        seq: 7,
        arrived_ms: 1_700_000_000_000,
        dispatched_ms: Some(1_700_000_000_250),
        ended_ms: 1_700_000_002_000,
        path: "/v1/chat/completions".into(),
        model: "m".to_owned(),
        tenant: Some("t".to_owned()),
        tier: Some("pro".to_owned()),
        unread_priority: Some("urgent".into()),
        serial_priority: i64::MIN,
        serial_band: "batch".into(),
        serial_score: -98.5,
        serial_queue_wait_ms: 250,
        affinity: 10,
        aging: 1.5,
        model_priority: i64::MAX,
        swap_ms: Some(200),
        passed_by_aging: Some(3),
        replica: Some(2),
        fairness: Some("weighted".into()),
        fairness_ahead: Some(-12.5),
        saturation: Some(0.75),
        ceiling: Some(0.9),
        passed_by_affinity: None,
        outcome: "dispatched".into(),
        status: 200,
        first_byte_ms: Some(12),
        duration_ms: 2000,
        stream: true,
        prompt_tokens: Some(5),
        completion_tokens: Some(6),
        request_bytes: 70,
        response_bytes: 800,
        error: Some("it broke".to_owned()),
    };
    log.record(record.clone());
    log.record(row("b"));
    let page = log.query(Filter::default()).await.unwrap();
    assert_eq!(page.requests, [row("b"), record]);
    assert_eq!(page.next, None);
}

#[tokio::test]
async fn filters_narrow_and_combine() {
    let log = in_memory(100);
    let base = ActivityRecord { model: "m".to_owned(), serial_band: "normal".into(), status: 200, ..row("base") };
    let rows = [
        ActivityRecord { id: "model".to_owned(), model: "other".to_owned(), ..base.clone() },
        ActivityRecord { id: "band".to_owned(), serial_band: "batch".into(), ..base.clone() },
        ActivityRecord { id: "outcome".to_owned(), outcome: "evicted".into(), ..base.clone() },
        ActivityRecord { id: "tier".to_owned(), tier: Some("max".to_owned()), ..base.clone() },
        ActivityRecord { id: "tenant".to_owned(), tenant: Some("t".to_owned()), ..base.clone() },
        ActivityRecord { id: "status".to_owned(), status: 502, ..base.clone() },
        ActivityRecord { id: "late".to_owned(), arrived_ms: 1000, serial_queue_wait_ms: 500, ..base.clone() },
    ];
    for row in rows {
        log.record(row);
    }
    type Case = (&'static [(&'static str, &'static str)], &'static [&'static str]);
    let cases: [Case; 11] = [
        (&[("model", "other")], &["model"]),
        (&[("band", "batch")], &["band"]),
        (&[("outcome", "evicted")], &["outcome"]),
        (&[("tenant", "t")], &["tenant"]),
        (&[("tier", "max")], &["tier"]),
        (&[("status", "502")], &["status"]),
        (&[("since", "1970-01-01T00:00:01Z")], &["late"]),
        (&[("min_wait_ms", "500")], &["late"]),
        (&[("until", "1000"), ("band", "normal"), ("limit", "2")], &["status", "tenant"]),
        (&[("order", "oldest"), ("limit", "1")], &["model"]),
        (&[("order", "longest_wait"), ("limit", "1")], &["late"]),
    ];
    for (pairs, expected) in cases {
        let filter = Filter::from_pairs(pairs.iter().copied()).unwrap();
        assert_eq!(log.ids(filter).await, expected, "{pairs:?}");
    }
}

#[test]
fn a_filter_that_makes_no_sense_names_its_parameter() {
    for (key, value) in [
        ("modle", "x"),
        ("band", "urgent"),
        ("status", "many"),
        ("since", "yesterday"),
        ("limit", "0"),
        ("limit", "1001"),
        ("order", "random"),
    ] {
        let error = Filter::from_pairs([(key, value)]).unwrap_err();
        assert_eq!(error.key, key);
    }
    let filter = Filter::from_pairs([("band", "interactive")]).unwrap();
    assert_eq!(filter.band, Some(Band::Interactive));
}

#[tokio::test]
async fn pages_follow_one_another_in_either_order() {
    let log = in_memory(100);
    (0..7).for_each(|id| log.record(row(id)));
    for (order, expected) in [(Order::Newest, "6543210"), (Order::Oldest, "0123456")] {
        let mut seen = String::new();
        let mut before = None;
        loop {
            let page = log.query(Filter { limit: Some(3), before, order, ..Filter::default() }).await.unwrap();
            seen.extend(page.requests.iter().map(|record| record.id.as_str()));
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        assert_eq!(seen, expected);
    }
}

#[tokio::test]
async fn rows_that_nobody_has_asked_for_are_all_there() {
    let log = in_memory(100_000);
    for id in 0..3 * MAX_PENDING {
        log.record(row(id));
        if id % 1000 == 0 {
            log.taken();
        }
    }
    let oldest = Filter { order: Order::Oldest, limit: Some(1), ..Filter::default() };
    assert_eq!(log.ids(oldest).await, ["0"]);
    assert_eq!(log.dropped(), 0);
}

#[tokio::test]
async fn rows_that_were_never_written_count_as_trimmed() {
    let log = in_memory(10);
    for ids in [0..5, 5..42] {
        ids.for_each(|id| {
            log.record(ActivityRecord { ended_ms: 1, dispatched_ms: Some(1), serial_queue_wait_ms: 1, ..row(id) })
        });
        log.flush().await;
    }
    let extent = log.explain("41").await.unwrap().unwrap().log;
    assert_eq!((extent.rows, extent.complete), (10, false));
    let oldest = Filter { order: Order::Oldest, limit: Some(1), ..Filter::default() };
    let page = log.query(oldest).await.unwrap();
    assert_eq!((&page.requests[0].id, page.next), (&"32".to_owned(), Some(33)), "numbered as if all had been written");
}

#[tokio::test]
async fn only_the_newest_rows_are_kept() {
    let log = in_memory(10);
    for id in 0..1000 {
        log.record(row(id));
    }
    log.flush().await;
    assert_eq!(log.ids(Filter::default()).await, (990..1000).rev().map(|id| id.to_string()).collect::<Vec<_>>());
    assert_eq!(log.dropped(), 0);
}

#[tokio::test]
async fn a_file_keeps_its_rows_over_a_restart_and_is_shared_with_nobody_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store { path: Some(folder.path().join("logs/activity.db")), rows: 100 };
    for id in 1..=2 {
        let log = ActivityLog::open(&store).unwrap();
        log.record(row(id));
        log.flush().await;
        assert_eq!(log.count().await, id);
    }
    let (one, other) = (in_memory(10), in_memory(10));
    one.record(row(1));
    assert_eq!((one.count().await, other.count().await), (1, 0));
}

#[tokio::test]
async fn closed_it_is_one_file_with_every_row() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store { path: Some(folder.path().join("activity.db")), rows: 100 };
    let log = ActivityLog::open(&store).unwrap();
    log.record(row(1));
    log.close().await;
    log.record(row(2));
    assert_eq!(log.dropped(), 1);
    let files: Vec<_> = folder.path().read_dir().unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(files, ["activity.db"]);
    assert_eq!(ActivityLog::open(&store).unwrap().ids(Filter::default()).await, ["1"]);
}

#[tokio::test]
async fn rows_wait_out_a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let in_file = ActivityLog::open(&Store { path: Some(folder.path().join("activity.db")), rows: 10_000 }).unwrap();
    for log in [in_file, in_memory(10_000)] {
        log.record(row("before"));
        log.flush().await;
        log.tamper(|connection| {
            let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
            // SQLite then fails with "database or disk is full", as it does when the disk is.
            connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(())).unwrap();
        });
        for id in 0..900 {
            log.record(ActivityRecord { path: "/v1/chat/completions".repeat(4).into(), ..row(id) });
        }
        log.flush().await;
        assert_eq!(log.ids(Filter::default()).await, ["before"]);
        log.tamper(|connection| {
            connection.pragma_update_and_check(None, "max_page_count", i64::from(u32::MAX - 1), |_| Ok(())).unwrap();
        });
        log.flush().await;
        assert_eq!(log.count().await, 901);
        assert_eq!(log.dropped(), 0);
    }
}

#[tokio::test]
async fn while_nothing_can_be_written_the_oldest_rows_are_dropped_and_counted() {
    let log = in_memory(100_000);
    log.tamper(|connection| connection.pragma_update(None, "query_only", true).unwrap());
    for id in 0..MAX_PENDING + 5 {
        log.record(row(id));
        if id % 1000 == 0 {
            log.flush().await;
        }
    }
    log.flush().await;
    assert_eq!(log.dropped(), 5);
    log.tamper(|connection| connection.pragma_update(None, "query_only", false).unwrap());
    log.flush().await;
    assert_eq!(log.ids(Filter { order: Order::Oldest, limit: Some(1), ..Filter::default() }).await, ["5"]);
}

#[tokio::test]
async fn a_file_that_turned_read_only_is_opened_anew() {
    let folder = tempfile::tempdir().unwrap();
    let log = ActivityLog::open(&Store { path: Some(folder.path().join("activity.db")), rows: 10 }).unwrap();
    log.tamper(|connection| connection.pragma_update(None, "query_only", true).unwrap());
    log.record(row(1));
    log.flush().await;
    log.flush().await;
    assert_eq!(log.count().await, 1);
}

#[tokio::test]
async fn a_stuck_writer_holds_nobody_up() {
    let log = in_memory(100_000);
    let (stuck, is_stuck) = channel();
    let (release, released) = channel::<()>();
    log.tamper(move |_| {
        stuck.send(()).unwrap();
        let _ = released.recv();
    });
    is_stuck.recv().unwrap();
    for id in 0..CHANNEL + 10 {
        log.record(row(id));
    }
    assert_eq!(log.dropped(), 10);
    // Even a query gets what there is, after a moment's patience.
    assert_eq!(log.count().await, 0);
    drop(release);
    log.flush().await;
    let newest = Filter { limit: Some(1), ..Filter::default() };
    assert_eq!(log.ids(newest).await, [(CHANNEL - 1).to_string()]);
}
