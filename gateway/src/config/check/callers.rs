//! Who may use the gateway, and what it believes of them.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use switchyard_policy::{HeaderSettings, KeyRing, Policy, PolicySettings, Problem};

use super::Check;
use crate::config::{
    callers::{self, TiersFile},
    identity::{Callers, Gate, Headers, Trust},
    problem::{Sink, Unreadable, read_text},
    reader::{At, Section},
    tree::{self, Node, Value},
};

impl Check<'_> {
    pub(super) fn callers(&mut self) -> (Callers, Headers) {
        let (file, headers) = (&self.file.callers, &self.file.headers);
        let gate = self.gate();
        let trust = self.trust();
        let (policy, names, tiers_file) = match &file.tiers_file {
            Some(at) => self.read_tiers(at),
            None => {
                let settings = match gate {
                    Gate::Policy => file.policy.clone(),
                    // The policy only has to know which headers to take away, and without keys of the gateway's own
                    // the caller's is the model server's.
                    Gate::Open => PolicySettings { forward_key: true, ..PolicySettings::default() },
                    Gate::ApiKeys { forward, .. } => {
                        PolicySettings { forward_key: forward, ..PolicySettings::default() }
                    }
                };
                let settings = PolicySettings { headers: headers.names.clone(), ..settings };
                (self.policy(settings, self.source.root, self.sink), headers.names.clone(), None)
            }
        };
        if !matches!(gate, Gate::Policy) {
            self.without_keys();
        }
        let believes_all = trust.is_none() && !matches!(gate, Gate::Policy);
        let names = Headers {
            session: headers.session.clone(),
            ..Headers::new(&names, headers.forward_priority, headers.forward_identity || believes_all)
        };
        let policy = policy.map_or_else(|| Callers::default().policy, Arc::new);
        (Callers { gate, policy, trust, tiers_file, tenants: std::mem::take(&mut self.tenants) }, names)
    }

    fn gate(&self) -> Gate {
        let file = &self.file.callers;
        let has_keys = !file.policy.keys.is_empty() || file.policy.anonymous.is_some() || file.tiers_file.is_some();
        match self.file.api_keys.first() {
            None if has_keys => Gate::Policy,
            None => Gate::Open,
            Some(first) if has_keys => {
                first.problem(
                    self.sink,
                    "apiKeys cannot go together with keys, anonymous or tiersFile",
                    "move these keys there, each as `sha256:` with what `switchyard keys hash` prints",
                );
                Gate::Policy
            }
            Some(_) => {
                let mut ring = KeyRing::default();
                self.file.api_keys.iter().for_each(|key| ring.add_key(key.value.as_bytes()));
                Gate::ApiKeys { ring, forward: file.policy.forward_key }
            }
        }
    }

    fn trust(&self) -> Option<Trust> {
        let file = &self.file.callers.trust;
        let secret = file.header.as_ref().and_then(|header| {
            let mut ring = KeyRing::default();
            match (&file.sha256, &file.secret) {
                (Some(sha256), None) => {
                    if !ring.add_sha256(&sha256.value) {
                        let message = "not a SHA-256 in hex, which has 64 digits";
                        sha256.problem(self.sink, message, "paste what `switchyard keys hash` prints");
                    }
                }
                (None, Some(secret)) if !secret.is_empty() && secret.trim() == secret.value => {
                    ring.add_key(secret.value.as_bytes());
                }
                (None, Some(secret)) => {
                    let message = "a secret that no header can carry";
                    secret.problem(self.sink, message, "use text without spaces around it");
                }
                (None, None) => {
                    header.problem(self.sink, "the secret is missing", "add `sha256:` or `secret:`");
                }
                (Some(_), Some(secret)) => secret.problem(self.sink, "both `sha256` and `secret`", "keep `sha256`"),
            }
            (!ring.is_empty()).then(|| (file.name.value.clone(), ring))
        });
        let networks: Vec<_> = file.cidrs.iter().map(|network| network.value).collect();
        (secret.is_some() || !networks.is_empty()).then_some(Trust { networks, secret })
    }

    /// The policy of a file of keys alone, the names of its headers, and the file.
    fn read_tiers(&mut self, at: &At<String>) -> (Option<Policy>, HeaderSettings, Option<PathBuf>) {
        for given in self.file.callers.given.iter().chain(&self.file.headers.given) {
            let message = format!("this belongs into {}, since tiersFile names it", at.value);
            given.problem(self.sink, message, "move it there, or leave tiersFile out");
        }
        let path = Path::new(self.source.name).parent().unwrap_or(Path::new("")).join(&at.value);
        let name = path.display().to_string();
        let text = match read_text(&path) {
            Ok(text) => text,
            Err(why) => {
                let sink = match why {
                    Unreadable::Missing(error) => {
                        let cure = "name a file that exists and is readable, relative to this one";
                        at.problem(self.sink, format!("{name} cannot be read: {error}"), cure);
                        Sink::default()
                    }
                    Unreadable::NoText(sink) => sink,
                };
                self.sink.add_file(&name, sink);
                return (None, HeaderSettings::default(), Some(path));
            }
        };
        let sink = Sink::new(&text);
        let mut policy = None;
        let mut names = HeaderSettings::default();
        if let Some(root) = tree::parse(&text, self.source.env, &sink) {
            if !matches!(root.value, Value::Map(_)) {
                sink.add(root.place, "", format!("the file holds {}", root.describe()), "begin with `keys:`");
            }
            let mut section = Section::root(&root, &sink);
            let TiersFile { policy: mut settings, priority, swap_affinity_bonus } = callers::read_tiers(&mut section);
            section.check_unknown();
            self.agree_on_priority(&mut settings.headers, priority);
            if let Some(theirs) = swap_affinity_bonus
                && theirs.value != i64::from(self.file.routing.swap_affinity_bonus)
            {
                let ours = self.file.routing.swap_affinity_bonus;
                let message = format!("is {} here, but the scheduler's {ours} counts", theirs.value);
                self.warn_of(&name, &theirs, message);
            }
            names = settings.headers.clone();
            policy = self.policy(settings, &root, &sink);
        }
        self.sink.add_file(&name, sink);
        (policy, names, Some(path))
    }

    /// Either file may name the priority's header.
    fn agree_on_priority(&self, theirs: &mut HeaderSettings, is_given: Option<At<()>>) {
        let headers = &self.file.headers;
        let Some(ours) = &headers.priority else { return };
        if is_given.is_some() && headers.names.priority != theirs.priority {
            let message = format!("the file of the keys names another header, {}", theirs.priority);
            ours.problem(self.sink, message, "leave out one of the two");
        }
        theirs.priority.clone_from(&headers.names.priority);
    }

    /// Checks settings that were read from this tree.
    fn policy(&mut self, mut settings: PolicySettings, root: &Node, sink: &Sink) -> Option<Policy> {
        self.tenants = settings.keys.iter().map(|key| key.tenant.clone()).collect();
        // What is wrong with values would be wrong again with what they stand for.
        if sink.concerns(&["keys", "tiers", "anonymous", "objectives", "headers"]) {
            return None;
        }
        settings.swap_affinity_bonus = self.file.routing.swap_affinity_bonus.into();
        let trust = &self.file.callers.trust;
        let secret_path = format!("headers.strip[{}]", settings.headers.strip.len());
        if trust.header.is_some() {
            settings.headers.strip.push(trust.name.as_str().to_owned());
        }
        let problems = match Policy::new(settings) {
            Ok(policy) => return Some(policy),
            Err(problems) => problems,
        };
        let (secret, others): (Vec<_>, Vec<_>) = problems.into_iter().partition(|problem| problem.path == secret_path);
        for problem in secret {
            trust.name.problem(self.sink, problem.message, problem.cure);
        }
        report(others, root, sink);
        None
    }

    /// Settings that do nothing without keys get a word.
    fn without_keys(&mut self) {
        let needs_keys = |path: &str| matches!(path, "tiers" | "allowPlain" | "objectives");
        let file = self.file;
        for at in file.callers.given.iter().filter(|at| needs_keys(&at.path.to_string())) {
            self.warn(at, "has no effect without keys");
        }
    }
}

/// Says at which places of a file the policy's problems are.
pub(in crate::config) fn report(problems: Vec<Problem>, root: &Node, sink: &Sink) {
    for problem in problems {
        sink.add(root.locate(&problem.path), problem.path, problem.message, problem.cure);
    }
}
