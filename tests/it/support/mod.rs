//! Starts the gateway's binary, talks to it as clients do, and takes it down again.

mod gateway;
mod llama;
mod ports;

use std::{future::Future, path::PathBuf, process::Command, time::Duration};

pub(crate) use gateway::{Gateway, demo_model};
pub(crate) use llama::{Llama, llama};
pub(crate) use ports::free_ports;

/// Waits for something that only shows from outside a process. Fails the test after 20 seconds.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut probe: impl FnMut() -> F) -> T {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(value) = probe().await {
            return value;
        }
        assert!(tokio::time::Instant::now() < deadline, "still not the case after 20 s: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Builds one of the package's examples; its program.
pub(crate) fn example(name: &str) -> PathBuf {
    let build = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--offline", "--package", "switchyard", "--example", name])
        .status();
    assert!(build.expect("cargo runs").success());
    // Beside the folder of this test's own program.
    let own = std::env::current_exe().expect("a path");
    own.parent().and_then(|deps| deps.parent()).expect("target").join("examples").join(name)
}

/// Whether a process is there (a zombie is not).
pub(crate) fn is_alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X'])))
}

/// The living children of a process.
pub(crate) fn children_of(parent: u32) -> Vec<u32> {
    let parent = parent.to_string();
    std::fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
                // After the name in parentheses: state, parent, …
                let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
                !matches!(fields.next(), Some("Z" | "X") | None) && fields.next() == Some(parent.as_str())
            })
        })
        .collect()
}
