//! `switchyard check`.

use std::{path::Path, process::ExitCode};

use switchyard::config;

use super::print;

pub(super) fn run(file: &Path) -> ExitCode {
    match config::load(file) {
        Ok(settings) => {
            for warning in &settings.warnings {
                eprintln!("warning: {warning}");
            }
            let count = settings.models.len();
            print(format_args!("{}: fine, {count} model{}\n", file.display(), if count == 1 { "" } else { "s" }))
        }
        Err(problems) => {
            eprint!("{problems}");
            ExitCode::FAILURE
        }
    }
}
