//! Who is calling.

use std::{fs, path::Path};

use http::HeaderMap;
use switchyard_policy::{Decision, Grant, RequestView};

use super::*;

const MODEL: &str = "models: {a: {proxy: 'http://h'}}";

/// The priority, tenant and tier that a key gets.
fn identity(settings: &Settings, key: &str) -> Option<(i64, String, String)> {
    assert!(matches!(settings.callers.gate, Gate::Policy));
    let headers = [(&b"x-api-key"[..], key.as_bytes())];
    let request = RequestView { method: b"POST", path: b"/v1/chat/completions", headers: &headers };
    match settings.callers.policy.decide(&request, 0) {
        Decision::Allow(allowed) => {
            let identity = allowed.identity?;
            let Grant { tenant, tier, .. } = &*identity.grant;
            Some((identity.priority, tenant.to_string(), tier.name.to_string()))
        }
        Decision::Deny(_) => None,
    }
}

#[test]
fn keys_stand_in_the_file() {
    let settings = read(&format!(
        "{MODEL}
allowPlain: true
tiers: {{gold: {{offset: 7, maxBand: normal, limits: {{running: 3}}}}}}
keys:
  - {{key: sk-1, tenant: acme, tier: gold, priority: -3}}
  - {{key: 12345, tenant: b, tier: gold, limits: {{waiting: 2}}}}"
    ));
    assert_eq!(identity(&settings, "sk-1"), Some((-93, "acme".to_owned(), "gold".to_owned())));
    assert_eq!(identity(&settings, "12345"), Some((7, "b".to_owned(), "gold".to_owned())));
    assert_eq!(identity(&settings, "sk-2"), None);
    assert!(settings.warnings.is_empty(), "{:?}", settings.warnings);
}

#[test]
fn the_usual_tiers_are_there() {
    let settings = read(&format!("{MODEL}\nallowPlain: true\nkeys: [{{key: k, tenant: t, tier: max}}]"));
    assert_eq!(identity(&settings, "k"), Some((2, "t".to_owned(), "max".to_owned())));
}

#[test]
fn the_schedulers_bonus_bounds_offsets() {
    let file = |bonus| {
        format!(
            "{MODEL}\nrouting: {{scheduler: {{settings: {{serial: {{swapAffinityBonus: {bonus}}}}}}}}}
tiers: {{top: {{offset: 60}}}}\nkeys: []\nanonymous: {{tier: top}}"
        )
    };
    read(&file(39));
    assert_eq!(faults(&file(40)).len(), 1);
}

#[test]
fn settings_for_nobody_get_a_word() {
    let settings = read(&format!("{MODEL}\ntiers: {{a: {{}}}}\nkeys: []\nforwardKey: true"));
    assert!(matches!(settings.callers.gate, Gate::Open));
    assert_eq!(settings.warnings, ["tiers has no effect without keys"]);
}

#[test]
fn the_shipped_tiers_are_fine() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/tiers.yaml");
    let settings = read(&format!("{MODEL}\ntiersFile: {}", file.display()));
    assert_eq!(settings.callers.policy.key_count(), 2);
    assert_eq!(settings.callers.tiers_file.as_deref(), Some(&*file));
    assert!(settings.warnings.is_empty(), "{:?}", settings.warnings);
}

#[test]
fn a_file_of_keys_is_read_beside_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let main = dir.path().join("main.yaml");
    let tiers = dir.path().join("tiers.json");
    fs::write(&main, format!("{MODEL}\ntiersFile: tiers.json\nheaders: {{priority: X-Urgency}}")).unwrap();
    let json = r#"{"allowPlain": true, "keys": [{"key": "k", "tenant": "t", "tier": "pro"}],
            "headers": {"tenant": "X-Tenant"}, "swapAffinityBonus": 5}"#;
    fs::write(&tiers, json).unwrap();
    let settings = load(&main).unwrap();
    assert_eq!(identity(&settings, "k"), Some((1, "t".to_owned(), "pro".to_owned())));
    assert_eq!((settings.headers.priority.as_str(), settings.headers.tenant.as_str()), ("x-urgency", "x-tenant"));
    let warning = &settings.warnings[0];
    assert!(warning.starts_with("swapAffinityBonus in ") && warning.ends_with("is 5; here 10 counts, the scheduler's"));

    fs::write(&tiers, "keys:\n  - {key: sk-very-secret, tenant: t, tier: nope}\nheaders: {priority: x-p}").unwrap();
    let problems = load(&main).unwrap_err();
    assert_eq!(problems.count(), 3, "{problems}");
    let text = problems.to_string();
    for wanted in ["main.yaml:3:11: headers.priority", "tiers.json:2:11: keys[0].key", "tiers.json:2:44: keys[0].tier"]
    {
        assert!(text.contains(wanted), "{text}");
    }
    assert!(!text.contains("very"), "{text}");
    assert_eq!(problems.paths().collect::<Vec<_>>(), [&main, &tiers]);

    fs::write(&tiers, "").unwrap();
    assert!(load(&main).unwrap_err().to_string().contains("tiers.json:"), "an empty file is no file of keys");
    fs::remove_file(&tiers).unwrap();
    let problems = load(&main).unwrap_err();
    assert!(problems.to_string().contains("main.yaml:2:12: tiersFile: "), "{problems}");
    assert_eq!(problems.paths().count(), 2, "it may come back");
}

#[test]
fn trust_is_of_networks_or_of_a_secret() {
    let settings = read(&format!(
        "{MODEL}\ntrust: {{cidrs: [10.1.2.3/8, '::1', 192.168.1.4], header: {{name: X-Proxy, secret: s3cret}}}}"
    ));
    let trust = settings.callers.trust.expect("trust");
    let from = |peer: &str| trust.covers(|| peer.parse().ok(), &HeaderMap::new());
    for peer in ["10.255.0.1", "::ffff:10.0.0.1", "::1", "192.168.1.4"] {
        assert!(from(peer), "{peer}");
    }
    for peer in ["11.0.0.1", "::2", "192.168.1.5", "unknown"] {
        assert!(!from(peer), "{peer}");
    }
    let with = |secret: &'static str| {
        let headers = HeaderMap::from_iter([("x-proxy".parse().unwrap(), http::HeaderValue::from_static(secret))]);
        trust.covers(|| None, &headers)
    };
    assert!(with("s3cret"));
    assert!(!with("s3cre") && !with("s3cret,s3cret") && !with(""));
    assert!(read(&format!("{MODEL}\ntrust: {{cidrs: []}}")).callers.trust.is_none());
}

#[test]
fn what_goes_upstream_of_the_caller() {
    let kept = |rest: &str| {
        let names = read(&format!("{MODEL}\n{rest}")).headers.kept;
        names.iter().map(|name| name.to_string()).collect::<Vec<_>>()
    };
    let identity = [
        "x-llm-d-inference-fairness-id",
        "x-switchyard-tier",
        "x-switchyard-models",
        "x-llm-d-inference-objective",
        "x-gateway-inference-fairness-id",
        "x-gateway-inference-objective",
    ];
    assert_eq!(kept(""), ["x-llamaswap-priority"]);
    assert_eq!(kept("apiKeys: [k]"), ["x-llamaswap-priority"]);
    assert_eq!(kept("anonymous: {tier: free}\nheaders: {forwardPriority: true}"), identity);
    assert_eq!(kept("trust: {cidrs: ['::1']}\nheaders: {forwardPriority: true}"), identity);
    assert_eq!(kept("anonymous: {tier: free}\nheaders: {forwardIdentity: true}"), ["x-llamaswap-priority"]);
}

#[test]
fn no_message_shows_a_key() {
    for text in [
        "keys: sk-hidden",
        "keys: [sk-hidden]",
        "keys: {sk-hidden: {tenant: x}}",
        "keys:\n  - sk-hidden: 1",
        "keys: [{key: [sk-hidden], tenant: t, tier: max}]",
        "keys: [{key: sk-hidden, tenant: t, tier: none}]",
        "keys: [{key: \"sk-hidden, tenant: t}]",
        "keys: [{sha256: sk-hidden, tenant: t, tier: max}]",
        "trust: {header: {secret: [sk-hidden]}}",
        "trust: {header: {sha256: sk-hidden}}",
        "trust: {header: sk-hidden}",
        "apiKeys: [{sk-hidden: 1}]",
    ] {
        let problems = try_read(&format!("{MODEL}\n{text}"), None).expect_err(text);
        assert!(!problems.to_string().contains("hidden"), "{text}\n{problems}");
        assert!(problems.summaries().all(|line| !line.contains("hidden")), "{text}");
    }
}
