//! Reloads the configuration on SIGHUP and when its file changes, or one that it refers to. Files with problems are
//! refused as a whole and the settings in force stay.

use std::{
    collections::{BTreeSet, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use switchyard::{
    config::{self, Settings},
    dispatcher::Dispatcher,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::Notify,
    time::{Instant, timeout},
};

/// Editors write a file in several steps; this much quiet means that they are done …
const QUIET: Duration = Duration::from_millis(250);
/// … or somebody else writes into the same folder without a pause.
const PATIENCE: Duration = Duration::from_secs(2);

/// Follows the files until the runtime ends.
pub(super) async fn follow(file: PathBuf, dispatcher: Dispatcher, watch: bool) {
    let changed = Arc::new(Notify::new());
    let mut files = files_of(&file, &dispatcher.settings());
    let mut state = fingerprints(&files);
    // Dropping the watch ends it.
    let mut watch = if watch { Watch::start(&changed) } else { None };
    if let Some(watch) = &mut watch {
        watch.cover(&files);
    }
    let mut hangup = match signal(SignalKind::hangup()) {
        Ok(hangup) => hangup,
        Err(error) => {
            tracing::warn!(%error, "cannot follow SIGHUP: the configuration will not be reloaded by it");
            return;
        }
    };
    loop {
        let forced = tokio::select! {
            _ = hangup.recv() => true,
            () = changed.notified() => {
                let limit = Instant::now() + PATIENCE;
                while Instant::now() < limit && timeout(QUIET, changed.notified()).await.is_ok() {}
                false
            }
        };
        if !forced && fingerprints(&files) == state {
            continue;
        }
        loop {
            // Before they are read, so that no change goes unseen.
            state = fingerprints(&files);
            let read = reload(&file, &dispatcher);
            if read == files {
                break;
            }
            files = read;
            if let Some(watch) = &mut watch {
                watch.cover(&files);
            }
        }
    }
}

/// The files that settings come from.
fn files_of(file: &Path, settings: &Settings) -> Vec<PathBuf> {
    std::iter::once(file.to_owned()).chain(settings.callers.tiers_file.clone()).collect()
}

/// What is in the files, as far as is needed to see a change.
fn fingerprints(files: &[PathBuf]) -> Vec<Option<u64>> {
    let of = |file: &PathBuf| {
        let mut hasher = DefaultHasher::new();
        std::fs::read(file).ok()?.hash(&mut hasher);
        Some(hasher.finish())
    };
    files.iter().map(of).collect()
}

/// Returns the files that were read.
fn reload(file: &Path, dispatcher: &Dispatcher) -> Vec<PathBuf> {
    match config::reload(file, &dispatcher.settings()) {
        Ok(settings) => {
            for warning in &settings.warnings {
                tracing::warn!("{warning}");
            }
            let keys = settings.callers.policy.key_count();
            tracing::info!(file = %file.display(), models = settings.models.len(), keys, "configuration reloaded");
            let files = files_of(file, &settings);
            dispatcher.reconfigure(Arc::new(settings));
            files
        }
        Err(problems) => {
            tracing::error!(file = %file.display(), "configuration refused, the old one stays in force\n{problems}");
            let mut files: Vec<_> = problems.paths().map(Path::to_owned).collect();
            // The tiers file in force is not named by a file that cannot be read that far.
            for known in files_of(file, &dispatcher.settings()) {
                if !files.contains(&known) {
                    files.push(known);
                }
            }
            files
        }
    }
}

/// A watch over folders rather than files: editors and Kubernetes replace a file by renaming another over it.
struct Watch {
    watcher: RecommendedWatcher,
    folders: BTreeSet<PathBuf>,
}

impl Watch {
    fn start(changed: &Arc<Notify>) -> Option<Self> {
        let changed = Arc::clone(changed);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|event| !event.kind.is_access()) {
                changed.notify_one();
            }
        });
        match watcher {
            Ok(watcher) => Some(Self { watcher, folders: BTreeSet::new() }),
            Err(error) => {
                tracing::warn!(%error, "cannot watch the configuration: reload it with SIGHUP");
                None
            }
        }
    }

    /// Watches the folders of these files, and no others.
    fn cover(&mut self, files: &[PathBuf]) {
        let folder = |file: &PathBuf| match file.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        let wanted: BTreeSet<_> = files.iter().map(folder).collect();
        for folder in self.folders.difference(&wanted) {
            // It may be gone.
            let _ = self.watcher.unwatch(folder);
        }
        self.folders.retain(|folder| wanted.contains(folder));
        for folder in wanted {
            if self.folders.contains(&folder) {
                continue;
            }
            match self.watcher.watch(&folder, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.folders.insert(folder);
                }
                Err(error) => {
                    let folder = folder.display();
                    tracing::warn!(%error, %folder, "cannot watch the configuration: reload it with SIGHUP");
                }
            }
        }
    }
}
