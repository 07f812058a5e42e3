//! The table of cases that the policy and the filter are held against, sent to the gateway.

use std::{collections::BTreeMap, path::Path};

use switchyard_policy::{Decision, Policy, PolicySettings, RequestView};
use switchyard_policy_conformance::{Case, Headers, NOW_UNIX, Outcome, Table};

use super::{echoing_model, row, send};
use crate::{proxy::raw::Message, support::Gateway};

/// Opens the activity log whatever the keys are.
const TRUSTED: (&str, &str) = ("x-switchyard-trust", "a secret of the test");

/// A gateway with these settings in a file of keys, as the filter would get them.
fn gateway(json: &serde_json::Value, dir: &Path) -> Gateway {
    let tiers = dir.join("tiers.json");
    std::fs::write(&tiers, json.to_string()).expect("the keys are written");
    let bonus = json["swapAffinityBonus"].as_u64().unwrap_or(10);
    let models = echoing_model(&["llama-8b", "qwen/qwen3-8b", "tiny", "a", "b", "gpt-oss-120b"]);
    Gateway::start(&format!(
        "tiersFile: {}
trust: {{header: {{secret: {}}}}}
headers: {{forwardPriority: true, forwardIdentity: true}}
routing: {{scheduler: {{settings: {{serial: {{swapAffinityBonus: {bonus}}}}}}}}}
models:
{models}",
        tiers.display(),
        TRUSTED.1
    ))
}

/// Names that HTTP itself needs, or that the gateway gives.
fn is_framing(name: &str) -> bool {
    matches!(name, "host" | "content-length" | "x-request-id" | "x-forwarded-for")
}

/// Names that the gateway has a use for and does not pass on.
fn is_used_up(name: &str) -> bool {
    matches!(name, "connection" | "upgrade" | "x-switchyard-queue-ttl-ms")
}

/// What the model server got, in the bytes that `sent` had.
fn outcome(answer: &Message, sent: &Headers) -> Outcome {
    let echo = answer.json();
    let got = echo["headers"].as_object().expect("an echo");
    let text = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
    let got = got.iter().flat_map(|(name, values)| {
        values.as_array().expect("a list").iter().map(move |value| (name.clone(), text(value)))
    });
    let bytes = |(name, value): (String, String)| {
        let is_it = |(known, bytes): &&(String, Vec<u8>)| {
            known.eq_ignore_ascii_case(&name) && String::from_utf8_lossy(bytes).trim() == value
        };
        let bytes = sent.iter().find(is_it).map_or_else(|| value.clone().into_bytes(), |(_, bytes)| bytes.clone());
        (name, bytes)
    };
    Outcome::Passed(got.filter(|(name, _)| !is_framing(name)).map(bytes).collect())
}

/// What the HTTP implementation makes of requests that never come as far as the policy.
fn refused_before_anyone_looks(path: &[u8], headers: &Headers) -> Option<u16> {
    let bytes: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    match path {
        // A fragment is cut off; what is left is the open health check, and nothing else.
        b"/health#/../unload" => Some(200),
        _ if bytes > 1 << 20 || std::str::from_utf8(path).is_err() => Some(400),
        _ => None,
    }
}

#[derive(Default)]
struct Tally {
    wrong: Vec<String>,
    denied: usize,
    /// Compared at the model server.
    forwarded: usize,
    /// Let in and answered by the gateway itself.
    own: usize,
}

async fn check(gateway: &Gateway, policy: &Policy, case: &Case, tally: &mut Tally) {
    let (path, sent) = (case.path(), case.headers());
    let view: Vec<_> = sent.iter().map(|(name, value)| (name.as_bytes(), value.as_slice())).collect();
    let request = RequestView { method: case.method().as_bytes(), path: &path, headers: &view };
    let model = match case.settings_name() {
        "anonymous-bounded" => "tiny",
        "renamed" => "a",
        _ => "llama-8b",
    };
    let answer = send(gateway, case.method(), &path, &sent, model).await;
    let mut wrong = |difference: String| tally.wrong.push(format!("{}: {difference}", case.name));
    if let Some(status) = refused_before_anyone_looks(&path, &sent) {
        if answer.status() != status {
            wrong(format!("answered with {}", answer.status()));
        }
        return;
    }
    match policy.decide(&request, NOW_UNIX) {
        Decision::Deny(denial) => {
            tally.denied += 1;
            let outcome = Outcome::Denied { status: answer.status(), body: answer.body.clone() };
            if let Err(difference) = case.check(&outcome) {
                return wrong(difference);
            }
            if answer.body != denial.body.as_bytes() && case.method() != "HEAD" {
                wrong(format!("the body is {}", String::from_utf8_lossy(&answer.body)));
            }
            for (name, value) in denial.headers {
                if answer.header(name) != Some(value) {
                    wrong(format!("{name} is {:?}", answer.header(name)));
                }
            }
        }
        Decision::Allow(allowed) => {
            if answer.status() != 200 || answer.json_or_null()["headers"].is_null() {
                tally.own += 1;
                if matches!(answer.status(), 400 | 401 | 403 | 500..) {
                    wrong(format!("{} {}", answer.status(), String::from_utf8_lossy(&answer.body)));
                }
                return;
            }
            tally.forwarded += 1;
            let Outcome::Passed(mut headers) = outcome(&answer, &sent) else { unreachable!() };
            // What the gateway has used up is as it would have passed.
            let kept =
                sent.iter().filter(|(name, _)| !allowed.remove.iter().any(|gone| gone.eq_ignore_ascii_case(name)));
            let set = allowed.set.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec()));
            headers.extend(kept.cloned().chain(set).filter(|(name, _)| is_used_up(&name.to_ascii_lowercase())));
            if let Err(difference) = case.check(&Outcome::Passed(headers)) {
                return wrong(difference);
            }
            let Some(identity) = allowed.identity else { return };
            let row = row(gateway, &answer, &[TRUSTED]).await;
            let grant = &identity.grant;
            let expected = (identity.priority, &*grant.tenant, &*grant.tier.name);
            let found = (row["serial_priority"].as_i64(), row["tenant"].as_str(), row["tier"].as_str());
            if found != (Some(expected.0), Some(expected.1), Some(expected.2)) {
                wrong(format!("the log has {found:?} for {expected:?}"));
            }
        }
    }
}

#[tokio::test]
async fn the_gateway_decides_as_the_table_says() {
    let table = Table::load();
    let mut by_settings: BTreeMap<&str, Vec<&Case>> = BTreeMap::new();
    for case in &table.cases {
        by_settings.entry(case.settings_name()).or_default().push(case);
    }
    let mut tally = Tally::default();
    for (name, cases) in by_settings {
        let json = &table.settings[name];
        let settings = PolicySettings::from_json(json.to_string().as_bytes()).expect("readable settings");
        let policy = Policy::new(settings).expect("settings that fit");
        let dir = tempfile::tempdir().expect("a temporary folder");
        let gateway = gateway(json, dir.path());
        for case in cases {
            check(&gateway, &policy, case, &mut tally).await;
        }
    }
    let Tally { wrong, denied, forwarded, own } = tally;
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), table.cases.len(), wrong.join("\n"));
    eprintln!("{denied} denied, {forwarded} forwarded, {own} answered by the gateway itself");
    assert!(denied >= 60 && forwarded >= 60, "{denied} denied, {forwarded} forwarded");
}
