//! What `switchyard check` says of broken files, and that the files we ship are whole.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;
use switchyard::config;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// Every file in `tests/broken-configs` is named after what is broken in it; its snapshot is what the user sees.
#[test]
fn broken_configs() {
    let folder = root().join("tests/broken-configs");
    let mut names: Vec<String> = fs::read_dir(&folder)
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.strip_suffix(".yaml").map(str::to_owned))
        .collect();
    names.sort();
    assert!(names.len() >= 20, "only {} broken files", names.len());
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(&folder);
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| {
        for name in names {
            let file = format!("{name}.yaml");
            let text = fs::read_to_string(folder.join(&file)).unwrap();
            match config::parse(&file, &text) {
                Err(problems) => insta::assert_snapshot!(name, problems.to_string()),
                Ok(_) => panic!("{file} passes the check"),
            }
        }
    });
}

#[test]
fn schema_file_is_current() {
    let current = config::schema_json() + "\n";
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        fs::write(root().join("config/schema.json"), &current).unwrap();
    }
    assert!(
        read("config/schema.json") == current,
        "config/schema.json is out of date: run this test with UPDATE_SCHEMA=1"
    );
}

#[test]
fn shipped_files_load() {
    let reference = config::parse("switchyard.yaml", &read("config/switchyard.yaml")).unwrap_or_else(|p| panic!("{p}"));
    let paths: Vec<_> = reference.warnings.iter().map(|warning| warning.path.as_str()).collect();
    assert_eq!(
        paths,
        ["routing.scheduler.settings.flow", "selectors.best", "profiles.frugal"],
        "{:?}",
        reference.warnings
    );
    let demo = config::Settings::demo(Path::new("/opt/switch yard"));
    assert!(demo.warnings.is_empty(), "{:?}", demo.warnings);
    for model in &demo.models {
        let port = model.upstream.port.to_string();
        let argv = &model.launch.as_ref().unwrap().argv;
        assert_eq!(argv[..4], ["/opt/switch yard", "demo-backend", "--port", &port]);
    }
}

/// The dotted paths of a schema's keys, with `*` for names that are free and `[]` for items of lists.
fn keys_of_schema(schema: &Value, path: &str, keys: &mut BTreeSet<String>) {
    for (key, schema) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{key}");
        keys_of_schema(schema, &path, keys);
        keys.insert(path);
    }
    for (inner, name) in [("additionalProperties", "*"), ("items", "[]")] {
        if let Some(schema) = schema.get(inner).filter(|schema| schema.get("properties").is_some()) {
            keys_of_schema(schema, &format!("{path}.{name}"), keys);
        }
    }
}

/// The reference shows every key: as a setting, or in a comment at the same place.
#[test]
fn reference_shows_every_setting() {
    let schema: Value = serde_json::from_str(&config::schema_json()).unwrap();
    let mut keys = BTreeSet::new();
    keys_of_schema(&schema, "", &mut keys);
    let shown = keys_of_yaml(&read("config/switchyard.yaml"), &schema);
    let missing: Vec<_> =
        keys.difference(&shown).filter(|key| !key.starts_with(".groups.") && !key.starts_with(".matrix.")).collect();
    assert_eq!(missing, Vec::<&String>::new());
}

/// The dotted paths of the keys in block style, commented ones included, by their indentation.
fn keys_of_yaml(text: &str, schema: &Value) -> BTreeSet<String> {
    let mut open: Vec<(usize, String)> = Vec::new();
    let mut shown = BTreeSet::new();
    for line in text.lines() {
        let mut indent = line.len() - line.trim_start().len();
        let mut line = line.trim_start();
        if let Some(comment) = line.strip_prefix("# ") {
            line = comment.trim_start();
            indent += comment.len() - line.len();
        }
        if let Some(item) = line.strip_prefix("- ").filter(|item| item.contains(": ")) {
            open.truncate(open.iter().take_while(|(outer, _)| *outer < indent).count());
            open.push((indent, "[]".to_owned()));
            (line, indent) = (item, indent + 2);
        }
        let Some((key, _)) = line.split_once(':').filter(|(key, _)| !key.contains(' ')) else { continue };
        while open.last().is_some_and(|(outer, _)| *outer >= indent) {
            open.pop();
        }
        open.push((indent, key.trim_matches('"').to_owned()));
        let mut at = schema;
        let mut path = String::new();
        for (_, key) in &open {
            if let Some(inner) = at["properties"].get(key) {
                path = format!("{path}.{key}");
                at = inner;
            } else if key == "[]" {
                path = format!("{path}.[]");
                at = &at["items"];
            } else {
                path = format!("{path}.*");
                at = &at["additionalProperties"];
            }
        }
        shown.insert(path);
    }
    shown
}
