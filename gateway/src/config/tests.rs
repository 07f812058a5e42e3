//! What files mean, from text to settings.

use std::{collections::BTreeMap, time::Duration};

use serde_json::json;
use switchyard_scheduler::{EvictionSettings, MatrixSettings, ModelId, PolicySettings, TenantId};

use super::*;

mod flow;

/// Settings of a text, with a few environment variables.
fn read(text: &str) -> Settings {
    try_read(text, None).unwrap_or_else(|problems| panic!("{problems}"))
}

fn try_read(text: &str, running: Option<&Settings>) -> Result<Settings, Problems> {
    let env = |name: &str| match name {
        "HOME" => Some("/home/u".to_owned()),
        "SECOND_KEY" => Some("sk-two".to_owned()),
        "TTL" => Some("90".to_owned()),
        "TRICKY" => Some("a: \"b\" # ${ctx} \\n".to_owned()),
        _ => None,
    };
    parse_with("test.yaml", text, &env, running)
}

/// The messages of a broken text, without places.
fn faults(text: &str) -> Vec<String> {
    let problems = try_read(text, None).expect_err("the text is fine");
    problems.iter().map(|problem| format!("{}: {}", problem.path, problem.message)).collect()
}

fn model<'a>(settings: &'a Settings, name: &str) -> &'a Model {
    settings.find(name).unwrap_or_else(|| panic!("no model {name}"))
}

fn argv<'a>(settings: &'a Settings, name: &str) -> &'a [String] {
    &model(settings, name).launch.as_ref().expect("it is started here").argv
}

fn port(settings: &Settings, name: &str) -> u16 {
    model(settings, name).upstream.port
}

fn has_key(settings: &Settings, key: &str) -> bool {
    matches!(&settings.callers.gate, Gate::ApiKeys { ring, .. } if ring.holds(key.as_bytes()))
}

const LLAMA_SWAP: &str = include_str!("../../../tests/configs/llama-swap.yaml");
const LLAMA_SWAP_LOOSE: &str = include_str!("../../../tests/configs/llama-swap-loose.yaml");

/// The warnings, without their places.
fn warned(settings: &Settings) -> Vec<String> {
    settings.warnings.iter().map(|warning| format!("{} {}", warning.path, warning.message)).collect()
}

#[test]
fn a_llama_swap_file_that_names_what_is_not_there_starts_and_says_so() {
    let settings = read(LLAMA_SWAP_LOOSE);
    assert_eq!(model(&settings, "big").check_endpoint.as_deref(), Some("/health"));
    assert_eq!(settings.find("big").unwrap().id, "big", "not what the alias of another model says");
    assert_eq!(port(&settings, "wrapped"), 5802);
    assert_eq!(settings.preload, ["small"]);
    assert_eq!(settings.scheduler, SchedulerKind::Fifo { priority: priorities([("small", 2)]) });
    let Eviction::Groups(groups) = &settings.eviction else { panic!() };
    let members: Vec<_> = groups.iter().map(|group| group.members.join(" ")).collect();
    assert_eq!(members, ["small", "big", ""]);

    let warnings: Vec<_> = settings.warnings.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(warnings.join("\n"), @r"
    test.yaml:3:16: logTimeFormat has no effect: times are RFC 3339
    test.yaml:8:18: models.small.aliases[1] is ignored: `big` is the id of another model
    test.yaml:13:10: models.wrapped.cmd does not say where the server listens, so it is looked for at port 5802; use ${PORT} in cmd, or add `proxy:` with the server's URL
    test.yaml:15:3: selectors.any has no effect yet: requests for selectors get 404; name a model
    test.yaml:15:42: selectors.any.targets[1] is ignored: there is no model `gone`; known here: a, b, big, other-box/a, other-box/b, s, small, wrapped
    test.yaml:17:3: profiles.coding has no effect yet: names are never replaced; use aliases
    test.yaml:17:36: profiles.coding.pins.plan is ignored: there is no model `bigg`; did you mean `big`?
    test.yaml:20:18: hooks.on_startup.preload[1] is ignored: `any` is a selector; name a model
    test.yaml:20:23: hooks.on_startup.preload[2] is ignored: there is no model `gone`; known here: a, b, big, other-box/a, other-box/b, s, small, wrapped
    test.yaml:25:32: routing.router.settings.groups.gpu.members[1] is ignored: `any` is a selector; name a model
    test.yaml:25:37: routing.router.settings.groups.gpu.members[2] is ignored: there is no model `gone`; known here: a, b, big, other-box/a, other-box/b, s, small, wrapped
    test.yaml:26:44: routing.router.settings.groups.side.members[1] is ignored: `s` is another name of the model `small`; write `small`
    test.yaml:26:47: routing.router.settings.groups.side.members[2] is ignored: there is no model `smal`; did you mean `small`?
    test.yaml:27:43: routing.router.settings.groups.old.members[0] is ignored: there is no model `gone-a`; known here: a, b, big, other-box/a, other-box/b, s, small, wrapped
    test.yaml:27:51: routing.router.settings.groups.old.members[1] is ignored: there is no model `gone-b`; known here: a, b, big, other-box/a, other-box/b, s, small, wrapped
    test.yaml:34:26: routing.scheduler.settings.fifo.priority.gone is ignored: there is no model `gone`; known here: a, b, big, other-box/a, other-box/b, s, small, wrapped
    test.yaml:34:35: routing.scheduler.settings.fifo.priority.any is ignored: `any` is a selector; name a model
    ");
}

#[test]
fn a_llama_swap_file_means_what_it_means_there() {
    let settings = read(LLAMA_SWAP);
    let ids: Vec<_> = settings.models.iter().map(|model| model.id.as_str()).collect();
    let peers = ["other-box/a", "other-box/shared", "other-box/small", "provider/z-ai/glm", "provider/shared"];
    assert_eq!(ids[..3], ["small", "big", "docker"], "in the order of the file");
    assert_eq!(ids[3..], peers);
    assert!(["sk-one", "sk-two", "12345"].iter().all(|key| has_key(&settings, key)) && !has_key(&settings, "sk-"));
    assert_eq!(settings.log_level, LogLevel::Warn);
    assert_eq!(settings.store, Store { path: None, rows: 500 });
    assert_eq!(settings.preload, ["small"]);
    assert!(settings.include_aliases_in_list);
    assert_eq!(settings.scheduler, SchedulerKind::Fifo { priority: priorities([("big", 10), ("docker", -5)]) });

    let big = model(&settings, "big");
    let launch = big.launch.as_ref().unwrap();
    let words = ["/opt/llama.cpp/llama-server", "--port", "10001", "--ctx-size", "32768", "--model"];
    assert_eq!(launch.argv[..6], words);
    let words = ["/home/u/models/big.gguf", "--chat-template", "it's \"{{ x }}\"", "--temp", "0.7"];
    assert_eq!(launch.argv[6..], words);
    assert_eq!(launch.env, [("A".into(), "b=c".into()), ("CUDA_VISIBLE_DEVICES".into(), "1".into())]);
    assert_eq!(launch.stop_argv.as_ref().unwrap(), &["kill", "-INT", "${PID}"]);
    assert_eq!((big.name.as_str(), big.description.as_str()), ("The big one", "at 32768 tokens"));
    let upstream = Upstream { tls: false, host: "127.0.0.1".into(), port: 10001, prefix: "/base".into() };
    assert_eq!(big.upstream, upstream);
    assert_eq!(big.check_endpoint.as_deref(), Some("/v1/models"));
    assert_eq!((big.ttl, big.unload_timeout), (None, Duration::from_secs(45)));
    assert_eq!(big.use_model_name.as_deref(), Some("vendor/big"));
    assert_eq!(big.filters.strip_params, ["temperature", "top_k"]);
    assert_eq!(json!(big.filters.set_params), json!({"chat_template_kwargs": {"thinking": true}}));
    assert_eq!(json!(big.filters.set_params_by_id), json!({"big": {"seed": 1}, "big:hot": {"temperature": 0.7}}));
    assert_eq!(big.aliases, ["big:hot"]);
    let metadata = json!({
        "port": 10001, "temp": 0.7, "note": "big on 10001", "deep": {"list": [1, 1.5, true, "is true"]},
    });
    assert_eq!(big.metadata, metadata, "a value that is one reference keeps its type");
    assert_eq!((big.concurrency, big.unlisted), (4, true));
    let capabilities = Capabilities {
        input: vec!["text", "image"],
        output: vec!["text"],
        tools: true,
        reranker: false,
        context: Some(32000),
    };
    assert_eq!(big.capabilities, capabilities);
    let timeouts = Timeouts {
        connect: Some(Duration::from_secs(5)),
        response_header: Some(Duration::from_secs(600)),
        response_idle: None,
        tls_handshake: Some(Duration::from_secs(5)),
        idle_connection: None,
    };
    assert_eq!(big.timeouts, timeouts);

    let small = model(&settings, "small");
    assert_eq!(small.ttl, Some(Duration::from_secs(60)), "merged");
    assert_eq!(small.metadata, json!({"window": 4096}), "what is merged sees the model's own macros");
    assert_eq!(small.unload_timeout, Duration::from_secs(20));
    assert_eq!(small.concurrency, 10);
    assert_eq!(small.timeouts.connect, Some(Duration::from_secs(30)));
    let upstream = Upstream { tls: false, host: "localhost".into(), port: 10002, prefix: String::new() };
    assert_eq!(small.upstream, upstream);

    let docker = model(&settings, "docker");
    assert_eq!((docker.ttl, docker.check_endpoint.as_deref()), (Some(Duration::from_secs(300)), None));
    assert_eq!(docker.unload_timeout, Duration::from_secs(20), "0 is the global one");
    assert_eq!(docker.filters.strip_params, ["seed"]);
    assert_eq!(docker.health_check_timeout, Duration::from_secs(15));

    let peer = model(&settings, "provider/z-ai/glm");
    let upstream = Upstream { tls: true, host: "openrouter.ai".into(), port: 443, prefix: "/api".into() };
    assert_eq!(peer.upstream, upstream);
    assert_eq!((peer.upstream_key.as_deref(), peer.use_model_name.as_deref()), (Some("sk-two"), Some("z-ai/glm")));
    assert!(peer.launch.is_none() && !peer.takes_slot);
    assert_eq!(model(&settings, "a").timeouts.response_header, Some(Duration::from_secs(60)));

    let warned: Vec<_> = settings.warnings.iter().map(|warning| warning.path.as_str()).collect();
    let expected = [
        "logTimeFormat",
        "logToStdout",
        "logRequests",
        "captureBuffer",
        "sendLoadingState",
        "ui.activity.session_id[0]",
        "performance.every",
        "models.big.timeouts.keepalive",
        "models.big.compat.ignoreWebsockets",
        "models.big.filters.stripParams",
        "models.big.filters.setParams.model",
        "models.big.sendLoadingState",
        "selectors.any",
        "profiles.coding",
    ];
    assert_eq!(warned, expected);
    assert!(settings.ignored_paths.is_match("/x.css") && !settings.ignored_paths.is_match("/ws/x"));
}

fn priorities<const N: usize>(pairs: [(&str, i64); N]) -> BTreeMap<String, i64> {
    pairs.into_iter().map(|(id, points)| (id.to_owned(), points)).collect()
}

#[test]
fn a_name_is_an_id_an_alias_or_a_peers_model() {
    let settings = read(LLAMA_SWAP);
    let id = |name: &str| settings.find(name).map(|model| model.id.as_str());
    assert_eq!(id("small"), Some("small"), "a model here wins over a peer's");
    assert_eq!(id("s"), Some("small"));
    assert_eq!(id("big:hot"), Some("big"), "setParamsByID makes aliases");
    assert_eq!(id("other-box/small"), Some("other-box/small"));
    assert_eq!(id("z-ai/glm"), Some("provider/z-ai/glm"), "only one peer has it");
    assert_eq!(id("shared"), None, "two peers have it");
    assert_eq!(id("other-box/shared"), Some("other-box/shared"));
    assert_eq!(id("any"), None);
    assert_eq!(id("nobody"), None);
}

#[test]
fn ports_are_given_in_the_order_of_ids_to_those_who_ask() {
    let text = "models:
  c: {cmd: 'x --port ${PORT}'}
  a: {cmd: 'x --port 9000', proxy: 'http://localhost:9000'}
  b: {cmd: 'x --listen :${PORT}', proxy: 'http://[::1]:${PORT}', metadata: {port: '${PORT}'}}";
    let settings = read(text);
    assert_eq!((port(&settings, "a"), port(&settings, "b"), port(&settings, "c")), (9000, 5800, 5801));
    assert_eq!(argv(&settings, "b")[2], ":5800");
    assert_eq!(model(&settings, "b").upstream.host, "::1");
    assert_eq!(model(&settings, "b").metadata, json!({"port": 5800}));
}

#[test]
fn a_reload_moves_no_model_to_another_port() {
    let before = read("models: {b: {cmd: 'x ${PORT}'}, c: {cmd: 'x ${PORT}'}}");
    let text = "models: {a: {cmd: 'x ${PORT}'}, b: {cmd: 'x ${PORT}'}, c: {cmd: 'y ${PORT}'}, d: {cmd: 'x ${PORT}'}}";
    let after = try_read(text, Some(&before)).unwrap();
    assert_eq!(["a", "b", "c", "d"].map(|id| port(&after, id)), [5802, 5800, 5801, 5803]);
    assert_eq!(model(&after, "b").revision, model(&before, "b").revision, "need not restart");
    assert_ne!(model(&after, "c").revision, model(&before, "c").revision, "has another command");
    let moved = try_read(&format!("startPort: 7000\n{text}"), Some(&after)).unwrap();
    assert_eq!(port(&moved, "a"), 7000, "another startPort moves all");
}

#[test]
fn a_revision_is_about_the_process_alone() {
    let revision = |rest: &str| {
        let settings = read(&format!("models: {{a: {{cmd: 'x ${{PORT}}', {rest}}}}}"));
        model(&settings, "a").revision
    };
    let plain = revision("");
    for same in ["ttl: 5", "name: A", "aliases: [b]", "concurrencyLimit: 3", "filters: {stripParams: x}"] {
        assert_eq!(revision(same), plain, "{same}");
    }
    for other in ["env: [A=1]", "cmdStop: kill", "checkEndpoint: /", "proxy: 'http://localhost:1'"] {
        assert_ne!(revision(other), plain, "{other}");
    }
}

#[test]
fn macros_nest_in_any_order_and_models_override_them() {
    let text = "macros: {all: '${server} ${ctx}', server: 's ${PORT}', ctx: '-c ${n}', n: 1, hex: 0x10, under: 1_000}
models:
  a: {cmd: '${all} ${hex} ${under} 1_000'}
  b: {cmd: '${all}', macros: {n: 2}}
  c: {cmd: '${all}', macros: {ctx: '-c ${other}', other: '${n}${n}'}}
  ${x}: {cmd: '${PORT} ${} $n ${ x } ${a.b}'}";
    let settings = read(text);
    assert_eq!(argv(&settings, "a"), ["s", "5801", "-c", "1", "16", "1000", "1_000"]);
    assert_eq!(argv(&settings, "b"), ["s", "5802", "-c", "2"]);
    assert_eq!(argv(&settings, "c"), ["s", "5803", "-c", "11"]);
    assert_eq!(argv(&settings, "${x}"), ["5800", "${}", "$n", "${", "x", "}", "${a.b}"], "not macros");
}

#[test]
fn references_can_stand_unquoted_in_brackets() {
    let text = "macros: {n: 3, t: fast}
models: {a: {cmd: x ${PORT}, aliases: [${t}, a-${t}], metadata: {n: ${n}, list: [${n}, ${MODEL_ID}]}}}
apiKeys: [${env.SECOND_KEY}]";
    let settings = read(text);
    assert_eq!(model(&settings, "a").aliases, ["fast", "a-fast"]);
    assert_eq!(model(&settings, "a").metadata, json!({"n": 3, "list": [3, "a"]}));
    assert!(has_key(&settings, "sk-two"));
}

#[test]
fn environment_variables_take_a_type_only_unquoted() {
    let settings = read("models: {a: {cmd: x ${PORT}, ttl: ${env.TTL}, metadata: {text: '${env.TTL}'}}}");
    assert_eq!(model(&settings, "a").ttl, Some(Duration::from_secs(90)));
    assert_eq!(model(&settings, "a").metadata, json!({"text": "90"}));
    let settings = read("macros: {ctx: 1}\nmodels: {a: {cmd: x ${PORT}, name: ${env.TRICKY}}}");
    assert_eq!(model(&settings, "a").name, "a: \"b\" # 1 \\n", "a value cannot change the file's structure");
    assert_eq!(faults("# ${env.NO}\nmodels: {a: {cmd: x ${PORT}, name: ${env.NO}}}").len(), 1, "comments do not count");
}

#[test]
fn commands_are_split_as_a_shell_does() {
    let text = r#"
models:
  a:
    proxy: http://localhost:1
    cmd: |
      # a comment
      program 'one word' "two $words" th\ ree \
        # another one
      four#five --last=\"
"#;
    let settings = read(text);
    assert_eq!(argv(&settings, "a"), ["program", "one word", "two $words", "th ree", "four#five", "--last=\""]);
}

#[test]
fn a_comment_in_a_macro_is_one_too() {
    let text = "macros: {c: \"x\\n# ${gone}\\n--port ${PORT}\"}\nmodels: {a: {cmd: '${c}'}}";
    assert_eq!(faults(text), ["models.a.cmd: there is no macro `gone` here, which the macro `c` uses"]);
    let text = "macros: {c: \"x\\n# gone\\n--port ${PORT}\"}\nmodels: {a: {cmd: '${c}'}}";
    assert_eq!(argv(&read(text), "a"), ["x", "--port", "5800"]);
}

#[test]
fn times_and_sizes_are_numbers_or_text() {
    let text = "
limits: {body: 1MB, bodyReadTimeout: 1.5}
logBuffer: 2KiB
globalTTL: 1h30m
routing:
  admission:
    maxRequests: 100
    maxBytes: 2GiB
    defaultRequestTTL: 10m
    bands: {interactive: {ttl: 30}, normal: {ttl: 0, maxBytes: 5}, batch: {maxRequests: 7}}
  backoff: {initial: 250ms, max: 2m}
models: {a: {proxy: 'http://h'}}";
    let settings = read(text);
    let limits = Limits { body_bytes: 1_000_000, body_read_timeout: Duration::from_millis(1500) };
    assert_eq!(settings.limits, limits);
    assert_eq!(settings.log_buffer_bytes, 2048);
    assert_eq!(model(&settings, "a").ttl, Some(Duration::from_secs(5400)));
    let [batch, normal, interactive] = settings.admission.bands;
    assert_eq!((settings.admission.total.requests, settings.admission.total.bytes), (100, 2 << 30));
    assert_eq!((batch.bounds.requests, batch.bounds.bytes, batch.ttl), (7, 2 << 30, Some(Duration::from_secs(600))));
    assert_eq!((normal.bounds.requests, normal.bounds.bytes, normal.ttl), (100, 5, None));
    assert_eq!((interactive.bounds.requests, interactive.ttl), (100, Some(Duration::from_secs(30))));
    assert_eq!(settings.backoff.initial, Duration::from_millis(250));
}

#[test]
fn addresses_have_short_forms() {
    let listen = |text: &str| read(&format!("listen: '{text}'\nmodels: {{a: {{proxy: 'http://h'}}}}")).listen.unwrap();
    assert_eq!(listen(":80").to_string(), "0.0.0.0:80");
    assert_eq!(listen("localhost:80").to_string(), "127.0.0.1:80");
    assert_eq!(listen("[::1]:80").to_string(), "[::1]:80");
}

/// What a file without a key gets is what [`Settings::new`] promises.
#[test]
fn defaults_are_the_same_everywhere() {
    let read = read("models: {a: {proxy: 'http://h'}}");
    let new = Settings::new(read.models.clone());
    assert_eq!(format!("{read:?}"), format!("{new:?}"));
    assert_eq!(read.admission, switchyard_scheduler::AdmissionSettings::default());
}

#[test]
fn the_scheduler_gets_numbers_for_names() {
    let settings = read(LLAMA_SWAP);
    let ids = |id: &str| ModelId(settings.models.iter().position(|model| model.id == id).unwrap() as u32);
    let scheduler = settings.scheduler_settings(ids, |_| TenantId(1));
    assert_eq!(scheduler.models.len(), settings.models.len());
    assert!(scheduler.models[&ids("small")].managed && !scheduler.models[&ids("provider/shared")].managed);
    let PolicySettings::Fifo(fifo) = scheduler.policy else { panic!("{:?}", scheduler.policy) };
    assert_eq!(fifo.model_priority, BTreeMap::from([(ids("big"), 10), (ids("docker"), -5)]));
    let EvictionSettings::Groups(groups) = scheduler.eviction else { panic!("{:?}", scheduler.eviction) };
    assert_eq!(groups[0].members, [ids("small"), ids("big")]);
    assert_eq!((groups[1].swap, groups[1].exclusive, groups[1].persistent), (false, false, true));
}

#[test]
fn serial_has_settings_of_its_own() {
    let text = "routing: {scheduler: {use: serial, settings: {serial: {swapAffinityBonus: 0, slots: 2}}}}
models: {a: {proxy: 'http://h'}}";
    let SchedulerKind::Serial(serial) = read(text).scheduler else { panic!() };
    assert_eq!((serial.swap_affinity_bonus, serial.aging_divisor, serial.slots), (0, 60, 2));
}

#[test]
fn a_matrix_is_written_out_in_the_order_of_the_file() {
    let models = "models: {a: {proxy: 'http://h'}, b: {proxy: 'http://h'}, c: {proxy: 'http://h'}}";
    let matrix = "{vars: {x: c}, evict_costs: {x: 9, b: 2}, sets: {two: +one & x, one: a | b}}";
    let expected = MatrixSettings {
        sets: [&[0, 2][..], &[1, 2], &[0], &[1]].map(|set| set.iter().map(|id| ModelId(*id)).collect()).to_vec(),
        costs: BTreeMap::from([(ModelId(2), 9), (ModelId(1), 2)]),
    };
    let ids = |id: &str| ModelId(u32::from(id.as_bytes()[0] - b'a'));
    let above = format!("{models}\nmatrix: {matrix}");
    let below = format!("{models}\nrouting: {{router: {{use: matrix, settings: {{groups: {{}}, matrix: {matrix}}}}}}}");
    for text in [above, below] {
        let EvictionSettings::Matrix(matrix) = read(&text).scheduler_settings(ids, |_| TenantId(1)).eviction else {
            panic!("{text}")
        };
        assert_eq!(matrix, expected);
    }
}

#[test]
fn groups_and_a_matrix_can_wait_side_by_side() {
    let text = "models: {a: {proxy: 'http://h'}}
routing: {router: {use: group, settings: {groups: {g: {members: [a]}}, matrix: {sets: {s: a}}}}}";
    let Eviction::Groups(groups) = read(text).eviction else { panic!() };
    assert_eq!(groups[0].members, ["a"]);
}

#[test]
fn what_is_harmless_gets_a_word_and_no_more() {
    let text = "groups: {empty: {}}\nmetricsMaxInMemory: 0\nmodels: {a: {cmd: x ${PORT}, env: [A=1, B=, A=2]}}";
    let settings = read(text);
    assert_eq!(warned(&settings), ["models.a.env[2] sets A again: only this one counts"]);
    let env = [("A", "1"), ("B", ""), ("A", "2")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(model(&settings, "a").launch.as_ref().unwrap().env, env);
    assert_eq!(settings.store.rows, 10_000);
}

#[test]
fn peers_alone_will_do() {
    let settings = read("peers: {p: {proxy: 'http://h', models: [m]}}");
    assert_eq!(settings.find("m").unwrap().id, "p/m");
}

#[test]
fn null_is_the_default() {
    let settings = read("globalTTL: ~\nmacros:\ngroups:\nmodels: {a: {cmd: x ${PORT}, proxy: ~, aliases:, ttl: null}}");
    assert_eq!(port(&settings, "a"), 5800);
    assert_eq!(model(&settings, "a").ttl, None);
}

#[test]
fn problems_come_in_the_order_of_the_file_with_their_places() {
    let problems = try_read("models:\n  a: {proxy: 'http://h', ttl: soon}\nlogLevel: x\nnope: 1\n", None).unwrap_err();
    let places: Vec<_> = problems.iter().map(|p| (p.place.line, p.place.column, p.place.length)).collect();
    assert_eq!(places, [(2, 31, 4), (3, 11, 1), (4, 1, 4)]);
    assert_eq!(problems.count(), 3);
    let summary = problems.summaries().next().unwrap();
    assert!(summary.starts_with("test.yaml:2:31: models.a.ttl: the text \"soon\""), "{summary}");
    assert!(!summary.contains('\n'));
}

#[test]
fn what_is_not_utf_8_is_said_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("latin.yaml");
    std::fs::write(&file, b"models:\n  caf\xe9: {proxy: 'http://h'}\n").unwrap();
    let problems = load(&file).unwrap_err().to_string();
    assert!(problems.contains("latin.yaml:2:6: this is not UTF-8"), "{problems}");
    assert!(problems.contains("save the file as UTF-8"), "{problems}");
}

#[test]
fn an_environment_variable_that_is_not_set_is_one_problem() {
    let text = "apiKeys: ['${env.GONE}', 'sk-${env.GONE}']\nmacros: {dir: '${env.GONE}/x', server: 'x ${dir}'}\n\
                models: {a: {cmd: '${server} ${PORT}', ttl: '${env.GONE}', proxy: '${env.GONE}'}}";
    let wanted = ["apiKeys[0]", "apiKeys[1]", "macros.dir", "models.a.ttl", "models.a.proxy"];
    let wanted = wanted.map(|path| format!("{path}: the environment variable GONE is not set"));
    assert_eq!(faults(text), wanted);
}

#[test]
fn ports_that_run_out_are_one_problem() {
    let text = "startPort: 65535\nmodels: {a: {cmd: x ${PORT}}, b: {cmd: x ${PORT}, replicas: 3}, c: {cmd: x ${PORT}}}";
    assert_eq!(faults(text), ["startPort: no port is left for `b`, `c`"]);
}

#[test]
fn of_very_many_problems_the_first_are_shown() {
    let text: String = (0..500).map(|n| format!("unknown-{n}: 1\n")).collect();
    let problems = try_read(&text, None).unwrap_err();
    assert_eq!((problems.count(), problems.iter().count()), (500, 100));
    assert!(problems.to_string().ends_with("… and 400 more\n500 problems in test.yaml\n"));
}

#[test]
fn a_secret_is_not_shown() {
    let problems = try_read("apiKeys: [sk top secret]\nmodels: {a: {proxy: 'http://h'}}", None).unwrap_err();
    assert!(!problems.to_string().contains("top"), "{problems}");
    let text = "peers: {p: {proxy: x, apiKey: sk-top, models: [m]}}";
    let problems = try_read(text, None).unwrap_err();
    assert!(!problems.to_string().contains("top"), "nor beside something else: {problems}");
}

mod any_text {
    use proptest::prelude::*;

    use super::{LLAMA_SWAP, try_read};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// Whatever stands in a file, it is read or refused with a place in it.
        #[test]
        fn is_read_or_refused(text in r#"([a-z:&*\-{}\[\]"'|#<>$ \n]|\$\{[A-Za-z.]{1,5}\}|models: ?|cmd: ?|<<: ){0,60}"#) {
            let _ = try_read(&text, None).map_err(|problems| problems.to_string());
        }

        /// A whole file with one piece cut out and another put in.
        #[test]
        fn survives_surgery(from in 0usize..4000, cut in 0usize..40, put in r#"[a-z:&*\-{}\[\]"'|\n ${}]{0,8}"#) {
            let chars: Vec<char> = LLAMA_SWAP.chars().collect();
            let from = from.min(chars.len());
            let to = (from + cut).min(chars.len());
            let text: String = chars[..from].iter().copied().chain(put.chars()).chain(chars[to..].iter().copied()).collect();
            if let Err(problems) = try_read(&text, None) {
                let lines = text.lines().count();
                prop_assert!(problems.iter().all(|problem| problem.place.line <= lines + 1), "{}", problems);
                let _ = problems.to_string();
            }
        }
    }
}

mod callers {
    use std::{fs, path::Path};

    use http::HeaderMap;
    use switchyard_policy::{Decision, Grant, RequestView};

    use super::*;

    const MODEL: &str = "models: {a: {proxy: 'http://h'}}";

    /// The priority, tenant and tier that a key gets.
    fn identity(settings: &Settings, key: &str) -> Option<(i64, String, String)> {
        assert!(matches!(settings.callers.gate, Gate::Policy));
        let headers = [(&b"x-api-key"[..], key.as_bytes())];
        let request = RequestView { method: b"POST", path: b"/v1/chat/completions", headers: &headers };
        match settings.callers.policy.decide(&request, 0) {
            Decision::Allow(allowed) => {
                let identity = allowed.identity?;
                let Grant { tenant, tier, .. } = &*identity.grant;
                Some((identity.priority, tenant.to_string(), tier.name.to_string()))
            }
            Decision::Deny(_) => None,
        }
    }

    #[test]
    fn keys_stand_in_the_file() {
        let settings = read(&format!(
            "{MODEL}
allowPlain: true
tiers: {{gold: {{offset: 7, maxBand: normal, limits: {{running: 3}}}}}}
keys:
  - {{key: sk-1, tenant: acme, tier: gold, priority: -3}}
  - {{key: 12345, tenant: b, tier: gold, limits: {{waiting: 2}}}}"
        ));
        assert_eq!(identity(&settings, "sk-1"), Some((-93, "acme".to_owned(), "gold".to_owned())));
        assert_eq!(identity(&settings, "12345"), Some((7, "b".to_owned(), "gold".to_owned())));
        assert_eq!(identity(&settings, "sk-2"), None);
        assert!(settings.warnings.is_empty(), "{:?}", settings.warnings);
    }

    #[test]
    fn the_usual_tiers_are_there() {
        let settings = read(&format!("{MODEL}\nallowPlain: true\nkeys: [{{key: k, tenant: t, tier: max}}]"));
        assert_eq!(identity(&settings, "k"), Some((2, "t".to_owned(), "max".to_owned())));
    }

    #[test]
    fn the_schedulers_bonus_bounds_offsets() {
        let file = |bonus| {
            format!(
                "{MODEL}\nrouting: {{scheduler: {{settings: {{serial: {{swapAffinityBonus: {bonus}}}}}}}}}
tiers: {{top: {{offset: 60}}}}\nkeys: []\nanonymous: {{tier: top}}"
            )
        };
        read(&file(39));
        assert_eq!(faults(&file(40)).len(), 1);
    }

    #[test]
    fn settings_for_nobody_get_a_word() {
        let settings = read(&format!("{MODEL}\ntiers: {{a: {{}}}}\nkeys: []\nforwardKey: true"));
        assert!(matches!(settings.callers.gate, Gate::Open));
        assert_eq!(warned(&settings), ["tiers has no effect without keys"]);
    }

    #[test]
    fn the_shipped_tiers_are_fine() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/tiers.yaml");
        let settings = read(&format!("{MODEL}\ntiersFile: {}", file.display()));
        assert_eq!(settings.callers.policy.key_count(), 2);
        assert_eq!(settings.callers.tiers_file.as_deref(), Some(&*file));
        assert!(settings.warnings.is_empty(), "{:?}", settings.warnings);
    }

    #[test]
    fn a_file_of_keys_is_read_beside_the_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let main = dir.path().join("main.yaml");
        let tiers = dir.path().join("tiers.json");
        fs::write(&main, format!("{MODEL}\ntiersFile: tiers.json\nheaders: {{priority: X-Urgency}}")).unwrap();
        let json = r#"{"allowPlain": true, "keys": [{"key": "k", "tenant": "t", "tier": "pro"}],
            "headers": {"tenant": "X-Tenant"}, "swapAffinityBonus": 5}"#;
        fs::write(&tiers, json).unwrap();
        let settings = load(&main).unwrap();
        assert_eq!(identity(&settings, "k"), Some((1, "t".to_owned(), "pro".to_owned())));
        assert_eq!((settings.headers.priority.as_str(), settings.headers.tenant.as_str()), ("x-urgency", "x-tenant"));
        let warning = settings.warnings[0].to_string();
        let wanted = "tiers.json:2:69: swapAffinityBonus is 5 here, but the scheduler's 10 counts";
        assert!(warning.ends_with(wanted), "{warning}");

        fs::write(&tiers, "keys:\n  - {key: sk-very-secret, tenant: t, tier: nope}\nheaders: {priority: x-p}").unwrap();
        let problems = load(&main).unwrap_err();
        assert_eq!(problems.count(), 3, "{problems}");
        let text = problems.to_string();
        for wanted in
            ["main.yaml:3:11: headers.priority", "tiers.json:2:11: keys[0].key", "tiers.json:2:44: keys[0].tier"]
        {
            assert!(text.contains(wanted), "{text}");
        }
        assert!(!text.contains("very"), "{text}");
        assert_eq!(problems.paths().collect::<Vec<_>>(), [&main, &tiers]);

        fs::write(&tiers, "").unwrap();
        assert!(load(&main).unwrap_err().to_string().contains("tiers.json:"), "an empty file is no file of keys");
        fs::remove_file(&tiers).unwrap();
        let problems = load(&main).unwrap_err();
        assert!(problems.to_string().contains("main.yaml:2:12: tiersFile: "), "{problems}");
        assert_eq!(problems.paths().count(), 2, "it may come back");
    }

    #[test]
    fn trust_is_of_networks_or_of_a_secret() {
        let settings = read(&format!(
            "{MODEL}\ntrust: {{cidrs: [10.1.2.3/8, '::1', 192.168.1.4], header: {{name: X-Proxy, secret: s3cret}}}}"
        ));
        let trust = settings.callers.trust.expect("trust");
        let from = |peer: &str| trust.covers(|| peer.parse().ok(), &HeaderMap::new());
        for peer in ["10.255.0.1", "::ffff:10.0.0.1", "::1", "192.168.1.4"] {
            assert!(from(peer), "{peer}");
        }
        for peer in ["11.0.0.1", "::2", "192.168.1.5", "unknown"] {
            assert!(!from(peer), "{peer}");
        }
        let with = |secret: &'static str| {
            let headers = HeaderMap::from_iter([("x-proxy".parse().unwrap(), http::HeaderValue::from_static(secret))]);
            trust.covers(|| None, &headers)
        };
        assert!(with("s3cret"));
        assert!(!with("s3cre") && !with("s3cret,s3cret") && !with(""));
        assert!(read(&format!("{MODEL}\ntrust: {{cidrs: []}}")).callers.trust.is_none());
    }

    #[test]
    fn what_goes_upstream_of_the_caller() {
        let kept = |rest: &str| {
            let names = read(&format!("{MODEL}\n{rest}")).headers.kept;
            names.iter().map(|name| name.to_string()).collect::<Vec<_>>()
        };
        let identity = [
            "x-llm-d-inference-fairness-id",
            "x-switchyard-tier",
            "x-switchyard-models",
            "x-llm-d-inference-objective",
            "x-gateway-inference-fairness-id",
            "x-gateway-inference-objective",
        ];
        assert_eq!(kept(""), ["x-llamaswap-priority"]);
        assert_eq!(kept("apiKeys: [k]"), ["x-llamaswap-priority"]);
        assert_eq!(kept("anonymous: {tier: free}\nheaders: {forwardPriority: true}"), identity);
        assert_eq!(kept("trust: {cidrs: ['::1']}\nheaders: {forwardPriority: true}"), identity);
        assert_eq!(kept("anonymous: {tier: free}\nheaders: {forwardIdentity: true}"), ["x-llamaswap-priority"]);
    }

    #[test]
    fn no_message_shows_a_key() {
        for text in [
            "keys: sk-hidden",
            "keys: [sk-hidden]",
            "keys: {sk-hidden: {tenant: x}}",
            "keys:\n  - sk-hidden: 1",
            "keys: [{key: [sk-hidden], tenant: t, tier: max}]",
            "keys: [{key: sk-hidden, tenant: t, tier: none}]",
            "keys: [{key: \"sk-hidden, tenant: t}]",
            "keys: [{sha256: sk-hidden, tenant: t, tier: max}]",
            "trust: {header: {secret: [sk-hidden]}}",
            "trust: {header: {sha256: sk-hidden}}",
            "trust: {header: sk-hidden}",
            "apiKeys: [{sk-hidden: 1}]",
        ] {
            let problems = try_read(&format!("{MODEL}\n{text}"), None).expect_err(text);
            assert!(!problems.to_string().contains("hidden"), "{text}\n{problems}");
            assert!(problems.summaries().all(|line| !line.contains("hidden")), "{text}");
        }
    }
}
