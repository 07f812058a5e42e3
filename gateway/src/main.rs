//! The command line.

use std::process::ExitCode;

mod cli;

/// A request's memory is taken on one thread and given back on another; glibc's allocator locks for that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::run()
}
