//! Reads mappings key by key. The code that reads a key also describes it: run on nothing at all, it yields the JSON
//! schema, so the two cannot disagree.

use std::ops::Deref;

use serde_json::{Map, Value as Json, json};

use super::{
    kinds::Kind,
    problem::{Path, Place, Sink, nearest},
    tree::{Key, Node, Value},
};

/// A value and where it came from.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) place: Place,
    pub(super) path: Path,
}

/// An entry of a mapping from names to values; the value is `None` when it is null or was reported.
pub(super) type Named<T> = (At<String>, Option<At<T>>);

impl<T> Deref for At<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> At<T> {
    /// Reports that something is wrong with the value.
    pub(super) fn problem(&self, sink: &Sink, message: impl Into<String>, cure: impl Into<String>) {
        sink.add(self.place, &self.path, message, cure);
    }
}

/// One mapping of the file.
pub(super) struct Section<'a> {
    entries: &'a [(Key, Node)],
    /// Of the key whose value this is.
    pub(super) place: Place,
    pub(super) path: Path,
    pub(super) sink: &'a Sink,
    known: Vec<&'static str>,
    /// Filled when the schema is wanted.
    schema: Option<Map<String, Json>>,
    required: Vec<&'static str>,
}

impl<'a> Section<'a> {
    pub(super) fn root(node: &'a Node, sink: &'a Sink) -> Self {
        Self::new(node.entries(), Place { line: 1, column: 1, length: 1 }, Path::default(), sink, false)
    }

    fn new(entries: &'a [(Key, Node)], place: Place, path: Path, sink: &'a Sink, describe: bool) -> Self {
        let schema = describe.then(Map::new);
        Self { entries, place, path, sink, known: Vec::new(), schema, required: Vec::new() }
    }

    /// The schema of what a function reads.
    pub(super) fn describe<T>(read: impl FnOnce(&mut Section<'_>) -> T) -> Json {
        let sink = Sink::default();
        let mut section = Section::new(&[], Place::default(), Path::default(), &sink, true);
        read(&mut section);
        section.into_schema()
    }

    /// Whether there is nothing in it.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the key is there and not null.
    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|(known, node)| known.name == key && !matches!(node.value, Value::Null))
    }

    /// Where a key is, if it is there and not null.
    pub(super) fn place_of(&self, key: &str) -> Option<At<()>> {
        self.has(key).then(|| At { value: (), place: self.key_place(key), path: self.path.key(key) })
    }

    /// A key that may be missing.
    pub(super) fn opt<K: Kind>(&mut self, key: &'static str, about: &str, kind: K) -> Option<At<K::Value>> {
        self.note(key, about, || kind.schema());
        let node = self.find(key)?;
        read(node, self.path.key(key), &kind, self.sink)
    }

    /// A key with a default. A wrong value is reported and replaced by it.
    pub(super) fn or<K: Kind>(
        &mut self,
        key: &'static str,
        about: &str,
        kind: K,
        default: impl Into<Json>,
    ) -> At<K::Value> {
        let default = default.into();
        self.note(key, about, || {
            let mut schema = kind.schema();
            schema["default"] = default.clone();
            schema
        });
        let path = self.path.key(key);
        let found = self.find(key).and_then(|node| read(node, path.clone(), &kind, self.sink));
        found.unwrap_or_else(|| {
            let node = Node::from_json(self.place, &default);
            match kind.read(&node) {
                Ok(value) => At { value, place: self.place, path },
                Err(_) => unreachable!("the default of {path} is {default}, which is not {}", kind.expected()),
            }
        })
    }

    /// A key that must be there.
    pub(super) fn required<K: Kind>(&mut self, key: &'static str, about: &str, kind: K) -> Option<At<K::Value>> {
        let expected = kind.expected();
        let value = self.opt(key, about, kind);
        self.require(key, &expected);
        value
    }

    fn require(&mut self, key: &'static str, expected: &str) {
        self.required.push(key);
        if self.schema.is_none() && !self.has(key) {
            self.sink.add(
                self.place,
                &self.path,
                format!("`{key}` is missing"),
                format!("add `{key}:` with {expected}"),
            );
        }
    }

    /// A list; empty when missing.
    pub(super) fn list<K: Kind>(&mut self, key: &'static str, about: &str, kind: K) -> Vec<At<K::Value>> {
        self.note(key, about, || json!({ "type": "array", "items": kind.schema() }));
        let Some(node) = self.find(key) else { return Vec::new() };
        let path = self.path.key(key);
        let Value::List(items) = &node.value else {
            let expected = kind.expected();
            wrong(self.sink, node, &path, "", &format!("a list of which every line is `- ` and {expected}"));
            return Vec::new();
        };
        let items = items.iter().enumerate();
        items.filter_map(|(index, item)| read(item, path.index(index), &kind, self.sink)).collect()
    }

    /// A list that must be there and hold something.
    pub(super) fn required_list<K: Kind>(&mut self, key: &'static str, about: &str, kind: K) -> Vec<At<K::Value>> {
        let list = self.list(key, about, kind);
        self.require(key, "a list");
        if let Some(Node { place, value: Value::List(items), .. }) = self.find(key)
            && items.is_empty()
        {
            self.sink.add(*place, self.path.key(key), "the list is empty", "name at least one");
        }
        list
    }

    /// A mapping from names to values; empty when missing.
    pub(super) fn map<K: Kind>(&mut self, key: &'static str, about: &str, kind: K) -> Vec<Named<K::Value>> {
        self.note(key, about, || json!({ "type": "object", "additionalProperties": kind.schema() }));
        let path = self.path.key(key);
        let sink = self.sink;
        self.named(key)
            .iter()
            .map(|(name, node)| {
                let path = path.key(&name.name);
                let value = if matches!(node.value, Value::Null | Value::Broken) {
                    None
                } else {
                    read(node, path.clone(), &kind, sink)
                };
                (At { value: name.name.clone(), place: name.place, path }, value)
            })
            .collect()
    }

    /// A mapping with keys of its own; read as if empty when missing.
    pub(super) fn section<T>(&mut self, key: &'static str, about: &str, read: impl FnOnce(&mut Section<'_>) -> T) -> T {
        let place = self.find(key).map_or(self.place, |_| self.key_place(key));
        let mut section = Section::new(self.named(key), place, self.path.key(key), self.sink, self.schema.is_some());
        let value = read(&mut section);
        if section.schema.is_some() {
            let schema = section.into_schema();
            self.note(key, about, || schema);
        } else {
            section.check_unknown();
            self.known.push(key);
        }
        value
    }

    /// As [`Section::section`], where there is a difference between missing and empty.
    pub(super) fn opt_section<T>(
        &mut self,
        key: &'static str,
        about: &str,
        read: impl FnOnce(&mut Section<'_>) -> T,
    ) -> Option<T> {
        let has = self.has(key);
        if has || self.schema.is_some() {
            return Some(self.section(key, about, read)).filter(|_| has);
        }
        self.known.push(key);
        None
    }

    /// A list of mappings; empty when missing.
    pub(super) fn section_list<T>(
        &mut self,
        key: &'static str,
        about: &str,
        mut read: impl FnMut(&mut Section<'_>) -> T,
    ) -> Vec<T> {
        let path = self.path.key(key);
        if self.schema.is_some() {
            let mut section = Section::new(&[], self.place, path, self.sink, true);
            read(&mut section);
            let schema = json!({ "type": "array", "items": section.into_schema() });
            self.note(key, about, || schema);
            return Vec::new();
        }
        self.known.push(key);
        let Some(node) = self.find(key) else { return Vec::new() };
        let Value::List(items) = &node.value else {
            wrong(self.sink, node, &path, "", "a list of which every item is a mapping");
            return Vec::new();
        };
        let items = items.iter().enumerate().filter_map(|(index, item)| {
            let path = path.index(index);
            if !matches!(item.value, Value::Map(_)) {
                if !matches!(item.value, Value::Broken) {
                    wrong(self.sink, item, &path, "", "a mapping with its settings");
                }
                return None;
            }
            let mut section = Section::new(item.entries(), item.place, path, self.sink, false);
            let value = read(&mut section);
            section.check_unknown();
            Some(value)
        });
        items.collect()
    }

    /// A mapping from names to mappings.
    pub(super) fn sections<T>(
        &mut self,
        key: &'static str,
        about: &str,
        mut read: impl FnMut(&mut Section<'_>) -> T,
    ) -> Vec<(At<String>, T)> {
        let path = self.path.key(key);
        if self.schema.is_some() {
            let mut section = Section::new(&[], self.place, path, self.sink, true);
            read(&mut section);
            let schema = json!({ "type": "object", "additionalProperties": section.into_schema() });
            self.note(key, about, || schema);
            return Vec::new();
        }
        self.known.push(key);
        let sink = self.sink;
        let mut sections = Vec::new();
        for (name, node) in self.named(key) {
            let path = path.key(&name.name);
            if !matches!(node.value, Value::Map(_) | Value::Null | Value::Broken) {
                wrong(sink, node, &path, "", "a mapping with its settings");
                continue;
            }
            let mut section = Section::new(node.entries(), name.place, path.clone(), sink, false);
            let value = read(&mut section);
            section.check_unknown();
            sections.push((At { value: name.name.clone(), place: name.place, path }, value));
        }
        sections
    }

    /// Reports keys that nothing has asked for.
    pub(super) fn check_unknown(&self) {
        for (key, node) in self.entries {
            if self.known.contains(&key.name.as_str()) || self.is_shared_piece(node) {
                continue;
            }
            let near = nearest(&key.name, self.known.iter().copied());
            // A key may stand where a name should.
            let is_secret = self.path.is_secret() && near.is_none();
            let path = if is_secret { self.path.clone() } else { self.path.key(&key.name) };
            let cure = match near {
                Some(known) => format!("did you mean `{known}`?"),
                None => {
                    let mut known = self.known.clone();
                    known.sort_unstable();
                    format!("known here: {}", known.join(", "))
                }
            };
            self.sink.add(key.place, path, "there is no such setting", cure);
        }
    }

    /// At the top of a file, an unknown key may hold anchored pieces for aliases elsewhere.
    fn is_shared_piece(&self, node: &Node) -> bool {
        node.anchored && self.path.to_string().is_empty()
    }

    fn find(&self, key: &str) -> Option<&'a Node> {
        let (_, node) = self.entries.iter().find(|(known, _)| known.name == key)?;
        (!matches!(node.value, Value::Null | Value::Broken)).then_some(node)
    }

    fn key_place(&self, key: &str) -> Place {
        self.entries.iter().find(|(known, _)| known.name == key).map_or(self.place, |(key, _)| key.place)
    }

    /// The entries of a key's mapping; a value that is none is reported.
    fn named(&self, key: &str) -> &'a [(Key, Node)] {
        match self.find(key) {
            Some(Node { value: Value::Map(entries), .. }) => entries,
            Some(node) => {
                wrong(self.sink, node, &self.path.key(key), "", "a mapping");
                &[]
            }
            None => &[],
        }
    }

    fn note(&mut self, key: &'static str, about: &str, schema: impl FnOnce() -> Json) {
        self.known.push(key);
        if let Some(properties) = &mut self.schema {
            let mut schema = schema();
            schema["description"] = about.into();
            properties.insert(key.to_owned(), schema);
        }
    }

    fn into_schema(self) -> Json {
        let mut schema = json!({
            "type": "object",
            "properties": self.schema.unwrap_or_default(),
            "additionalProperties": false,
        });
        if !self.required.is_empty() {
            schema["required"] = json!(self.required);
        }
        schema
    }
}

fn read<K: Kind>(node: &Node, path: Path, kind: &K, sink: &Sink) -> Option<At<K::Value>> {
    if let Value::Broken = node.value {
        return None;
    }
    match kind.read(node) {
        Ok(value) => Some(At { value, place: node.place, path }),
        Err(reason) => {
            wrong(sink, node, &path, &reason, &kind.expected());
            None
        }
    }
}

fn wrong(sink: &Sink, node: &Node, path: &Path, reason: &str, expected: &str) {
    let message = match reason {
        "" if path.is_secret() => "the value is of the wrong kind".to_owned(),
        "" => format!("{} is not possible here", node.describe()),
        reason => reason.to_owned(),
    };
    sink.add(node.place, path, message, format!("expected {expected}"));
}
