//! Envoy with the filter in front of the gateway, as `examples/envoy` has it.

use std::{fs, process::Command, time::Duration};

use futures_util::StreamExt as _;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use switchyard_policy_conformance::envoy::{Envoy, envoy, example_folder};

use crate::support::{Gateway, children_of, demo_model, eventually, llama};

/// The example in front of a gateway, and its base URL.
fn example_before(gateway: &Gateway) -> Option<(Envoy, String)> {
    let binary = envoy()?;
    let folder = example_folder(env!("CARGO_TARGET_TMPDIR"), gateway.address);
    let envoy = Envoy::start(&binary, folder, "envoy.yaml");
    let url = format!("http://{}", envoy.listener("inference"));
    Some((envoy, url))
}

fn chat(model: &str, change: Value) -> Value {
    let mut body = json!({ "model": model, "messages": [{ "role": "user", "content": "Hello" }] });
    body.as_object_mut().expect("an object").extend(change.as_object().expect("an object").clone());
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_decides_how_urgent_a_request_is() {
    let gateway = Gateway::start(&format!("models:\n{}", demo_model("m", "--load-time 0s --token-time 0s")));
    let Some((_envoy, url)) = example_before(&gateway) else { return };
    let post = |key: &str, priority: &str| {
        let request = gateway.client.post(format!("{url}/v1/chat/completions"));
        request.bearer_auth(key).header("X-LlamaSwap-Priority", priority).json(&chat("m", json!({})))
    };
    for (key, asked, priority) in [
        ("demo-max", "batch", -98),
        ("demo-pro", "99", 1),
        ("demo-pro", "interactive", 101),
        ("demo-free", "-7", -100),
        ("demo-free", "9", 0),
    ] {
        let answer = post(key, asked).send().await.expect("an answer");
        assert_eq!(answer.status(), 200, "{key} {asked}");
        let id = answer.headers()["x-request-id"].to_str().expect("an id").to_owned();
        let path = format!("/api/activity/{id}");
        let row = eventually("it is in the activity log", || async {
            let row = gateway.client.get(gateway.url(&path)).send().await.ok()?;
            if row.status() == 200 { row.json::<Value>().await.ok() } else { None }
        })
        .await;
        assert_eq!(row["request"]["serial_priority"], priority, "{key} asked for {asked}: {row}");
    }
    assert_eq!(post("demo-free", "interactive").send().await.expect("an answer").status(), 403);
    assert_eq!(post("demo-nobody", "batch").send().await.expect("an answer").status(), 401);
}

/// What the example's README tells to do: make a key, paste it, apply it, ask, and see what became of the request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_key_is_pasted_applied_and_seen_in_the_activity_log() {
    let model = demo_model("m", "--load-time 0s --token-time 100ms");
    let gateway = Gateway::start(&format!("routing: {{scheduler: {{use: serial}}}}\nmodels:\n{model}"));
    let Some((envoy, url)) = example_before(&gateway) else { return };
    let program = env!("CARGO_BIN_EXE_switchyard");
    let made = Command::new(program).args(["keys", "new", "--tenant", "newcomer", "--tier", "max"]).output();
    let made = String::from_utf8(made.expect("it runs").stdout).expect("text");
    let (key, yaml) = made.split_once("\n\n").expect("the key, an empty line, the YAML");
    let ask = |tokens: u32| {
        let request = gateway.client.post(format!("{url}/v1/chat/completions")).bearer_auth(key);
        request.header("X-LlamaSwap-Priority", "batch").json(&chat("m", json!({ "max_tokens": tokens })))
    };
    assert_eq!(ask(1).send().await.expect("an answer").status(), 401, "not yet");

    let tiers = envoy.folder().join("tiers.yaml");
    let filter = || fs::read_to_string(envoy.folder().join("keys/filter.yaml")).expect("the filter's settings");
    let apply =
        || Command::new(envoy.folder().join("apply-keys.sh")).env("SWITCHYARD", program).output().expect("runs");
    let before = (fs::read_to_string(&tiers).expect("the example"), filter());
    fs::write(&tiers, format!("{}{}", before.0, yaml.replace("max", "maximal"))).expect("written");
    let refused = apply();
    assert!(!refused.status.success() && filter() == before.1, "a mistake changes nothing");
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(complaint.contains("keys[4].tier") && complaint.contains("use one of: free, max, pro"), "{complaint}");
    fs::write(&tiers, before.0 + yaml).expect("written");
    let applied = apply();
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    eventually("the key is in force", async || (ask(1).send().await.expect("an answer").status() == 200).then_some(()))
        .await;

    // The second has to wait for the first, which takes half a second.
    let first = tokio::spawn(ask(5).send());
    gateway.wait_until_running(1.0).await;
    let second = ask(1).send().await.expect("an answer");
    assert_eq!(
        (second.status(), first.await.expect("no panic").expect("an answer").status()),
        (reqwest::StatusCode::OK, reqwest::StatusCode::OK)
    );
    let id = second.headers()["x-request-id"].to_str().expect("an id").to_owned();
    let row = eventually("it is in the activity log", async || {
        let log = gateway.client.get(format!("{url}/api/activity?limit=5")).header("x-api-key", "demo-ops");
        let log: Value = log.send().await.expect("an answer").json().await.expect("JSON");
        let rows = log["requests"].as_array().unwrap_or_else(|| panic!("no rows: {log}"));
        rows.iter().find(|row| row["id"] == id.as_str()).cloned()
    })
    .await;
    assert_eq!(
        (&row["tenant"], &row["tier"], &row["serial_priority"]),
        (&json!("newcomer"), &json!("max"), &json!(-98))
    );
    assert!(row["serial_queue_wait_ms"].as_i64().expect("a number") > 0, "{row}");
}

/// Two minutes of a real answer, in two silences of a minute: the model server is stopped and goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_may_take_two_minutes_and_be_silent_for_one() {
    let Some(llama) = llama() else { return };
    let (server, model) = (llama.server.display(), llama.models[0].display());
    let gateway = Gateway::start(&format!("models:\n  m:\n    cmd: {server} -m {model} --port ${{PORT}} -c 4096\n"));
    let Some((_envoy, url)) = example_before(&gateway) else { return };
    let body = chat("m", json!({ "stream": true, "max_tokens": 3000, "ignore_eos": true }));
    let request = gateway.client.post(format!("{url}/v1/chat/completions")).bearer_auth("demo-pro").json(&body);
    let start = tokio::time::Instant::now();
    let mut answer = request.send().await.expect("an answer").error_for_status().expect("success").bytes_stream();
    let mut text = Vec::new();
    for _ in 0..2 {
        text.extend(answer.next().await.expect("more of it").expect("no error"));
        assert!(!String::from_utf8_lossy(&text).contains("[DONE]"), "the model is too fast for this test");
        for model in children_of(gateway.pid()) {
            let model = Pid::from_raw(model.cast_signed());
            kill(model, Signal::SIGSTOP).expect("stopped");
            tokio::time::sleep(Duration::from_secs(60)).await;
            kill(model, Signal::SIGCONT).expect("going on");
        }
    }
    while let Some(chunk) = answer.next().await {
        text.extend(chunk.expect("no error"));
    }
    let text = String::from_utf8_lossy(&text);
    assert!(text.trim_end().ends_with("data: [DONE]"), "{text}");
    // Random weights also make bytes that are no text and get no chunk.
    assert!(text.matches("\"content\"").count() >= 1_000, "{} chunks", text.matches("\"content\"").count());
    assert!(start.elapsed() >= Duration::from_secs(120), "{:?}", start.elapsed());
}
