//! What is left of model servers when the gateway is killed: nothing, at the latest when the next one starts.

use nix::sys::signal::Signal;

use crate::support::{Gateway, demo_model, eventually, is_alive};

/// The process that a model server has started, as its log says.
async fn worker(gateway: &Gateway) -> u32 {
    eventually("the worker is named in the log", async || {
        let log = gateway.get_text("/logs").await;
        log.lines().find_map(|line| line.split_once("worker ")?.1.trim().parse().ok())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_gateway_kills_what_a_killed_one_left_and_spares_the_living() {
    let config = format!("models:\n{}", demo_model("only", "--fail worker"));
    let mut alive = Gateway::start(&config);
    let mut killed = Gateway::start(&config);
    for gateway in [&alive, &killed] {
        assert_eq!(gateway.chat("only", "normal").send().await.expect("an answer").status(), 200);
    }
    let (server, orphan) = (killed.children()[0], worker(&killed).await);
    assert!(is_alive(orphan));

    killed.signal(Signal::SIGKILL);
    killed.ended().await;
    eventually("the model server dies with its gateway", async || (!is_alive(server)).then_some(())).await;

    let next = Gateway::start(&config);
    assert!(!is_alive(orphan), "it is gone before the next gateway says that it listens");
    assert!(is_alive(alive.children()[0]) && is_alive(worker(&alive).await));
    drop(next);
    alive.signal(Signal::SIGTERM);
    assert!(alive.ended().await.success());
}
