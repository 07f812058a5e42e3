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
        serial_band: switchyard_scheduler::Priority(priority).band().as_str().into(),
        serial_score: priority as f64,
        serial_queue_wait_ms: (dispatched - arrived) * 1000,
        duration_ms: (ended - arrived) * 1000,
        outcome: "dispatched".into(),
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
async fn whoever_was_not_let_through_is_told_what_it_waited_for() {
    let refused = |saturation| ActivityRecord {
        dispatched_ms: None,
        serial_queue_wait_ms: 5_000,
        saturation: Some(saturation),
        ceiling: Some(0.8),
        outcome: "rejected_ttl".into(),
        status: 429,
        ..job("me", 1, 0, (0, 0, 5))
    };
    let held = explain([refused(0.9375)], "me").await.summary.join(" ");
    let room = "waited for room: its model's servers were 93.75% full to the last, and requests of its priority go on only below 80%";
    assert!(held.contains(room), "{held}");
    let free = explain([refused(0.5)], "me").await.summary.join(" ");
    assert!(free.contains("servers were 50% full, and requests of its priority go on up to 80%"), "{free}");
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
             20 min 0 s until it was let through, 30.0 s of that while its model was made ready.",
            "When it arrived, `running` (a, priority 0) was running, and ran for 1 min 40 s more.",
            "While it waited, 6 other requests were let through: 2 more urgent, with priorities 0 to 100 (`urgent` and \
             `urgent-too`); 1 just as urgent, and there before (`older`); 1 less urgent, but waiting for longer \
             (`long-waiting`); 1 for a model that was loaded already (`warm`); 1 on other models, while its own was \
             being made ready (`meanwhile`).",
            "Its score was -80: priority -100 + 20.00 for having waited.",
            "Because it had waited so long it went before `passed` (a, priority -92).",
            "It ended with status 200, 21 min 40 s after it arrived; the first byte of the answer came 400 ms after it \
             was let through; 12 tokens in, 34 out.",
        ]
    );
    assert!(explanation.log.complete);
    let text = explanation.to_string();
    assert!(text.starts_with("me\n\nThe request for model b"), "{text}");
    assert!(text.contains("Went first: more urgent, with priorities 0 to 100\n"), "{text}");
}

#[tokio::test]
async fn a_request_that_went_at_once_has_nobody_before_it() {
    let me = ActivityRecord { completion_tokens: Some(3), ..job("me", 2, 0, (5, 5, 6)) };
    let rows = [job("other", 1, 0, (0, 0, 9)), me, job("later", 3, 0, (5, 5, 5))];
    let explanation = explain(rows, "me").await;
    assert!(explanation.went_first.is_empty());
    assert_eq!(
        explanation.summary,
        [
            "The request for model a (priority 0, band normal) arrived at 1970-01-01T00:00:05.000Z and was let \
             through at once.",
            "Its score was 0: priority 0.",
            "It ended with status 200, 1.0 s after it arrived; 3 tokens out.",
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
        "While it waited, 2 other requests were let through: 1 more urgent, with priority -100 and the model's on top \
         (`first`); 1 on room that this one could not use (`beside`)."
    );
}

#[tokio::test]
async fn in_flow_tenants_take_turns_and_goals_come_first() {
    let of = |tenant: &str, ahead: f64, record: ActivityRecord| ActivityRecord {
        tenant: Some(tenant.to_owned()),
        fairness: Some("round-robin".into()),
        fairness_ahead: Some(ahead),
        saturation: Some(0.625),
        ceiling: Some(0.8),
        ..record
    };
    let me = of("loud", 2.0, job("me", 5, 0, (1, 9, 10)));
    let rows = [
        of("quiet", 0.0, job("quieter", 6, 0, (2, 4, 10))),
        of("quiet", 0.0, job("quiet-and-there-before", 4, 0, (0, 5, 10))),
        of("loud", 1.0, job("hurried", 7, 0, (3, 6, 10))),
        of("loud", 1.0, job("before", 3, 0, (0, 7, 10))),
        of("quiet", 0.0, job("urgent", 8, 100, (3, 8, 10))),
        me,
    ];
    let told = explain(rows, "me").await;
    let expected = [
        (Reason::MoreUrgent, vec!["urgent"]),
        (Reason::ArrivedEarlier, vec!["before"]),
        (Reason::FairShare, vec!["quieter", "quiet-and-there-before"]),
        (Reason::DueSooner, vec!["hurried"]),
    ];
    assert_eq!(went_first(&told), expected);
    let summary = told.summary.join("\n");
    for sentence in [
        "2 just as urgent, of tenants whose turn it was",
        "Its model's servers were 62.5% full then, and requests of its priority go on up to 80%.",
        "At its priority it was its tenant's turn (round-robin), 2 turns after the latest before it.",
    ] {
        assert!(summary.contains(sentence), "{sentence}\nis not in\n{summary}");
    }
}

#[tokio::test]
async fn a_request_that_named_no_model_is_told_as_such() {
    let invalid = ActivityRecord {
        model: String::new(),
        dispatched_ms: None,
        outcome: "invalid".into(),
        ..job("me", 1, 0, (1, 1, 1))
    };
    let summary = explain([invalid], "me").await.summary;
    assert!(summary[0].starts_with("The request without a model (priority 0"), "{summary:?}");
}

#[tokio::test]
async fn who_never_got_through_learns_how_it_ended() {
    let refused = ActivityRecord {
        dispatched_ms: None,
        serial_queue_wait_ms: 5000,
        outcome: "rejected_ttl".into(),
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
    let left =
        ActivityRecord { dispatched_ms: None, outcome: "cancelled".into(), status: 0, ..job("me", 2, 0, (1, 6, 6)) };
    assert_eq!(explain([left], "me").await.summary.last().unwrap(), "Its client left after 5.0 s, while it waited.");
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
    assert!(summary.contains("went before request number 77 (not ended yet, or no longer in the log)"), "{summary}");
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

/// Runs random requests for random models through the real scheduler, and writes down what the gateway would.
fn schedule(seed: u64) -> Vec<ActivityRecord> {
    use std::{cmp::Reverse, collections::BinaryHeap, collections::HashMap};

    use switchyard_scheduler::*;

    #[derive(PartialEq, Eq, PartialOrd, Ord)]
    enum Next {
        Arrive(u64),
        LoadDone(ReplicaId, Generation),
        StopDone(ReplicaId, Generation),
        Finished(RequestId),
    }
    let mut state = seed;
    // Knuth's MMIX generator: good enough to be arbitrary, and the same on every machine.
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let models = (0..3).map(|model| (ModelId(model), ModelSettings::default())).collect();
    let policy = PolicySettings::Serial(SerialSettings { aging_divisor: 2, ..SerialSettings::default() });
    let mut scheduler = Scheduler::new(Settings { policy, models, ..Settings::default() });
    let mut agenda = BinaryHeap::new();
    let mut at = 0;
    for id in 1..=60 {
        at += random(3000);
        agenda.push(Reverse((at, Next::Arrive(id))));
    }
    let mut waiting = HashMap::new();
    let mut running: HashMap<RequestId, ActivityRecord> = HashMap::new();
    let mut done = Vec::new();
    while let Some(Reverse((now, next))) = agenda.pop() {
        let event = match next {
            Next::Arrive(id) => {
                let priority = Priority([-100, -95, 0, 3, 100][random(5) as usize]);
                let model = ModelId(random(3) as u32);
                let record = ActivityRecord {
                    model: model.0.to_string(),
                    arrived_ms: now as i64,
                    ..job(&id.to_string(), id, priority.0, (0, 0, 0))
                };
                waiting.insert(RequestId(id), record);
                Event::Arrive(Request::new(RequestId(id), model, priority))
            }
            Next::LoadDone(replica, generation) => Event::LoadDone { replica, generation, ok: true },
            Next::StopDone(replica, generation) => Event::StopDone { replica, generation },
            Next::Finished(id) => {
                let mut record = running.remove(&id).unwrap();
                record.ended_ms = now as i64;
                done.push(record);
                Event::Finished { id, usage: Usage::default() }
            }
        };
        scheduler.handle(Timestamp::from_millis(now), event);
        while let Some(action) = scheduler.poll_action() {
            match action {
                Action::Dispatch { id, decision, .. } => {
                    let record = waiting.remove(&id).unwrap();
                    let record = ActivityRecord {
                        dispatched_ms: Some(now as i64),
                        serial_queue_wait_ms: decision.waited.as_millis() as i64,
                        swap_ms: decision.swap.map(|swap| swap.as_millis() as i64),
                        affinity: decision.affinity.into(),
                        aging: decision.aging,
                        serial_score: decision.score,
                        ..record
                    };
                    running.insert(id, record);
                    agenda.push(Reverse((now + 1 + random(3000), Next::Finished(id))));
                }
                Action::Load { replica, generation, .. } => {
                    agenda.push(Reverse((now + 1 + random(2000), Next::LoadDone(replica, generation))));
                }
                Action::Stop { replica, generation, .. } => {
                    agenda.push(Reverse((now + 1 + random(100), Next::StopDone(replica, generation))));
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(done.len(), 60);
    done
}

#[tokio::test]
async fn of_one_slot_every_turn_has_a_reason() {
    let mut seen = std::collections::BTreeMap::new();
    for seed in 0..4 {
        let log = in_memory(1000);
        let records = schedule(seed);
        records.iter().for_each(|record| log.record(record.clone()));
        for record in &records {
            let explanation = log.explain(&record.id).await.unwrap().unwrap();
            assert!(explanation.running_on_arrival.len() <= 1, "{explanation}");
            for group in explanation.went_first {
                assert_ne!(group.reason, Reason::Beside, "seed {seed}: {group:#?} before {record:#?}");
                *seen.entry(group.reason).or_insert(0) += group.count;
            }
        }
    }
    let kinds =
        [Reason::MoreUrgent, Reason::ArrivedEarlier, Reason::WaitedLonger, Reason::WarmModel, Reason::AlreadyChosen];
    assert_eq!(seen.into_keys().collect::<Vec<_>>(), kinds);
}
