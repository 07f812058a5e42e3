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

use crate::{build_filter, http};

/// Envoy's binary: `ENVOY`, which `tests/run.sh` sets. Without it the test says so and passes.
#[must_use]
pub fn envoy() -> Option<PathBuf> {
    let found = std::env::var_os("ENVOY").map(PathBuf::from);
    if found.is_none() {
        eprintln!("skipped: ENVOY does not name an Envoy binary; tests/run.sh installs one");
    }
    found
}

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/envoy");

/// A folder with the filter in it; `tmpdir` is the test's `CARGO_TARGET_TMPDIR`.
///
/// # Panics
/// When the filter cannot be built.
#[must_use]
pub fn filter_folder(tmpdir: &str) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    fs::copy(build_filter(tmpdir), folder.path().join("switchyard_filter.wasm")).expect("a copy");
    folder
}

/// A folder with `examples/envoy` in it, on free ports and in front of `upstream`.
///
/// # Panics
/// When the example is not what it was.
#[must_use]
pub fn example_folder(tmpdir: &str, upstream: SocketAddr) -> TempDir {
    let folder = filter_folder(tmpdir);
    let config = fs::read_to_string(format!("{EXAMPLE}/envoy.yaml")).expect("the example");
    let mut config = config.replacen("port_value: 8080", &format!("port_value: {}", upstream.port()), 1);
    for fixed in ["port_value: 9901", "port_value: 10000"] {
        assert!(config.contains(fixed), "the example has no {fixed}");
        config = config.replace(fixed, "port_value: 0");
    }
    fs::write(folder.path().join("envoy.yaml"), config).expect("written");
    fs::create_dir(folder.path().join("keys")).expect("a folder");
    for file in ["keys/filter.yaml", "tiers.yaml", "apply-keys.sh"] {
        fs::copy(format!("{EXAMPLE}/{file}"), folder.path().join(file)).expect("a copy");
    }
    folder
}

/// A running Envoy in a folder of its own.
pub struct Envoy {
    process: Child,
    folder: TempDir,
}

impl Envoy {
    /// Starts it in `folder` with the configuration in a file there.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn spawn(binary: &Path, folder: TempDir, config: &str) -> Self {
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

    /// Starts it and waits until it listens.
    ///
    /// # Panics
    /// When it ends before, or takes 30 seconds.
    #[must_use]
    pub fn start(binary: &Path, folder: TempDir, config: &str) -> Self {
        let mut envoy = Self::spawn(binary, folder, config);
        eventually("Envoy is ready", || {
            assert!(envoy.process.try_wait().expect("a child").is_none(), "Envoy has exited:\n{}", envoy.log());
            http::get(envoy.admin()?, "/ready").filter(|answer| answer.status == 200)
        });
        envoy
    }

    /// The folder it runs in.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What it has logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("envoy.log")).unwrap_or_default()
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// After 30 seconds.
    pub fn wait(&mut self) -> ExitStatus {
        eventually("Envoy exits", || self.process.try_wait().expect("a child"))
    }

    fn admin(&self) -> Option<SocketAddr> {
        fs::read_to_string(self.folder.path().join("admin")).ok()?.trim().parse().ok()
    }

    /// The body of a page of its admin interface.
    ///
    /// # Panics
    /// When it does not answer.
    #[must_use]
    pub fn page(&self, path: &str) -> String {
        let answer = self.admin().and_then(|admin| http::get(admin, path)).expect("the admin interface answers");
        String::from_utf8_lossy(&answer.body).into_owned()
    }

    /// The value of a counter; 0 where there is none.
    #[must_use]
    pub fn stat(&self, name: &str) -> u64 {
        let text = self.page(&format!("/stats?filter=^{name}$"));
        text.trim().rsplit(": ").next().and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    /// Where a listener listens.
    ///
    /// # Panics
    /// When there is none of that name.
    #[must_use]
    pub fn listener(&self, name: &str) -> SocketAddr {
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
///
/// # Panics
/// Then.
pub fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(Instant::now() < deadline, "still not the case after 30 s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
