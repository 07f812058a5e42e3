//! From a file whose values are of the right types to settings: what its parts say of each other is checked here.

mod callers;
mod flow;
mod ignored;
mod models;
mod names;
mod routing;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    file::File,
    problem::{Place, Sink, Warning},
    reader::At,
    settings::{Limits, Model, Ports, Settings, Store},
    tree::Node,
};
pub(super) use callers::report;
use names::Names;

const STORE_ROWS: u64 = 10_000;

/// Checks a file and makes settings of it. They are only good for use when the sink is empty afterwards.
pub(super) fn check(source: &Source<'_>, file: &File, sink: &Sink) -> Settings {
    let mut check = Check { source, file, sink, warnings: Vec::new(), tenants: Vec::new() };
    let names = check.names();
    let models: Vec<Arc<Model>> = check.models(&names).into_iter().map(Arc::new).collect();
    check.listen();
    check.nothing_to_serve();
    let eviction = check.eviction(&names);
    let preload = check.preload(&names);
    let scheduler = check.scheduler(&names);
    check.selectors(&names);
    check.profiles(&names);
    check.without_effect();
    let (callers, headers) = check.callers();
    check.warnings.sort_by_key(|warning| (warning.file != source.name, warning.place));
    Settings {
        listen: file.listen.as_ref().map(|listen| listen.value),
        eviction,
        scheduler,
        admission: routing::admission(&file.routing),
        backoff: check.backoff(),
        limits: check.limits(),
        headers,
        store: check.store(),
        preload,
        include_aliases_in_list: file.include_aliases_in_list,
        callers,
        ignored_paths: check.ignored_paths(),
        log_buffer_bytes: usize::try_from(file.log_buffer).unwrap_or(usize::MAX),
        log_level: file.log_level,
        warnings: check.warnings,
        ports: source.ports.clone(),
        ..Settings::new(models)
    }
}

/// Where a file comes from.
pub(super) struct Source<'a> {
    /// Its path.
    pub(super) name: &'a str,
    pub(super) root: &'a Node,
    pub(super) env: &'a dyn Fn(&str) -> Option<String>,
    /// What `${PORT}` stands for.
    pub(super) ports: &'a Ports,
    /// Each model as its replicas after the first have it.
    pub(super) replicas: &'a BTreeMap<String, Vec<Node>>,
}

struct Check<'a> {
    source: &'a Source<'a>,
    file: &'a File,
    sink: &'a Sink,
    warnings: Vec<Warning>,
    /// The tenants of the keys.
    tenants: Vec<String>,
}

impl Check<'_> {
    fn listen(&self) {
        let Some(listen) = &self.file.listen else { return };
        if let Some(((model, _), port)) = self.source.ports.iter().find(|(_, port)| **port == listen.port()) {
            let message = format!("port {port} is also what ${{PORT}} stands for in the model `{model}`");
            listen.problem(self.sink, message, "choose another port, or another startPort");
        }
    }

    fn nothing_to_serve(&self) {
        if self.file.models.is_empty() && self.file.peers.is_empty() && self.sink.is_empty() {
            self.sink.add(Place::default(), "models", "there is no model", "add one under `models:`");
        }
    }

    fn preload(&mut self, names: &Names) -> Vec<String> {
        let file = self.file;
        let mut preload: Vec<String> = Vec::new();
        for name in file.preload.iter().filter(|name| !name.trim().is_empty()) {
            if let Some(id) = self.known(name, names)
                && !preload.iter().any(|known| known == id)
            {
                preload.push(id.to_owned());
            }
        }
        preload
    }

    fn limits(&self) -> Limits {
        let limits = &self.file.limits;
        if limits.body.value == 0 {
            limits.body.problem(self.sink, "0 would refuse every request", "leave it out for 32MiB");
        }
        Limits { body_bytes: limits.body.value, body_read_timeout: limits.body_read_timeout.value }
    }

    fn store(&self) -> Store {
        let path = self.file.store_path.as_ref();
        if let Some(path) = path {
            let file = std::path::Path::new(&path.value);
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
            if path.trim().is_empty() {
                path.problem(
                    self.sink,
                    "the path is empty",
                    "name a file, or leave path out to keep the log in memory",
                );
            } else if file.is_dir() {
                path.problem(self.sink, format!("{} is a folder", path.value), "name a file in it");
            } else if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
                path.problem(self.sink, format!("there is no folder {}", folder.display()), "make it first");
            }
        }
        let rows = match (&self.file.store_rows, &self.file.metrics_max_in_memory) {
            (Some(rows), _) => rows.value,
            (None, Some(rows)) if path.is_none() && rows.value > 0 => rows.value,
            (None, _) => STORE_ROWS,
        };
        Store { path: path.map(|path| path.value.clone().into()), rows }
    }

    fn selectors(&mut self, names: &Names) {
        let file = self.file;
        for target in file.selectors.iter().flat_map(|(_, selector)| &selector.targets) {
            self.known(target, names);
        }
    }

    fn profiles(&mut self, names: &Names) {
        let file = self.file;
        for (name, profile) in &file.profiles {
            if profile.pins.is_empty() {
                name.problem(self.sink, "the profile has no pins", "add at least one under `pins:`");
            }
            for target in profile.pins.iter().filter_map(|(_, target)| target.as_ref()) {
                if !target.is_empty() && !names.is_selector(target) {
                    self.known(target, names);
                }
            }
        }
    }

    /// The id of the model that a name stands for; a name of none is passed over, with a word.
    fn known<'n>(&mut self, name: &At<String>, names: &'n Names) -> Option<&'n str> {
        match names.lookup(name.trim()) {
            Ok(id) => Some(id),
            Err(unknown) => {
                self.warn(name, format!("is ignored: {unknown}"));
                None
            }
        }
    }

    fn warn<T>(&mut self, at: &At<T>, message: impl Into<String>) {
        self.warn_of(self.source.name, at, message);
    }

    /// As [`Check::warn`], of another file.
    fn warn_of<T>(&mut self, file: &str, at: &At<T>, message: impl Into<String>) {
        let (file, path, message) = (file.to_owned(), at.path.to_string(), message.into());
        self.warnings.push(Warning { file, place: at.place, path, message });
    }
}

fn nonzero(time: Duration) -> Option<Duration> {
    (!time.is_zero()).then_some(time)
}
