//! Values that are written in a handy way: durations, token counts, rates.

use std::{fmt, time::Duration};

use jiff::SignedDuration;
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};
use switchyard_scheduler::Priority;

use crate::random::Stream;

/// `250ms`, `8s`, `1h30m`; a bare number is seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span(pub(super) Duration);

impl Span {
    fn parse(text: &str) -> Option<Self> {
        if let Ok(seconds) = text.parse::<f64>() {
            return Self::seconds(seconds);
        }
        Duration::try_from(text.parse::<SignedDuration>().ok()?).ok().map(Self)
    }

    fn seconds(seconds: f64) -> Option<Self> {
        Duration::try_from_secs_f64(seconds).ok().map(Self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Span;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as 250ms, 8s or 1h30m, or a number of seconds")
            }
            fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<Span, E> {
                Ok(Span(Duration::from_secs(seconds)))
            }
            fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<Span, E> {
                self.visit_f64(seconds as f64)
            }
            fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<Span, E> {
                Span::seconds(seconds).ok_or_else(|| E::invalid_value(de::Unexpected::Float(seconds), &self))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                Span::parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// `80s..190s`.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpanRange(pub(super) Duration, pub(super) Duration);

impl<'de> Deserialize<'de> for SpanRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let range = text.split_once("..").and_then(|(from, to)| Some((Span::parse(from)?, Span::parse(to)?)));
        match range {
            Some((from, to)) if from <= to => Ok(Self(from.0, to.0)),
            _ => Err(de::Error::invalid_value(
                de::Unexpected::Str(&text),
                &"a range of durations such as 80s..190s, the smaller first",
            )),
        }
    }
}

/// A number, or `interactive`, `normal` or `batch`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Urgency(pub(super) Priority);

impl<'de> Deserialize<'de> for Urgency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Priority::parse(text.as_bytes()).map(Self).ok_or_else(|| {
            de::Error::invalid_value(de::Unexpected::Str(&text), &"a whole number, interactive, normal or batch")
        })
    }
}

/// A number of tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// Always this many.
    Fixed(u32),
    /// Evenly from the first to the last, both included.
    Uniform(u32, u32),
    /// Log-normal, cut at `max`.
    LogNormal {
        /// Half are shorter.
        median: f64,
        /// Of the underlying normal distribution.
        sigma: f64,
        /// The longest.
        max: u32,
    },
}

impl Length {
    /// The longest that can come.
    #[must_use]
    pub const fn max(self) -> u32 {
        match self {
            Self::Fixed(length) | Self::Uniform(_, length) | Self::LogNormal { max: length, .. } => length,
        }
    }

    pub(crate) fn draw(self, random: &mut Stream) -> u32 {
        match self {
            Self::Fixed(length) => length,
            Self::Uniform(least, most) => {
                u32::try_from(random.between(u64::from(least), u64::from(most))).unwrap_or(most)
            }
            Self::LogNormal { median, sigma, max } => {
                let length = (median * libm::exp(sigma * random.normal())).round();
                (length as u32).clamp(1, max)
            }
        }
    }
}

/// The quantile of the standard normal distribution at 0.95.
const NORMAL_P95: f64 = 1.644_853_626_951_472_2;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LogNormalFile {
    median: u32,
    p95: u32,
    max: Option<u32>,
}

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Length;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of tokens (at least 1), a range such as 64..512, or {median: 300, p95: 2000}")
            }
            fn visit_u64<E: de::Error>(self, length: u64) -> Result<Length, E> {
                match u32::try_from(length) {
                    Ok(length) if length > 0 => Ok(Length::Fixed(length)),
                    _ => Err(E::invalid_value(de::Unexpected::Unsigned(length), &self)),
                }
            }
            fn visit_i64<E: de::Error>(self, length: i64) -> Result<Length, E> {
                let positive =
                    u64::try_from(length).map_err(|_| E::invalid_value(de::Unexpected::Signed(length), &self))?;
                self.visit_u64(positive)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Length, E> {
                let range = text.split_once("..").and_then(|(least, most)| {
                    Some((least.trim().parse::<u32>().ok()?, most.trim().parse::<u32>().ok()?))
                });
                match range {
                    Some((least, most)) if 0 < least && least <= most => Ok(Length::Uniform(least, most)),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Length, A::Error> {
                let file = LogNormalFile::deserialize(MapAccessDeserializer::new(map))?;
                let (median, p95) = (f64::from(file.median), f64::from(file.p95));
                let max = file.max.unwrap_or(file.p95.saturating_mul(4));
                if file.median == 0 || file.p95 < file.median || max < file.p95 {
                    return Err(de::Error::custom("the order has to be 0 < median <= p95 <= max"));
                }
                Ok(Length::LogNormal { median, sigma: libm::log(p95 / median) / NORMAL_P95, max })
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// When the requests of a class come.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Arrivals {
    /// Poisson arrivals: from each time on, so many a second. In order of time.
    pub rates: Vec<(Duration, f64)>,
    /// So many at once, at each time.
    pub bursts: Vec<(Duration, u32)>,
}

/// A number for the whole run, or one from each time on: `5`, or `{0s: 5, 80s: 19, 190s: 5}`. None is negative.
#[derive(Clone, Debug, Default)]
pub(super) struct Timeline(pub(super) Vec<(Duration, f64)>);

impl<'de> Deserialize<'de> for Timeline {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Reader {
            fn checked<E: de::Error>(&self, number: f64) -> Result<f64, E> {
                let fits = number.is_finite() && number >= 0.0;
                fits.then_some(number).ok_or_else(|| E::invalid_value(de::Unexpected::Float(number), self))
            }
        }
        impl<'de> Visitor<'de> for Reader {
            type Value = Timeline;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number (not negative), or numbers by the time from which they hold: {0s: 5, 80s: 19}")
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Timeline, E> {
                self.visit_f64(number as f64)
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Timeline, E> {
                self.visit_f64(number as f64)
            }
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Timeline, E> {
                Ok(Timeline(vec![(Duration::ZERO, self.checked(number)?)]))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Timeline, A::Error> {
                let mut values: Vec<(Duration, f64)> = Vec::new();
                while let Some((Span(from), number)) = map.next_entry::<Span, f64>()? {
                    if values.last().is_some_and(|&(before, _)| before >= from) {
                        return Err(de::Error::custom("the times have to be in order, the earliest first"));
                    }
                    values.push((from, self.checked(number)?));
                }
                Ok(Timeline(values))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}
