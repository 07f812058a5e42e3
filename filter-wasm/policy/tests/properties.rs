//! What holds for every request, however it is made.

use proptest::{collection::vec, prelude::*, sample::select};
use switchyard_policy::{Band, Decision, Policy, PolicySettings, RequestView};

type Headers = Vec<(Vec<u8>, Vec<u8>)>;

const KEYS: [(&str, Band); 4] = [
    ("sk-batch", Band::Batch),
    ("sk-normal", Band::Normal),
    ("sk-any", Band::Interactive),
    ("sk-restricted", Band::Interactive),
];

fn policy() -> Policy {
    let json = br#"{
        "allowPlain": true,
        "tiers": { "t": { "offset": 7 } },
        "headers": { "objective": "x-goal", "strip": ["x-hop"] },
        "objectives": { "batch": "bulk" },
        "keys": [
            { "key": "sk-batch", "tenant": "a", "tier": "t", "maxBand": "batch" },
            { "key": "sk-normal", "tenant": "b", "tier": "t", "maxBand": "normal" },
            { "key": "sk-any", "tenant": "c", "tier": "t", "scope": ["inference", "read", "admin"] },
            { "key": "sk-restricted", "tenant": "d", "tier": "t", "models": ["m"] }
        ]
    }"#;
    Policy::new(PolicySettings::from_json(json).expect("readable")).expect("good")
}

/// Header names that matter, in odd case or with underscores, and any bytes.
fn name() -> impl Strategy<Value = Vec<u8>> {
    let known = select(vec![
        "authorization",
        "x-api-key",
        "api-key",
        "connection",
        "x-llamaswap-priority",
        "x-llm-d-inference-fairness-id",
        "x-llm-d-inference-objective",
        "x-gateway-inference-objective",
        "x-gateway-model-name",
        "x-switchyard-tier",
        "x-switchyard-trust",
        "x-goal",
        "x-hop",
        "accept",
    ]);
    let odd = (known, any::<u32>()).prop_map(|(name, odd)| {
        let change = |(at, byte): (usize, u8)| match (odd >> (at % 32) & 1, byte) {
            (0, _) => byte,
            (_, b'-') if odd % 3 == 0 => b'_',
            (_, byte) => byte.to_ascii_uppercase(),
        };
        name.bytes().enumerate().map(change).collect()
    });
    prop_oneof![8 => odd, 1 => vec(any::<u8>(), 0..20)]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    let priority = prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        (-300i64..300).prop_map(|number| number.to_string()),
        select(vec!["interactive", "normal", "batch", "Interactive", " batch "]).prop_map(str::to_owned),
    ];
    let key = select(KEYS.to_vec()).prop_map(|(key, _)| key);
    prop_oneof![
        4 => priority.prop_map(String::into_bytes),
        4 => key.clone().prop_map(|key| format!("Bearer {key}").into_bytes()),
        2 => key.prop_map(|key| key.as_bytes().to_vec()),
        1 => select(vec!["x-llamaswap-priority", "keep-alive, X-Goal", "m", "Basic OnNrLWFueQ=="])
            .prop_map(|text| text.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..40),
    ]
}

fn headers() -> impl Strategy<Value = Headers> {
    vec((name(), value()), 0..10)
}

fn path() -> impl Strategy<Value = Vec<u8>> {
    let known = select(vec!["/v1/chat/completions", "/v1/messages", "/health", "/logs", "/unload", "/upstream/m/v1/x"]);
    prop_oneof![6 => known.prop_map(|path| path.as_bytes().to_vec()), 1 => vec(any::<u8>(), 0..30)]
}

fn method() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![9 => select(vec!["GET", "POST", "OPTIONS"]).prop_map(|m| m.as_bytes().to_vec()), 1 => vec(any::<u8>(), 0..8)]
}

fn view(headers: &Headers) -> Vec<(&[u8], &[u8])> {
    headers.iter().map(|(name, value)| (name.as_slice(), value.as_slice())).collect()
}

/// What a reader makes of a name who is easy about case and underscores.
fn plain(name: &[u8]) -> String {
    String::from_utf8_lossy(name).to_ascii_lowercase().replace('_', "-")
}

fn says_who(name: &str) -> bool {
    (name.starts_with("x-switchyard-") && name != "x-switchyard-queue-ttl-ms")
        || ["x-llamaswap-", "x-llm-d-inference-", "x-gateway-inference-"].iter().any(|start| name.starts_with(start))
        || ["x-goal", "x-hop", "authorization", "x-api-key", "api-key"].contains(&name)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn nothing_makes_it_panic(method in vec(any::<u8>(), 0..8), path in vec(any::<u8>(), 0..40), headers in headers(), now: i64) {
        let view = view(&headers);
        let _ = policy().decide(&RequestView { method: &method, path: &path, headers: &view }, now);
    }

    #[test]
    fn no_settings_make_it_panic(json in vec(any::<u8>(), 0..60), text in ".{0,40}") {
        let _ = PolicySettings::from_json(&json);
        let json = serde_json::json!({ "keys": [{
            "sha256": &text, "tenant": &text, "tier": &text, "expires": &text, "priority": &text, "models": [&text],
        }] });
        if let Ok(settings) = PolicySettings::from_json(json.to_string().as_bytes()) {
            prop_assert!(Policy::new(settings).is_err());
        }
    }

    #[test]
    fn what_callers_say_of_themselves_never_survives(method in method(), path in path(), headers in headers()) {
        let (policy, view) = (policy(), view(&headers));
        let request = RequestView { method: &method, path: &path, headers: &view };
        if let Decision::Allow(allowed) = policy.decide(&request, 0) {
            let removed = |name: &[u8]| allowed.remove.iter().any(|gone| gone.as_bytes().eq_ignore_ascii_case(name));
            for (name, _) in headers.iter().filter(|(name, _)| !removed(name)) {
                prop_assert!(!says_who(&plain(name)), "{} survives", name.escape_ascii());
            }
            // Nor does the next hop hear that it should drop a stamp.
            let connections = headers.iter().filter(|(name, _)| plain(name) == "connection" && !removed(name));
            let told = allowed.set.iter().filter(|(name, _)| *name == "connection").map(|(_, value)| value.as_bytes());
            for value in connections.map(|(_, value)| value.as_slice()).chain(told) {
                let mut tokens = value.split(|&byte| byte == b',').map(|token| plain(token.trim_ascii()));
                prop_assert!(!tokens.any(|token| says_who(&token)), "connection: {}", value.escape_ascii());
            }
        }
    }

    #[test]
    fn no_request_runs_above_its_band(path in path(), headers in headers()) {
        let (policy, view) = (policy(), view(&headers));
        let request = RequestView { method: b"POST", path: &path, headers: &view };
        if let Decision::Allow(allowed) = policy.decide(&request, 0)
            && let Some(caller) = allowed.identity
        {
            let max = KEYS[usize::from(caller.grant.tenant.as_bytes()[0] - b'a')].1;
            prop_assert!(Band::of(caller.priority) <= max, "{} for {}", caller.priority, caller.grant.tenant);
            prop_assert_eq!(caller.priority, Band::of(caller.priority).anchor() + 7);
            let stamp = caller.priority.to_string();
            prop_assert!(allowed.set.iter().any(|(name, value)| *name == "x-llamaswap-priority" && **value == *stamp));
        }
    }

    #[test]
    fn priorities_are_read_as_the_scheduler_reads_them(value in value()) {
        use switchyard_scheduler::Priority;
        let asked = Band::asked(&value).map(Band::as_str);
        prop_assert_eq!(asked, Priority::parse(&value).map(|priority| priority.band().as_str()));
    }
}

#[test]
fn bands_stand_where_the_scheduler_has_them() {
    use switchyard_scheduler::{Band as Theirs, Priority};
    for (ours, theirs, anchor) in [
        (Band::Batch, Theirs::Batch, Priority::BATCH),
        (Band::Normal, Theirs::Normal, Priority::NORMAL),
        (Band::Interactive, Theirs::Interactive, Priority::INTERACTIVE),
    ] {
        assert_eq!((ours.as_str(), ours.anchor()), (theirs.as_str(), anchor.0));
    }
}
