//! Who goes first, seen from outside.

use serde_json::{Value, json};

use crate::support::{Gateway, demo_model, eventually};

/// One model, one slot: the first request holds it until it is let go.
fn one_slot() -> Gateway {
    let config = format!(
        "models:\n{}{}routing:\n  scheduler:\n    use: serial\n",
        demo_model("warm", ""),
        demo_model("cold", "--load-time 50ms")
    );
    Gateway::start(&config)
}

/// A request that runs until its client leaves.
async fn hold_the_slot(gateway: &Gateway, model: &str) -> tokio::task::JoinHandle<()> {
    let request = gateway.chat(model, "interactive").header("x-demo-fail", "hang");
    let holder = tokio::spawn(async move {
        let _ = request.send().await;
    });
    gateway.wait_until_running(1.0).await;
    holder
}

async fn let_go(holder: tokio::task::JoinHandle<()>) {
    holder.abort();
    assert!(holder.await.expect_err("it hung").is_cancelled());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_priority_that_cannot_be_read_is_normal_and_the_log_says_so() {
    let gateway = one_slot();
    for (id, header) in [("too-great", "9223372036854775808"), ("fine", "9223372036854775807")] {
        let request = gateway.chat("warm", header).header("x-request-id", id);
        assert_eq!(request.send().await.expect("an answer").status(), 200);
    }
    let row = gateway.activity("too-great").await;
    assert_eq!(row["request"]["serial_priority"], 0);
    assert_eq!(row["request"]["unread_priority"], "9223372036854775808");
    let summary = row["summary"].to_string();
    assert!(summary.contains("neither a 64-bit whole number nor a band"), "{summary}");
    let row = gateway.activity("fine").await;
    assert_eq!(
        (&row["request"]["serial_priority"], &row["request"]["unread_priority"]),
        (&json!(i64::MAX), &Value::Null)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interactive_request_overtakes_ten_queued_batch_ones() {
    let gateway = one_slot();
    let holder = hold_the_slot(&gateway, "warm").await;

    let mut clients = tokio::task::JoinSet::new();
    for i in 0..10 {
        let request = gateway.chat("warm", "batch").header("x-request-id", format!("batch-{i}"));
        clients.spawn(async move { request.send().await.expect("an answer").status() });
        gateway.wait_until_waiting(f64::from(i + 1)).await;
    }
    let request = gateway.chat("warm", "interactive").header("x-request-id", "chat");
    clients.spawn(async move { request.send().await.expect("an answer").status() });
    gateway.wait_until_waiting(11.0).await;
    assert_eq!(gateway.metric("llamaswap_scheduler_queue_depth{band=\"batch\"}").await, 10.0);
    assert_eq!(gateway.metric("llamaswap_scheduler_queue_depth{band=\"interactive\"}").await, 1.0);

    let_go(holder).await;
    while let Some(status) = clients.join_next().await {
        assert_eq!(status.expect("no panic"), 200);
    }

    let chat = gateway.activity("chat").await;
    assert_eq!(chat["request"]["serial_band"], "interactive");
    assert_eq!(chat["request"]["serial_priority"], 100);
    let mut dispatched = vec![chat["request"]["seq"].as_i64().expect("a number")];
    let mut order = vec![(chat["request"]["dispatched_ms"].as_i64().expect("dispatched"), -1)];
    for i in 0..10 {
        let row = gateway.activity(&format!("batch-{i}")).await["request"].take();
        assert_eq!(row["serial_band"], "batch");
        assert_eq!(row["serial_priority"], -100);
        let score = row["serial_score"].as_f64().expect("a score");
        // Priority, swap affinity of the one model that is ready, and a little aging.
        assert!((-90.0..-89.0).contains(&score), "{row}");
        assert!(row["serial_queue_wait_ms"].as_i64().expect("a wait") > 0, "{row}");
        dispatched.push(row["seq"].as_i64().expect("a number"));
        order.push((row["dispatched_ms"].as_i64().expect("dispatched"), i));
    }
    // The chat arrived last and went first; the batch kept its order.
    assert_eq!(dispatched.iter().max(), dispatched.first());
    assert!(order.is_sorted(), "{order:?}");
    assert_eq!(gateway.metric("llamaswap_scheduler_dispatched_total{band=\"batch\"}").await, 10.0);
    assert_eq!(gateway.metric("llamaswap_scheduler_dispatched_total{band=\"interactive\"}").await, 2.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reorders_are_counted_by_the_term_that_caused_them() {
    let gateway = one_slot();
    let holder = hold_the_slot(&gateway, "warm").await;
    // Arrived first and equally urgent, but its model is not in memory.
    let cold = gateway.chat("cold", "normal").header("x-request-id", "cold");
    let cold = tokio::spawn(async move { cold.send().await.expect("an answer").status() });
    gateway.wait_until_waiting(1.0).await;
    let warm = gateway.chat("warm", "normal").header("x-request-id", "warm");
    let warm = tokio::spawn(async move { warm.send().await.expect("an answer").status() });
    gateway.wait_until_waiting(2.0).await;
    let_go(holder).await;
    assert_eq!(warm.await.expect("no panic"), 200);
    assert_eq!(cold.await.expect("no panic"), 200);

    let reorders = "llamaswap_scheduler_reorders_total";
    let of = |term: &str| format!("{reorders}{{band=\"normal\",term=\"{term}\"}}");
    assert_eq!(gateway.metric(&of("swap_affinity")).await, 1.0);
    assert_eq!(gateway.metric(&of("aging")).await, 0.0);
    let warm = gateway.activity("warm").await;
    let cold = gateway.activity("cold").await;
    assert_eq!(warm["request"]["passed_by_affinity"], cold["request"]["seq"]);
    assert!(cold["request"]["swap_ms"].as_i64().expect("a swap") >= 50, "{cold}");
    let summary = cold["summary"].to_string();
    assert!(summary.contains("warm"), "who went first, and why: {summary}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_priorities_are_understood_as_documented() {
    let gateway = one_slot();
    let cases: [(&str, i64, &str); 9] = [
        ("interactive", 100, "interactive"),
        ("  BATCH ", -100, "batch"),
        ("Normal", 0, "normal"),
        ("99", 99, "normal"),
        ("+7", 7, "normal"),
        ("urgent!", 0, "normal"),
        ("", 0, "normal"),
        ("9223372036854775807", i64::MAX, "interactive"),
        ("-9223372036854775808", i64::MIN, "batch"),
    ];
    for (i, (header, priority, band)) in cases.into_iter().enumerate() {
        let id = format!("odd-{i}");
        let answer = gateway.chat("warm", header).header("x-request-id", &id).send().await.expect("an answer");
        assert_eq!(answer.status(), 200, "{header}");
        let row = gateway.activity(&id).await["request"].take();
        assert_eq!(
            (row["serial_priority"].as_i64(), row["serial_band"].as_str()),
            (Some(priority), Some(band)),
            "{header}"
        );
    }
    // Of a repeated header the first counts.
    let repeated = gateway.chat("warm", "5").header("X-LlamaSwap-Priority", "batch").header("x-request-id", "twice");
    assert_eq!(repeated.send().await.expect("an answer").status(), 200);
    assert_eq!(gateway.activity("twice").await["request"]["serial_priority"], 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_the_queue_is_gone_at_once_and_nothing_is_loaded_for_them() {
    let gateway = one_slot();
    let holder = hold_the_slot(&gateway, "warm").await;
    let request = gateway.chat("cold", "normal").header("x-request-id", "leaver");
    let leaver = tokio::spawn(async move { request.send().await });
    gateway.wait_until_waiting(1.0).await;
    leaver.abort();
    let left = std::time::Instant::now();
    gateway.wait_until_waiting(0.0).await;
    let took = left.elapsed();
    assert!(took.as_millis() < 50, "still in the queue after {took:?}");
    let_go(holder).await;

    assert_eq!(gateway.activity("leaver").await["request"]["outcome"], "cancelled");
    assert_eq!(gateway.chat("warm", "normal").send().await.expect("an answer").status(), 200);
    let running = gateway.get_json("/running").await;
    let models: Vec<&Value> = running["running"].as_array().expect("models").iter().map(|row| &row["model"]).collect();
    assert_eq!(models, [&json!("warm")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_of_a_boxs_batch_jobs_are_accepted() {
    let config = format!("models:\n{}    concurrencyLimit: 2\n", demo_model("only", "--token-time 1ms"));
    let gateway = Gateway::start(&config);
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let request = gateway.chat("only", "batch");
        clients.spawn(async move { request.send().await.expect("an answer").status() });
    }
    while let Some(status) = clients.join_next().await {
        assert_eq!(status.expect("no panic"), 200);
    }
    eventually("everything is in the log", async || {
        let rows = gateway.get_json("/api/activity?limit=1000").await;
        (rows["requests"].as_array().map(Vec::len) == Some(200)).then_some(())
    })
    .await;
}
