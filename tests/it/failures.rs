//! Model servers that do not start, do not get healthy, crash.

use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use crate::support::{Gateway, demo_model, eventually};

async fn error_of(response: reqwest::Response) -> Value {
    assert_eq!(response.headers()["content-type"], "application/json");
    let body: Value = response.json().await.expect("JSON");
    for key in ["message", "type", "code", "param"] {
        assert!(body["error"].get(key).is_some(), "no {key} in {body}");
    }
    body["error"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_exits_is_answered_with_its_last_words_while_others_go_on() {
    let config = format!(
        "models:\n{}{}routing:\n  router:\n    settings:\n      groups:\n        both:\n          swap: false\n          members: [broken, fine]\n",
        demo_model("broken", "--fail exit-at-start=3"),
        demo_model("fine", "")
    );
    let gateway = Gateway::start(&config);
    let broken = tokio::spawn(gateway.chat("broken", "normal").send());
    for _ in 0..5 {
        assert_eq!(gateway.chat("fine", "normal").send().await.expect("an answer").status(), 200);
    }
    let broken = broken.await.expect("no panic").expect("an answer");
    assert_eq!(broken.status(), 502);
    let error = error_of(broken).await;
    let message = error["message"].as_str().expect("a message");
    assert!(message.contains("failed to load model 'broken'"), "the server's own words: {message}");
    assert!(message.contains('3'), "the exit status: {message}");

    // Not for ever: the next request tries again, after the pause.
    assert_eq!(gateway.chat("broken", "normal").send().await.expect("an answer").status(), 502);
    assert!(gateway.metric("switchyard_load_failures_total{model=\"broken\"}").await >= 2.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_never_gets_healthy_is_given_up_and_taken_down() {
    let config =
        format!("healthCheckTimeout: 1\nmodels:\n{}    unloadTimeout: 1\n", demo_model("sick", "--fail never-healthy"));
    let gateway = Gateway::start(&config);
    let response = gateway.chat("sick", "normal").send().await.expect("an answer");
    assert_eq!(response.status(), 502);
    let error = error_of(response).await;
    assert!(error["message"].as_str().expect("a message").contains("healthCheckTimeout"), "names the cure: {error}");
    assert_eq!(gateway.children(), Vec::<u32>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_mid_stream_ends_it_with_an_error_event_and_the_next_request_works() {
    let gateway = Gateway::start(&format!("models:\n{}", demo_model("only", "--token-time 20ms --tokens 500")));
    let body = serde_json::json!({"model": "only", "stream": true, "messages": [{"role": "user", "content": "Hello"}]});
    let mut response = gateway.chat_with(body, "normal").header("x-request-id", "cut").send().await.expect("an answer");
    assert_eq!(response.status(), 200);
    response.chunk().await.expect("no error").expect("a first chunk");

    let server = gateway.children()[0];
    kill(nix::unistd::Pid::from_raw(server.cast_signed()), Signal::SIGKILL).expect("the server runs");
    let mut rest = Vec::new();
    while let Some(chunk) = response.chunk().await.expect("the stream ends properly") {
        rest.extend_from_slice(&chunk);
    }
    let rest = String::from_utf8(rest).expect("UTF-8");
    let error =
        rest.split("\n\n").find_map(|event| event.split_once("data: ").filter(|(_, data)| data.contains("\"error\"")));
    let (_, error) = error.unwrap_or_else(|| panic!("no error event in {rest}"));
    let error: Value = serde_json::from_str(error.trim()).expect("JSON");
    assert!(error["error"]["message"].is_string(), "{error}");
    assert!(!rest.contains("[DONE]"), "an answer cut short does not look whole");

    let next = gateway.chat("only", "normal").header("x-demo-tokens", "3").send().await.expect("an answer");
    assert_eq!(next.status(), 200);
    assert_ne!(gateway.children(), [server]);
    assert!(gateway.activity("cut").await["request"]["error"].is_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_the_server_itself_pass_untouched() {
    let gateway = Gateway::start(&format!("models:\n{}", demo_model("only", "")));
    let response = gateway.chat("only", "normal").header("x-demo-fail", "error=418").send().await.expect("an answer");
    assert_eq!(response.status(), 418);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_while_idle_is_noticed_and_repaired_by_the_next_request() {
    let gateway = Gateway::start(&format!("models:\n{}", demo_model("only", "--fail worker")));
    assert_eq!(gateway.chat("only", "normal").send().await.expect("an answer").status(), 200);
    let server = gateway.children()[0];
    kill(nix::unistd::Pid::from_raw(server.cast_signed()), Signal::SIGKILL).expect("the server runs");
    eventually("the gateway noticed", async || {
        let running = gateway.get_json("/running").await;
        running["running"].as_array().expect("models").is_empty().then_some(())
    })
    .await;
    assert_eq!(gateway.chat("only", "normal").send().await.expect("an answer").status(), 200);
    assert_ne!(gateway.children(), [server]);
}
