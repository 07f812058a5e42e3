//! Keys and tiers as the Envoy filter takes them, out of whichever file holds them.

use std::{collections::BTreeMap, path::Path};

use switchyard_policy::{Policy, PolicySettings};

use super::{
    callers::{self, CallersFile, TiersFile},
    check::report,
    env, file, load, macros,
    problem::{Problems, Sink, read_text},
    reader::Section,
    tree::{self, Node},
};

/// Reads the keys and tiers of a configuration file, or of a file of keys alone. There are no plain keys in them.
///
/// # Errors
/// Everything that is wrong with the file.
pub fn load_keys(path: &Path) -> Result<PolicySettings, Problems> {
    let name = path.display().to_string();
    let text = read_text(path).map_err(|why| Problems::unreadable(&name, why))?;
    let sink = Sink::new(&text);
    let settings = match tree::parse(&text, &env, &sink) {
        Some(root) if root.get("models").or(root.get("peers")).is_some() => return of_configuration(path, root),
        Some(root) => alone(&root, &sink),
        None => PolicySettings::default(),
    };
    if sink.is_empty() { Ok(settings.without_plain_keys()) } else { Err(Problems::new(&name, sink)) }
}

fn alone(root: &Node, sink: &Sink) -> PolicySettings {
    let mut section = Section::root(root, sink);
    let TiersFile { mut policy, swap_affinity_bonus, .. } = callers::read_tiers(&mut section);
    section.check_unknown();
    if let Some(bonus) = swap_affinity_bonus {
        policy.swap_affinity_bonus = bonus.value;
    }
    if sink.is_empty() {
        // Only for what it has to say.
        let problems = Policy::new(policy.clone()).err().unwrap_or_default();
        report(problems, root, sink);
    }
    policy
}

fn of_configuration(path: &Path, mut root: Node) -> Result<PolicySettings, Problems> {
    // Whether it is fine; what it means in full.
    let settings = load(path)?;
    let sink = Sink::default();
    macros::expand(&mut root, &BTreeMap::new(), &sink);
    let file = file::read(&mut Section::root(&root, &sink));
    let CallersFile { policy, trust, .. } = file.callers;
    let mut keys = match &settings.callers.tiers_file {
        Some(tiers) => load_keys(tiers)?,
        None => PolicySettings { headers: file.headers.names, ..policy }.without_plain_keys(),
    };
    keys.swap_affinity_bonus = file.routing.swap_affinity_bonus.into();
    settings.headers.priority.as_str().clone_into(&mut keys.headers.priority);
    // Nobody but the proxy itself may send what the gateway trusts it for.
    keys.headers.strip.extend(trust.header.map(|_| trust.name.as_str().to_owned()));
    Ok(keys)
}
