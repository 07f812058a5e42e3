//! Starts the real Envoy and takes it down again.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::http;

/// Envoy's binary: `ENVOY`, which `tests/run.sh` sets. Without it the test says so and passes.
pub(crate) fn envoy() -> Option<PathBuf> {
    let found = std::env::var_os("ENVOY").map(PathBuf::from);
    if found.is_none() {
        eprintln!("skipped: ENVOY does not name an Envoy binary; tests/run.sh installs one");
    }
    found
}

/// A running Envoy in a folder of its own.
pub(crate) struct Envoy {
    process: Child,
    folder: TempDir,
}

impl Envoy {
    /// Starts it in `folder` with the configuration in a file there.
    pub(crate) fn spawn(binary: &Path, folder: TempDir, config: &str) -> Self {
        let log = fs::File::create(folder.path().join("envoy.log")).expect("a log file");
        let process = Command::new(binary)
            .args(["--config-path", config, "--admin-address-path", "admin", "--concurrency", "1"])
            .args(["--use-dynamic-base-id", "--log-level", "warning", "--component-log-level", "wasm:debug"])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        Self { process: process.expect("Envoy starts"), folder }
    }

    /// … and waits until it listens.
    pub(crate) fn start(binary: &Path, folder: TempDir, config: &str) -> Self {
        let mut envoy = Self::spawn(binary, folder, config);
        eventually("Envoy is ready", || {
            assert!(envoy.process.try_wait().expect("a child").is_none(), "Envoy has exited:\n{}", envoy.log());
            http::get(envoy.admin()?, "/ready").filter(|answer| answer.status == 200)
        });
        envoy
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("envoy.log")).unwrap_or_default()
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        eventually("Envoy exits", || self.process.try_wait().expect("a child"))
    }

    fn admin(&self) -> Option<SocketAddr> {
        fs::read_to_string(self.folder.path().join("admin")).ok()?.trim().parse().ok()
    }

    /// The body of a page of its admin interface.
    pub(crate) fn page(&self, path: &str) -> String {
        let answer = self.admin().and_then(|admin| http::get(admin, path)).expect("the admin interface answers");
        String::from_utf8_lossy(&answer.body).into_owned()
    }

    /// The value of a counter.
    pub(crate) fn stat(&self, name: &str) -> u64 {
        let text = self.page(&format!("/stats?filter=^{name}$"));
        text.trim().rsplit(": ").next().and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    /// Where a listener listens.
    pub(crate) fn listener(&self, name: &str) -> SocketAddr {
        let listeners: Value = serde_json::from_str(&self.page("/listeners?format=json")).expect("JSON");
        let all = listeners["listener_statuses"].as_array().expect("a list");
        let address = &all.iter().find(|known| known["name"] == name).expect("the listener")["local_address"];
        let port = address["socket_address"]["port_value"].as_u64().and_then(|port| u16::try_from(port).ok());
        SocketAddr::from(([127, 0, 0, 1], port.expect("a port")))
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits for something that only shows from outside a process. Fails the test after 30 seconds.
pub(crate) fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(Instant::now() < deadline, "still not the case after 30 s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
