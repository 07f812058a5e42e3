//! The command line, as a person at a terminal sees it.

use assert_cmd::Command;
use serde_json::Value;

use crate::support::{Gateway, demo_model};

fn switchyard(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_switchyard"));
    command.args(arguments);
    command
}

fn stdout(command: &mut Command) -> String {
    String::from_utf8(command.assert().success().get_output().stdout.clone()).expect("UTF-8")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_key_and_its_yaml_let_a_caller_in() {
    let made = stdout(&mut switchyard(&["keys", "new", "--tenant", "acme: \"inc\"", "--tier", "max"]));
    let (key, yaml) = made.split_once("\n\n").expect("the key, an empty line, the YAML");
    assert!(key.starts_with("sk-sy-") && key.len() > 40, "{key}");
    assert!(!yaml.contains(key), "the file needs the digest alone");
    assert_eq!(stdout(switchyard(&["keys", "hash"]).write_stdin(format!("{key}\n"))).trim(), {
        yaml.split_once("sha256: ").and_then(|(_, rest)| rest.lines().next()).expect("a digest")
    });

    let gateway = Gateway::start(&format!("models:\n{}keys:\n{yaml}", demo_model("only", "")));
    assert_eq!(gateway.chat("only", "batch").send().await.expect("an answer").status(), 401);
    let answer = gateway.chat("only", "batch").bearer_auth(key).send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let another = stdout(&mut switchyard(&["keys", "new", "--tenant", "acme", "--tier", "max"]));
    assert!(!another.starts_with(key), "every key is new");
}

#[test]
fn a_reader_who_has_seen_enough_is_no_error_and_a_full_disk_is() {
    let program = || std::process::Command::new(env!("CARGO_BIN_EXE_switchyard"));
    let (reader, closed) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = program().arg("schema").stdout(closed).output().expect("it runs");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");

    let full = std::fs::File::options().write(true).open("/dev/full").expect("/dev/full");
    let output = program().args(["keys", "new", "--tenant", "a", "--tier", "free"]).stdout(full).output();
    let output = output.expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("switchyard: cannot print: No space"), "{output:?}");
}

#[test]
fn what_is_probably_not_meant_is_a_warning_with_its_place() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/configs/llama-swap-loose.yaml");
    let mut check = switchyard(&["check", "--config", file]);
    let output = check.env("SECOND_KEY", "sk-two").assert().success().get_output().clone();
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    let wanted = "loose.yaml:26:47: routing.router.settings.groups.side.members[2] is ignored: there is no model `smal`; did \
                  you mean `small`?";
    assert!(said.lines().any(|line| line.starts_with("warning: ") && line.ends_with(wanted)), "{said}");
    check.env_remove("SECOND_KEY").assert().failure();
}

#[test]
fn a_digest_needs_a_key() {
    let output = switchyard(&["keys", "hash"]).write_stdin("\n").assert().failure().get_output().clone();
    assert!(String::from_utf8_lossy(&output.stderr).contains("no key on standard input"));
    switchyard(&["keys", "hash"]).write_stdin("x".repeat(2000)).assert().failure();
}

#[test]
fn keys_are_exported_for_the_filter_from_wherever_they_are() {
    const KEYS: &str = "tiers: {gold: {offset: 7}}
keys:
  - {key: sk-plain, tenant: acme, tier: gold, maxBand: normal}
allowPlain: true
objectives: {batch: bulk}
";
    let dir = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, text: String| {
        let file = dir.path().join(name);
        std::fs::write(&file, text).expect("written");
        file.display().to_string()
    };
    let model = "models: {m: {proxy: 'http://127.0.0.1:1'}}";
    let alone = write("tiers.yaml", KEYS.to_owned());
    let inline = write("inline.yaml", format!("{KEYS}{model}"));
    let named = write("named.yaml", format!("tiersFile: tiers.yaml\n{model}"));
    for file in [&alone, &inline, &named] {
        let json = stdout(&mut switchyard(&["keys", "export", "--config", file]));
        assert!(!json.contains("sk-plain"), "{json}");
        let expected = serde_json::json!({
            "tiers": { "gold": { "offset": 7 } },
            "keys": [{
                "sha256": switchyard::policy::hash_key(b"sk-plain"), "tenant": "acme", "tier": "gold", "maxBand": "normal",
            }],
            "objectives": { "batch": "bulk" },
            "swapAffinityBonus": 10,
        });
        assert_eq!(serde_json::from_str::<Value>(&json).expect("JSON"), expected, "{file}");
    }

    // What the gateway itself knows of the rest is in it.
    let serial = "routing: {scheduler: {use: serial, settings: {serial: {swapAffinityBonus: 30}}}}";
    let trust = "trust: {header: {secret: between-us}}\nheaders: {priority: X-Urgency}";
    let full = write("full.yaml", format!("tiersFile: tiers.yaml\n{serial}\n{trust}\n{model}"));
    let json: Value = serde_json::from_str(&stdout(&mut switchyard(&["keys", "export", "-c", &full]))).expect("JSON");
    assert_eq!((&json["swapAffinityBonus"], &json["headers"]["priority"]), (&30.into(), &"x-urgency".into()));
    assert_eq!(json["headers"]["strip"], serde_json::json!(["x-switchyard-trust"]));

    for (name, text, complaint) in [
        ("wrong.yaml", KEYS.replace("tier: gold", "tier: silver"), "wrong.yaml:3:41: keys[0].tier: no such tier"),
        ("none.yaml", model.to_owned(), "has no `keys:`"),
        ("broken.yaml", format!("{KEYS}{model}\nmodles: {{}}"), "did you mean `models`?"),
    ] {
        let file = write(name, text);
        let output = switchyard(&["keys", "export", "--config", &file]).assert().failure().get_output().clone();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains(complaint) && !stderr.contains("sk-plain"), "{stderr}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn the_envoy_example_has_what_its_keys_export_to() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/envoy");
    let filter = std::fs::read_to_string(format!("{example}/keys/filter.yaml")).expect("the example");
    let filter: Value = serde_saphyr::from_str(&filter).expect("YAML");
    let settings = &filter["resources"][0]["typed_config"]["config"]["configuration"]["value"];
    let exported = stdout(&mut switchyard(&["keys", "export", "--config", &format!("{example}/tiers.yaml")]));
    assert_eq!(settings, &exported, "run examples/envoy/apply-keys.sh");
}
