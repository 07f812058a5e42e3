//! YAML as a tree in which every value knows its place. Anchors, aliases and merge keys are resolved, duplicate keys
//! reported.

use std::collections::HashMap;

use granit_parser::{Event, Parser, ScalarStyle, Span};

use super::problem::{Path, Place, Sink};

/// Aliases make a small file big; when they stand for more than this many values it is refused.
const MAX_COPIES: usize = 200_000;

/// A value and its place.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) value: Value,
    /// How many lines after the place it ends.
    pub(super) lines: usize,
    /// It, or something in it, has an anchor.
    pub(super) anchored: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Null,
    /// Something that has been reported already and is to be passed over.
    Broken,
    Bool(bool, String),
    Int(i128, String),
    Float(f64, String),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

/// A mapping's key.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) name: String,
    pub(super) place: Place,
}

impl Node {
    pub(super) const fn new(place: Place, value: Value) -> Self {
        Self { place, value, lines: 0, anchored: false }
    }

    /// The value of a key of a mapping.
    pub(super) fn get(&self, name: &str) -> Option<&Self> {
        self.entries().iter().find(|(key, _)| key.name == name).map(|(_, node)| node)
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut Self> {
        let Value::Map(entries) = &mut self.value else { return None };
        entries.iter_mut().find(|(key, _)| key.name == name).map(|(_, node)| node)
    }

    pub(super) fn entries(&self) -> &[(Key, Self)] {
        if let Value::Map(entries) = &self.value { entries } else { &[] }
    }

    /// The place of the value at a path such as `keys[3].tier`, or of the nearest one around it. Names in the path are
    /// not quoted, whatever is in them.
    pub(super) fn locate(&self, path: &str) -> Place {
        let rest = path.strip_prefix('.').unwrap_or(path);
        let inner = match &self.value {
            Value::List(items) => rest.strip_prefix('[').and_then(|rest| {
                let (index, rest) = rest.split_once(']')?;
                Some((items.get(index.parse::<usize>().ok()?)?, rest))
            }),
            Value::Map(entries) => entries
                .iter()
                .filter_map(|(key, node)| Some((node, rest.strip_prefix(&*key.name)?)))
                .filter(|(_, rest)| rest.is_empty() || rest.starts_with(['.', '[']))
                .min_by_key(|(_, rest)| rest.len()),
            _ => None,
        };
        inner.map_or(self.place, |(node, rest)| node.locate(rest))
    }

    /// A scalar as it is written. `None` for null, lists and mappings.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Bool(_, text) | Value::Int(_, text) | Value::Float(_, text) | Value::Text(text) => Some(text),
            Value::Null | Value::Broken | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// The value in a few words, for messages.
    pub(super) fn describe(&self) -> String {
        match &self.value {
            Value::Null | Value::Broken => "nothing".to_owned(),
            Value::Bool(..) | Value::Int(..) | Value::Float(..) => self.text().unwrap_or_default().to_owned(),
            Value::Text(text) if text.chars().count() > 40 => {
                format!("the text \"{}…\"", text.chars().take(40).collect::<String>().escape_debug())
            }
            Value::Text(text) => format!("the text \"{}\"", text.escape_debug()),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a mapping".to_owned(),
        }
    }

    pub(super) fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Null | Value::Broken => serde_json::Value::Null,
            Value::Bool(value, _) => (*value).into(),
            Value::Int(value, _) => i64::try_from(*value)
                .map(Into::into)
                .or_else(|_| u64::try_from(*value).map(Into::into))
                .unwrap_or_else(|_| value.to_string().into()),
            Value::Float(value, text) => {
                serde_json::Number::from_f64(*value).map_or_else(|| text.clone().into(), Into::into)
            }
            Value::Text(text) => text.clone().into(),
            Value::List(items) => items.iter().map(Self::to_json).collect(),
            Value::Map(entries) => entries.iter().map(|(key, node)| (key.name.clone(), node.to_json())).collect(),
        }
    }

    /// The same from JSON, for defaults.
    pub(super) fn from_json(place: Place, json: &serde_json::Value) -> Self {
        let value = match json {
            serde_json::Value::Null => Value::Null,
            serde_json::Value::Bool(value) => Value::Bool(*value, value.to_string()),
            serde_json::Value::Number(number) => {
                let text = number.to_string();
                match (number.as_i128(), number.as_f64()) {
                    (Some(value), _) => Value::Int(value, text),
                    (None, Some(value)) => Value::Float(value, text),
                    (None, None) => Value::Text(text),
                }
            }
            serde_json::Value::String(text) => Value::Text(text.clone()),
            serde_json::Value::Array(items) => {
                Value::List(items.iter().map(|item| Self::from_json(place, item)).collect())
            }
            serde_json::Value::Object(entries) => Value::Map(
                entries
                    .iter()
                    .map(|(name, value)| (Key { name: name.clone(), place }, Self::from_json(place, value)))
                    .collect(),
            ),
        };
        Self::new(place, value)
    }
}

/// The value of an unquoted scalar, as YAML 1.2's core schema has it, with `_` between digits as a courtesy.
pub(super) fn resolve(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true, text.to_owned()),
        "false" | "False" | "FALSE" => return Value::Bool(false, text.to_owned()),
        _ => {}
    }
    let (sign, digits): (i8, &str) = match text.as_bytes()[0] {
        b'-' => (-1, &text[1..]),
        b'+' => (1, &text[1..]),
        _ => (1, text),
    };
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Value::Text(text.to_owned());
    }
    let radix = match digits.get(..2) {
        Some("0x") => 16,
        Some("0o") => 8,
        Some("0b") => 2,
        _ => 10,
    };
    let plain = digits.replace('_', "");
    let number = if radix == 10 { plain.as_str() } else { &plain[2..] };
    // A leading zero is octal to some readers and decimal to others; as text it fails where a number is needed.
    let ambiguous = radix == 10 && number.len() > 1 && number.starts_with('0') && !number.contains('.');
    if !ambiguous && let Ok(number) = i128::from_str_radix(number, radix) {
        return Value::Int(i128::from(sign) * number, text.to_owned());
    }
    let numeric = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-');
    if radix == 10
        && !ambiguous
        && number.chars().all(numeric)
        && let Ok(number) = number.parse::<f64>()
    {
        return Value::Float(f64::from(sign) * number, text.to_owned());
    }
    match digits {
        ".inf" | ".Inf" | ".INF" => Value::Float(f64::from(sign) * f64::INFINITY, text.to_owned()),
        ".nan" | ".NaN" | ".NAN" => Value::Float(f64::NAN, text.to_owned()),
        _ => Value::Text(text.to_owned()),
    }
}

/// Parses a file. `None` when there is nothing to go on with; the sink says why.
pub(super) fn parse(text: &str, env: &dyn Fn(&str) -> Option<String>, sink: &Sink) -> Option<Node> {
    let shielded = super::macros::shield(text);
    let mut builder =
        Builder { env, sink, anchors: HashMap::new(), nodes: 0, copies: 0, stack: Vec::new(), root: None };
    for event in Parser::new_from_str_with_options(&shielded, granit_parser::options! { emit_comments: false }) {
        match event {
            Ok((event, span)) => builder.on(event, span)?,
            Err(error) => {
                let marker = error.marker();
                let place = Place { line: marker.line(), column: marker.col() + 1, length: 1 };
                sink.add(place, "", format!("not valid YAML: {}", error.info()), yaml_cure(&error.info()));
                return None;
            }
        }
    }
    Some(builder.root.unwrap_or_else(|| Node::new(Place::default(), Value::Null)))
}

fn yaml_cure(message: &str) -> &'static str {
    if message.contains("tab") {
        "indent with spaces"
    } else if message.contains("anchor") {
        "define the anchor with & before it is used with *"
    } else {
        "look at the indentation and quotes here and in the lines above"
    }
}

struct Builder<'a> {
    env: &'a dyn Fn(&str) -> Option<String>,
    sink: &'a Sink,
    anchors: HashMap<usize, (Node, usize)>,
    /// Values so far, and those of them that aliases stand for.
    nodes: usize,
    copies: usize,
    stack: Vec<Open>,
    root: Option<Node>,
}

/// A list or mapping that has not ended.
struct Open {
    place: Place,
    anchor: usize,
    /// The number of values before it.
    before: usize,
    anchored: bool,
    kind: OpenKind,
}

enum OpenKind {
    List(Vec<Node>),
    Map { entries: Vec<(Key, Node)>, key: Option<Option<Key>>, merges: Vec<Node> },
}

impl Builder<'_> {
    fn on(&mut self, event: Event<'_>, span: Span) -> Option<()> {
        let place = place_of(&span);
        match event {
            Event::DocumentStart(..) if self.root.is_some() => {
                self.sink.add(place, "", "a second document begins here", "keep one document in the file");
                return None;
            }
            Event::Scalar(text, style, anchor, tag) => {
                let quoted = style != ScalarStyle::Plain || tag.is_some_and(|tag| tag.core_suffix() == Some("str"));
                let mut node = self.scalar(&text, quoted, place);
                node.lines = span.end.line() - span.start.line();
                self.nodes += 1;
                self.finish(node, anchor, 1);
            }
            Event::SequenceStart(_, anchor, _) => self.open(place, anchor, OpenKind::List(Vec::new())),
            Event::MappingStart(_, anchor, _) => {
                let kind = OpenKind::Map { entries: Vec::new(), key: None, merges: Vec::new() };
                self.open(place, anchor, kind);
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(id) => {
                let Some((node, size)) = self.anchors.get(&id) else {
                    self.sink.add(place, "", "the alias is inside what it stands for", "write the value out");
                    return None;
                };
                // Problems are reported where the alias was defined: that is where they can be mended.
                let (mut node, size) = (node.clone(), *size);
                node.anchored = false;
                self.copy(size, place)?;
                self.finish(node, 0, size);
            }
            _ => {}
        }
        Some(())
    }

    fn scalar(&self, text: &str, quoted: bool, place: Place) -> Node {
        let text = super::macros::unshield(text);
        let mut is_whole = true;
        let text = super::macros::substitute_env(&text, self.env, |name| {
            is_whole = false;
            self.sink.add(
                place,
                self.path(),
                format!("the environment variable {name} is not set"),
                format!("set {name} before starting, or remove ${{env.{name}}}"),
            );
        });
        let value = match quoted {
            // Nothing is left of it, and there is nothing more to say about that.
            _ if !is_whole && text.trim().is_empty() => Value::Broken,
            true => Value::Text(text),
            false => resolve(&text),
        };
        Node::new(place, value)
    }

    /// The path of the value that comes next.
    fn path(&self) -> Path {
        self.stack.iter().fold(Path::default(), |path, open| match &open.kind {
            OpenKind::List(items) => path.index(items.len()),
            OpenKind::Map { key: Some(Some(key)), .. } => path.key(&key.name),
            OpenKind::Map { .. } => path,
        })
    }

    fn copy(&mut self, size: usize, place: Place) -> Option<()> {
        self.nodes += size;
        self.copies += size;
        if self.copies > MAX_COPIES {
            let message = format!("the aliases up to here stand for more than {MAX_COPIES} values");
            self.sink.add(place, self.path(), message, "use fewer aliases inside aliased values");
            return None;
        }
        Some(())
    }

    fn open(&mut self, place: Place, anchor: usize, kind: OpenKind) {
        self.stack.push(Open { place, anchor, before: self.nodes, anchored: false, kind });
        self.nodes += 1;
    }

    fn close(&mut self) {
        let Some(open) = self.stack.pop() else { return };
        let value = match open.kind {
            OpenKind::List(items) => Value::List(items),
            OpenKind::Map { entries, merges, .. } => Value::Map(self.merge(entries, merges)),
        };
        let node = Node { place: open.place, value, lines: 0, anchored: open.anchored };
        self.finish(node, open.anchor, self.nodes - open.before);
    }

    /// Own keys win over merged ones, earlier merges over later ones.
    fn merge(&self, mut entries: Vec<(Key, Node)>, merges: Vec<Node>) -> Vec<(Key, Node)> {
        let mut queue: std::collections::VecDeque<Node> = merges.into();
        while let Some(node) = queue.pop_front() {
            match node.value {
                Value::Map(more) => {
                    for (key, node) in more {
                        if !entries.iter().any(|(known, _)| known.name == key.name) {
                            entries.push((key, node));
                        }
                    }
                }
                Value::List(items) => items.into_iter().rev().for_each(|item| queue.push_front(item)),
                _ => {
                    let message = format!("`<<` merges mappings, but this is {}", node.describe());
                    self.sink.add(node.place, self.path().key("<<"), message, "give it an alias of a mapping");
                }
            }
        }
        entries
    }

    /// Puts a value that has ended where it belongs.
    fn finish(&mut self, mut node: Node, anchor: usize, size: usize) {
        if anchor > 0 {
            self.anchors.insert(anchor, (node.clone(), size));
            node.anchored = true;
        }
        let path = self.path();
        let Some(open) = self.stack.last_mut() else {
            self.root = Some(node);
            return;
        };
        open.anchored |= node.anchored;
        match &mut open.kind {
            OpenKind::List(items) => items.push(node),
            OpenKind::Map { entries, key, merges } => match key.take() {
                None => {
                    let name = match &node.value {
                        Value::Null => Some(String::new()),
                        _ => node.text().map(str::to_owned),
                    };
                    if name.is_none() && !matches!(node.value, Value::Broken) {
                        self.sink.add(node.place, path, "a key must be one word or text", "remove the brackets");
                    }
                    *key = Some(name.map(|name| Key { name, place: node.place }));
                }
                Some(None) => {}
                Some(Some(name)) if name.name == "<<" => merges.push(node),
                Some(Some(name)) => match entries.iter().find(|(first, _)| first.name == name.name) {
                    Some((first, _)) => self.sink.add(
                        name.place,
                        path,
                        "this key is here twice",
                        format!("remove one; the first is in line {}", first.place.line),
                    ),
                    None => entries.push((name, node)),
                },
            },
        }
    }
}

fn place_of(span: &Span) -> Place {
    let length = if span.start.line() == span.end.line() { span.end.col().saturating_sub(span.start.col()) } else { 0 };
    Place { line: span.start.line(), column: span.start.col() + 1, length: length.max(1) }
}
