//! The command line.

use std::process::ExitCode;

mod cli;

fn main() -> ExitCode {
    cli::run()
}
