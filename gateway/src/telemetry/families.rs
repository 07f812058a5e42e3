//! Makes metric families and registers them.

use prometheus::{GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry, core::Collector};

/// Seconds, from what a machine does at once to what a batch job waits overnight.
const SECONDS: [f64; 20] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0,
    14_400.0, 43_200.0,
];

/// Makes metric families and registers them.
pub(super) struct Families {
    pub(super) registry: Registry,
}

impl Families {
    pub(super) fn counter(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.add(IntCounterVec::new(Opts::new(name, help), labels))
    }

    pub(super) fn gauge(&self, name: &str, help: &str, labels: &[&str]) -> GaugeVec {
        self.add(GaugeVec::new(Opts::new(name, help), labels))
    }

    pub(super) fn int_gauge(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    pub(super) fn histogram(&self, name: &str, help: &str, labels: &[&str]) -> HistogramVec {
        self.add(HistogramVec::new(HistogramOpts::new(name, help).buckets(SECONDS.to_vec()), labels))
    }

    fn add<C: Collector + Clone + 'static>(&self, family: prometheus::Result<C>) -> C {
        let family = family.expect("metric names and labels are constants, checked by the tests");
        register(&self.registry, family.clone());
        family
    }
}

pub(super) fn register(registry: &Registry, collector: impl Collector + 'static) {
    // The only error is a name that is registered already.
    let registered = registry.register(Box::new(collector));
    debug_assert!(registered.is_ok(), "{registered:?}");
}
