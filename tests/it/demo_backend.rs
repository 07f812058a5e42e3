//! The pretend model server as a process: what other tests rely on when they make it fail.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, ChildStdout, Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::support::{eventually, is_alive};

/// A running server; killed when dropped.
struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
    address: String,
}

impl Server {
    fn start(options: &[&str]) -> Self {
        let mut child = command(options).stdout(Stdio::piped()).spawn().expect("the server starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let address = line(&mut stdout);
        Self { child, stdout, address }
    }

    fn ask(&self, body: &Value) -> reqwest::RequestBuilder {
        reqwest::Client::new().post(format!("http://{}/v1/chat/completions", self.address)).json(body)
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")), signal).expect("the server runs");
    }

    /// Its exit code, once it has ended by itself; none after a signal.
    async fn ended(&mut self) -> Option<i32> {
        let child = std::sync::Mutex::new(&mut self.child);
        let ended = async || child.lock().expect("no panic under this lock").try_wait().expect("it can be waited for");
        eventually("the server has ended", ended).await.code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_switchyard"));
    command.arg("demo-backend").args(options).stdin(Stdio::null()).stderr(Stdio::null());
    command
}

fn line(stdout: &mut impl BufRead) -> String {
    let mut line = String::new();
    stdout.read_line(&mut line).expect("a line");
    line.trim_end().to_owned()
}

fn hello() -> Value {
    json!({ "messages": [{ "role": "user", "content": "hello" }] })
}

#[test]
fn told_to_exit_at_start_it_says_why_and_with_which_code() {
    let output = command(&["--fail", "exit-at-start=7"]).stderr(Stdio::piped()).output().expect("it runs");
    assert_eq!(output.status.code(), Some(7));
    assert!(String::from_utf8_lossy(&output.stderr).contains("error: failed to load model 'demo'"));
    assert!(output.stdout.is_empty(), "no address");
}

#[tokio::test]
async fn told_to_exit_after_two_answers_it_gives_both() {
    let mut server = Server::start(&["--fail", "exit-after=2"]);
    for _ in 0..2 {
        let answer: Value = server.ask(&hello()).send().await.expect("an answer").json().await.expect("whole");
        let fingerprint = format!("demo-demo-{}", server.child.id());
        assert_eq!(answer["system_fingerprint"], fingerprint);
    }
    assert_eq!(server.ended().await, Some(139));
}

#[tokio::test]
async fn told_to_crash_in_a_stream_it_takes_the_connection_with_it() {
    let mut server = Server::start(&[]);
    let mut body = hello();
    body["stream"] = true.into();
    let mut answer = server.ask(&body).header("x-demo-fail", "crash=2").send().await.expect("a header");
    let mut text = Vec::new();
    while let Ok(Some(chunk)) = answer.chunk().await {
        text.extend_from_slice(&chunk);
    }
    let text = String::from_utf8(text).expect("UTF-8");
    assert_eq!(text.matches("data: ").count(), 3, "the role and two tokens: {text}");
    assert_eq!(server.ended().await, Some(139));
}

#[tokio::test]
async fn sigterm_ends_it_after_its_stop_time_unless_ignored() {
    let mut server = Server::start(&["--stop-time", "50ms"]);
    let asked = std::time::Instant::now();
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ended().await, Some(0));
    assert!(asked.elapsed().as_millis() >= 50);

    let mut stubborn = Server::start(&["--fail", "ignore-sigterm"]);
    stubborn.signal(Signal::SIGTERM);
    assert_eq!(stubborn.ask(&hello()).send().await.expect("it still serves").status(), 200);
    stubborn.signal(Signal::SIGKILL);
    assert_eq!(stubborn.ended().await, None);
}

#[tokio::test]
async fn its_worker_outlives_it_and_holds_the_pipe() {
    let mut server = Server::start(&["--fail", "worker"]);
    let worker = line(&mut server.stdout).strip_prefix("worker ").expect("the worker's pid").parse().expect("a number");
    server.signal(Signal::SIGKILL);
    server.ended().await;
    assert!(is_alive(worker));
    kill(Pid::from_raw(i32::try_from(worker).expect("a pid")), Signal::SIGKILL).expect("the worker runs");
    // Only now does the pipe end.
    assert_eq!(server.stdout.read_to_end(&mut Vec::new()).expect("the end"), 0);
}
