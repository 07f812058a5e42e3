//! Settings for unit tests.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::HeaderName;

use crate::config::{
    Eviction, Filters, Headers, Limits, LogLevel, Model, SchedulerKind, Settings, Store, Timeouts, Upstream,
};

/// A remote model on a port where nothing listens.
pub(crate) fn model(id: &str) -> Model {
    Model {
        id: id.to_owned(),
        name: String::new(),
        description: String::new(),
        aliases: Vec::new(),
        unlisted: false,
        metadata: serde_json::Value::Null,
        launch: None,
        upstream: Upstream { tls: false, host: "127.0.0.1".to_owned(), port: 9000, prefix: String::new() },
        check_endpoint: None,
        health_check_timeout: Duration::from_secs(15),
        ttl: None,
        unload_timeout: Duration::from_secs(5),
        use_model_name: None,
        concurrency: 10,
        takes_slot: true,
        filters: Filters::default(),
        timeouts: Timeouts { connect: None, response_header: None, tls_handshake: None, idle_connection: None },
        upstream_key: None,
        revision: 0,
    }
}

/// Settings with these models.
pub(crate) fn settings(models: Vec<Model>) -> Settings {
    Settings {
        listen: None,
        models: models.into_iter().map(Arc::new).collect(),
        eviction: Eviction::Groups(Vec::new()),
        scheduler: SchedulerKind::Fifo { priority: BTreeMap::new() },
        admission: switchyard_scheduler::AdmissionSettings::default(),
        backoff: switchyard_scheduler::BackoffSettings::default(),
        limits: Limits { body_bytes: 32 << 20, body_read_timeout: Duration::from_secs(60) },
        headers: Headers { priority: HeaderName::from_static("x-llamaswap-priority"), forward_priority: false },
        store: Store { path: None, rows: 1_000 },
        preload: Vec::new(),
        include_aliases_in_list: false,
        api_keys: Vec::new(),
        log_buffer_bytes: 10 << 10,
        log_level: LogLevel::Info,
        warnings: Vec::new(),
    }
}
