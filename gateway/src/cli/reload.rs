//! Reloads the configuration on SIGHUP and when its file changes. A file with problems is refused as a whole and the
//! settings in force stay.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use notify::{RecursiveMode, Watcher};
use switchyard::{config, dispatcher::Dispatcher};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::Notify,
};

/// Editors write a file in several steps; this much quiet means that they are done.
const QUIET: Duration = Duration::from_millis(250);

/// Follows the file until the runtime ends.
pub(super) async fn follow(file: PathBuf, dispatcher: Dispatcher, watch: bool) {
    let changed = Arc::new(Notify::new());
    // Dropping the watcher ends the watch.
    let _watcher = if watch { start_watcher(&file, &changed) } else { None };
    let mut hangup = match signal(SignalKind::hangup()) {
        Ok(hangup) => hangup,
        Err(error) => {
            tracing::warn!(%error, "cannot follow SIGHUP: the configuration will not be reloaded by it");
            return;
        }
    };
    let mut text = std::fs::read(&file).ok();
    loop {
        let forced = tokio::select! {
            _ = hangup.recv() => true,
            () = changed.notified() => {
                while tokio::time::timeout(QUIET, changed.notified()).await.is_ok() {}
                false
            }
        };
        let now = std::fs::read(&file).ok();
        if forced || now != text {
            text = now;
            reload(&file, &dispatcher);
        }
    }
}

fn reload(file: &Path, dispatcher: &Dispatcher) {
    match config::reload(file, &dispatcher.settings()) {
        Ok(settings) => {
            for warning in &settings.warnings {
                tracing::warn!("{warning}");
            }
            tracing::info!(file = %file.display(), models = settings.models.len(), "configuration reloaded");
            dispatcher.reconfigure(Arc::new(settings));
        }
        Err(problems) => {
            tracing::error!(file = %file.display(), "configuration refused, the old one stays in force\n{problems}");
        }
    }
}

/// Watches the folder rather than the file: editors and Kubernetes replace the file by renaming another over it.
fn start_watcher(file: &Path, changed: &Arc<Notify>) -> Option<notify::RecommendedWatcher> {
    let changed = Arc::clone(changed);
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| !event.kind.is_access()) {
            changed.notify_one();
        }
    })
    .and_then(|mut watcher| watcher.watch(folder, RecursiveMode::NonRecursive).map(|()| watcher));
    match watcher {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            tracing::warn!(%error, folder = %folder.display(), "cannot watch the configuration: reload it with SIGHUP");
            None
        }
    }
}
