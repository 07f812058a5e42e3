//! What is wrong with a configuration file, said so that it can be mended: where, which key, what, and what instead.

use std::{cell::RefCell, fmt, fmt::Write as _, io, path::Path as FilePath};

/// Problems beyond this many are only counted: whoever has so many needs to see the first ones.
const SHOWN: usize = 100;

/// A place in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// From 1; 0 is the file as a whole.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// Characters to underline; at least 1 is shown.
    pub length: usize,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub place: Place,
    /// The dotted path of the key, such as `models.llama.ttl`; empty for the file as a whole.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub cure: String,
    /// The line holds a secret and must not be shown.
    secret: bool,
}

/// Something that is probably not meant as it stands, or that has no effect here. It keeps nobody from starting.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Warning {
    /// The file that it is in.
    pub file: String,
    /// Where.
    pub place: Place,
    /// The dotted path of the key.
    pub path: String,
    /// What is to be said of it, to go after the path; with what would be right.
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, place, path, message } = self;
        write!(f, "{file}:{}:{}: {path} {message}", place.line, place.column)
    }
}

/// Everything that is wrong with a file and those it refers to; never empty. Its `Display` shows each problem with its
/// place, its line of the file and its cure.
#[derive(Clone, Debug)]
pub struct Problems {
    file: String,
    lines: Vec<String>,
    list: Vec<Problem>,
    unseen: usize,
    /// Of the files it refers to; these can be empty.
    others: Vec<Problems>,
}

impl Problems {
    pub(super) fn new(file: &str, sink: Sink) -> Self {
        let Collected { mut list, unseen, others } = sink.collected.into_inner();
        list.sort_by(|a, b| a.place.cmp(&b.place).then_with(|| a.path.cmp(&b.path)));
        Self { file: file.to_owned(), lines: sink.lines, list, unseen, others }
    }

    pub(super) fn unreadable(file: &str, why: Unreadable) -> Self {
        let sink = match why {
            Unreadable::Missing(error) => {
                let sink = Sink::default();
                let cure = "name a file that exists and is readable";
                sink.add(Place::default(), "", format!("cannot be read: {error}"), cure);
                sink
            }
            Unreadable::NoText(sink) => sink,
        };
        Self::new(file, sink)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.files().map(|file| file.list.len() + file.unseen).sum()
    }

    /// The problems in the order of the file; of very many only the first hundred.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.files().flat_map(|file| &file.list)
    }

    /// The problems in one line each, without lines of the file: for logs.
    pub fn summaries(&self) -> impl Iterator<Item = String> + '_ {
        self.files()
            .flat_map(|file| file.list.iter().map(|problem| format!("{}; {}", file.headline(problem), problem.cure)))
    }

    /// The files that were read: mending any of them can be what helps.
    pub fn paths(&self) -> impl Iterator<Item = &std::path::Path> {
        self.files().map(|file| file.file.as_ref())
    }

    fn files(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.others)
    }

    fn headline(&self, problem: &Problem) -> String {
        let mut text = self.file.clone();
        if problem.place.line > 0 {
            let _ = write!(text, ":{}:{}", problem.place.line, problem.place.column);
        }
        if !problem.path.is_empty() {
            let _ = write!(text, ": {}", problem.path);
        }
        let _ = write!(text, ": {}", problem.message);
        text
    }

    /// The part of a line that is worth showing, and how far the place is into it.
    fn excerpt(&self, place: Place) -> Option<(String, usize)> {
        const BEFORE: usize = 60;
        const WIDTH: usize = 110;
        let line = self.lines.get(place.line.checked_sub(1)?)?;
        // Whatever the problem is about, keys that stand beside it are nobody's business.
        let lower = line.to_ascii_lowercase();
        if ["apikey", "key:", "keys:", "secret:"].iter().any(|word| lower.contains(word)) {
            return None;
        }
        let column = place.column.saturating_sub(1);
        let skip = if column > WIDTH - 20 { column - BEFORE } else { 0 };
        let text: String = line.chars().skip(skip).take(WIDTH).map(|c| if c.is_control() { ' ' } else { c }).collect();
        Some((text.trim_end().to_owned(), column - skip))
    }
}

/// Why there is no text.
pub(super) enum Unreadable {
    /// There is no file, or not for us.
    Missing(io::Error),
    /// What is in it is no text; the sink says where.
    NoText(Sink),
}

/// Reads a file's text.
pub(super) fn read_text(path: &FilePath) -> Result<String, Unreadable> {
    let bytes = std::fs::read(path).map_err(Unreadable::Missing)?;
    String::from_utf8(bytes).map_err(|error| {
        let end = error.utf8_error().valid_up_to();
        let bytes = error.into_bytes();
        let before = String::from_utf8_lossy(&bytes[..end]);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let sink = Sink::new(&String::from_utf8_lossy(&bytes));
        sink.add(Place { line, column, length: 1 }, "", "this is not UTF-8", "save the file as UTF-8");
        Unreadable::NoText(sink)
    })
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files().filter(|file| !file.list.is_empty()).try_for_each(|file| file.write(f))
    }
}

impl Problems {
    /// Those of one file.
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.list {
            writeln!(f, "{}", self.headline(problem))?;
            let margin = problem.place.line.to_string().len().max(4);
            if !problem.secret
                && let Some((text, column)) = self.excerpt(problem.place)
            {
                let marks =
                    "^".repeat(problem.place.length.clamp(1, text.chars().count().saturating_sub(column).max(1)));
                writeln!(f, "{:>margin$} | {text}", problem.place.line)?;
                writeln!(f, "{:margin$} | {:column$}{marks}", "", "")?;
            }
            writeln!(f, "{:margin$} = {}", "", problem.cure)?;
        }
        if self.unseen > 0 {
            writeln!(f, "… and {} more", self.unseen)?;
        }
        match self.list.len() + self.unseen {
            1 => writeln!(f, "1 problem in {}", self.file),
            count => writeln!(f, "{count} problems in {}", self.file),
        }
    }
}

impl std::error::Error for Problems {}

/// Where problems are collected while a file is read.
#[derive(Debug, Default)]
pub(super) struct Sink {
    lines: Vec<String>,
    collected: RefCell<Collected>,
}

#[derive(Debug, Default)]
struct Collected {
    list: Vec<Problem>,
    unseen: usize,
    others: Vec<Problems>,
}

impl Sink {
    /// For problems of this text.
    pub(super) fn new(text: &str) -> Self {
        Self { lines: text.lines().map(str::to_owned).collect(), collected: RefCell::default() }
    }

    /// The place of some text within a value that begins at `place` and ends `lines` later; `place` if it is not there.
    pub(super) fn locate(&self, place: Place, lines: usize, needle: &str) -> Place {
        for number in place.line..=place.line + lines {
            let Some(line) = number.checked_sub(1).and_then(|at| self.lines.get(at)) else { break };
            let from = if number == place.line { place.column - 1 } else { 0 };
            let from = line.char_indices().nth(from).map_or(line.len(), |(at, _)| at);
            if let Some(at) = line[from..].find(needle) {
                let column = line[..from + at].chars().count() + 1;
                return Place { line: number, column, length: needle.chars().count() };
            }
        }
        place
    }

    pub(super) fn add(
        &self,
        place: Place,
        path: impl fmt::Display,
        message: impl Into<String>,
        cure: impl Into<String>,
    ) {
        let path = path.to_string();
        let secret = is_secret(&path);
        let mut collected = self.collected.borrow_mut();
        if collected.list.len() < SHOWN {
            collected.list.push(Problem { place, path, message: message.into(), cure: cure.into(), secret });
        } else {
            collected.unseen += 1;
        }
    }

    /// Adds those of a file that this one refers to, even if there are none.
    pub(super) fn add_file(&self, name: &str, sink: Self) {
        self.collected.borrow_mut().others.push(Problems::new(name, sink));
    }

    /// Whether there is a problem with one of these keys, or below it.
    pub(super) fn concerns(&self, keys: &[&str]) -> bool {
        let collected = self.collected.borrow();
        let is_one = |path: &str| keys.iter().any(|key| path.split(['.', '[']).next() == Some(key));
        collected.list.iter().any(|problem| is_one(&problem.path))
    }

    pub(super) fn is_empty(&self) -> bool {
        let collected = self.collected.borrow();
        collected.list.is_empty() && collected.others.iter().all(|file| file.list.is_empty())
    }
}

/// The dotted path of a key, as text that can be searched for in the file.
#[derive(Clone, Debug, Default)]
pub(super) struct Path(String);

impl Path {
    pub(super) fn key(&self, key: &str) -> Self {
        let plain = !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '/' | ':'));
        let dot = if self.0.is_empty() { "" } else { "." };
        Self(if plain { format!("{}{dot}{key}", self.0) } else { format!("{}{dot}\"{key}\"", self.0) })
    }

    pub(super) fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// The value is a key that must not be shown.
    pub(super) fn is_secret(&self) -> bool {
        is_secret(&self.0)
    }
}

fn is_secret(path: &str) -> bool {
    ["apiKeys", "keys", "trust.header"].iter().any(|start| path.starts_with(start)) || path.ends_with(".apiKey")
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The candidate that a name was probably meant to be: a few letters off, or the beginning of it.
pub(super) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_lowercase();
    let distance = |candidate: &str| {
        let candidate = candidate.to_lowercase();
        let shorter = name.chars().count().min(candidate.chars().count());
        let distance = strsim::damerau_levenshtein(&name, &candidate);
        let begins = shorter >= 4 && (candidate.starts_with(&name) || name.starts_with(&candidate));
        (distance <= 1 + shorter / 4 || begins).then_some(distance)
    };
    let close = candidates.into_iter().filter_map(|candidate| Some((distance(candidate)?, candidate)));
    close.min_by_key(|(distance, _)| *distance).map(|(_, candidate)| candidate)
}

/// Names what exists, and the nearest of it first: the end of a message about a name that does not exist.
pub(super) fn suggestion<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str> + Clone) -> String {
    if let Some(candidate) = nearest(name, candidates.clone()) {
        return format!("did you mean `{candidate}`?");
    }
    let mut names: Vec<&str> = candidates.into_iter().take(13).collect();
    let more = if names.len() > 12 {
        names.truncate(12);
        ", …"
    } else {
        ""
    };
    match names.as_slice() {
        [] => "there is none".to_owned(),
        names => format!("known here: {}{more}", names.join(", ")),
    }
}
