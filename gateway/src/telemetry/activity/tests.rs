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
        path: "/v1/chat/completions".to_owned(),
        model: "m".to_owned(),
        tenant: Some("t".to_owned()),
        serial_priority: i64::MIN,
        serial_band: "batch".to_owned(),
        serial_score: -98.5,
        serial_queue_wait_ms: 250,
        affinity: 10,
        aging: 1.5,
        model_priority: i64::MAX,
        swap_ms: Some(200),
        passed_by_aging: Some(3),
        passed_by_affinity: None,
        outcome: "dispatched".to_owned(),
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
    let base = ActivityRecord { model: "m".to_owned(), serial_band: "normal".to_owned(), status: 200, ..row("base") };
    let rows = [
        ActivityRecord { id: "model".to_owned(), model: "other".to_owned(), ..base.clone() },
        ActivityRecord { id: "band".to_owned(), serial_band: "batch".to_owned(), ..base.clone() },
        ActivityRecord { id: "outcome".to_owned(), outcome: "evicted".to_owned(), ..base.clone() },
        ActivityRecord { id: "tenant".to_owned(), tenant: Some("t".to_owned()), ..base.clone() },
        ActivityRecord { id: "status".to_owned(), status: 502, ..base.clone() },
        ActivityRecord { id: "late".to_owned(), arrived_ms: 1000, serial_queue_wait_ms: 500, ..base.clone() },
    ];
    for row in rows {
        log.record(row);
    }
    type Case = (&'static [(&'static str, &'static str)], &'static [&'static str]);
    let cases: [Case; 10] = [
        (&[("model", "other")], &["model"]),
        (&[("band", "batch")], &["band"]),
        (&[("outcome", "evicted")], &["outcome"]),
        (&[("tenant", "t")], &["tenant"]),
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
            log.record(ActivityRecord { path: "/v1/chat/completions".repeat(4), ..row(id) });
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

mod explanations {
    use super::*;

    /// Arrived, dispatched and ended, in seconds.
    fn job(id: &str, seq: u64, priority: i64, times: (i64, i64, i64)) -> ActivityRecord {
        let (arrived, dispatched, ended) = times;
        ActivityRecord {
            seq,
            arrived_ms: arrived * 1000,
            dispatched_ms: Some(dispatched * 1000),
            ended_ms: ended * 1000,
            model: "a".to_owned(),
            serial_priority: priority,
            serial_band: switchyard_scheduler::Priority(priority).band().to_string(),
            serial_score: priority as f64,
            serial_queue_wait_ms: (dispatched - arrived) * 1000,
            duration_ms: (ended - arrived) * 1000,
            outcome: "dispatched".to_owned(),
            status: 200,
            ..row(id)
        }
    }

    async fn explain(rows: impl IntoIterator<Item = ActivityRecord>, id: &str) -> Explanation {
        let log = in_memory(1000);
        rows.into_iter().for_each(|row| log.record(row));
        log.explain(id).await.unwrap().unwrap()
    }

    fn went_first(explanation: &Explanation) -> Vec<(Reason, Vec<&str>)> {
        explanation
            .went_first
            .iter()
            .map(|group| (group.reason, group.requests.iter().map(|other| other.id.as_str()).collect()))
            .collect()
    }

    #[tokio::test]
    async fn a_batch_job_among_others_on_one_slot() {
        // Divisor 60: a point a minute.
        let aged = |minutes: f64, affinity: i64, record: ActivityRecord| {
            let score = record.serial_score + minutes + affinity as f64;
            ActivityRecord { aging: minutes, affinity, serial_score: score, ..record }
        };
        let me = aged(20.0, 0, job("me", 10, -100, (600, 1800, 1900)));
        let me = ActivityRecord {
            model: "b".to_owned(),
            swap_ms: Some(30_000),
            passed_by_aging: Some(16),
            first_byte_ms: Some(400),
            prompt_tokens: Some(12),
            completion_tokens: Some(34),
            ..me
        };
        let rows = [
            job("gone", 1, 0, (0, 0, 600)),
            job("running", 2, 0, (0, 500, 700)),
            aged(11.7, 0, job("older", 3, -100, (0, 700, 800))),
            aged(14.0, 0, job("long-waiting", 4, -103, (60, 900, 1000))),
            aged(1.0, 10, job("warm", 11, -100, (960, 1020, 1100))),
            job("urgent", 12, 100, (1200, 1200, 1300)),
            job("urgent-too", 13, 0, (1300, 1300, 1770)),
            aged(0.5, 0, ActivityRecord { model: "c".to_owned(), ..job("meanwhile", 14, -100, (1770, 1780, 1790)) }),
            me,
            aged(10.0, 0, job("passed", 16, -92, (1200, 1900, 2000))),
        ];
        let explanation = explain(rows, "me").await;
        assert_eq!(explanation.running_on_arrival.iter().map(|other| &other.id).collect::<Vec<_>>(), ["running"]);
        assert_eq!(
            went_first(&explanation),
            [
                (Reason::MoreUrgent, vec!["urgent", "urgent-too"]),
                (Reason::ArrivedEarlier, vec!["older"]),
                (Reason::WaitedLonger, vec!["long-waiting"]),
                (Reason::WarmModel, vec!["warm"]),
                (Reason::WhileLoading, vec!["meanwhile"]),
            ]
        );
        assert_eq!(
            explanation.summary,
            [
                "The request for model b (priority -100, band batch) arrived at 1970-01-01T00:10:00.000Z and waited \
                 20 min 0 s until it was let through.",
                "When it arrived, `running` (a, priority 0) was running, and ran for 1 min 40 s more.",
                "While it waited, 6 other requests were let through: 2 more urgent (priorities 0 to 100); 1 just as \
                 urgent, and there before; 1 less urgent, but waiting for longer; 1 for a model that was loaded already; \
                 1 on other models, while its own was being made ready.",
                "Making its model ready took 30.0 s; the 19 min 30 s before were spent in the queue.",
                "Its score was -80: priority -100 + 20.00 for having waited.",
                "Because it had waited so long it went before `passed` (a, priority -92).",
                "It ended with status 200, 21 min 40 s after it arrived; the first byte of the answer came 400 ms after it \
                 was let through; 12 tokens in, 34 out.",
            ]
        );
        assert!(explanation.log.complete);
        let text = explanation.to_string();
        assert!(text.starts_with("me\n\nThe request for model b"), "{text}");
        assert!(text.contains("Went first: more urgent (priorities 0 to 100)\n"), "{text}");
    }

    #[tokio::test]
    async fn a_request_that_went_at_once_has_nobody_before_it() {
        let rows = [job("other", 1, 0, (0, 0, 9)), job("me", 2, 0, (5, 5, 6)), job("later", 3, 0, (5, 5, 5))];
        let explanation = explain(rows, "me").await;
        assert!(explanation.went_first.is_empty());
        assert_eq!(
            explanation.summary,
            [
                "The request for model a (priority 0, band normal) arrived at 1970-01-01T00:00:05.000Z and was let \
                 through at once.",
                "Its score was 0: priority 0.",
                "It ended with status 200, 1.0 s after it arrived.",
            ]
        );
    }

    #[tokio::test]
    async fn in_fifo_the_models_priority_counts_and_others_run_beside() {
        let first = ActivityRecord { model_priority: 10, ..job("first", 5, -100, (3, 4, 10)) };
        let beside = ActivityRecord { model: "c".to_owned(), ..job("beside", 6, -100, (5, 6, 10)) };
        let rows = [first, beside, job("me", 4, -95, (2, 10, 11))];
        let explanation = explain(rows, "me").await;
        assert_eq!(went_first(&explanation), [(Reason::MoreUrgent, vec!["first"]), (Reason::Beside, vec!["beside"])]);
        assert_eq!(
            explanation.summary[1],
            "While it waited, 2 other requests were let through: 1 more urgent (priority -100, with the model's on top); \
             1 on room that this one could not use."
        );
    }

    #[tokio::test]
    async fn who_never_got_through_learns_how_it_ended() {
        let refused = ActivityRecord {
            dispatched_ms: None,
            serial_queue_wait_ms: 5000,
            outcome: "rejected_ttl".to_owned(),
            status: 429,
            error: Some("waited 5.0 s in the queue, longer than its time to live allows".to_owned()),
            ..job("me", 2, 0, (1, 6, 6))
        };
        let explanation = explain([job("other", 3, 100, (2, 3, 8)), refused], "me").await;
        assert_eq!(went_first(&explanation), [(Reason::MoreUrgent, vec!["other"])]);
        let summary = &explanation.summary;
        assert!(summary[0].ends_with("and waited 5.0 s without being let through."), "{summary:?}");
        assert_eq!(
            summary.last().unwrap(),
            "It ended after 5.0 s with status 429 (rejected_ttl): waited 5.0 s in the queue, longer than its time to \
             live allows."
        );
        let left = ActivityRecord {
            dispatched_ms: None,
            outcome: "cancelled".to_owned(),
            status: 0,
            ..job("me", 2, 0, (1, 6, 6))
        };
        assert_eq!(
            explain([left], "me").await.summary.last().unwrap(),
            "Its client left after 5.0 s, while it waited."
        );
    }

    #[tokio::test]
    async fn a_log_that_has_forgotten_says_so() {
        let log = in_memory(2);
        log.record(job("first", 1, 100, (0, 5, 6)));
        log.record(job("second", 2, 100, (0, 6, 7)));
        log.record(ActivityRecord { passed_by_affinity: Some(77), ..job("me", 3, 0, (1, 7, 8)) });
        let explanation = log.explain("me").await.unwrap().unwrap();
        assert!(!explanation.log.complete);
        assert_eq!((explanation.log.rows, explanation.log.keeps), (2, 2));
        let summary = explanation.summary.join("\n");
        assert!(
            summary.contains("went before request number 77 (not ended yet, or no longer in the log)"),
            "{summary}"
        );
        assert!(
            summary.ends_with(
                "The log keeps 2 rows, and its oldest ended at 1970-01-01T00:00:07.000Z, after this request arrived: \
                 others that went first may be missing above."
            ),
            "{summary}"
        );
    }

    #[tokio::test]
    async fn the_newest_of_equal_ids_is_explained_and_an_unknown_one_is_not() {
        let log = in_memory(10);
        log.record(job("same", 1, 0, (0, 0, 1)));
        log.record(job("same", 2, 0, (5, 5, 6)));
        assert_eq!(log.explain("same").await.unwrap().unwrap().request.seq, 2);
        assert_eq!(log.explain("unknown").await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_crowd_is_counted_and_only_some_are_named() {
        let crowd = (2..302).map(|seq| job(&seq.to_string(), seq, 100, (1, 1, 400)));
        let explanation = explain(crowd.chain([job("me", 1, 0, (0, 400, 401))]), "me").await;
        let group = &explanation.went_first[0];
        assert_eq!((group.count, group.requests.len()), (300, 20));
        assert!(explanation.to_string().ends_with("and 280 more\n"));
    }
}
