//! The kinds of values that settings have: how each is read, described in the schema, and explained when it is wrong.

use std::{marker::PhantomData, ops::RangeInclusive, time::Duration};

use serde_json::{Value as Json, json};
use switchyard_scheduler::Priority;

use super::tree::{Node, Value};

/// How one value is read.
pub(super) trait Kind {
    type Value;

    /// What would be right, to go after "expected".
    fn expected(&self) -> String;

    /// Its JSON schema.
    fn schema(&self) -> Json;

    /// Reads it.
    ///
    /// # Errors
    /// What is wrong with the value, to go before "; expected …"; empty when the value speaks for itself.
    fn read(&self, node: &Node) -> Result<Self::Value, String>;
}

/// Any scalar, as text.
pub(super) struct Text;

impl Kind for Text {
    type Value = String;

    fn expected(&self) -> String {
        "text".to_owned()
    }

    fn schema(&self) -> Json {
        json!({ "type": "string" })
    }

    fn read(&self, node: &Node) -> Result<String, String> {
        node.text().map(str::to_owned).ok_or_else(String::new)
    }
}

/// Text that a function makes something of; the function says what is wrong.
pub(super) struct Parsed<T> {
    expected: &'static str,
    parse: fn(&str) -> Result<T, String>,
}

/// Text that a function makes something of.
pub(super) const fn parsed<T>(expected: &'static str, parse: fn(&str) -> Result<T, String>) -> Parsed<T> {
    Parsed { expected, parse }
}

impl<T> Kind for Parsed<T> {
    type Value = T;

    fn expected(&self) -> String {
        self.expected.to_owned()
    }

    fn schema(&self) -> Json {
        json!({ "type": "string" })
    }

    fn read(&self, node: &Node) -> Result<T, String> {
        (self.parse)(node.text().ok_or_else(String::new)?)
    }
}

/// `true` or `false`; unquoted `yes`, `no`, `on` and `off` too, as older YAML has it.
pub(super) struct Flag;

impl Kind for Flag {
    type Value = bool;

    fn expected(&self) -> String {
        "true or false".to_owned()
    }

    fn schema(&self) -> Json {
        json!({ "type": "boolean" })
    }

    fn read(&self, node: &Node) -> Result<bool, String> {
        match &node.value {
            Value::Bool(value, _) => Ok(*value),
            Value::Text(text) if matches!(text.to_ascii_lowercase().as_str(), "yes" | "on") => Ok(true),
            Value::Text(text) if matches!(text.to_ascii_lowercase().as_str(), "no" | "off") => Ok(false),
            _ => Err(String::new()),
        }
    }
}

/// A whole number in a range.
pub(super) struct Int<T> {
    range: RangeInclusive<i128>,
    number: PhantomData<T>,
}

/// A whole number in a range.
pub(super) fn int<T: Into<i128>>(range: RangeInclusive<T>) -> Int<T> {
    let (low, high) = range.into_inner();
    Int { range: low.into()..=high.into(), number: PhantomData }
}

impl<T: TryFrom<i128>> Kind for Int<T> {
    type Value = T;

    fn expected(&self) -> String {
        match (*self.range.start(), *self.range.end()) {
            (low, high) if high >= i128::from(u32::MAX) && low < -i128::from(u32::MAX) => "a whole number".to_owned(),
            (low, high) if high >= i128::from(u32::MAX) => format!("a whole number, at least {low}"),
            (low, high) => format!("a whole number from {low} to {high}"),
        }
    }

    fn schema(&self) -> Json {
        let mut schema = json!({ "type": "integer" });
        if let Ok(low) = i64::try_from(*self.range.start())
            && low > i64::MIN
        {
            schema["minimum"] = low.into();
        }
        if let Ok(high) = u32::try_from(*self.range.end())
            && high < u32::MAX
        {
            schema["maximum"] = high.into();
        }
        schema
    }

    fn read(&self, node: &Node) -> Result<T, String> {
        let number = match &node.value {
            Value::Int(number, _) => *number,
            Value::Float(number, _) if number.fract() == 0.0 && number.abs() < 1e15 => *number as i128,
            Value::Text(text) if matches!(super::tree::resolve(text), Value::Int(..)) => {
                return Err(format!("{} is text, not a number: leave out the quotes", node.describe()));
            }
            _ => return Err(String::new()),
        };
        if !self.range.contains(&number) {
            return Err(format!("{number} is out of range"));
        }
        T::try_from(number).map_err(|_| format!("{number} is out of range"))
    }
}

/// A number in a range, whole or not.
pub(super) struct Number {
    low: f64,
    high: f64,
    /// `low` itself is too little.
    above: bool,
}

/// A number from `low` to `high`.
pub(super) const fn number(low: f64, high: f64) -> Number {
    Number { low, high, above: false }
}

/// A part of the whole: more than 0, and 1 at the most.
pub(super) const PART: Number = Number { low: 0.0, high: 1.0, above: true };

impl Kind for Number {
    type Value = f64;

    fn expected(&self) -> String {
        match (self.above, self.low, self.high) {
            (true, low, high) => format!("a number above {low}, at most {high}"),
            (false, low, f64::INFINITY) => format!("a number, at least {low}"),
            (false, low, high) => format!("a number from {low} to {high}"),
        }
    }

    fn schema(&self) -> Json {
        let mut schema = json!({ "type": "number" });
        schema[if self.above { "exclusiveMinimum" } else { "minimum" }] = self.low.into();
        if self.high.is_finite() {
            schema["maximum"] = self.high.into();
        }
        schema
    }

    fn read(&self, node: &Node) -> Result<f64, String> {
        let number = match &node.value {
            Value::Int(number, _) => *number as f64,
            Value::Float(number, _) => *number,
            _ => return Err(String::new()),
        };
        let inside = number >= self.low && number <= self.high && number.is_finite();
        if !inside || (self.above && number <= self.low) {
            return Err(format!("{number} is out of range"));
        }
        Ok(number)
    }
}

/// A priority: a whole number, or the name of a band.
pub(super) struct Urgency;

impl Kind for Urgency {
    type Value = Priority;

    fn expected(&self) -> String {
        "a whole number, or interactive (100), normal (0) or batch (-100)".to_owned()
    }

    fn schema(&self) -> Json {
        json!({ "type": ["integer", "string"] })
    }

    fn read(&self, node: &Node) -> Result<Priority, String> {
        let text = node.text().ok_or_else(String::new)?;
        Priority::parse(text.as_bytes()).ok_or_else(String::new)
    }
}

/// A time: a number of seconds, or text such as `1h30m`.
pub(super) struct Time {
    /// It must not be 0.
    pub(super) positive: bool,
}

/// A time that may be 0.
pub(super) const TIME: Time = Time { positive: false };

/// A time that may not.
pub(super) const POSITIVE_TIME: Time = Time { positive: true };

impl Kind for Time {
    type Value = Duration;

    fn expected(&self) -> String {
        "seconds, such as 90, or a time, such as 1m30s".to_owned()
    }

    fn schema(&self) -> Json {
        let minimum = if self.positive { "exclusiveMinimum" } else { "minimum" };
        json!({ "type": ["number", "string"], minimum: 0 })
    }

    fn read(&self, node: &Node) -> Result<Duration, String> {
        let time = read_time(node)?;
        if self.positive && time.is_zero() {
            return Err("0 is too short".to_owned());
        }
        Ok(time)
    }
}

fn read_time(node: &Node) -> Result<Duration, String> {
    let negative = || "a time cannot be negative".to_owned();
    let too_long = |_| "that is too long".to_owned();
    match &node.value {
        Value::Int(seconds, _) if *seconds < 0 => Err(negative()),
        Value::Int(seconds, _) => {
            let seconds = u32::try_from(*seconds).map_err(|_| "that is too long".to_owned())?;
            Ok(Duration::from_secs(seconds.into()))
        }
        Value::Float(seconds, _) if *seconds < 0.0 => Err(negative()),
        Value::Float(seconds, _) => Duration::try_from_secs_f64(*seconds).map_err(too_long),
        Value::Text(text) => {
            if matches!(super::tree::resolve(text), Value::Int(..) | Value::Float(..)) {
                return Err(format!("{} has no unit: leave out the quotes for seconds", node.describe()));
            }
            let duration: jiff::SignedDuration = text.trim().parse().map_err(|_| String::new())?;
            if duration.is_negative() {
                return Err(negative());
            }
            Duration::try_from(duration).map_err(|_| "that is too long".to_owned())
        }
        _ => Err(String::new()),
    }
}

/// A time, or -1 for the default from elsewhere.
pub(super) struct TimeOrDefault;

impl Kind for TimeOrDefault {
    type Value = Option<Duration>;

    fn expected(&self) -> String {
        format!("{}, or -1", TIME.expected())
    }

    fn schema(&self) -> Json {
        json!({ "type": ["number", "string"], "minimum": -1 })
    }

    fn read(&self, node: &Node) -> Result<Option<Duration>, String> {
        if let Value::Int(-1, _) = node.value { Ok(None) } else { read_time(node).map(Some) }
    }
}

/// An amount of memory: a number of bytes, or text such as `32MiB`.
pub(super) struct Bytes;

impl Kind for Bytes {
    type Value = u64;

    fn expected(&self) -> String {
        "bytes, such as 1048576, or a size, such as 32MiB or 1GB".to_owned()
    }

    fn schema(&self) -> Json {
        json!({ "type": ["integer", "string"], "minimum": 0 })
    }

    fn read(&self, node: &Node) -> Result<u64, String> {
        match &node.value {
            Value::Int(bytes, _) if *bytes < 0 => Err("a size cannot be negative".to_owned()),
            Value::Int(bytes, _) => u64::try_from(*bytes).map_err(|_| "that is too much".to_owned()),
            Value::Text(text) => parse_bytes(text.trim()),
            _ => Err(String::new()),
        }
    }
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..end].parse().map_err(|_| String::new())?;
    let unit = match text[end..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" | "k" => 1 << 10,
        "mib" | "m" => 1 << 20,
        "gib" | "g" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return Err(String::new()),
    };
    number.checked_mul(unit).ok_or_else(|| "that is too much".to_owned())
}

/// One of a few words, in any case.
pub(super) struct OneOf<T: 'static>(pub(super) &'static [(&'static str, T)]);

impl<T: Clone> Kind for OneOf<T> {
    type Value = T;

    fn expected(&self) -> String {
        let words: Vec<String> = self.0.iter().map(|(word, _)| format!("`{word}`")).collect();
        match words.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            _ => words.concat(),
        }
    }

    fn schema(&self) -> Json {
        json!({ "enum": self.0.iter().map(|(word, _)| *word).collect::<Vec<_>>() })
    }

    fn read(&self, node: &Node) -> Result<T, String> {
        let text = node.text().ok_or_else(String::new)?;
        let found = self.0.iter().find(|(word, _)| word.eq_ignore_ascii_case(text.trim()));
        found.map(|(_, value)| value.clone()).ok_or_else(String::new)
    }
}

/// A scalar, kept as it is.
pub(super) struct Scalar;

impl Kind for Scalar {
    type Value = ();

    fn expected(&self) -> String {
        "text, a number, or true or false".to_owned()
    }

    fn schema(&self) -> Json {
        json!({ "type": ["string", "number", "boolean"] })
    }

    fn read(&self, node: &Node) -> Result<(), String> {
        node.text().map(|_| ()).ok_or_else(String::new)
    }
}

/// A mapping with whatever is in it, passed on as JSON.
pub(super) struct Free;

impl Kind for Free {
    type Value = serde_json::Map<String, Json>;

    fn expected(&self) -> String {
        "a mapping".to_owned()
    }

    fn schema(&self) -> Json {
        json!({ "type": "object", "additionalProperties": true })
    }

    fn read(&self, node: &Node) -> Result<Self::Value, String> {
        match node.to_json() {
            Json::Object(map) => Ok(map),
            _ => Err(String::new()),
        }
    }
}
