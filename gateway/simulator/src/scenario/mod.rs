//! A workload: which clients ask for what, of which servers, under which schedulers.

mod check;
mod file;
mod flow;
mod place;
mod value;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use switchyard_scheduler::{
    AdmissionSettings, BackoffSettings, DetectorSettings, EvictionSettings, ModelId, PolicySettings, Priority, TenantId,
};

pub use value::{Arrivals, Length};

use crate::{engine::EngineSettings, faults::Faults};

/// A checked scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name: of the file without its extension, unless the file says otherwise.
    pub name: String,
    /// What it is about, for the report's heading; may be empty.
    pub description: String,
    /// Everything random follows from it.
    pub seed: u64,
    /// Clients send for this long; then what is under way is finished.
    pub duration: Duration,
    /// Requests that arrive from here to there count in the report.
    pub window: (Duration, Duration),
    /// The models, by [`ModelId`].
    pub models: Vec<Model>,
    /// Which models run together. In a file they all take turns.
    pub eviction: EvictionSettings,
    /// The clients.
    pub classes: Vec<Class>,
    /// What is compared.
    pub comparisons: Vec<Comparison>,
    /// What goes wrong; nothing by default.
    pub faults: Faults,
    /// What operators do meanwhile.
    pub operations: Vec<(Duration, Operation)>,
}

/// One model and its servers.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its name.
    pub name: String,
    /// How many servers it has; at least 1.
    pub replicas: u32,
    /// Requests that a scheduler may run on one server at once; at least 1. Without it, as many as the server's batch
    /// holds, or under a detector as many as that allows.
    pub concurrency: Option<u32>,
    /// Whether it is started and stopped, and takes room on this machine; otherwise its servers are always there.
    pub managed: bool,
    /// How long a start takes.
    pub load: Duration,
    /// How long a stop takes.
    pub stop: Duration,
    /// Stopped after this long without a request.
    pub ttl: Option<Duration>,
    /// How fast it is.
    pub engine: EngineSettings,
}

/// Clients that are alike.
#[derive(Clone, Debug)]
pub struct Class {
    /// Its name in the report.
    pub name: String,
    /// Of each request.
    pub priority: Priority,
    /// The tenants that send its requests in turn; at least one.
    pub tenants: Vec<String>,
    /// What it asks for.
    pub model: ModelId,
    /// When its requests come.
    pub arrivals: Arrivals,
    /// Tokens in.
    pub prompt: Length,
    /// Tokens out.
    pub output: Length,
    /// What its requests say that the answer is at the most, in tokens.
    pub max_tokens: Option<u64>,
    /// Its goal for the time to the first token.
    pub goal: Option<Duration>,
    /// Sent along: how long a request may wait.
    pub ttl: Option<Duration>,
    /// A client leaves when it has no token after this long.
    pub patience: Option<Duration>,
}

/// One column of the report.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Its name in the report.
    pub name: String,
    /// Who decides.
    pub policy: Policy,
    /// What tells how full the servers are (`flow`); without it, what runs over what may run.
    pub detector: Option<Detector>,
    /// How many may wait.
    pub admission: AdmissionSettings,
    /// The pause after a failed load.
    pub backoff: BackoffSettings,
}

/// Who decides what goes next.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    /// Nobody: a request goes straight to the least loaded server's own queue, and a model that is not there is
    /// swapped in, in the order of arrival.
    NoGate,
    /// The scheduler.
    Scheduler(PolicySettings),
}

/// What tells how full servers are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Detector {
    /// What is counted, and how much of it makes a server full.
    pub settings: DetectorSettings,
    /// The part by which a single server may be over that while others are below.
    pub headroom: f64,
    /// How often the servers' metrics are looked at, where it needs them.
    pub refresh: Option<Duration>,
}

/// Something an operator does during a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Puts models out of memory; all of them when empty.
    Unload(Vec<ModelId>),
    /// Loads models ahead of any request.
    Preload(Vec<ModelId>),
    /// Changes a model's command, so that it has to be restarted.
    Restart(ModelId),
    /// Takes a model out of the configuration.
    Remove(ModelId),
    /// Takes the first replica of a model out of the configuration, unless it is the only one; the others stay.
    Leave(ModelId),
    /// Shuts the gateway down.
    Drain,
}

/// Something wrong in a scenario file, with its place and its cure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file's name as given.
    pub file: String,
    /// From 1; 0 when unknown.
    pub line: u64,
    /// From 1; 0 when unknown.
    pub column: u64,
    /// Path of the key, such as `classes[2].rate`; empty for the file as a whole.
    pub path: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        if !self.path.is_empty() {
            write!(f, ": {}", self.path)?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for Problem {}

impl Scenario {
    /// Reads a scenario; `name` is the file's name, for messages and the default title.
    ///
    /// # Errors
    /// Every problem found, each with its place and cure. YAML that cannot be read at all is one problem.
    pub fn parse(name: &str, text: &str) -> Result<Self, Vec<Problem>> {
        check::check(name, file::read(name, text)?)
    }
}

/// The number of every tenant, by name. Zero stays for those without a name.
pub(crate) fn tenants(classes: &[Class]) -> BTreeMap<String, TenantId> {
    let names: BTreeSet<_> = classes.iter().flat_map(|class| &class.tenants).collect();
    names.into_iter().cloned().zip((1..).map(TenantId)).collect()
}
