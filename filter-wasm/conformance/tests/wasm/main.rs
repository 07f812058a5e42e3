//! The table against the real filter, in a WebAssembly interpreter: what Envoy will load, without Envoy.

mod host;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use host::{Filter, RawHeaders};
use switchyard_policy_conformance::{Table, build_filter};
use wasmi::{Engine, ExternType, Module};

const DEBUG: u32 = 1;
const INFO: u32 = 2;
const CRITICAL: u32 = 5;

static WASM: LazyLock<Vec<u8>> =
    LazyLock::new(|| std::fs::read(build_filter(env!("CARGO_TARGET_TMPDIR"))).expect("the built filter"));
static MODULE: LazyLock<Module> = LazyLock::new(|| Module::new(&Engine::default(), &*WASM).expect("a valid module"));

fn started(settings: &str, log_level: u32) -> Filter {
    let (filter, configured) = Filter::start(&MODULE, settings, log_level);
    assert!(configured, "settings refused");
    filter
}

fn raw(headers: &[(&[u8], &[u8])]) -> RawHeaders {
    let pseudo = [(&b":method"[..], &b"POST"[..]), (b":path", b"/v1/chat/completions")];
    pseudo.iter().chain(headers).map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
}

const ONE_KEY: &str = r#"{"allowPlain":true,"keys":[{"key":"sk-pro","tenant":"acme","tier":"pro","name":"ci"}]}"#;

#[test]
fn every_case_is_decided_as_the_table_says() {
    let table = Table::load();
    let mut filters: BTreeMap<&str, Filter> = BTreeMap::new();
    let mut wrong = Vec::new();
    for case in &table.cases {
        let filter = filters.entry(case.settings_name()).or_insert_with(|| started(&table.settings_of(case), INFO));
        let outcome = filter.request(case.method(), &case.path(), &case.headers());
        wrong.extend(case.check(&outcome).err().map(|difference| format!("{}: {difference}", case.name)));
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), table.cases.len(), wrong.join("\n"));
}

#[test]
fn the_filter_is_under_400_kib() {
    assert!(WASM.len() < 400 * 1024, "{} bytes", WASM.len());
}

/// A host enters the VM for each callback that it finds, and that costs more than most of them do.
#[test]
fn only_callbacks_with_something_to_do_are_exported() {
    let functions = MODULE.exports().filter(|export| matches!(export.ty(), ExternType::Func(_)));
    let names: BTreeSet<_> = functions.map(|export| export.name()).collect();
    let wanted = [
        "_initialize",
        "proxy_abi_version_0_2_1",
        "proxy_on_configure",
        "proxy_on_context_create",
        "proxy_on_delete",
        "proxy_on_memory_allocate",
        "proxy_on_request_headers",
        "proxy_on_vm_start",
    ];
    assert_eq!(names, BTreeSet::from(wanted), "filter-wasm/link.sh says which are kept");
}

#[test]
fn a_request_leaves_nothing_behind() {
    let mut filter = started(ONE_KEY, INFO);
    let mut some_requests = || {
        for key in [&b"sk-pro"[..], b"sk-nobody"].repeat(20) {
            let _ = filter.exchange(raw(&[(b"x-api-key", key)]));
        }
        // Most of what a host begins and ends costs a test too much to send through.
        for _ in 0..3000 {
            let context = filter.begin();
            filter.end(context);
        }
        filter.memory_bytes()
    };
    let before = some_requests();
    assert_eq!(some_requests(), before, "memory grows with the number of requests");
}

#[test]
fn bad_settings_fail_with_one_line_that_names_path_and_cure_and_no_key() {
    let plain = r#"{"keys":[{"key":"sk-secret","tenant":"a","tier":"pro"},{"tenant":"a","tier":"gold"}]}"#;
    for (settings, path, cure) in [
        (plain, "keys[0].key", "allowPlain"),
        (r#"{"keys":["sk-secret"]}"#, "keys[0]", "config/tiers.yaml"),
        (r#"{"keys":[{"sha256":"sk-secret","tenant":"a","tier":"pro"}]}"#, "keys[0].sha256", "switchyard keys hash"),
        (r#"{"tiers":{"pro":{"offset":90}}}"#, "tiers.pro.offset", "from 0 to 89"),
        (r#"{"tierz":{}}"#, "tierz", "config/tiers.yaml"),
        ("sk-secret", "settings", "config/tiers.yaml"),
        ("", "settings", "config/tiers.yaml"),
    ] {
        let (mut filter, configured) = Filter::start(&MODULE, settings, INFO);
        assert!(!configured, "accepted: {settings}");
        let [(CRITICAL, line)] = &filter.state().log[..] else { panic!("{settings}: {:?}", filter.state().log) };
        assert!(line.contains(path) && line.contains(cure), "{settings}: {line}");
        assert!(!line.contains("sk-secret"), "a key in the log: {line}");
        // A host that sends requests all the same gets none through.
        assert_eq!(filter.exchange(raw(&[(b"authorization", b"Bearer sk-secret")])).err().map(|a| a.status), Some(503));
    }
}

#[test]
fn decisions_are_counted_by_decision_and_tier() {
    let mut filter = started(ONE_KEY, INFO);
    let count = |filter: &mut Filter, decision: &str, tier: &str| {
        let name = format!("switchyard_filter_decisions_total.decision.{decision}.tier.{tier}");
        filter.state().metrics.iter().find(|(known, _)| *known == name).map(|(_, count)| *count)
    };
    assert_eq!(count(&mut filter, "allowed", "pro"), Some(0), "seen at zero before the first request");
    for key in [&b"sk-pro"[..], b"sk-pro", b"sk-nobody", b""] {
        let _ = filter.exchange(raw(&[(b"x-api-key", key)]));
    }
    assert_eq!(count(&mut filter, "allowed", "pro"), Some(2));
    assert_eq!(count(&mut filter, "allowed", "free"), Some(0));
    assert_eq!(count(&mut filter, "invalid_api_key", "none"), Some(1));
    assert_eq!(count(&mut filter, "missing_api_key", "none"), Some(1));
}

#[test]
fn each_decision_is_one_line_at_debug_without_the_key() {
    let mut filter = started(ONE_KEY, DEBUG);
    filter.state().log.clear();
    assert!(filter.exchange(raw(&[(b"x-api-key", b"sk-pro"), (b"x-llamaswap-priority", b"batch")])).is_ok());
    assert!(filter.exchange(raw(&[(b"x-api-key", b"sk-wrong")])).is_err());
    let lines = [
        (DEBUG, "switchyard: allowed tenant=acme tier=pro key=ci priority=-99".to_owned()),
        (DEBUG, "switchyard: denied 401 invalid_api_key tier=-".to_owned()),
    ];
    assert_eq!(filter.state().log, lines);

    let mut quiet = started(ONE_KEY, INFO);
    quiet.state().log.clear();
    assert!(quiet.exchange(raw(&[(b"x-api-key", b"sk-pro")])).is_ok());
    assert!(quiet.state().log.is_empty(), "{:?}", quiet.state().log);
}

#[test]
fn an_answer_says_what_it_is() {
    let mut filter = started(ONE_KEY, INFO);
    let Err(answer) = filter.exchange(raw(&[])) else { panic!("passed") };
    let wanted = [("content-type", "application/json"), ("www-authenticate", r#"Bearer realm="switchyard""#)];
    assert_eq!(answer.headers, wanted.map(|(name, value)| (name.into(), value.into())));
}

#[test]
fn bytes_that_are_no_text_do_not_trap() {
    let mut filter = started(ONE_KEY, INFO);
    let bytes: Vec<u8> = (0..=255).collect();
    for name in [&b"\xff\xfe"[..], b"", b"x-\xc3", b"authorization\xff", b"connection", b"authorization"] {
        let passed = filter.exchange(raw(&[(b"x-api-key", b"sk-pro"), (name, &bytes)]));
        assert_eq!(passed.is_ok(), name != b"authorization", "{}", name.escape_ascii());
    }
    // No pseudo-headers, no headers.
    assert_eq!(filter.exchange(Vec::new()).err().map(|answer| answer.status), Some(401));
    assert!(filter.exchange(raw(&[(b"x-api-key", b"sk-pro")])).is_ok(), "the VM is still whole");
}
