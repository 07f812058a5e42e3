//! `switchyard demo-backend`: an OpenAI-compatible model server without a model. It is what the embedded demo runs
//! on, and the simulator of the tests: its load time, speed, slots and failures are all settable, some of them for
//! each request.
//!
//! Answers are deterministic: the server's name, the words of the last user message, then a filler text, a word a
//! token. Each carries `system_fingerprint: "demo-<model>-<pid>"` and a header `x-demo-backend` with the same value.
//!
//! A request overrides the server's settings by a header `x-demo-<key>`, or a key of the object `demo` in its JSON
//! body (the header wins):
//!
//! | key | value |
//! | --- | --- |
//! | `tokens` | length of the answer |
//! | `token-time` | time for each of them, such as `5ms` |
//! | `prefill-time` | time before the first of them |
//! | `fail` | failure modes, comma separated; see [`Fail`] |

mod dialect;
mod echo;
mod engine;
mod fail;
mod metrics;
mod plan;
mod routes;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::serve::ListenerExt;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

pub use fail::Fail;

use engine::Engine;
use fail::{say, tell};

/// How the server behaves. Durations are written with units: `1.5s`, `250ms`, `2m`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 takes any free one. The first line on stdout is the address in use.
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// Name of the model.
    #[arg(long, default_value = "demo")]
    pub model: String,
    /// How long loading takes: `/health` and requests are answered with 503 until it has passed.
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = parse_duration)]
    pub load_time: Duration,
    /// How long it takes to stop after SIGTERM.
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = parse_duration)]
    pub stop_time: Duration,
    /// Time from getting a slot to the first token.
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = parse_duration)]
    pub prefill_time: Duration,
    /// Further time to the first token, for each token of the prompt.
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = parse_duration)]
    pub prefill_token_time: Duration,
    /// Time for each token of the answer after the first.
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = parse_duration)]
    pub token_time: Duration,
    /// Requests served at once, the rest wait inside in arrival order; 0 is no limit.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub slots: u32,
    /// Length of an answer; a request's `max_tokens` can only shorten it, unless it says `ignore_eos`.
    #[arg(long, value_name = "N", default_value_t = 24)]
    pub tokens: u32,
    /// The server whose `/metrics` are imitated.
    #[arg(long, value_enum, default_value_t = MetricsStyle::LlamaServer)]
    pub metrics: MetricsStyle,
    /// Tokens that fit the KV cache; only the metrics show its use.
    #[arg(long, value_name = "N", default_value_t = 65_536)]
    pub kv_tokens: u64,
    /// Something that goes wrong; repeatable.
    #[arg(long, value_name = "MODE[=N]", long_help = fail::HELP)]
    pub fail: Vec<Fail>,
}

/// Whose `/metrics` the server imitates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum MetricsStyle {
    /// vLLM's names, with `model_name`.
    Vllm,
    /// llama-server's names, and `/slots`.
    LlamaServer,
    /// `/slots` alone, as a llama-server without `--metrics`.
    Slots,
    /// `/metrics` is 404.
    None,
}

/// The defaults of the command line.
impl Default for Options {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 0,
            model: "demo".to_owned(),
            load_time: Duration::ZERO,
            stop_time: Duration::ZERO,
            prefill_time: Duration::ZERO,
            prefill_token_time: Duration::ZERO,
            token_time: Duration::ZERO,
            slots: 0,
            tokens: 24,
            metrics: MetricsStyle::LlamaServer,
            kv_tokens: 65_536,
            fail: Vec::new(),
        }
    }
}

/// Reads `250ms`, `1.5s`, `2m` or a plain `0`.
fn parse_duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    text.parse::<jiff::SignedDuration>()
        .map_err(|error| error.to_string())
        .and_then(|duration| Duration::try_from(duration).map_err(|_| "must not be negative".to_owned()))
}

/// A server whose port is bound, but which does not accept yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    engine: Arc<Engine>,
}

impl Server {
    /// Takes the port. Loading begins now.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn bind(options: Options) -> io::Result<Self> {
        let listener = TcpListener::bind((options.host.as_str(), options.port)).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address, engine: Arc::new(Engine::new(options)) })
    }

    /// The address in use.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves HTTP/1.1 and h2c until the future is dropped. Handles no signals and prints nothing; failure modes that
    /// end the process do end it.
    ///
    /// # Errors
    /// Never in practice: errors of single connections end those alone.
    pub async fn serve(self) -> io::Result<()> {
        let listener = self.listener.tap_io(|stream| {
            // Without it the tokens of a stream would come in bursts.
            let _ = stream.set_nodelay(true);
        });
        axum::serve(listener, routes::router(self.engine)).await
    }
}

/// Runs the server as a process of its own: the address on stdout, messages on stderr, until SIGTERM or SIGINT.
///
/// # Errors
/// When the address cannot be bound or signals cannot be watched.
pub async fn run(options: Options) -> io::Result<()> {
    let fails = fail::Fails::new(options.fail.iter().copied());
    let (host, port, stop_time) = (options.host.clone(), options.port, options.stop_time);
    if let Some(code) = fails.exit_at_start() {
        say(format_args!("error: failed to load model '{}': told to exit at start", options.model));
        std::process::exit(code);
    }
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (model, load_time) = (options.model.clone(), options.load_time);
    let server = Server::bind(options)
        .await
        .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {host}:{port}: {error}")))?;
    tell(format_args!("{}", server.local_addr()));
    say(format_args!("model '{model}' on http://{}, loaded in {load_time:?}", server.local_addr()));
    let _worker = fails.spawn_worker()?;
    if let Some(rate) = fails.stderr_spam() {
        tokio::spawn(fail::spam_stderr(rate));
    }
    let mut serving = std::pin::pin!(server.serve());
    loop {
        tokio::select! {
            result = &mut serving => return result,
            _ = terminate.recv() => if !fails.ignores_sigterm() { break },
            _ = interrupt.recv() => break,
        }
        say(format_args!("SIGTERM ignored, as told"));
    }
    say(format_args!("stopping"));
    tokio::select! {
        result = serving => result,
        () = tokio::time::sleep(stop_time) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
