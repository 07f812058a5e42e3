//! Arguments, and the command that each of them starts.

mod check;
mod keys;
mod log;
mod reload;
mod serve;
mod signals;
mod simulate;

use std::{
    io::{self, Write},
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
};

use clap::{Parser, Subcommand, ValueEnum};

/// Decides who goes next on a GPU: a gateway in front of model servers, with a queue that knows urgency, swaps
/// models and accounts for every wait.
#[derive(Parser)]
#[command(name = "switchyard", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the gateway.
    Serve(ServeArguments),
    /// Check a configuration file without starting anything; exit 1 and name every problem when it has any.
    Check {
        /// The file.
        #[arg(long, short, value_name = "FILE")]
        config: PathBuf,
    },
    /// Print the JSON schema of the configuration file.
    Schema,
    /// Make API keys and their digests.
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    // Its help is that of its arguments.
    Simulate(simulate::SimulateArguments),
    /// Run a pretend model server that speaks OpenAI's protocol.
    DemoBackend(switchyard::demo_backend::Options),
}

#[derive(clap::Args)]
struct ServeArguments {
    /// The configuration file; without one, a demo with three pretend models runs.
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where to listen; beats `listen` in the file.
    #[arg(long, short, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// How the gateway's own log looks; it goes to standard error.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
    /// Do not reload when the file changes; SIGHUP still does.
    #[arg(long)]
    no_watch: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Runs what the arguments ask for. A command that fails has said why on standard error.
pub(crate) fn run() -> ExitCode {
    match Arguments::parse().command {
        Command::Serve(arguments) => serve::run(arguments),
        Command::Check { config } => check::run(&config),
        Command::Schema => print(format_args!("{}\n", switchyard::config::schema_json())),
        Command::Keys(command) => keys::run(command),
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::DemoBackend(options) => demo_backend(options),
    }
}

fn demo_backend(options: switchyard::demo_backend::Options) -> ExitCode {
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return fail(format_args!("cannot start threads: {error}")),
    };
    match runtime.block_on(switchyard::demo_backend::run(options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(format_args!("{error}")),
    }
}

/// Writes a command's result to standard output, which `println!` would panic over once nobody reads it.
fn print(text: std::fmt::Arguments<'_>) -> ExitCode {
    let mut stdout = io::stdout().lock();
    match stdout.write_fmt(text).and_then(|()| stdout.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => fail(format_args!("cannot print: {error}")),
    }
}

fn fail(message: std::fmt::Arguments<'_>) -> ExitCode {
    eprintln!("switchyard: {message}");
    ExitCode::FAILURE
}
