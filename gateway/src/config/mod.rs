//! YAML to checked settings. The only place that knows file names and line numbers.

mod settings;

pub use settings::{
    Eviction, Filters, Group, Headers, Launch, Limits, LogLevel, Model, SchedulerKind, Settings, Store, Timeouts,
    Upstream,
};
