//! What the gateway believes of what a request says of its sender.

use serde_json::{Value, json};

use super::{chat, echoing_model, row, upstream};
use crate::support::{Gateway, demo_model};

const KEYS: &str = "allowPlain: true
keys:
  - {key: sk-free, tenant: hobby, tier: free, maxBand: normal}
  - {key: sk-max, tenant: bigco, tier: max}
  - {key: sk-small, tenant: small, tier: pro, models: [m]}
  - {key: sk-read, tenant: ops, tier: free, scope: [read]}
  - {key: sk-admin, tenant: ops, tier: free, scope: [admin]}
";
const READ: (&str, &str) = ("authorization", "Bearer sk-read");

fn identity(row: &Value) -> (i64, &str, &str) {
    let text = |name: &str| row[name].as_str().unwrap_or("-");
    (row["serial_priority"].as_i64().expect("a priority"), text("tenant"), text("tier"))
}

#[tokio::test]
async fn nobody_becomes_more_than_the_key_says() {
    let forward = "headers: {forwardPriority: true, forwardIdentity: true}";
    let gateway = Gateway::start(&format!("{KEYS}{forward}\nmodels:\n{}", echoing_model(&[])));
    let key = ("authorization", "Bearer sk-free");
    let attempts: &[&[(&str, &str)]] = &[
        &[("X-LlamaSwap-Priority", "99")],
        &[("x-llamaswap-priority", "normal"), ("X-LLAMASWAP-PRIORITY", "interactive")],
        &[("x-llamaswap-priority", "0, 100")],
        &[("x_llamaswap_priority", "interactive")],
        &[("X-Switchyard-Tier", "max"), ("X-Switchyard-Models", "m"), ("x_switchyard_tier", "max")],
        &[("x-llm-d-inference-fairness-id", "bigco"), ("x-gateway-inference-fairness-id", "bigco")],
        &[("X-Llm-D-Inference-Objective", "chat"), ("x-gateway-inference-objective", "chat")],
        &[("x-switchyard-trust", "guess"), ("x-switchyard-priority", "1000")],
        &[("connection", "x-llamaswap-priority, x-switchyard-tier, x-llm-d-inference-fairness-id")],
        &[("connection", "close"), ("Connection", "X-LlamaSwap-Priority")],
    ];
    for attempt in attempts {
        let answer = chat(&gateway, &[&[key], *attempt].concat()).await;
        assert_eq!(answer.status(), 200, "{attempt:?}: {answer:?}");
        assert_eq!(identity(&row(&gateway, &answer, &[READ]).await), (0, "hobby", "free"), "{attempt:?}");
        for (name, value) in
            [("x-llamaswap-priority", "0"), ("x-llm-d-inference-fairness-id", "hobby"), ("x-switchyard-tier", "free")]
        {
            assert_eq!(upstream(&answer, name), [value], "{attempt:?}");
        }
        let names = answer.json()["headers"].as_object().expect("headers").clone();
        let is_said = |name: &String| {
            name.contains('_')
                || name.contains("objective")
                || name.starts_with("x-gateway-")
                || matches!(name.as_str(), "x-switchyard-trust" | "x-switchyard-priority" | "x-switchyard-models")
                || name == "authorization"
        };
        assert_eq!(names.keys().filter(|name| is_said(name)).collect::<Vec<_>>(), [] as [&String; 0], "{attempt:?}");
    }
    let answer = chat(&gateway, &[key, ("x-llamaswap-priority", "interactive")]).await;
    assert_eq!((answer.status(), answer.json()["error"]["code"].clone()), (403, json!("priority_not_allowed")));
    // A tier lifts a request within its band.
    let answer = chat(&gateway, &[("x-api-key", "sk-max"), ("x-llamaswap-priority", "-7")]).await;
    assert_eq!(identity(&row(&gateway, &answer, &[READ]).await), (-98, "bigco", "max"));
}

#[tokio::test]
async fn a_key_of_a_megabyte_is_no_key_and_nothing_of_it_stays() {
    let gateway = Gateway::start(&format!("{KEYS}models:\n{}", echoing_model(&[])));
    for key in ["x".repeat(1_100), "x".repeat(1 << 20)] {
        let mut raw = crate::proxy::raw::Raw::connect(gateway.address).await;
        let request = format!("GET /v1/models HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\n\r\n");
        // The gateway may close before it has read all of it.
        use tokio::io::AsyncWriteExt;
        let _ = raw.stream.write_all(request.as_bytes()).await;
        let status = raw.message().await.map(|answer| answer.status());
        assert!(matches!(status, None | Some(400..=499)), "{status:?}");
    }
    assert_eq!(chat(&gateway, &[("x-api-key", "sk-max")]).await.status(), 200, "it lives on");
}

#[tokio::test]
async fn scopes_and_models_hold_whatever_the_body_says() {
    let models = format!("{}{}", echoing_model(&["nick"]), demo_model("other", ""));
    let gateway = Gateway::start(&format!("{KEYS}models:\n{models}"));
    let get = async |key: &str, path: &str| {
        let answer = gateway.client.get(gateway.url(path)).bearer_auth(key).send().await.expect("an answer");
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap_or_default())
    };
    for (key, path, status) in [
        ("sk-max", "/metrics", 403),
        ("sk-max", "/api/activity", 403),
        ("sk-max", "/unload", 403),
        ("sk-max", "/v1/models", 200),
        ("sk-read", "/metrics", 200),
        ("sk-read", "/unload", 403),
        ("sk-read", "/v1/models", 200),
        ("sk-admin", "/unload", 200),
        ("sk-admin", "/metrics", 403),
        ("nothing", "/v1/models", 401),
        ("nothing", "/health", 200),
    ] {
        assert_eq!(get(key, path).await.0, status, "{key} {path}");
    }

    let ids = |list: &Value| {
        let list = list["data"].as_array().expect("a list").iter();
        list.map(|model| model["id"].as_str().expect("an id").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&get("sk-max", "/v1/models").await.1), ["m", "other"]);
    assert_eq!(ids(&get("sk-small", "/v1/models").await.1), ["m"], "the others are not its business");

    let ask = async |path: &str, model: &str| {
        let body = json!({"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]});
        let request = gateway.client.post(gateway.url(path)).header("x-api-key", "sk-small").json(&body);
        let answer = request.send().await.expect("an answer");
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap_or_default())
    };
    assert_eq!(ask("/v1/chat/completions", "m").await.0, 200);
    assert_eq!(ask("/v1/chat/completions", "nick").await.0, 200, "another name of the same model");
    for model in ["other", "none at all"] {
        let (status, body) = ask("/v1/chat/completions", model).await;
        assert_eq!((status, &body["error"]["code"]), (403, &json!("model_not_allowed")), "{model}");
    }
    let (status, body) = ask("/v1/messages", "other").await;
    assert_eq!((status, &body["type"], &body["error"]["type"]), (403, &json!("error"), &json!("permission_error")));
    assert_eq!(ask("/upstream/m/v1/chat/completions", "x").await.0, 200);
    let (status, body) = ask("/upstream/other/v1/chat/completions", "m").await;
    assert_eq!((status, &body["error"]["code"]), (403, &json!("model_not_allowed")));
}

#[tokio::test]
async fn without_keys_and_trust_callers_are_believed() {
    let gateway = Gateway::start(&format!("models:\n{}", echoing_model(&[])));
    let said =
        [("x-llamaswap-priority", "1234"), ("x-llm-d-inference-fairness-id", "me"), ("authorization", "Bearer x")];
    let answer = chat(&gateway, &said).await;
    assert_eq!(identity(&row(&gateway, &answer, &[]).await), (1234, "me", "-"));
    assert_eq!(upstream(&answer, "authorization"), ["Bearer x"], "it is the model server's");
    assert_eq!(upstream(&answer, "x-llm-d-inference-fairness-id"), ["me"]);
    let answer = chat(&gateway, &[("x-gateway-inference-fairness-id", "older")]).await;
    assert_eq!(identity(&row(&gateway, &answer, &[]).await), (0, "older", "-"));
}

#[tokio::test]
async fn plain_api_keys_let_in_and_no_more() {
    let gateway = Gateway::start(&format!("apiKeys: [sk-a]\nmodels:\n{}", echoing_model(&[])));
    let key = ("api-key", "sk-a");
    let answer =
        chat(&gateway, &[key, ("x-llamaswap-priority", "1234"), ("x-llm-d-inference-fairness-id", "me")]).await;
    assert_eq!(identity(&row(&gateway, &answer, &[key]).await), (1234, "me", "-"));
    assert_eq!(upstream(&answer, "api-key"), [] as [&str; 0]);
    assert_eq!(chat(&gateway, &[("api-key", "sk-b")]).await.status(), 401);
}

/// What a filter in front says.
const STAMPS: [(&str, &str); 4] = [
    ("x-llamaswap-priority", "102"),
    ("x-llm-d-inference-fairness-id", "bigco"),
    ("x-switchyard-tier", "max"),
    ("x-switchyard-models", "m"),
];

#[tokio::test]
async fn a_proxy_in_a_trusted_network_is_believed() {
    let models = format!("models:\n{}{}", echoing_model(&[]), demo_model("other", ""));
    let gateway = Gateway::start(&format!("trust: {{cidrs: [127.0.0.0/8]}}\n{models}"));
    let answer = chat(&gateway, &STAMPS).await;
    assert_eq!(identity(&row(&gateway, &answer, &[]).await), (102, "bigco", "max"));
    assert_eq!(upstream(&answer, "x-switchyard-tier"), [] as [&str; 0], "the model server need not know");
    let sent: Vec<_> = STAMPS.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
    let answer = super::send(&gateway, "POST", b"/v1/chat/completions", &sent, "other").await;
    assert_eq!(answer.status(), 403, "the stamped models bind");
    let answer = chat(&gateway, &[("x-forwarded-for", "192.0.2.1")]).await;
    assert_eq!(upstream(&answer, "x-forwarded-for"), ["192.0.2.1, 127.0.0.1"]);

    // The same from elsewhere.
    let gateway = Gateway::start(&format!("trust: {{cidrs: [10.0.0.0/8, '::1']}}\n{models}"));
    let answer = chat(&gateway, &STAMPS).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(identity(&row(&gateway, &answer, &[]).await), (0, "-", "-"));
    let key = chat(&gateway, &[("authorization", "Bearer x")]).await;
    assert_eq!(upstream(&key, "authorization"), ["Bearer x"], "the gateway has no keys of its own");
    let answer = chat(&gateway, &[("x-forwarded-for", "192.0.2.1")]).await;
    assert_eq!(upstream(&answer, "x-forwarded-for"), ["127.0.0.1"], "whoever claims to be a proxy is a client");
}

#[tokio::test]
async fn a_proxy_with_the_secret_is_believed_and_others_need_a_key() {
    let trust = "trust: {header: {name: X-From-Edge, secret: s3cret word}}\nheaders: {forwardIdentity: true}";
    let gateway = Gateway::start(&format!("{KEYS}{trust}\nmodels:\n{}", echoing_model(&[])));
    let secret = [("x-from-edge", "s3cret word")];
    let answer = chat(&gateway, &[&STAMPS[..], &secret].concat()).await;
    assert_eq!(identity(&row(&gateway, &answer, &secret).await), (102, "bigco", "max"));
    assert_eq!(upstream(&answer, "x-from-edge"), [] as [&str; 0], "the secret stays");
    assert_eq!(upstream(&answer, "x-switchyard-tier"), ["max"]);

    let guess = [("x-from-edge", "s3cret wort")];
    assert_eq!(chat(&gateway, &[&STAMPS[..], &guess].concat()).await.status(), 401);
    let answer = chat(&gateway, &[&STAMPS[..], &guess, &[("x-api-key", "sk-free")]].concat()).await;
    assert_eq!(answer.status(), 403, "the key decides, and it is not for interactive requests");
    let answer = chat(&gateway, &[&STAMPS[1..], &guess, &[("x-api-key", "sk-free")]].concat()).await;
    assert_eq!(identity(&row(&gateway, &answer, &secret).await), (0, "hobby", "free"));
    assert_eq!(upstream(&answer, "x-from-edge"), [] as [&str; 0]);
    assert_eq!(upstream(&answer, "x-switchyard-tier"), ["free"]);
}

#[tokio::test]
async fn decisions_are_counted_by_tier_and_no_caller_makes_a_label() {
    let count = async |gateway: &Gateway, decision: &str, tier: &str| {
        let answer =
            gateway.client.get(gateway.url("/metrics")).header(READ.0, READ.1).send().await.expect("an answer");
        let text = answer.text().await.expect("a body");
        let series = format!("switchyard_caller_decisions_total{{decision=\"{decision}\",tier=\"{tier}\"}} ");
        assert!(!text.contains("made-up"), "{text}");
        text.lines().find_map(|line| line.strip_prefix(&series)?.parse::<u64>().ok()).unwrap_or(0)
    };
    let model = demo_model("m", "--load-time 0s");
    let gateway = Gateway::start(&format!("{KEYS}models:\n{model}{}", model.replace("  m:", "  n:")));
    for headers in [
        &[("authorization", "Bearer sk-max")][..],
        &[("authorization", "Bearer sk-max"), ("x-switchyard-tier", "made-up")],
        &[("x-api-key", "sk-free"), ("x-llamaswap-priority", "interactive")],
        &[("x-api-key", "made-up")],
        &[("x-switchyard-tier", "made-up")],
    ] {
        chat(&gateway, headers).await;
    }
    let body = json!({"model": "n", "messages": []});
    let refused = gateway.chat_with(body, "normal").bearer_auth("sk-small").send().await.expect("an answer");
    assert_eq!(refused.status(), 403);
    gateway.client.get(gateway.url("/health")).send().await.expect("an answer");
    for (decision, tier, expected) in [
        ("allowed", "max", 2),
        ("priority_not_allowed", "free", 1),
        ("invalid_api_key", "none", 1),
        ("missing_api_key", "none", 1),
        ("model_not_allowed", "pro", 1),
        ("open", "none", 1),
    ] {
        assert_eq!(count(&gateway, decision, tier).await, expected, "{decision} {tier}");
    }

    let gateway = Gateway::start(&format!("models:\n{model}"));
    for tier in ["pro", "made-up"] {
        chat(&gateway, &[("x-switchyard-tier", tier)]).await;
    }
    assert_eq!((count(&gateway, "believed", "pro").await, count(&gateway, "believed", "other").await), (1, 1));
}
