//! Where a path is in the file. The reader's own errors know their path exactly and their place only roughly, so the
//! place is looked up in a second reading, which takes every node as it comes.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_path_to_error::{Path, Segment};
use serde_saphyr::{Location, Spanned};

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Key(String),
    Index(usize),
}

/// The steps of a path as the user would write them: without the reader's own wrappers.
pub(super) fn steps(path: &Path) -> Vec<Step> {
    let step = |segment: &Segment| match segment {
        Segment::Seq { index } => Some(Step::Index(*index)),
        // What `Spanned` puts in between.
        Segment::Map { key } if key == "value" => None,
        Segment::Map { key } | Segment::Enum { variant: key } => Some(Step::Key(key.clone())),
        Segment::Unknown => None,
    };
    path.iter().filter_map(step).collect()
}

/// `classes[2].rate`.
pub(super) fn written(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        match step {
            Step::Key(key) if text.is_empty() => text.push_str(key),
            Step::Key(key) => text.extend([".", key]),
            Step::Index(index) => text.push_str(&format!("[{index}]")),
        }
    }
    text
}

/// The place of the value at the end of a path, or of its last key for `at_key`. `None` if the file cannot be read or
/// has no such path.
pub(super) fn find(text: &str, steps: &[Step], at_key: bool) -> Option<Location> {
    let root: Spanned<Node> = serde_saphyr::from_str(text).ok()?;
    let (mut place, mut node) = (root.referenced, &root.value);
    for (number, step) in steps.iter().enumerate() {
        let next = match (step, node) {
            (Step::Key(key), Node::Map(entries)) => {
                let (key, value) = entries.iter().find(|(name, _)| name.value == *key)?;
                if at_key && number + 1 == steps.len() {
                    return Some(key.referenced);
                }
                value
            }
            (Step::Index(index), Node::Seq(items)) => items.get(*index)?,
            _ => return None,
        };
        (place, node) = (next.referenced, &next.value);
    }
    Some(place)
}

/// Any YAML.
enum Node {
    Leaf,
    Seq(Vec<Spanned<Node>>),
    Map(Vec<(Spanned<String>, Spanned<Node>)>),
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Node;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("anything")
            }
            fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
                Ok(Node::Leaf)
            }
            fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
                Ok(Node::Leaf)
            }
            fn visit_i128<E>(self, _: i128) -> Result<Node, E> {
                Ok(Node::Leaf)
            }
            fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
                Ok(Node::Leaf)
            }
            fn visit_u128<E>(self, _: u128) -> Result<Node, E> {
                Ok(Node::Leaf)
            }
            fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
                Ok(Node::Leaf)
            }
            fn visit_str<E>(self, _: &str) -> Result<Node, E> {
                Ok(Node::Leaf)
            }
            fn visit_bytes<E>(self, _: &[u8]) -> Result<Node, E> {
                Ok(Node::Leaf)
            }
            fn visit_unit<E>(self) -> Result<Node, E> {
                Ok(Node::Leaf)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Node::Seq(items))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Node::Map(entries))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}
