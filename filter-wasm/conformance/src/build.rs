//! Makes the .wasm that tests load.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

const TARGET: &str = "wasm32-wasip1";

/// Builds the filter as it is released and says where it is. `tmpdir` is the test's `CARGO_TARGET_TMPDIR`: the filter
/// gets a target folder beside it, since the cargo that runs the test may hold the lock of the usual one.
///
/// # Panics
/// When it cannot be built, with what to install where that is the reason.
#[must_use]
pub fn build_filter(tmpdir: &str) -> PathBuf {
    let library = Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]).output();
    let library = library.expect("rustc runs").stdout;
    let installed = Path::new(String::from_utf8_lossy(&library).trim()).is_dir();
    assert!(installed, "the filter cannot be built here: run `rustup target add {TARGET}`");
    let folder = Path::new(tmpdir).with_file_name("wasm");
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--package", "switchyard-filter", "--profile", "wasm", "--target", TARGET])
        .arg("--target-dir")
        .arg(&folder)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    assert!(status.expect("cargo runs").success(), "the filter does not build");
    folder.join(TARGET).join("wasm/switchyard_filter.wasm")
}
