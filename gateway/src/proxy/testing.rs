//! Settings for unit tests.

use std::{sync::Arc, time::Duration};

use crate::config::{Capabilities, Detector, Filters, Model, Settings, Timeouts, Upstream};

/// A remote model on a port where nothing listens.
pub(crate) fn model(id: &str) -> Model {
    Model {
        id: id.to_owned(),
        name: String::new(),
        description: String::new(),
        aliases: Vec::new(),
        unlisted: false,
        metadata: serde_json::Value::Null,
        capabilities: Capabilities::default(),
        launch: None,
        upstream: Upstream { tls: false, host: "127.0.0.1".to_owned(), port: 9000, prefix: String::new() },
        number: 0,
        others: Vec::new(),
        check_endpoint: None,
        health_check_timeout: Duration::from_secs(15),
        ttl: None,
        unload_timeout: Duration::from_secs(5),
        use_model_name: None,
        concurrency: 10,
        detector: Detector::default(),
        forward_priority: None,
        takes_slot: true,
        filters: Filters::default(),
        timeouts: Timeouts::default(),
        upstream_key: None,
        revision: 0,
    }
}

/// Settings with these models.
pub(crate) fn settings(models: Vec<Model>) -> Settings {
    Settings::new(models.into_iter().map(Arc::new).collect())
}
