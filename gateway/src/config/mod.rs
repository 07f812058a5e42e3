//! YAML to checked settings. The only place that knows file names and line numbers.
//!
//! A file goes through four steps, and every step goes on after a problem so that all are reported at once: [`tree`]
//! parses it and keeps the place of every value, [`macros`] puts in what `${…}` stands for, [`file`] reads every key
//! with its type, and [`check`] looks at what the parts say of each other.

mod callers;
mod check;
mod command;
mod export;
mod file;
mod flow;
mod identity;
mod kinds;
mod macros;
mod matrix;
mod parse;
mod problem;
mod reader;
mod routing;
mod settings;
#[cfg(test)]
mod tests;
mod tree;

use std::path::Path;

pub use export::load_keys;
pub use identity::{Callers, Gate, Headers, OLDER_TENANT, Trust};
pub use problem::{Place, Problem, Problems, Warning};
pub use settings::{
    Capabilities, Detector, Eviction, Filters, Flow, ForwardPriority, Group, Launch, Limits, LogLevel, Look, Looks,
    Matrix, Model, SchedulerKind, Server, Settings, Store, Timeouts, Upstream,
};

use problem::{Sink, read_text};
use reader::Section;

/// The configuration of the demo, which runs without a file.
const DEMO: &str = include_str!("../../../config/demo.yaml");

/// Reads and checks a file.
///
/// # Errors
/// Everything that is wrong with it.
pub fn load(path: &Path) -> Result<Settings, Problems> {
    load_with(path, None)
}

/// As [`load`], for a gateway that runs with other settings: models keep the ports that they have.
///
/// # Errors
/// Everything that is wrong with the file.
pub fn reload(path: &Path, running: &Settings) -> Result<Settings, Problems> {
    load_with(path, Some(running))
}

fn load_with(path: &Path, running: Option<&Settings>) -> Result<Settings, Problems> {
    let name = path.display().to_string();
    match read_text(path) {
        Ok(text) => parse_with(&name, &text, &env, running),
        Err(why) => Err(Problems::unreadable(&name, why)),
    }
}

/// Checks the text of a file; `name` is for messages.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse(name: &str, text: &str) -> Result<Settings, Problems> {
    parse_with(name, text, &env, None)
}

fn env(variable: &str) -> Option<String> {
    std::env::var(variable).ok()
}

fn parse_with(
    name: &str,
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
    running: Option<&Settings>,
) -> Result<Settings, Problems> {
    let sink = Sink::new(text);
    let none = settings::Ports::new();
    let keep = running.map_or(&none, |settings| &settings.ports);
    let settings = tree::parse(text, env, &sink).map(|mut root| {
        if !matches!(root.value, tree::Value::Map(_)) {
            sink.add(root.place, "", format!("the file holds {}", root.describe()), "begin with `models:`");
        }
        let macros::Expanded { ports, replicas } = macros::expand(&mut root, keep, &sink);
        let mut section = Section::root(&root, &sink);
        let file = file::read(&mut section);
        section.check_unknown();
        check::check(&check::Source { name, root: &root, env, ports: &ports, replicas: &replicas }, &file, &sink)
    });
    match settings {
        Some(mut settings) if sink.is_empty() => {
            if let Some(running) = running {
                settings.keep_places(running);
            }
            Ok(settings)
        }
        _ => Err(Problems::new(name, sink)),
    }
}

/// The JSON schema of the file, for editors.
#[must_use]
pub fn schema_json() -> String {
    let mut schema = Section::describe(file::read);
    schema["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    schema["title"] = "Switchyard's configuration".into();
    serde_json::to_string_pretty(&schema).unwrap_or_default()
}

impl Settings {
    /// The settings of the demo, whose models are `program demo-backend`.
    ///
    /// # Panics
    /// Never: a test checks the embedded file.
    #[must_use]
    pub fn demo(program: &Path) -> Self {
        let mut settings = match parse_with("demo.yaml", DEMO, &|_| None, None) {
            Ok(settings) => settings,
            Err(problems) => unreachable!("the embedded demo is checked by a test: {problems}"),
        };
        for model in &mut settings.models {
            if let Some(launch) = &mut std::sync::Arc::make_mut(model).launch {
                launch.argv[0] = program.display().to_string();
            }
        }
        settings
    }
}
