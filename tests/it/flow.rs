//! Flow control from the outside: turns of tenants, ceilings, and what is refused.

use serde_json::{Value, json};

use crate::support::{Gateway, demo_model, free_ports};

const FLOW: &str = "routing:\n  scheduler:\n    use: flow\n    settings:\n      flow:\n        \
    saturationDetector: { concurrency: { maxConcurrency: 1 } }\n";

fn chat(gateway: &Gateway, id: &str, priority: &str, tenant: &str) -> reqwest::RequestBuilder {
    let body = json!({ "model": "m", "messages": [{ "role": "user", "content": id }] });
    gateway
        .chat_with(body, priority)
        .header("x-request-id", id.to_owned())
        .header("x-llm-d-inference-fairness-id", tenant)
}

#[track_caller]
fn assert_dropped(response: &reqwest::Response, status: u16, reason: &str) {
    assert_eq!(response.status(), status);
    assert_eq!(response.headers()["x-llm-d-request-dropped-reason"], reason);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_take_turns_and_the_log_says_so() {
    let model = demo_model("m", "--token-time 20ms --tokens 20");
    let gateway = Gateway::start(&format!("models:\n{model}{FLOW}        fairness: round-robin\n"));
    let first = tokio::spawn(chat(&gateway, "first", "normal", "loud").send());
    gateway.wait_until_running(1.0).await;
    let mut rest = Vec::new();
    for (waiting, (id, tenant)) in
        [("loud-1", "loud"), ("loud-2", "loud"), ("loud-3", "loud"), ("quiet", "quiet")].into_iter().enumerate()
    {
        rest.push(tokio::spawn(chat(&gateway, id, "normal", tenant).send()));
        gateway.wait_until_waiting(waiting as f64 + 1.0).await;
    }
    let saturation = gateway.metric("switchyard_saturation{model=\"m\"}").await;
    assert_eq!(saturation, 1.0);
    for response in std::iter::once(first).chain(rest) {
        assert_eq!(response.await.expect("no panic").expect("an answer").status(), 200);
    }
    let mut rows = Vec::new();
    for id in ["loud-1", "loud-2", "loud-3", "quiet"] {
        let explained = gateway.activity(id).await;
        rows.push((explained["request"]["dispatched_ms"].as_i64().expect("it was dispatched"), id, explained));
    }
    rows.sort_by_key(|row| row.0);
    assert!(rows[..2].iter().any(|row| row.1 == "quiet"), "it is not behind all that were there before");
    let last = &rows[3].2;
    assert_eq!(last["request"]["fairness"], "round-robin");
    assert_eq!((&last["request"]["tenant"], &last["request"]["ceiling"]), (&json!("loud"), &json!(1.0)));
    let summary: Vec<_> = last["summary"].as_array().expect("sentences").iter().filter_map(Value::as_str).collect();
    assert!(summary.join(" ").contains("of tenants whose turn it was"), "{summary:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn saturated_servers_shed_batch_and_hold_what_is_below_its_ceiling() {
    let model = demo_model("m", "--token-time 1h --tokens 20");
    let gateway = Gateway::start(&format!(
        "models:\n{model}{}  admission: {{ shedWhenSaturated: true }}\n",
        FLOW.replace("maxConcurrency: 1", "maxConcurrency: 2")
            + "        priorityBands: [{ priority: normal, ceiling: 0.5 }]\n"
    ));
    let running = tokio::spawn(chat(&gateway, "running", "normal", "a").send());
    gateway.wait_until_running(1.0).await;
    let held = tokio::spawn(chat(&gateway, "held", "normal", "b").send());
    gateway.wait_until_waiting(1.0).await;
    let urgent = tokio::spawn(chat(&gateway, "urgent", "interactive", "c").send());
    gateway.wait_until_running(2.0).await;
    let shed = chat(&gateway, "shed", "batch", "d").send().await.expect("an answer");
    assert_dropped(&shed, 429, "rejected-saturated");
    assert!(shed.headers().contains_key("retry-after"));
    let explained = gateway.activity("shed").await;
    let summary = explained["summary"].to_string();
    assert!(summary.contains("It waited for room: its model's servers were 100% full"), "{summary}");
    assert_eq!(gateway.waiting().await, 1.0, "half of the servers' capacity is for the more urgent");
    assert!(gateway.metric("switchyard_ceiling_hits_total{band=\"normal\",model=\"m\"}").await >= 1.0);
    let text = gateway.get_text("/metrics").await;
    assert!(text.contains("switchyard_requests_total{band=\"batch\",outcome=\"rejected_shed\"} 1"), "{text}");
    for task in [running, held, urgent] {
        task.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_in_vain_for_a_server_is_told_that_there_is_none() {
    let port = free_ports();
    let gateway = Gateway::start(&format!(
        "models:\n  m:\n    endpoints: [http://127.0.0.1:{port}, http://127.0.0.1:{}]\n{FLOW}",
        port + 1
    ));
    let request = chat(&gateway, "vain", "normal", "a").header("x-switchyard-queue-ttl-ms", "150");
    assert_dropped(&request.send().await.expect("an answer"), 503, "rejected-no-endpoints");
}
