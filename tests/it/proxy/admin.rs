//! The gateway's own endpoints.

use serde_json::{Value, json};

use crate::support::{Gateway, demo_model, eventually};

#[tokio::test]
async fn models_are_listed_as_in_llama_swap() {
    let about = "    name: Small\n    description: A model\n    aliases: [small, tiny]\n    metadata: {size: 7}\n";
    let hidden = demo_model("hidden", "").trim_end().to_owned() + "\n    unlisted: true\n";
    let config =
        format!("includeAliasesInList: true\nmodels:\n{}\n{about}{hidden}", demo_model("org/m", "").trim_end());
    let gateway = Gateway::start(&config);
    let list = gateway.get_json("/v1/models").await;
    assert_eq!(list, gateway.get_json("/models").await);
    assert_eq!(list["object"], "list");
    let ids: Vec<_> = list["data"].as_array().expect("a list").iter().map(|model| model["id"].clone()).collect();
    assert_eq!(ids, ["org/m", "small", "tiny"]);
    let model = &list["data"][0];
    assert_eq!((&model["object"], &model["name"]), (&json!("model"), &json!("Small")));
    assert_eq!((&model["description"], &model["status"]["value"]), (&json!("A model"), &json!("unloaded")));
    let meta = json!({"size": 7, "type": "model", "aliases": ["small", "tiny"]});
    assert_eq!(model["meta"]["llamaswap"], meta);
    assert_eq!(list["data"][1]["meta"]["llamaswap"], json!({"size": 7, "type": "alias", "modelID": "org/m"}));

    let answer = gateway.client.get(gateway.url("/v1/models")).header("origin", "http://page").send().await;
    assert_eq!(answer.expect("an answer").headers()["access-control-allow-origin"], "http://page");
}

#[tokio::test]
async fn what_runs_is_shown_and_can_be_unloaded() {
    let config = format!("models:\n{}\n    aliases: [small]\n    ttl: 600\n", demo_model("org/m", "").trim_end());
    let gateway = Gateway::start(&config);
    assert_eq!(gateway.get_json("/running").await, json!({"running": []}));
    let unload_all = gateway.client.get(gateway.url("/unload"));
    let unload_all_too = gateway.client.post(gateway.url("/api/models/unload"));
    let unload_one = gateway.client.post(gateway.url("/api/models/unload/small"));
    for (unload, says) in [(unload_all, "OK"), (unload_all_too, r#"{"msg":"ok"}"#), (unload_one, "OK")] {
        assert_eq!(gateway.chat("org/m", "normal").send().await.expect("an answer").status(), 200);
        let running = gateway.get_json("/running").await;
        let model = &running["running"][0];
        assert_eq!((&model["model"], &model["state"], &model["ttl"]), (&json!("org/m"), &json!("ready"), &json!(600)));
        assert!(model["cmd"].as_str().is_some_and(|cmd| cmd.contains("demo-backend --port")), "{model}");
        assert_eq!(gateway.get_json("/v1/models").await["data"][0]["status"]["value"], "loaded");
        let answer = unload.send().await.expect("an answer");
        assert_eq!((answer.status().as_u16(), answer.text().await.expect("a body").as_str()), (200, says));
        eventually("nothing runs", async || {
            (gateway.get_json("/running").await == json!({"running": []}) && gateway.children().is_empty())
                .then_some(())
        })
        .await;
    }
    let answer = gateway.client.post(gateway.url("/api/models/unload/none")).send().await.expect("an answer");
    assert_eq!(answer.status(), 404);
}

#[tokio::test]
async fn logs_are_kept_and_followed() {
    let models = [demo_model("a", ""), demo_model("b", "")].concat();
    let gateway = Gateway::start(&format!("groups:\n  g: {{swap: false, members: [a, b]}}\nmodels:\n{models}"));
    let mut all = gateway.client.get(gateway.url("/logs/stream")).send().await.expect("an answer");
    assert_eq!(all.headers()["x-accel-buffering"], "no");
    for model in ["a", "b"] {
        assert_eq!(gateway.chat(model, "normal").send().await.expect("an answer").status(), 200);
    }
    let mut seen = String::new();
    while !(seen.contains("model 'a'") && seen.contains("model 'b'")) {
        seen += std::str::from_utf8(&all.chunk().await.expect("a chunk").expect("a chunk")).expect("UTF-8");
    }
    let kept = gateway.get_text("/logs").await;
    assert!(kept.contains("model 'a'") && kept.contains("model 'b'"), "{kept}");

    let mut one = gateway.client.get(gateway.url("/logs/stream/b")).send().await.expect("an answer");
    let history = one.chunk().await.expect("a chunk").expect("a chunk");
    let history = std::str::from_utf8(&history).expect("UTF-8");
    assert!(history.contains("model 'b'") && !history.contains("model 'a'"), "{history}");

    let mut live = gateway.client.get(gateway.url("/logs/stream/b?no-history")).send().await.expect("an answer");
    gateway.client.post(gateway.url("/api/models/unload/b")).send().await.expect("an answer");
    let first = live.chunk().await.expect("a chunk").expect("a chunk");
    let first = std::str::from_utf8(&first).expect("UTF-8");
    assert!(!first.contains("loaded in"), "history came along: {first}");

    let mut own = gateway.client.get(gateway.url("/logs/stream/proxy")).send().await.expect("an answer");
    let history = own.chunk().await.expect("a chunk").expect("a chunk");
    let history = std::str::from_utf8(&history).expect("UTF-8");
    assert!(history.contains("listening") && history.contains("loading"), "{history}");
}

#[tokio::test]
async fn the_activity_log_answers_in_json_and_in_words() {
    let gateway = Gateway::start(&format!("models:\n{}", demo_model("m", "")));
    for (id, priority) in [("first", "batch"), ("second", "interactive")] {
        let answer = gateway.chat("m", priority).header("x-request-id", id).send().await.expect("an answer");
        assert_eq!(answer.status(), 200);
    }
    gateway.activity("second").await;
    let page = gateway.get_json("/api/activity?band=batch").await;
    let ids: Vec<_> = page["requests"].as_array().expect("a list").iter().map(|row| row["id"].clone()).collect();
    assert_eq!(ids, ["first"]);
    let words = gateway.client.get(gateway.url("/api/activity/first")).header("accept", "text/plain").send().await;
    let words = words.expect("an answer").text().await.expect("a body");
    assert!(words.contains("priority -100, band batch"), "{words}");
}

#[tokio::test]
async fn small_things() {
    let gateway = Gateway::start(&format!("models:\n{}", demo_model("m", "")));
    assert_eq!(gateway.get_text("/health").await, "OK");
    assert_eq!(gateway.get_json("/api/version").await["version"], env!("CARGO_PKG_VERSION"));
    assert!(gateway.get_text("/").await.contains("/v1/models"));
    let metrics = gateway.client.get(gateway.url("/metrics")).send().await.expect("an answer");
    assert!(metrics.headers()["content-type"].to_str().expect("ASCII").starts_with("text/plain; version=0.0.4"));
    let head = gateway.client.head(gateway.url("/v1/models")).send().await.expect("an answer");
    assert_eq!((head.status().as_u16(), head.text().await.expect("a body").as_str()), (200, ""));
    let voices = gateway.client.get(gateway.url("/v1/audio/voices?model=m")).send().await.expect("an answer");
    let error: Value = voices.json().await.expect("JSON");
    assert_eq!(error["error"]["type"], "demo_error", "the model server has no such path, and says so itself");
}
