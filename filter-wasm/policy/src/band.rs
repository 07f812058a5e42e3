//! Classes of urgency, and how a caller names one.

use serde::{Deserialize, Serialize};

/// A class of urgency, least urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Band {
    /// Below 0.
    Batch,
    /// 0 to 99.
    Normal,
    /// 100 and above.
    Interactive,
}

impl Band {
    /// Every band, least urgent first.
    pub const ALL: [Self; 3] = [Self::Batch, Self::Normal, Self::Interactive];

    /// The distance between two anchors.
    pub const SPACING: i64 = 100;

    /// The band a priority falls into.
    #[must_use]
    pub const fn of(priority: i64) -> Self {
        match priority {
            100.. => Self::Interactive,
            0..=99 => Self::Normal,
            _ => Self::Batch,
        }
    }

    /// The priority that stands for the band.
    #[must_use]
    pub const fn anchor(self) -> i64 {
        match self {
            Self::Batch => -Self::SPACING,
            Self::Normal => 0,
            Self::Interactive => Self::SPACING,
        }
    }

    /// The band that a header's value asks for: `interactive`, `normal` or `batch` in any case, or the one that a
    /// signed 64-bit number lies in, with white space around ignored. `None` when it is neither.
    #[must_use]
    pub fn asked(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value.trim_ascii()).ok()?;
        Self::ALL
            .into_iter()
            .find(|band| text.eq_ignore_ascii_case(band.as_str()))
            .or_else(|| text.parse().ok().map(Self::of))
    }

    /// The name used in settings and messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Normal => "normal",
            Self::Interactive => "interactive",
        }
    }
}
