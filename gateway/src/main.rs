//! The command line.

use std::process::ExitCode;

use clap::Parser;
use switchyard::demo_backend;

#[derive(Debug, Parser)]
#[command(version, about)]
enum Cli {
    /// Run an OpenAI-compatible model server without a model, for demos and tests.
    DemoBackend(demo_backend::Options),
}

#[tokio::main]
async fn main() -> ExitCode {
    let result = match Cli::parse() {
        Cli::DemoBackend(options) => demo_backend::run(options).await,
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("switchyard: {error}");
            ExitCode::FAILURE
        }
    }
}
