//! Flow control and pools.

use switchyard_scheduler::{
    BandSettings, Bounds, CeilingSettings, DetectorSettings, FairnessSettings, HoldbackScale, LevelSettings,
    OrderingSettings, Priority,
};

use super::*;

fn flow(settings: &str) -> Settings {
    let settings = settings.replace('\n', "\n        ");
    read(&format!(
        "models:\n  pool:\n    endpoints: [http://a:1, http://b:2/v]\n  own:\n    cmd: server --port ${{PORT}}\n\
         routing:\n  scheduler:\n    use: flow\n    settings:\n      flow:\n        {settings}\n"
    ))
}

fn policy(settings: &Settings) -> switchyard_scheduler::FlowSettings {
    let tenant = |name: &str| TenantId(name.len() as u64);
    match settings.scheduler_settings(|id| ModelId(id.len() as u32), tenant).policy {
        PolicySettings::Flow(flow) => flow,
        other => panic!("{other:?}"),
    }
}

#[test]
fn without_settings_flow_is_the_schedulers_default() {
    let settings = read("models: {m: {cmd: \"x ${PORT}\"}}\nrouting: {scheduler: {use: flow}}");
    assert_eq!(policy(&settings), switchyard_scheduler::FlowSettings::default());
    assert_eq!(model(&settings, "m").concurrency, 10, "which is what its slots are");
    assert_eq!(model(&settings, "m").detector, Detector::default());
}

#[test]
fn bands_take_from_the_whole_what_they_do_not_say() {
    let settings = flow(
        "fairness: weighted\nordering: edf\nweights: {acme: 3, b: 2}\nagingDivisor: 60\n\
         priorityBands:\n  - {priority: interactive, ordering: slo-deadline, ceiling: 1}\n  \
         - {priority: -10, fairness: round-robin, maxRequests: 7, defaultRequestTTL: 30}\n\
         defaultPriorityBand: {ceiling: 0.8}",
    );
    let flow = policy(&settings);
    let level = |fairness, ordering, ceiling| LevelSettings { fairness, ordering, ceiling };
    let levels = [
        (Priority(100), level(FairnessSettings::Weighted, OrderingSettings::SloDeadline, Some(1.0))),
        (Priority(-10), level(FairnessSettings::RoundRobin, OrderingSettings::Edf, None)),
    ];
    assert_eq!(flow.levels, BTreeMap::from(levels));
    assert_eq!(flow.template, level(FairnessSettings::Weighted, OrderingSettings::Edf, Some(0.8)));
    assert_eq!(flow.weights, BTreeMap::from([(TenantId(4), 3), (TenantId(1), 2)]));
    assert_eq!((flow.aging_divisor, flow.prompt_weight, flow.completion_weight), (60, 1, 2));
    let bounds = Bounds { requests: 7, bytes: 1 << 30 };
    let low = BandSettings { bounds, ttl: Some(Duration::from_secs(30)) };
    assert_eq!(settings.admission.levels, BTreeMap::from([(Priority(-10), low)]));
}

#[test]
fn ceilings_are_of_one_of_three_kinds() {
    let ceilings = |text: &str| policy(&flow(&format!("ceilings: {text}"))).ceilings;
    assert_eq!(ceilings("{fixed: 0.9}"), CeilingSettings::Fixed(0.9));
    let by = HoldbackScale::Value;
    let held = CeilingSettings::Holdback { least: 0.25, greatest: 1.0, by };
    assert_eq!(ceilings("{holdback: {least: 0.25, by: value}}"), held);
    assert_eq!(ceilings("{adaptive: {}}"), CeilingSettings::Adaptive { least: 0.5, greatest: 1.0 });
}

#[test]
fn detectors_have_the_defaults_of_llm_d() {
    let detector = |text: &str| model(&flow(&format!("saturationDetector: {text}")), "pool").detector;
    let concurrency = detector("{concurrency: {}}");
    assert_eq!(concurrency.settings, DetectorSettings::Concurrency { requests: 100 });
    assert_eq!((concurrency.headroom, concurrency.refresh), (0.0, None));
    let tokens = detector("{concurrency: {concurrencyMode: tokens, headroom: 0.2}}");
    assert_eq!(tokens.settings, DetectorSettings::Tokens { tokens: 1_000_000 });
    assert_eq!(tokens.headroom, 0.2);
    let utilization = detector("{utilization: {}}");
    let staleness = Duration::from_millis(200);
    assert_eq!(utilization.settings, DetectorSettings::Utilization { queue_depth: 5, kv_cache: 0.8, staleness });
    assert_eq!(utilization.refresh, Some(Duration::from_millis(100)));
}

#[test]
fn a_model_may_have_a_detector_of_its_own_and_no_other_bound_hides_it() {
    let detectors = "    saturationDetector: {concurrency: {maxConcurrency: 4}}\nrouting:";
    let text = "models:\n  a: {endpoints: [http://a:1]}\n  b:\n    cmd: x ${PORT}\n    concurrencyLimit: 3\n";
    let all = "\n  scheduler: {use: flow, settings: {flow: {saturationDetector: {utilization: {}}}}}";
    let settings = read(&format!("{text}{detectors}{all}"));
    let [a, b] = ["a", "b"].map(|name| model(&settings, name));
    assert!(matches!(a.detector.settings, DetectorSettings::Utilization { .. }));
    assert_eq!(b.detector.settings, DetectorSettings::Concurrency { requests: 4 });
    assert_eq!((a.concurrency, b.concurrency), (u32::MAX, 3), "unless it is asked for");
    let fifo = read(&format!("{text}{}", detectors.replace("routing:", "")));
    let limits = ["a", "b"].map(|name| model(&fifo, name).concurrency);
    assert_eq!(limits, [100, 3]);
    assert_eq!(model(&fifo, "b").detector, Detector::default(), "only flow looks at it");
}

#[test]
fn every_endpoint_is_a_replica() {
    let settings = flow("{}");
    let pool = settings.find("pool").unwrap();
    let urls = [0, 1].map(|index| pool.replica(index).upstream.clone());
    assert_eq!([(urls[0].host.as_str(), urls[0].port), (urls[1].host.as_str(), urls[1].port)], [("a", 1), ("b", 2)]);
    assert_eq!(urls[1].prefix, "/v");
    let scheduler = settings.scheduler_settings(|id| ModelId(id.len() as u32), |_| TenantId(1));
    let (pool, own) = (&scheduler.models[&ModelId(4)], &scheduler.models[&ModelId(3)]);
    assert_eq!((pool.replicas, pool.managed), (2, false));
    assert_eq!((own.replicas, own.managed), (1, true));
}

#[test]
fn endpoints_that_stay_keep_their_numbers_over_a_reload() {
    let text = |hosts: &[&str]| {
        let urls: Vec<_> = hosts.iter().map(|host| format!("http://{host}")).collect();
        format!("models: {{pool: {{endpoints: [{}]}}}}", urls.join(", "))
    };
    let before = read(&text(&["a", "b", "c", "d"]));
    let after = |hosts: &[&str]| {
        let settings = try_read(&text(hosts), Some(&before)).unwrap();
        let pool = settings.find("pool").unwrap();
        assert_eq!(pool.revision, before.find("pool").unwrap().revision);
        let numbers = settings.scheduler_settings(|_| ModelId(1), |_| TenantId(1)).models.remove(&ModelId(1)).unwrap();
        let places: Vec<_> = pool.endpoints().map(|(number, upstream)| format!("{number}{}", upstream.host)).collect();
        assert!(pool.endpoints().all(|(number, upstream)| pool.replica(number).upstream == *upstream));
        assert_eq!(pool.endpoints().count(), numbers.replicas as usize);
        assert!((0..9).all(|number| numbers.has_replica(number) == pool.has_replica(number)));
        places
    };
    assert_eq!(after(&["e", "d", "c", "b", "a"]), ["0a", "1b", "2c", "3d", "4e"]);
    assert_eq!(after(&["c", "e", "a"]), ["0a", "1e", "2c"], "the least that is free");
    assert_eq!(after(&["d", "c"]), ["2c", "3d"], "whichever others go");
    assert_eq!(after(&["b"]), ["1b"], "be it the only one");
    assert_eq!(after(&["e", "f", "d"]), ["0e", "1f", "3d"]);
}

#[test]
fn every_replica_of_a_command_has_its_own_port() {
    let text = "startPort: 7000\nmodels:\n  a: {cmd: \"server --port ${PORT}\", cmdStop: \"stop ${PORT} ${PID}\", replicas: 3, \
                proxy: \"http://127.0.0.1:${PORT}/v\", env: [\"P=${PORT}\"]}\n  b: {cmd: \"server ${PORT}\"}\n";
    let settings = read(text);
    let a = settings.find("a").unwrap();
    for (index, port) in [(0, "7000"), (1, "7001"), (2, "7002")] {
        let replica = a.replica(index);
        let launch = replica.launch.as_ref().unwrap();
        assert_eq!(launch.argv, ["server", "--port", port]);
        assert_eq!(launch.stop_argv.as_ref().unwrap(), &["stop", port, "${PID}"]);
        assert_eq!(launch.env, [("P".to_owned(), port.to_owned())]);
        assert_eq!((replica.upstream.port.to_string().as_str(), replica.upstream.prefix.as_str()), (port, "/v"));
    }
    assert_eq!(port(&settings, "b"), 7003);

    let fewer = try_read(&text.replace("replicas: 3", "replicas: 2"), Some(&settings)).unwrap();
    assert_eq!(port(&fewer, "b"), 7003, "a reload moves nobody");
    let listening = text.replace("startPort", "listen: 127.0.0.1:7002\nstartPort");
    assert_eq!(faults(&listening), ["listen: port 7002 is also what ${PORT} stands for in the model `a`"]);
}

#[test]
fn shedding_needs_flow_control_and_says_so() {
    let with = |scheduler| {
        warned(&read(&format!(
            "models: {{m: {{cmd: \"x ${{PORT}}\"}}}}\nrouting: {{scheduler: {{use: {scheduler}}}, admission: \
             {{shedWhenSaturated: true}}}}"
        )))
    };
    assert!(with("flow").is_empty());
    assert_eq!(with("fifo"), ["routing.admission.shedWhenSaturated has no effect without routing.scheduler.use: flow"]);
}

#[test]
fn settings_of_flow_that_nobody_looks_at_get_a_word() {
    let settings = flow("weights: {acme: 3}\nfairness: round-robin");
    let weights = "routing.scheduler.settings.flow.weights has no effect without fairness: weighted";
    assert_eq!(warned(&settings), [weights]);
    for weighted in ["fairness: weighted", "priorityBands: [{priority: 1, fairness: weighted}]"] {
        assert!(flow(&format!("weights: {{acme: 3}}\n{weighted}")).warnings.is_empty(), "{weighted}");
    }
    let text = "models: {m: {cmd: \"x ${PORT}\", saturationDetector: {concurrency: {}}}}
routing: {scheduler: {use: serial, settings: {flow: {agingDivisor: 5}}}}";
    let without = "has no effect without routing.scheduler.use: flow";
    let expected = ["models.m.saturationDetector", "routing.scheduler.settings.flow"];
    assert_eq!(warned(&read(text)), expected.map(|path| format!("{path} {without}")));
    assert!(read(&text.replace("serial", "flow")).warnings.is_empty());
}

#[test]
fn a_ceiling_out_of_range_is_one_problem() {
    let text = "models: {m: {cmd: \"x ${PORT}\"}}\nrouting: {scheduler: {use: flow, settings: {flow: {ceilings: {fixed: 0}}}}}";
    let problems = try_read(text, None).expect_err("it would hold everything for ever").to_string();
    assert!(problems.contains("fixed: 0 is out of range"), "{problems}");
    assert!(!problems.contains("nothing is said"), "{problems}");
}
