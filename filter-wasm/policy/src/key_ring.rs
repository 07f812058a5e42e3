//! Keys that open a door and say nothing of who holds them.

use crate::{
    Reason,
    credential::Presented,
    digest::{Digest, DigestMap},
    headers::key_place,
};

/// A set of keys, of which any will do.
#[derive(Clone, Debug, Default)]
pub struct KeyRing(DigestMap<()>);

impl KeyRing {
    /// Adds a key.
    pub fn add_key(&mut self, key: &[u8]) {
        self.0.insert(Digest::of(key), ());
    }

    /// Adds a key by its SHA-256 in hex. False when the text is none.
    #[must_use]
    pub fn add_sha256(&mut self, hex: &str) -> bool {
        let digest = Digest::from_hex(hex);
        self.0.extend(digest.map(|digest| (digest, ())));
        digest.is_some()
    }

    /// Whether it has no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a key is one of them.
    #[must_use]
    pub fn holds(&self, key: &[u8]) -> bool {
        self.0.contains_key(&Digest::of(key))
    }

    /// Looks for one of the keys wherever clients put theirs. Other keys beside it do no harm.
    ///
    /// # Errors
    /// When there is none.
    pub fn admit<'a>(&self, headers: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Result<(), Reason> {
        let mut reason = Reason::MissingKey;
        for (name, value) in headers {
            let Some(place) = key_place(name).filter(|_| !name.contains(&b'_')) else { continue };
            let mut presented = Presented::Nothing;
            presented.add(place, value);
            match presented {
                Presented::Nothing => {}
                Presented::Key(key) if self.holds(&key) => return Ok(()),
                Presented::Key(_) | Presented::Unreadable | Presented::Ambiguous => reason = Reason::UnknownKey,
            }
        }
        Err(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> KeyRing {
        let mut ring = KeyRing::default();
        ring.add_key(b"one");
        assert!(ring.add_sha256(&crate::hash_key(b"two")));
        assert!(!ring.add_sha256("two"));
        ring
    }

    fn admit(headers: &[(&str, &str)]) -> Result<(), Reason> {
        ring().admit(headers.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())))
    }

    #[test]
    fn a_key_may_come_in_any_place() {
        for headers in [
            &[("authorization", "Bearer two")][..],
            &[("Authorization", "bearer  one")],
            &[("authorization", "Basic dXNlcjpvbmU=")],
            &[("x-api-key", "one")],
            &[("api-key", " two ")],
            &[("authorization", "Bearer none"), ("x-api-key", "one")],
            &[("authorization", "Digest x"), ("x-api-key", "other"), ("x-api-key", "one")],
        ] {
            assert_eq!(admit(headers), Ok(()), "{headers:?}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for (headers, reason) in [
            (&[][..], Reason::MissingKey),
            (&[("authorization", "Bearer ")], Reason::MissingKey),
            (&[("authorization", "one")], Reason::UnknownKey),
            (&[("authorization", "Bearer on")], Reason::UnknownKey),
            (&[("authorization", "Basic one")], Reason::UnknownKey),
            (&[("authorization", "Basic b25l")], Reason::UnknownKey),
            (&[("authorization", "Digest one")], Reason::UnknownKey),
            (&[("x-api-key", "One")], Reason::UnknownKey),
            (&[("x_api_key", "one")], Reason::MissingKey),
        ] {
            assert_eq!(admit(headers), Err(reason), "{headers:?}");
        }
    }
}
