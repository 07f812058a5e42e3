//! Keys that change while the gateway runs, and what is left of them anywhere.

use super::{chat, echoing_model};
use crate::support::{Gateway, eventually};

fn keys(keys: &[&str]) -> String {
    let lines: String = keys
        .iter()
        .map(|key| format!("  - {{key: {key}, tenant: t, tier: pro, scope: [inference, read]}}\n"))
        .collect();
    format!("allowPlain: true\nkeys:\n{lines}")
}

async fn status(gateway: &Gateway, key: &str) -> u16 {
    chat(gateway, &[("x-api-key", key)]).await.status()
}

#[tokio::test]
async fn a_changed_file_of_keys_is_in_force_without_a_restart() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let tiers = dir.path().join("tiers.yaml");
    let write = |text: &str| {
        // As editors do it: beside, and then over it.
        let beside = dir.path().join("tiers.new");
        std::fs::write(&beside, text).expect("written");
        std::fs::rename(&beside, &tiers).expect("renamed");
    };
    write(&keys(&["sk-one"]));
    let gateway = Gateway::start(&format!("tiersFile: {}\nmodels:\n{}", tiers.display(), echoing_model(&[])));
    assert_eq!((status(&gateway, "sk-one").await, status(&gateway, "sk-two").await), (200, 401));
    let pid = gateway.children();

    write(&keys(&["sk-two"]));
    eventually("the new key is good", async || (status(&gateway, "sk-two").await == 200).then_some(())).await;
    assert_eq!(status(&gateway, "sk-one").await, 401, "the old one is not");
    assert_eq!(gateway.children(), pid, "the model keeps running");

    write("keys: [{sha256: sk-three-in-the-clear}]");
    eventually("the broken file is refused", async || gateway.log().contains("configuration refused").then_some(()))
        .await;
    assert_eq!(status(&gateway, "sk-two").await, 200, "what was in force stays");
    assert!(!gateway.log().contains("three-in-the-clear"), "{}", gateway.log());
    write(&keys(&["sk-three", "sk-four"]));
    eventually("the mended file is in force", async || (status(&gateway, "sk-four").await == 200).then_some(())).await;

    // The configuration names another file, which is then followed.
    let other = tempfile::tempdir().expect("a temporary folder");
    let moved = other.path().join("keys.yaml");
    std::fs::write(&moved, keys(&["sk-five"])).expect("written");
    let config = std::fs::read_to_string(&gateway.config).expect("the configuration");
    let config = config.replace(&tiers.display().to_string(), &moved.display().to_string());
    std::fs::write(&gateway.config, config).expect("written");
    eventually("the other file is in force", async || (status(&gateway, "sk-five").await == 200).then_some(())).await;
    std::fs::write(&moved, keys(&["sk-six"])).expect("written");
    eventually("it is followed", async || (status(&gateway, "sk-six").await == 200).then_some(())).await;
}

#[tokio::test]
async fn nothing_of_a_key_is_written_anywhere() {
    let name = "sk-hide-and-seek";
    let config = format!("logLevel: debug\n{}models:\n{}", keys(&[name]), echoing_model(&[]));
    let gateway = Gateway::start(&config);
    let digest = switchyard_policy::hash_key(name.as_bytes());
    assert_eq!(status(&gateway, name).await, 200);
    assert_eq!(status(&gateway, "sk-hide-and-sought").await, 401);
    let basic = gateway.client.get(gateway.url("/v1/models")).basic_auth("me", Some(name)).send().await;
    assert_eq!(basic.expect("an answer").status(), 200);
    for (header, value) in [("x-api-key", name.to_owned()), ("authorization", "Bearer sk-hide-and-sought".to_owned())] {
        let mut seen = gateway.log();
        for path in ["/api/activity", "/metrics", "/logs", "/running", "/api/activity/x?y=z"] {
            let answer = gateway.client.get(gateway.url(path)).header(header, &value).send().await.expect("an answer");
            seen += &answer.text().await.expect("a body");
        }
        for secret in ["hide-and", &digest[..16], "aGlkZS1hbmQ"] {
            assert!(!seen.contains(secret), "{secret} is in:\n{seen}");
        }
    }
    let rows = gateway.client.get(gateway.url("/api/activity")).header("x-api-key", name).send().await;
    let rows: serde_json::Value = rows.expect("an answer").json().await.expect("JSON");
    let refused = rows["requests"].as_array().expect("rows").iter().find(|row| row["status"] == 401);
    assert_eq!(refused.expect("the refused request")["tenant"], serde_json::Value::Null);
}
