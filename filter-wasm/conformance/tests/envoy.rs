//! The filter in the real Envoy: the table once more, and what only a real proxy can show.

use std::{fs, net::SocketAddr, path::Path, sync::mpsc::Receiver, thread, time::Duration};

use serde_json::{Value, json};
use switchyard_policy_conformance::{
    Headers, Outcome, Table,
    envoy::{Envoy, envoy, eventually, example_folder, filter_folder},
    http,
};

const TMPDIR: &str = env!("CARGO_TARGET_TMPDIR");

/// What Envoy writes into every request, beside what HTTP needs; and `Connection`, which it takes out itself.
fn is_envoys(name: &str) -> bool {
    let own = ["host", "content-length", "transfer-encoding", "connection", "upgrade", "x-request-id"];
    own.contains(&name) || name.starts_with("x-forwarded-") || name.starts_with("x-envoy-")
}

/// Sends a request through Envoy, and sees what comes out on either side.
fn through(to: SocketAddr, upstream: &Receiver<Headers>, method: &str, path: &[u8], headers: &Headers) -> Outcome {
    let answer = http::send(to, method, path, headers).expect("an answer");
    if answer.status == 200 {
        let arrived = upstream.recv_timeout(Duration::from_secs(5)).expect("the upstream has seen it");
        Outcome::Passed(arrived)
    } else {
        Outcome::Denied { status: answer.status, body: answer.body }
    }
}

fn key(key: &str) -> Headers {
    vec![("x-api-key".into(), key.into())]
}

// ---- the table

fn listener(name: &str, settings: &Value) -> Value {
    let filter = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
        "config": {
            "name": name,
            "failure_policy": "FAIL_RELOAD",
            "vm_config": {
                "vm_id": name,
                "runtime": "envoy.wasm.runtime.v8",
                "code": { "local": { "filename": "switchyard_filter.wasm" } },
            },
            "configuration": {
                "@type": "type.googleapis.com/google.protobuf.StringValue",
                "value": settings.to_string(),
            },
        },
    });
    let router = json!({ "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router" });
    let routes = json!([{ "match": { "prefix": "/" }, "route": { "cluster": "upstream" } }]);
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "http_filters": [
            { "name": "switchyard", "typed_config": filter },
            { "name": "envoy.filters.http.router", "typed_config": router },
        ],
        "upgrade_configs": [{ "upgrade_type": "websocket" }],
        "route_config": { "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": routes }] },
    });
    json!({
        "name": name,
        "address": { "socket_address": { "address": "127.0.0.1", "port_value": 0 } },
        "filter_chains": [{ "filters": [{ "name": "http", "typed_config": manager }] }],
    })
}

fn static_config(listeners: Vec<Value>, upstream: SocketAddr) -> String {
    let address = json!({ "socket_address": { "address": "127.0.0.1", "port_value": upstream.port() } });
    let endpoints = json!([{ "lb_endpoints": [{ "endpoint": { "address": address } }] }]);
    json!({
        "admin": { "address": { "socket_address": { "address": "127.0.0.1", "port_value": 0 } } },
        "static_resources": {
            "listeners": listeners,
            "clusters": [{ "name": "upstream", "load_assignment": { "cluster_name": "upstream", "endpoints": endpoints } }],
        },
    })
    .to_string()
}

/// Cases that Envoy decides before the filter is asked, and its status.
const ENVOY_FIRST: [(&str, u16); 6] = [
    ("a key of a mebibyte", 431),
    ("a basic password of a mebibyte", 431),
    ("health with a fragment is not health", 400),
    ("a path that is not UTF-8", 400),
    // It follows `Connection:` to the letter, key or not.
    ("connection names the key", 401),
    // And drops the type of the content.
    ("connection names what carries the message", 200),
];

#[test]
fn every_case_is_decided_as_the_table_says() {
    let Some(binary) = envoy() else { return };
    let table = Table::load();
    let (upstream, arrived) = http::upstream();
    let folder = filter_folder(TMPDIR);
    let listeners = table.settings.iter().map(|(name, settings)| listener(name, settings)).collect();
    fs::write(folder.path().join("envoy.json"), static_config(listeners, upstream)).expect("written");
    let envoy = Envoy::start(&binary, folder, "envoy.json");
    let mut wrong = Vec::new();
    for case in &table.cases {
        let to = envoy.listener(case.settings_name());
        let outcome = through(to, &arrived, case.method(), &case.path(), &case.headers());
        let got = match &outcome {
            Outcome::Passed(_) => 200,
            Outcome::Denied { status, .. } => *status,
        };
        let verdict = match ENVOY_FIRST.iter().find(|(name, _)| *name == case.name) {
            Some((_, wanted)) if *wanted == got => Ok(()),
            Some((_, wanted)) => Err(format!("wanted {wanted} of Envoy's own, got {got}")),
            None => case.check_but(&outcome, is_envoys),
        };
        wrong.extend(verdict.err().map(|difference| format!("{}: {difference}", case.name)));
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), table.cases.len(), wrong.join("\n"));
}

// ---- the example

/// Changes the keys as the example says: a copy beside the file, moved over it.
fn change_keys(folder: &Path, change: impl Fn(&str) -> String) {
    let file = folder.join("keys/filter.yaml");
    let text = fs::read_to_string(&file).expect("the keys");
    let changed = change(&text);
    assert_ne!(changed, text, "the example has changed: nothing was replaced");
    fs::write(folder.join("filter.new"), changed).expect("written");
    fs::rename(folder.join("filter.new"), file).expect("moved");
}

const CHAT: &[u8] = b"/v1/chat/completions";

#[test]
fn keys_change_without_a_restart_and_bad_ones_are_refused() {
    let Some(binary) = envoy() else { return };
    let (upstream, _arrived) = http::upstream();
    let envoy = Envoy::start(&binary, example_folder(TMPDIR, upstream), "envoy.yaml");
    let to = envoy.listener("inference");
    let status = |of: &str| http::send(to, "POST", CHAT, &key(of)).expect("an answer").status;
    let stat = |name: &str| envoy.stat(&format!("extension_config_discovery.http_filter.switchyard.{name}"));
    assert_eq!((status("demo-pro"), status("demo-new")), (200, 401));

    // The new key is `demo-new`; requests with a key that stays see nothing of the change.
    let new = switchyard_policy::hash_key(b"demo-new");
    let old = switchyard_policy::hash_key(b"demo-pro");
    change_keys(envoy.folder(), |keys| keys.replace(&old, &new));
    eventually("the new key works", || {
        assert_eq!(status("demo-max"), 200);
        (status("demo-new") == 200).then_some(())
    });
    assert_eq!(status("demo-pro"), 401, "the old key is gone");

    // A mistake changes nothing, and is told.
    let refused = stat("update_rejected");
    change_keys(envoy.folder(), |keys| keys.replace(r#""offset": 2"#, r#""offset": 200"#));
    eventually("the change is refused", || {
        assert_eq!(status("demo-max"), 200);
        (stat("update_rejected") > refused).then_some(())
    });
    assert_eq!((status("demo-new"), status("demo-pro")), (200, 401));
    let log = envoy.log();
    assert!(log.contains("settings refused: tiers.max.offset: 200 with swapAffinityBonus 10"), "{log}");
    for secret in ["demo-new", "demo-max", &new] {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
    assert!(log.contains("switchyard: allowed tenant=bigco tier=max"), "decisions are logged at debug:\n{log}");
}

#[test]
fn decisions_are_counted_with_labels() {
    let Some(binary) = envoy() else { return };
    let (upstream, _arrived) = http::upstream();
    let envoy = Envoy::start(&binary, example_folder(TMPDIR, upstream), "envoy.yaml");
    let to = envoy.listener("inference");
    for of in ["demo-pro", "demo-pro", "demo-free", "demo-nobody"] {
        http::send(to, "POST", CHAT, &key(of)).expect("an answer");
    }
    // Envoy gathers its workers' counters every few seconds.
    let metric = |decision: &str, tier: &str| {
        let line = format!("switchyard_filter_decisions_total{{decision=\"{decision}\",tier=\"{tier}\"}} ");
        let page = envoy.page("/stats/prometheus");
        page.lines().find_map(|known| known.strip_prefix(&line)).and_then(|count| count.parse::<u64>().ok())
    };
    eventually("all four are counted", || (metric("invalid_api_key", "none") == Some(1)).then_some(()));
    assert_eq!(
        (metric("allowed", "pro"), metric("allowed", "free"), metric("allowed", "max")),
        (Some(2), Some(1), Some(0))
    );
}

#[test]
fn nothing_passes_where_the_settings_are_bad_from_the_start() {
    let Some(binary) = envoy() else { return };
    let (upstream, arrived) = http::upstream();
    // Written into the configuration, they end Envoy.
    let folder = filter_folder(TMPDIR);
    let config = static_config(vec![listener("bad", &json!({ "teirs": {} }))], upstream);
    fs::write(folder.path().join("envoy.json"), config).expect("written");
    let mut envoy = Envoy::spawn(&binary, folder, "envoy.json");
    assert!(!envoy.wait().success());
    assert!(envoy.log().contains("settings refused: teirs: unknown field `teirs`"), "{}", envoy.log());
    // Discovered, they leave a listener that refuses all, and mends itself when they are mended.
    let folder = example_folder(TMPDIR, upstream);
    change_keys(folder.path(), |keys| keys.replace(r#""tiers""#, r#""teirs""#));
    let envoy = Envoy::start(&binary, folder, "envoy.yaml");
    let to = envoy.listener("inference");
    let status = |path: &[u8]| http::send(to, "GET", path, &key("demo-ops")).expect("an answer").status;
    assert_eq!((status(b"/v1/models"), status(b"/health")), (500, 500));
    assert!(arrived.try_recv().is_err(), "a request has passed");
    change_keys(envoy.folder(), |keys| keys.replace(r#""teirs""#, r#""tiers""#));
    eventually("the mended settings work", || (status(b"/v1/models") == 200).then_some(()));
}

#[test]
fn an_answer_may_be_silent_for_longer_than_envoys_default_of_15_seconds() {
    let Some(binary) = envoy() else { return };
    let (upstream, _arrived) = http::upstream();
    let envoy = Envoy::start(&binary, example_folder(TMPDIR, upstream), "envoy.yaml");
    let to = envoy.listener("inference");
    let mut headers = key("demo-pro");
    headers.push(("x-gaps".into(), b"17".to_vec()));
    let other = thread::spawn(move || http::send(to, "POST", CHAT, &key("demo-max")).map(|answer| answer.status));
    let chunks = http::stream(to, CHAT, &headers).expect("the whole answer");
    let text: Vec<u8> = chunks.iter().flat_map(|(_, chunk)| chunk.clone()).collect();
    assert_eq!(String::from_utf8_lossy(&text), "data: a\n\ndata: [DONE]\n\n");
    let first = chunks.first().map(|(at, _)| *at).unwrap_or_default();
    let last = chunks.last().map(|(at, _)| *at).unwrap_or_default();
    assert!(first < Duration::from_secs(5), "the first event was held back for {first:?}");
    assert!(last >= Duration::from_secs(17), "the answer took only {last:?}");
    assert_eq!(other.join().expect("a thread").expect("an answer"), 200);
}
