//! Two real models on one GPU, as far as a CPU can stand in for one.

use std::time::Duration;

use futures_util::StreamExt as _;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{Gateway, Llama, children_of, eventually, is_alive, llama};

fn two_models(llama: &Llama, scheduler: &str) -> String {
    let mut config = String::from("healthCheckTimeout: 60\nmodels:\n");
    for (name, file) in ["a", "b"].into_iter().zip(&llama.models) {
        config += &format!(
            "  {name}:\n    cmd: {} -m {} --port ${{PORT}} --metrics -c 4096 -np 2\n    unloadTimeout: 5\n",
            llama.server.display(),
            file.display(),
        );
    }
    config + &format!("routing:\n  scheduler:\n    use: {scheduler}\n")
}

/// What each of the forty clients does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Client {
    ReadsAll,
    ReadsStream,
    LeavesQueue,
    LeavesStream,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forty_mixed_clients_get_right_answers_and_leave_nothing_behind() {
    let Some(llama) = llama() else { return };
    let mut gateway = Gateway::start(&two_models(&llama, "serial"));

    // In one group with `swap` there is never more than one model server, whatever happens.
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let gateway_pid = gateway.pid();
    let watch = std::thread::spawn(move || {
        let mut most = 0;
        while matches!(stopped.try_recv(), Err(tokio::sync::oneshot::error::TryRecvError::Empty)) {
            most = most.max(children_of(gateway_pid).len());
            std::thread::sleep(Duration::from_millis(2));
        }
        most
    });

    let mut clients = tokio::task::JoinSet::new();
    for i in 0..40_usize {
        let kind = match i % 8 {
            6 => Client::LeavesQueue,
            7 => Client::LeavesStream,
            k if k % 2 == 0 => Client::ReadsAll,
            _ => Client::ReadsStream,
        };
        let model = if (i / 3) % 2 == 0 { "a" } else { "b" };
        let priority = ["interactive", "normal", "batch", "42", "-7"][i % 5];
        let body = json!({
            "model": model, "stream": kind != Client::ReadsAll, "max_tokens": 16, "ignore_eos": true, "seed": i,
            "messages": [{"role": "user", "content": format!("request {i}")}],
        });
        let request = gateway.chat_with(body, priority).header("x-request-id", format!("mixed-{i}"));
        clients.spawn(async move {
            if kind == Client::LeavesQueue {
                let _ = tokio::time::timeout(Duration::from_millis(30), request.send()).await;
                return;
            }
            let response = request.send().await.expect("an answer");
            assert_eq!(response.status(), 200, "client {i}");
            assert!(response.headers().contains_key("x-switchyard-queue-wait-ms"));
            assert_eq!(response.headers()["x-request-id"], format!("mixed-{i}"));
            match kind {
                Client::ReadsAll => {
                    let answer: Value = response.json().await.expect("JSON");
                    assert_eq!(answer["usage"]["completion_tokens"], 16, "client {i}: {answer}");
                }
                Client::ReadsStream => {
                    let text = response.text().await.expect("a stream");
                    assert!(text.trim_end().ends_with("data: [DONE]"), "client {i}: {text}");
                }
                Client::LeavesStream => {
                    let mut stream = response.bytes_stream();
                    stream.next().await.expect("a first chunk").expect("no error");
                }
                Client::LeavesQueue => unreachable!("has left"),
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.expect("every client is content");
    }

    gateway.wait_until_running(0.0).await;
    gateway.wait_until_waiting(0.0).await;
    stop.send(()).expect("the watch runs");
    assert_eq!(watch.join().expect("the watch ends"), 1, "two model servers at once");

    let rows = eventually("all forty are in the activity log", async || {
        let rows = gateway.get_json("/api/activity?limit=1000").await;
        let rows = rows["requests"].as_array().expect("rows").clone();
        (rows.len() == 40).then_some(rows)
    })
    .await;
    assert_order_follows_score(&rows);

    let servers = gateway.children();
    gateway.signal(Signal::SIGTERM);
    assert!(gateway.ended().await.success());
    assert!(servers.iter().all(|&pid| !is_alive(pid)), "a model server outlived the gateway");
}

/// At each dispatch nobody who waited was more urgent by more than swap affinity (10) and aging (below 1 here) can make
/// up for. A request that a model was loaded for is left out: it had been chosen before the load.
fn assert_order_follows_score(rows: &[Value]) {
    let number = |row: &Value, key: &str| row[key].as_i64().unwrap_or_else(|| panic!("{key} in {row}"));
    let mut dispatched: Vec<&Value> = rows.iter().filter(|row| row["dispatched_ms"].is_i64()).collect();
    dispatched.sort_by_key(|row| number(row, "dispatched_ms"));
    assert!(dispatched.len() >= 30, "{} dispatched", dispatched.len());
    for (i, row) in dispatched.iter().enumerate().filter(|(_, row)| row["swap_ms"].is_null()) {
        for later in &dispatched[i + 1..] {
            // Milliseconds are coarse: only what clearly waited counts.
            if number(later, "arrived_ms") + 10 < number(row, "dispatched_ms") {
                let lead = number(later, "serial_priority") - number(row, "serial_priority");
                assert!(lead <= 11, "went before a more urgent one that waited:\n{row}\n{later}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_survives_a_kill_of_the_gateway() {
    let Some(llama) = llama() else { return };
    let mut gateway = Gateway::start(&two_models(&llama, "serial"));
    gateway.chat("a", "normal").send().await.expect("an answer").error_for_status().expect("success");
    let servers = gateway.children();
    assert_eq!(servers.len(), 1);

    gateway.signal(Signal::SIGKILL);
    gateway.ended().await;
    eventually("the model server is gone", async || (!is_alive(servers[0])).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_mid_stream_frees_the_server_at_once() {
    let Some(llama) = llama() else { return };
    let gateway = Gateway::start(&two_models(&llama, "serial"));
    let endless = json!({
        "model": "a", "stream": true, "max_tokens": 100_000, "ignore_eos": true,
        "messages": [{"role": "user", "content": "never stop"}],
    });
    let response = gateway.chat_with(endless, "normal").send().await.expect("an answer");
    let mut stream = response.bytes_stream();
    stream.next().await.expect("a first chunk").expect("no error");
    // Asked directly: through the gateway it would wait for the one slot.
    let running = gateway.get_json("/running").await;
    let slots = format!("{}/slots", running["running"][0]["proxy"].as_str().expect("the server's address"));
    let busy = async || {
        let slots: Value = gateway.client.get(&slots).send().await.expect("an answer").json().await.expect("JSON");
        slots.as_array().expect("slots").iter().any(|slot| slot["is_processing"] == true)
    };
    assert!(busy().await, "the generation runs");
    drop(stream);
    eventually("llama-server's slots are idle", async || (!busy().await).then_some(())).await;
    gateway.wait_until_running(0.0).await;
}
