//! `examples/llm-d`, without a cluster: what is in the manifests fits together, and the filter would take it.

use serde_json::{Value, json};
use switchyard::policy::{Band, Decision, Policy, PolicySettings, RequestView};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/llm-d");

/// The documents of every manifest.
fn manifests() -> Vec<Value> {
    let mut files: Vec<_> = std::fs::read_dir(FOLDER)
        .expect("the example")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    files.sort();
    let documents = files.iter().flat_map(|file| {
        let text = std::fs::read_to_string(file).expect("readable");
        serde_saphyr::from_multiple::<Value>(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    });
    documents.collect()
}

/// Those of one kind; there must be some, all of this version.
fn of_kind<'a>(manifests: &'a [Value], kind: &str, version: &str) -> Vec<&'a Value> {
    let found: Vec<_> = manifests.iter().filter(|manifest| manifest["kind"] == kind).collect();
    assert!(!found.is_empty(), "no {kind}");
    assert!(found.iter().all(|manifest| manifest["apiVersion"] == version), "{found:#?}");
    found
}

/// The filter's settings, in each manifest that loads it.
fn settings(manifests: &[Value]) -> [&Value; 2] {
    let envoy_gateway = of_kind(manifests, "EnvoyExtensionPolicy", "gateway.envoyproxy.io/v1alpha1");
    let istio = of_kind(manifests, "WasmPlugin", "extensions.istio.io/v1alpha1");
    [&envoy_gateway[0]["spec"]["wasm"][0]["config"], &istio[0]["spec"]["pluginConfig"]]
}

#[test]
fn both_gateways_load_the_same_filter_and_fail_closed() {
    let manifests = manifests();
    let [envoy_gateway, istio] = settings(&manifests);
    assert_eq!(envoy_gateway, istio);
    let wasm = &of_kind(&manifests, "EnvoyExtensionPolicy", "gateway.envoyproxy.io/v1alpha1")[0]["spec"]["wasm"][0];
    let plugin = &of_kind(&manifests, "WasmPlugin", "extensions.istio.io/v1alpha1")[0]["spec"];
    assert_eq!(wasm["failOpen"], false);
    assert_eq!((&plugin["failStrategy"], &plugin["phase"]), (&json!("FAIL_RELOAD"), &json!("AUTHN")));
    let image = wasm["code"]["image"]["url"].as_str().expect("an image");
    assert_eq!(plugin["url"], format!("oci://{image}"));
    assert!(image.ends_with(&format!(":{}", env!("CARGO_PKG_VERSION"))), "{image}");
}

#[test]
fn every_band_has_an_objective_of_its_own_priority() {
    let manifests = manifests();
    let objectives = of_kind(&manifests, "InferenceObjective", "llm-d.ai/v1alpha2");
    let route = of_kind(&manifests, "HTTPRoute", "gateway.networking.k8s.io/v1")[0];
    let pool = &route["spec"]["rules"][0]["backendRefs"][0];
    assert_eq!((&pool["group"], &pool["kind"]), (&json!("inference.networking.k8s.io"), &json!("InferencePool")));
    for band in Band::ALL {
        for settings in settings(&manifests) {
            let name = &settings["objectives"][band.as_str()];
            let objective = objectives.iter().find(|objective| objective["metadata"]["name"] == *name);
            let spec = &objective.unwrap_or_else(|| panic!("no objective {name}"))["spec"];
            assert_eq!(spec["priority"], band.anchor(), "{name}");
            assert_eq!(spec["poolRef"], json!({ "group": pool["group"], "name": pool["name"] }), "{name}");
        }
    }
}

#[test]
fn the_filter_takes_the_settings_and_names_the_objective() {
    let manifests = manifests();
    for settings in settings(&manifests) {
        let settings = PolicySettings::from_json(settings.to_string().as_bytes()).expect("readable settings");
        let policy = Policy::new(settings).expect("settings that fit");
        for (asked, objective) in [("batch", "batch"), ("7", "normal"), ("interactive", "interactive")] {
            let request = RequestView {
                method: b"POST",
                path: b"/v1/chat/completions",
                headers: &[(b"authorization", b"Bearer demo-max"), (b"x-llamaswap-priority", asked.as_bytes())],
            };
            let Decision::Allow(allowed) = policy.decide(&request, 0) else { panic!("denied") };
            let header = |name| allowed.set.iter().find(|(known, _)| *known == name).map(|(_, value)| &**value);
            assert_eq!(header("x-llm-d-inference-objective"), Some(objective));
            assert_eq!(header("x-llm-d-inference-fairness-id"), Some("bigco"));
        }
    }
}
