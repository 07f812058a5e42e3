//! The command line, as a person at a terminal sees it.

use assert_cmd::Command;

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
fn a_digest_needs_a_key() {
    let output = switchyard(&["keys", "hash"]).write_stdin("\n").assert().failure().get_output().clone();
    assert!(String::from_utf8_lossy(&output.stderr).contains("no key on standard input"));
    switchyard(&["keys", "hash"]).write_stdin("x".repeat(2000)).assert().failure();
}
