//! `${…}`: environment variables, macros, and the model's own `MODEL_ID`, `PORT` and `PID`.
//!
//! A value that is one reference and nothing else takes the macro's type; inside other text the macro becomes text.

use std::collections::{BTreeMap, HashSet};

use super::{
    command::strip_comments,
    file::MAX_REPLICAS,
    problem::{Path, Place, Sink, nearest},
    settings::Ports,
    tree::{Key, Node, Value},
};

/// A macro of macros can grow without end; no sensible value is longer.
const MAX_TEXT: usize = 256 * 1024;

/// Names that are the gateway's to give.
pub(super) const RESERVED: [&str; 3] = ["MODEL_ID", "PORT", "PID"];

/// Characters that Unicode sets aside for use inside programs, in place of the braces of a reference.
const SHIELD: (char, char) = ('\u{FDD0}', '\u{FDD1}');

/// One piece of a text.
enum Piece<'a> {
    Text(&'a str),
    /// A reference, by the name between the braces.
    Reference(&'a str),
}

/// Cuts a text at its references. `${` followed by anything but a name and `}` is text.
fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut from = 0;
    let mut search = 0;
    while let Some(start) = text[search..].find("${").map(|at| at + search) {
        let inner = &text[start + 2..];
        let end = inner.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')));
        match end {
            Some(end) if inner[end..].starts_with('}') && is_reference(&inner[..end]) => {
                if from < start {
                    pieces.push(Piece::Text(&text[from..start]));
                }
                pieces.push(Piece::Reference(&inner[..end]));
                from = start + 2 + end + 1;
                search = from;
            }
            _ => search = start + 2,
        }
    }
    if from < text.len() || pieces.is_empty() {
        pieces.push(Piece::Text(&text[from..]));
    }
    pieces
}

fn is_reference(name: &str) -> bool {
    !name.strip_prefix("env.").unwrap_or(name).is_empty() && !name.strip_prefix("env.").unwrap_or(name).contains('.')
}

/// Makes references ordinary parts of unquoted text, also in `[…]` and `{…}`, where braces end it. The number of
/// characters stays the same, so that places do.
pub(super) fn shield(text: &str) -> String {
    pieces(text)
        .into_iter()
        .map(|piece| match piece {
            Piece::Text(text) => text.to_owned(),
            Piece::Reference(name) => format!("${}{name}{}", SHIELD.0, SHIELD.1),
        })
        .collect()
}

/// Takes back [`shield`].
pub(super) fn unshield(text: &str) -> String {
    text.replace(SHIELD.0, "{").replace(SHIELD.1, "}")
}

/// Puts in environment variables; those that are not set are left and named to `missing`.
pub(super) fn substitute_env(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
    mut missing: impl FnMut(&str),
) -> String {
    let mut result = String::with_capacity(text.len());
    for piece in pieces(text) {
        match piece {
            Piece::Text(text) => result.push_str(text),
            Piece::Reference(name) => match name.strip_prefix("env.").map(|variable| (variable, env(variable))) {
                Some((_, Some(value))) => result.push_str(&value),
                Some((variable, None)) => missing(variable),
                None => result.extend(["${", name, "}"]),
            },
        }
    }
    result
}

/// The macros that a value sees.
#[derive(Clone, Default)]
struct Scope {
    macros: BTreeMap<String, Node>,
    /// The value may keep `${PORT}`: it is put in later, when the port is known.
    port: bool,
}

impl Scope {
    /// With the macros of a `macros` mapping, which win over those that are there.
    fn with(mut self, macros: Option<&Node>) -> Self {
        for (key, node) in macros.map_or(&[][..], Node::entries) {
            let is_scalar = node.text().is_some() || matches!(node.value, Value::Broken);
            if !RESERVED.contains(&key.name.as_str()) && is_scalar {
                self.macros.insert(key.name.clone(), node.clone());
            }
        }
        self
    }

    fn set(&mut self, name: &str, value: Value) {
        self.macros.insert(name.to_owned(), Node::new(Place::default(), value));
    }
}

/// What comes of it beside the file itself.
#[derive(Default)]
pub(super) struct Expanded {
    /// The ports of all replicas that use `${PORT}`.
    pub(super) ports: Ports,
    /// By model, what is different for its replicas after the first, each as the model's mapping.
    pub(super) replicas: BTreeMap<String, Vec<Node>>,
}

/// The settings of a model of which each replica has its own.
const OF_REPLICA: [&str; 4] = ["cmd", "cmdStop", "env", "proxy"];

/// Puts in all macros of a file. Models get the port numbers of `keep`, or the next free ones from `startPort` in the
/// order of their ids.
pub(super) fn expand(root: &mut Node, keep: &Ports, sink: &Sink) -> Expanded {
    let global = Scope::default().with(root.get("macros"));
    let top = Path::default();
    let mut models = None;
    if let Value::Map(entries) = &mut root.value {
        for (key, node) in entries {
            match key.name.as_str() {
                "macros" => {}
                "models" => models = Some(node),
                // Unknown, or shared pieces that only aliases refer to: each use has its own scope.
                name if !super::file::is_key(name) => {}
                name => expand_node(node, &global, &top.key(name), Field::Other, sink),
            }
        }
    }
    let Some(Node { value: Value::Map(models), .. }) = models else { return Expanded::default() };
    let path = top.key("models");
    let mut wants_port = Vec::new();
    for (key, model) in models.iter_mut() {
        let mut scope = global.clone();
        scope.set("MODEL_ID", Value::Text(key.name.clone()));
        let mut scope = scope.with(model.get("macros"));
        scope.port = true;
        expand_model(model, &scope, &path.key(&key.name), sink);
        let cmd = model.get("cmd").and_then(Node::text);
        let has_proxy = model.get("proxy").is_some_and(|proxy| !matches!(proxy.value, Value::Null));
        if cmd.is_some_and(|cmd| cmd.contains("${PORT}")) {
            wants_port.extend((0..replicas(model)).map(|index| (key.name.clone(), index)));
        } else if cmd.is_some() && !has_proxy && replicas(model) == 1 {
            // It is looked for at the usual place, and a warning says so.
            wants_port.push((key.name.clone(), 0));
        }
    }
    let ports = assign_ports(root_start_port(root), wants_port, keep, root, sink);
    let mut others = BTreeMap::new();
    if let Some(Node { value: Value::Map(models), .. }) = root.get_mut("models") {
        for (key, model) in models {
            let path = path.key(&key.name);
            let scope = |index| {
                let mut scope = Scope::default();
                if let Some(port) = ports.get(&(key.name.clone(), index)) {
                    scope.set("PORT", Value::Int((*port).into(), port.to_string()));
                }
                scope
            };
            let other = |index| {
                let mut other = model.clone();
                if let Value::Map(entries) = &mut other.value {
                    entries.retain(|(key, _)| OF_REPLICA.contains(&key.name.as_str()));
                }
                // What is wrong with it is wrong with the first.
                expand_model(&mut other, &scope(index), &path, &Sink::default());
                other
            };
            let made: Vec<_> = (1..replicas(model)).map(other).collect();
            if !made.is_empty() {
                others.insert(key.name.clone(), made);
            }
            expand_model(model, &scope(0), &path, sink);
        }
    }
    Expanded { ports, replicas: others }
}

fn replicas(model: &Node) -> u32 {
    match model.get("replicas").map(|node| &node.value) {
        Some(Value::Int(count, _)) => u32::try_from(*count).map_or(1, |count| count.clamp(1, MAX_REPLICAS)),
        _ => 1,
    }
}

fn root_start_port(root: &Node) -> u16 {
    match root.get("startPort").map(|node| &node.value) {
        Some(Value::Int(port, _)) => u16::try_from(*port).unwrap_or(super::file::START_PORT),
        _ => super::file::START_PORT,
    }
}

fn assign_ports(start: u16, mut replicas: Vec<(String, u32)>, keep: &Ports, root: &Node, sink: &Sink) -> Ports {
    replicas.sort();
    let mut ports: Ports = replicas
        .iter()
        .filter_map(|replica| keep.get(replica).filter(|port| **port >= start).map(|port| (replica.clone(), *port)))
        .collect();
    let taken: HashSet<u16> = ports.values().copied().collect();
    let mut free = (start..=u16::MAX).filter(|port| !taken.contains(port));
    let mut without: Vec<String> = Vec::new();
    for replica in replicas {
        if ports.contains_key(&replica) {
            continue;
        }
        let port = free.next().unwrap_or_else(|| {
            without.push(format!("`{}`", replica.0));
            start
        });
        ports.insert(replica, port);
    }
    without.dedup();
    if !without.is_empty() {
        let place = root.get("startPort").map_or_else(Place::default, |node| node.place);
        let message = format!("no port is left for {}", without.join(", "));
        sink.add(place, "startPort", message, "start at a lower number");
    }
    ports
}

/// What a value is for, where that matters to macros.
#[derive(Clone, Copy, PartialEq)]
enum Field {
    /// A command: comments go before macros are put in, lest they bring a commented line to life.
    Command,
    /// The stop command, which keeps `${PID}`.
    StopCommand,
    Other,
}

fn expand_model(model: &mut Node, scope: &Scope, path: &Path, sink: &Sink) {
    let Value::Map(entries) = &mut model.value else { return };
    for (key, node) in entries {
        let path = path.key(&key.name);
        match key.name.as_str() {
            "macros" => {}
            "cmd" => expand_node(node, scope, &path, Field::Command, sink),
            "cmdStop" => expand_node(node, scope, &path, Field::StopCommand, sink),
            _ => expand_node(node, scope, &path, Field::Other, sink),
        }
        if key.name == "filters"
            && let Some(Node { value: Value::Map(by_id), .. }) = node.get_mut("setParamsByID")
        {
            for (key, _) in by_id {
                expand_key(key, scope, &path.key("setParamsByID"), sink);
            }
        }
    }
}

fn expand_key(key: &mut Key, scope: &Scope, path: &Path, sink: &Sink) {
    let mut node = Node::new(key.place, Value::Text(key.name.clone()));
    expand_node(&mut node, scope, &path.key(&key.name), Field::Other, sink);
    if let Some(text) = node.text() {
        text.clone_into(&mut key.name);
    }
}

fn expand_node(node: &mut Node, scope: &Scope, path: &Path, field: Field, sink: &Sink) {
    let place = node.place;
    match &mut node.value {
        Value::Text(text) => {
            if field != Field::Other {
                *text = strip_comments(text);
            }
            let mut expansion = Expansion { scope, field, within: Vec::new() };
            match expansion.text(text) {
                Ok(value) => node.value = value,
                Err(Failure { message, cure, name }) => {
                    let place = sink.locate(place, node.lines, &format!("${{{name}}}"));
                    sink.add(place, path, message, cure);
                    node.value = Value::Broken;
                }
            }
        }
        Value::List(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                expand_node(item, scope, &path.index(index), field, sink);
            }
        }
        Value::Map(entries) => {
            for (key, node) in entries {
                expand_node(node, scope, &path.key(&key.name), field, sink);
            }
        }
        Value::Null | Value::Broken | Value::Bool(..) | Value::Int(..) | Value::Float(..) => {}
    }
}

struct Failure {
    message: String,
    cure: String,
    /// The macro at which it failed, as the value refers to it.
    name: String,
}

struct Expansion<'a> {
    scope: &'a Scope,
    field: Field,
    /// The macros that are being put in, outermost first.
    within: Vec<&'a str>,
}

impl<'a> Expansion<'a> {
    fn text(&mut self, text: &str) -> Result<Value, Failure> {
        let pieces = pieces(text);
        if let [Piece::Reference(name)] = pieces[..]
            && let Some(value) = self.reference(name)?
        {
            return Ok(value);
        }
        let mut result = String::with_capacity(text.len());
        for piece in pieces {
            match piece {
                Piece::Text(text) => result.push_str(text),
                Piece::Reference(name) => match self.reference(name)? {
                    Some(Value::Int(number, _)) => result.push_str(&number.to_string()),
                    Some(value) => result.push_str(Node::new(Place::default(), value).text().unwrap_or_default()),
                    None => result.extend(["${", name, "}"]),
                },
            }
            if result.len() > MAX_TEXT {
                let message = format!("with its macros put in, this is longer than {MAX_TEXT} bytes");
                return Err(self.failure("", message, "make the macros shorter"));
            }
        }
        Ok(Value::Text(result))
    }

    /// The value of a reference; `None` where it is to stay as it is.
    fn reference(&mut self, name: &str) -> Result<Option<Value>, Failure> {
        let Some((name, node)) = self.scope.macros.get_key_value(name) else {
            return match name {
                "PID" if self.field == Field::StopCommand => Ok(None),
                "PORT" if self.scope.port => Ok(None),
                // Already reported as not set.
                name if name.starts_with("env.") => Ok(Some(Value::Broken)),
                name => Err(self.unknown(name)),
            };
        };
        if self.within.contains(&name.as_str()) {
            let message = format!("the macro `{name}` stands for itself: {} → {name}", self.within.join(" → "));
            return Err(self.failure(name, message, "write one of them out"));
        }
        let Value::Text(text) = &node.value else { return Ok(Some(node.value.clone())) };
        self.within.push(name);
        let value = self.text(text);
        self.within.pop();
        value.map(Some)
    }

    fn unknown(&self, name: &str) -> Failure {
        let cure = match name {
            "PORT" => "use ${PORT} in the model's cmd too, or write the port out".to_owned(),
            "PID" => "only cmdStop knows ${PID}".to_owned(),
            "MODEL_ID" => "only models have a ${MODEL_ID}".to_owned(),
            name => match nearest(name, self.scope.macros.keys().map(String::as_str)) {
                Some(candidate) => format!("did you mean ${{{candidate}}}?"),
                None => format!("define `{name}` under macros, or use ${{env.NAME}} for an environment variable"),
            },
        };
        let message = match self.within.last() {
            Some(user) => format!("there is no macro `{name}` here, which the macro `{user}` uses"),
            None => format!("there is no macro `{name}` here"),
        };
        self.failure(name, message, cure)
    }

    fn failure(&self, name: &str, message: String, cure: impl Into<String>) -> Failure {
        Failure { message, cure: cure.into(), name: self.within.first().unwrap_or(&name).to_string() }
    }
}
