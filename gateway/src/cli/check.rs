//! `switchyard check`.

use std::{path::Path, process::ExitCode};

use switchyard::config;

pub(super) fn run(file: &Path) -> ExitCode {
    match config::load(file) {
        Ok(settings) => {
            for warning in &settings.warnings {
                eprintln!("warning: {warning}");
            }
            println!("{}: fine, {} models", file.display(), settings.models.len());
            ExitCode::SUCCESS
        }
        Err(problems) => {
            eprint!("{problems}");
            ExitCode::FAILURE
        }
    }
}
