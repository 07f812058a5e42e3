//! `switchyard serve`: puts the parts together and takes them down again.

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::ExitCode,
    sync::Arc,
};

use switchyard::{
    backend,
    config::{self, Settings},
    dispatcher::Dispatcher,
    proxy::{self, Gateway},
    telemetry::{ActivityLog, Metrics, OwnLog},
};
use tokio::net::TcpListener;

use super::{ServeArguments, fail, log, reload, signals::StopSignals};

/// Loopback: whoever wants to be reached from elsewhere says so.
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

pub(super) fn run(arguments: ServeArguments) -> ExitCode {
    let settings = match &arguments.config {
        Some(file) => match config::load(file) {
            Ok(settings) => settings,
            Err(problems) => {
                eprint!("{problems}");
                return ExitCode::FAILURE;
            }
        },
        None => match std::env::current_exe() {
            Ok(program) => Settings::demo(&program),
            Err(error) => return fail(format_args!("cannot find my own program file for the demo's models: {error}")),
        },
    };
    let own_log = OwnLog::new(settings.log_buffer_bytes);
    log::start(arguments.log_format, settings.log_level, own_log.clone());
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(format_args!("cannot start threads: {error}")),
    };
    let result = runtime.block_on(serve(arguments, Arc::new(settings), own_log));
    // Whatever still runs after the drain has been asked to stop and did not.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => fail(format_args!("{message}")),
    }
}

async fn serve(arguments: ServeArguments, settings: Arc<Settings>, own_log: OwnLog) -> Result<(), String> {
    let mut stop = StopSignals::new().map_err(|error| format!("cannot follow signals: {error}"))?;
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }

    let listen = arguments.listen.or(settings.listen).unwrap_or(DEFAULT_LISTEN);
    let listener = TcpListener::bind(listen)
        .await
        .map_err(|error| format!("cannot listen on {listen}: {error}; choose another address with --listen"))?;
    let address = listener.local_addr().map_err(|error| format!("cannot listen on {listen}: {error}"))?;

    let leftovers = tokio::task::spawn_blocking(backend::reap_leftovers).await.unwrap_or_default();
    if !leftovers.is_empty() {
        tracing::warn!(processes = ?leftovers, "killed model servers that an earlier gateway left behind");
    }
    let activity = ActivityLog::open(&settings.store).map_err(|error| error.to_string())?;
    let metrics = Arc::new(Metrics::new());
    metrics.watch_activity(&activity);
    let dispatcher = Dispatcher::new(Arc::clone(&settings), Arc::clone(&metrics));
    dispatcher.preload(&settings.preload);

    let gateway = Gateway::new(dispatcher.clone(), metrics, activity.clone()).with_own_log(own_log);
    let (close, closing) = tokio::sync::watch::channel(false);
    let server = tokio::spawn(proxy::serve(listener, gateway, closing));
    if let Some(file) = arguments.config.clone() {
        tokio::spawn(reload::follow(file, dispatcher.clone(), !arguments.no_watch));
    }
    announce(address, &settings, arguments.config.is_none());

    stop.next().await;
    tracing::info!("draining: waiting requests are refused, running ones finish; another signal stops at once");
    close.send_replace(true);
    let drain = async {
        // The models go last: a stream that still runs needs its model.
        let _ = tokio::join!(dispatcher.drain(), server);
    };
    tokio::select! {
        () = drain => {}
        () = stop.next() => tracing::warn!("stopping at once"),
    }
    dispatcher.fleet().shutdown().await;
    activity.close().await;
    tracing::info!("stopped");
    Ok(())
}

fn announce(address: SocketAddr, settings: &Settings, demo: bool) {
    tracing::info!(%address, models = settings.models.len(), "listening");
    if demo && let Some(model) = settings.models.first() {
        eprintln!(
            "\nThe demo runs with pretend models. Try:\n\n  \
             curl http://{address}/v1/chat/completions -H 'X-LlamaSwap-Priority: interactive' \\\n    \
             -d '{{\"model\":\"{}\",\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}]}}'\n  \
             curl http://{address}/api/activity\n",
            model.id
        );
    }
}
