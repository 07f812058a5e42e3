//! What a caller says of its own urgency, and the band it falls into.

use std::fmt;

/// Urgency as the caller states it: any signed 64-bit number, higher is more urgent. Never clamped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Priority(pub i64);

impl Priority {
    /// The alias `interactive`.
    pub const INTERACTIVE: Self = Self(100);
    /// The alias `normal`, and what an absent or unreadable header means.
    pub const NORMAL: Self = Self(0);
    /// The alias `batch`.
    pub const BATCH: Self = Self(-100);

    /// Reads a header value: a signed decimal integer, or `interactive`, `normal` or `batch` in any case, with
    /// white space around it ignored. `None` when it is neither.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value.trim_ascii()).ok()?;
        [("interactive", Self::INTERACTIVE), ("normal", Self::NORMAL), ("batch", Self::BATCH)]
            .into_iter()
            .find_map(|(alias, priority)| text.eq_ignore_ascii_case(alias).then_some(priority))
            .or_else(|| text.parse().ok().map(Self))
    }

    /// The band this priority falls into.
    #[must_use]
    pub const fn band(self) -> Band {
        match self.0 {
            100.. => Band::Interactive,
            0..=99 => Band::Normal,
            _ => Band::Batch,
        }
    }

    /// Whether a request of this priority may be displaced from a full queue: below zero.
    #[must_use]
    pub const fn is_sheddable(self) -> bool {
        self.0 < 0
    }
}

/// A class of urgency. Ordered from the least urgent to the most urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum Band {
    /// Below 0.
    Batch,
    /// 0 to 99.
    Normal,
    /// 100 and above.
    Interactive,
}

impl Band {
    /// Every band, least urgent first; a band's place here is [`Band::index`].
    pub const ALL: [Self; 3] = [Self::Batch, Self::Normal, Self::Interactive];

    /// The band's place in [`Band::ALL`], for arrays with one entry a band.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The name used in metrics, logs and settings.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Normal => "normal",
            Self::Interactive => "interactive",
        }
    }
}

impl fmt::Display for Band {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
