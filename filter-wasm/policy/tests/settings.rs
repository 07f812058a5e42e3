//! What the check says of settings, good and bad.

use switchyard_policy::{Decision, LimitSettings, Policy, PolicySettings, Problem, RequestView, Secret, hash_key};

fn problems(json: &str) -> Vec<Problem> {
    match PolicySettings::from_json(json.as_bytes()) {
        Err(problem) => vec![problem],
        Ok(settings) => Policy::new(settings).err().unwrap_or_default(),
    }
}

/// The places of all problems; none shows a key, and each has a cure.
fn places(json: &str) -> Vec<String> {
    let problems = problems(json);
    for problem in &problems {
        let text = problem.to_string();
        assert!(!text.contains("sk-secret") && !text.contains("424242"), "a key in {text}");
        assert!(!problem.message.is_empty() && !problem.cure.is_empty(), "{problem:?}");
    }
    problems.into_iter().map(|problem| problem.path).collect()
}

#[test]
fn the_example_is_good() {
    let yaml = include_str!("../../../config/tiers.yaml");
    let settings: PolicySettings = serde_saphyr::from_str(yaml).expect("readable");
    let policy = Policy::new(settings).unwrap_or_else(|problems| panic!("{problems:#?}"));
    assert_eq!(policy.key_count(), 2);
}

#[test]
fn what_is_written_is_read_as_the_same_and_has_no_key_in_it() {
    let yaml = include_str!("../../../config/tiers.yaml");
    let mut settings: PolicySettings = serde_saphyr::from_str(yaml).expect("readable");
    let json = settings.to_json().expect("digests alone");
    let read = PolicySettings::from_json(json.as_bytes()).expect("readable");
    assert_eq!(format!("{settings:?}"), format!("{read:?}"));
    assert_eq!(json, read.to_json().expect("the same"));

    // Even a key that looks like a digest.
    for plain in ["sk-secret", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"] {
        let mut key = settings.keys[0].clone();
        (key.sha256, key.key) = (None, Some(Secret::new(plain)));
        settings.keys.push(key);
        assert!(settings.to_json().is_err());
        let json = settings.clone().without_plain_keys().to_json().expect("digests alone");
        assert!(json.contains(&hash_key(plain.as_bytes())) && !json.contains(plain), "{json}");
    }
}

#[test]
fn all_problems_are_told_at_once() {
    let json = r#"{
        "swapAffinityBonus": 50,
        "tiers": {
            "up": { "offset": 50 }, "down": { "offset": -1 }, "a.b": {}, "none": { "limits": { "running": 0 } },
            "good": { "offset": 49, "maxBand": "normal" }
        },
        "headers": { "priority": "host", "tenant": "not a name", "tier": "X-Switchyard-Models", "strip": [""] },
        "objectives": { "batch": "\n" },
        "keys": [
            { "key": "sk-secret", "tenant": "t", "tier": "good" },
            { "sha256": "sk-secret", "tenant": "t", "tier": "good" },
            { "sha256": "sk-secret", "key": "sk-secret", "tenant": "t", "tier": "good" },
            { "tenant": " t", "tier": "gold" },
            { "sha256": "0000000000000000000000000000000000000000000000000000000000000000", "tenant": "t", "tier": "good" },
            { "sha256": "0000000000000000000000000000000000000000000000000000000000000000", "tenant": "t", "tier": "good",
              "priority": "interactive", "expires": "tomorrow", "models": [], "scope": [], "name": "",
              "limits": { "waiting": 0 } },
            { "sha256": "0000000000000000000000000000000000000000000000000000000000000001", "tenant": "t", "tier": "good",
              "priority": "soon", "models": ["a,b"] }
        ],
        "anonymous": { "tier": "" }
    }"#;
    let mut places = places(json);
    places.sort();
    let wanted = [
        "anonymous.tier",
        "headers.priority",
        "headers.strip[0]",
        "headers.tenant",
        "headers.models",
        "keys[0].key",
        "keys[1].sha256",
        "keys[2]",
        "keys[3]",
        "keys[3].tenant",
        "keys[3].tier",
        "keys[5]",
        "keys[5].expires",
        "keys[5].limits.waiting",
        "keys[5].models",
        "keys[5].name",
        "keys[5].priority",
        "keys[5].scope",
        "keys[6].models[0]",
        "keys[6].priority",
        "objectives.batch",
        "tiers.a.b",
        "tiers.down.offset",
        "tiers.none.limits.running",
        "tiers.up.offset",
    ];
    let mut wanted = wanted.map(str::to_owned);
    wanted.sort();
    assert_eq!(places, wanted);
}

#[test]
fn an_offset_must_stay_a_bonus_away_from_the_next_band() {
    let tier = |offset: i64, bonus: i64| {
        places(&format!(r#"{{ "tiers": {{ "t": {{ "offset": {offset} }} }}, "swapAffinityBonus": {bonus} }}"#))
    };
    for (offset, bonus) in [(0, 10), (89, 10), (99, 0), (0, 99), (50, 49)] {
        assert_eq!(tier(offset, bonus), [""; 0], "{offset} with {bonus}");
    }
    for (offset, bonus) in [(90, 10), (100, 0), (1, 99), (50, 50), (-1, 10), (i64::MIN, 0), (i64::MAX, 99)] {
        assert_eq!(tier(offset, bonus), ["tiers.t.offset"], "{offset} with {bonus}");
    }
    assert_eq!(tier(0, 100), ["swapAffinityBonus"]);
    assert_eq!(tier(0, -1), ["swapAffinityBonus"]);
}

#[test]
fn what_cannot_be_read_is_named_without_its_value() {
    for (json, path) in [
        (r#"{ "keys": ["sk-secret"] }"#, "keys[0]"),
        (r#"{ "keys": { "sk-secret": {} } }"#, "keys"),
        (r#"{ "keys": [{ "sk-secret": "acme" }] }"#, "keys[0]"),
        (r#"{ "sk-secret": "acme" }"#, "settings"),
        (r#"{ "keys": [{ "scope": ["sk-secret"] }] }"#, "keys[0].scope[0]"),
        (r#"{ "keys": [{ "key": 424242 }] }"#, "keys[0].key"),
        (r#"{ "keys": [{ "sha256": ["sk-secret"] }] }"#, "keys[0].sha256"),
        (r#"{ "keys": [{ "tenant": 424242 }] }"#, "keys[0].tenant"),
        (r#"{ "keys": [{ "priority": [424242] }] }"#, "keys[0].priority"),
        (r#"{ "keys": [{ "models": "sk-secret" }] }"#, "keys[0].models"),
        (r#"{ "anonymous": "sk-secret" }"#, "anonymous"),
        (r#""sk-secret""#, "settings"),
        ("sk-secret", "settings"),
        ("", "settings"),
        ("{} sk-secret", "settings"),
    ] {
        assert_eq!(places(json), [path], "{json}: {:?}", problems(json));
    }
}

#[test]
fn unknown_settings_are_named() {
    let [problem] = &problems(r#"{ "keys": [{ "teir": "pro" }] }"#)[..] else { panic!("one problem") };
    assert_eq!(problem.path, "keys[0].teir");
    assert!(problem.message.contains("`tier`"), "{problem}");
}

#[test]
fn problems_are_bounded() {
    let keys = vec!["{}"; 5_000].join(",");
    let problems = problems(&format!(r#"{{ "keys": [{keys}] }}"#));
    assert_eq!(problems.len(), 101);
    assert!(problems[100].message.contains("more problems"), "{}", problems[100]);
}

#[test]
fn nothing_of_a_key_is_in_debug() {
    let json = r#"{ "allowPlain": true, "keys": [
        { "key": "sk-secret", "tenant": "t", "tier": "pro" },
        { "sha256": "7e570000000000000000000000000000000000000000000000000000000000ff", "tenant": "t", "tier": "pro" }
    ] }"#;
    let settings = PolicySettings::from_json(json.as_bytes()).expect("readable");
    let policy = Policy::new(settings.clone()).expect("good");
    let text = format!("{settings:?} {policy:?}");
    let bytes = format!("{:?}", [0x7e, 0x57]);
    assert!(!text.contains("sk-secret") && !text.contains("7e57") && !text.contains(bytes.trim_matches(['[', ']'])));
}

#[test]
fn a_keys_own_limits_go_before_its_tiers() {
    let json = r#"{ "allowPlain": true, "tiers": { "t": { "limits": { "waiting": 10, "running": 2 } }, "free": {} },
        "anonymous": { "tier": "free", "limits": { "running": 3 } },
        "keys": [
            { "key": "own", "tenant": "a", "tier": "t", "limits": { "waiting": 99 } },
            { "key": "tier", "tenant": "a", "tier": "t" },
            { "key": "none", "tenant": "a", "tier": "free" }
        ] }"#;
    let policy = Policy::new(PolicySettings::from_json(json.as_bytes()).expect("readable")).expect("good");
    let limits = |key: &str| {
        let headers = [(&b"x-api-key"[..], key.as_bytes())];
        let request = RequestView { method: b"POST", path: b"/v1/completions", headers: &headers };
        let Decision::Allow(allowed) = policy.decide(&request, 0) else { panic!("{key} is denied") };
        let LimitSettings { waiting, running } = allowed.identity.expect("a caller").grant.limits;
        (waiting, running)
    };
    assert_eq!(limits("own"), (Some(99), Some(2)));
    assert_eq!(limits("tier"), (Some(10), Some(2)));
    assert_eq!(limits("none"), (None, None));
    assert_eq!(limits(""), (None, Some(3)), "without a key");
}
