//! The gateway's own log, on standard error and at `/logs/stream/proxy`.

use std::io::IsTerminal;

use switchyard::{config::LogLevel, telemetry::OwnLog};
use tracing_subscriber::{EnvFilter, fmt::writer::MakeWriterExt};

use super::LogFormat;

/// Starts the log. `RUST_LOG` beats the configured level.
pub(super) fn start(format: LogFormat, level: LogLevel, kept: OwnLog) {
    let level = match level {
        LogLevel::Debug => "debug",
        LogLevel::Info => "info",
        LogLevel::Warn => "warn",
        LogLevel::Error => "error",
    };
    // Pingora reports every client that hangs up as a warning; the activity log says it better.
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new(format!("{level},pingora_core=error,pingora_proxy=error,pingora=error")));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr.and(move || kept.clone()));
    match format {
        LogFormat::Text => builder.with_target(false).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
}
