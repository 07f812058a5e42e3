//! Loading, swapping, unloading, draining.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{Gateway, demo_model, eventually, is_alive};

async fn running(gateway: &Gateway) -> Vec<String> {
    let running = gateway.get_json("/running").await;
    let models = running["running"].as_array().expect("models").iter();
    models.map(|row| row["model"].as_str().expect("a name").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_cold_models_asked_for_together_are_served_in_two_loads() {
    for scheduler in ["fifo", "serial"] {
        let config = format!(
            "models:\n{}{}routing:\n  scheduler:\n    use: {scheduler}\n",
            demo_model("a", "--load-time 100ms"),
            demo_model("b", "--load-time 100ms")
        );
        let gateway = Gateway::start(&config);
        let both = ["a", "b"].map(|model| tokio::spawn(gateway.chat(model, "normal").send()));
        for answer in both {
            assert_eq!(answer.await.expect("no panic").expect("an answer").status(), 200, "{scheduler}");
        }
        let loads =
            async |model: &str| gateway.metric(&format!("switchyard_load_seconds_count{{model=\"{model}\"}}")).await;
        assert_eq!((loads("a").await, loads("b").await), (1.0, 1.0), "{scheduler}");
        assert_eq!(gateway.metric("switchyard_swaps_total").await, 1.0, "{scheduler}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steady_traffic_for_a_loaded_model_does_not_starve_another() {
    // In `serial` a waiting request overtakes the loaded model's affinity by aging: here after two seconds.
    let serial = "serial\n    settings:\n      serial: {swapAffinityBonus: 2, agingDivisor: 1}";
    for scheduler in ["fifo", serial] {
        let config = format!(
            "models:\n{}{}routing:\n  scheduler:\n    use: {scheduler}\n",
            demo_model("busy", "--token-time 5ms --tokens 10"),
            demo_model("other", "")
        );
        let gateway = Gateway::start(&config);
        assert_eq!(gateway.chat("busy", "normal").send().await.expect("an answer").status(), 200);
        // Four clients that overlap: the model is never idle by itself.
        let mut steady = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let (client, url) = (gateway.client.clone(), gateway.url("/v1/chat/completions"));
            steady.spawn(async move {
                loop {
                    let body = serde_json::json!({"model": "busy", "messages": []});
                    let answer = client.post(&url).json(&body).send().await.expect("an answer");
                    assert_eq!(answer.status(), 200);
                }
            });
        }
        eventually("the traffic runs", async || {
            (gateway.metric("llamaswap_scheduler_dispatched_total{band=\"normal\"}").await > 8.0).then_some(())
        })
        .await;
        let other = tokio::time::timeout(Duration::from_secs(10), gateway.chat("other", "normal").send()).await;
        assert_eq!(other.unwrap_or_else(|_| panic!("{scheduler}: starved")).expect("an answer").status(), 200);
        // The steady clients go on afterwards.
        let before = gateway.metric("llamaswap_scheduler_dispatched_total{band=\"normal\"}").await;
        eventually("the traffic goes on", async || {
            (gateway.metric("llamaswap_scheduler_dispatched_total{band=\"normal\"}").await > before + 8.0).then_some(())
        })
        .await;
        steady.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unloading_what_ignores_sigterm_takes_its_grace_and_delays_nobody_else() {
    let config = format!(
        "models:\n{}    unloadTimeout: 2\n{}groups:\n  both:\n    swap: false\n    members: [stubborn, other]\n",
        demo_model("stubborn", "--fail ignore-sigterm"),
        demo_model("other", "")
    );
    let gateway = Gateway::start(&config);
    assert_eq!(gateway.chat("stubborn", "normal").send().await.expect("an answer").status(), 200);
    let server = gateway.children()[0];

    let begun = Instant::now();
    let unload = gateway.client.post(gateway.url("/api/models/unload/stubborn")).send();
    let unload = tokio::spawn(unload);
    eventually("it is being stopped", async || {
        let running = gateway.get_json("/running").await;
        running.to_string().contains("stopping").then_some(())
    })
    .await;
    assert_eq!(gateway.chat("other", "normal").send().await.expect("an answer").status(), 200);
    assert!(is_alive(server), "still in its grace after {:?}", begun.elapsed());
    eventually("it was killed", async || (!is_alive(server)).then_some(())).await;
    let took = begun.elapsed();
    assert!((1_900..4_000).contains(&took.as_millis()), "killed after {took:?}");
    assert!(unload.await.expect("no panic").expect("an answer").status().is_success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ttl_counts_from_the_end_of_the_last_request() {
    let config = format!("models:\n{}    ttl: 1\n", demo_model("only", ""));
    let gateway = Gateway::start(&config);
    // Longer than the ttl: it must not be unloaded meanwhile.
    let slow = gateway.chat("only", "normal").header("x-demo-prefill-time", "1500ms").send().await;
    assert_eq!(slow.expect("an answer").status(), 200);
    let ended = Instant::now();
    assert_eq!(running(&gateway).await, ["only"]);
    eventually("it is unloaded", async || running(&gateway).await.is_empty().then_some(())).await;
    assert!(ended.elapsed() >= Duration::from_millis(900), "unloaded after {:?}", ended.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_lets_streams_end_refuses_the_rest_and_leaves_no_process() {
    let config = format!(
        "models:\n{}routing:\n  scheduler:\n    use: serial\n",
        demo_model("only", "--token-time 20ms --tokens 50 --fail worker")
    );
    let mut gateway = Gateway::start(&config);
    let body = serde_json::json!({"model": "only", "stream": true, "messages": []});
    let mut stream = gateway.chat_with(body, "normal").send().await.expect("an answer");
    stream.chunk().await.expect("no error").expect("a first chunk");
    let waiting = tokio::spawn(gateway.chat("only", "normal").send());
    gateway.wait_until_waiting(1.0).await;
    let servers = gateway.children();

    gateway.signal(Signal::SIGTERM);
    let refused = waiting.await.expect("no panic").expect("an answer");
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("retry-after"));
    assert_eq!(refused.headers()["x-llm-d-request-dropped-reason"], "rejected-shutting-down");
    let mut rest = Vec::new();
    while let Some(chunk) = stream.chunk().await.expect("the stream is not cut") {
        rest.extend_from_slice(&chunk);
    }
    assert!(String::from_utf8_lossy(&rest).trim_end().ends_with("data: [DONE]"));
    assert!(gateway.ended().await.success());
    assert!(servers.iter().all(|&pid| !is_alive(pid)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_sigterm_stops_at_once() {
    let mut gateway = Gateway::start(&format!("models:\n{}", demo_model("only", "")));
    let hanging = gateway.chat("only", "normal").header("x-demo-fail", "hang");
    let hanging = tokio::spawn(hanging.send());
    gateway.wait_until_running(1.0).await;
    let servers = gateway.children();
    gateway.signal(Signal::SIGTERM);
    eventually("it drains", async || gateway.log().contains("draining").then_some(())).await;
    gateway.signal(Signal::SIGTERM);
    gateway.ended().await;
    assert!(servers.iter().all(|&pid| !is_alive(pid)));
    drop(hanging);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_file_is_reloaded_and_a_bad_one_refused() {
    let gateway = Gateway::start(&format!("models:\n{}", demo_model("first", "")));
    assert_eq!(gateway.chat("first", "normal").send().await.expect("an answer").status(), 200);
    let servers = gateway.children();

    let text = std::fs::read_to_string(&gateway.config).expect("the configuration");
    std::fs::write(&gateway.config, text.clone() + "    tll: 5\n").expect("written");
    eventually("the bad file is refused", async || gateway.log().contains("refused").then_some(())).await;
    assert!(gateway.log().contains("did you mean `ttl`"), "{}", gateway.log());

    std::fs::write(&gateway.config, text + &demo_model("second", "")).expect("written");
    eventually("the new model is known", async || {
        let models = gateway.get_json("/v1/models").await;
        models.to_string().contains("second").then_some(())
    })
    .await;
    assert_eq!(gateway.children(), servers, "a model that did not change keeps running");
    assert_eq!(gateway.chat("second", "normal").send().await.expect("an answer").status(), 200);
}
