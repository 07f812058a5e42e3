//! Where clients put their key.

use std::borrow::Cow;

use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

use crate::MAX_KEY_BYTES;

/// Some clients leave the padding out.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// `user:password` in base64: twice the longest key leaves room for a user's name.
const MAX_BASIC_BYTES: usize = 2 * MAX_KEY_BYTES;
/// Room for a few lines joined by a proxy; more is not looked at.
const MAX_AUTHORIZATION_BYTES: usize = 8 * MAX_KEY_BYTES;

/// The headers that may hold a key, as the clients of OpenAI, Anthropic and Azure send them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// `Authorization: Bearer KEY`, or `Basic`, where the password is the key.
    Authorization,
    /// `x-api-key: KEY` or `api-key: KEY`.
    Bare,
}

/// What a request presents, over all of its headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Presented<'a> {
    /// No key at all.
    #[default]
    Nothing,
    /// One key, once or several times.
    Key(Cow<'a, [u8]>),
    /// Something that cannot be a key: an unknown scheme, broken base64, too long.
    Unreadable,
    /// Two keys that differ: whoever sent this, one of them is not theirs to choose from.
    Ambiguous,
}

impl<'a> Presented<'a> {
    /// Takes one more header's value into account.
    pub(crate) fn add(&mut self, place: Place, value: &'a [u8]) {
        match place {
            Place::Bare => self.add_one(Self::from_key(Cow::Borrowed(value.trim_ascii()))),
            Place::Authorization if value.len() > MAX_AUTHORIZATION_BYTES => self.add_one(Self::Unreadable),
            Place::Authorization => {
                let mut rest = value;
                while let Some(next) = next_line(rest) {
                    self.add_one(Self::from_authorization(&rest[..next]));
                    rest = &rest[next + 1..];
                }
                self.add_one(Self::from_authorization(rest));
            }
        }
    }

    fn add_one(&mut self, next: Self) {
        let so_far = std::mem::take(self);
        *self = match (so_far, next) {
            (one, Self::Nothing) | (Self::Nothing, one) => one,
            (Self::Key(one), Self::Key(other)) if one == other => Self::Key(one),
            (Self::Unreadable, _) | (_, Self::Unreadable) => Self::Unreadable,
            _ => Self::Ambiguous,
        };
    }

    fn from_authorization(value: &'a [u8]) -> Self {
        let value = value.trim_ascii();
        let end = value.iter().position(u8::is_ascii_whitespace).unwrap_or(value.len());
        let (scheme, rest) = value.split_at(end);
        let rest = rest.trim_ascii();
        if rest.is_empty() && [&b""[..], b"bearer", b"basic"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
            Self::Nothing
        } else if scheme.eq_ignore_ascii_case(b"bearer") {
            Self::from_key(Cow::Borrowed(rest))
        } else if scheme.eq_ignore_ascii_case(b"basic") {
            Self::from_basic(rest)
        } else {
            Self::Unreadable
        }
    }

    fn from_basic(encoded: &[u8]) -> Self {
        if encoded.len() > MAX_BASIC_BYTES {
            return Self::Unreadable;
        }
        let Ok(decoded) = BASE64.decode(encoded) else { return Self::Unreadable };
        match decoded.iter().position(|&byte| byte == b':') {
            Some(colon) => Self::from_key(Cow::Owned(decoded[colon + 1..].to_vec())),
            None => Self::Unreadable,
        }
    }

    fn from_key(key: Cow<'a, [u8]>) -> Self {
        match key.len() {
            0 => Self::Nothing,
            1..=MAX_KEY_BYTES => Self::Key(key),
            _ => Self::Unreadable,
        }
    }
}

/// Where a second `Authorization` line begins that a proxy, as Envoy does, has joined to the first with a comma.
fn next_line(value: &[u8]) -> Option<usize> {
    let mut commas = value.iter().enumerate().filter(|&(_, &byte)| byte == b',').map(|(at, _)| at);
    let starts_line = |at: &usize| {
        let rest = value[at + 1..].trim_ascii_start();
        [&b"bearer "[..], b"basic "]
            .iter()
            .any(|scheme| rest.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)))
    };
    commas.find(starts_line)
}
