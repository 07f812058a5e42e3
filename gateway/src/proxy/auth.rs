//! Who may use the gateway.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The configured keys, as digests: comparing them takes the same time whatever a caller tries.
pub(super) struct KeyRing(Vec<[u8; 32]>);

impl KeyRing {
    pub(super) fn new(keys: &[String]) -> Self {
        Self(keys.iter().map(|key| digest(key.as_bytes())).collect())
    }

    /// Anyone may use the gateway, and `Authorization` belongs to the model server.
    pub(super) fn is_open(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the request carries one of the keys: as bearer token, as the password of basic authentication, or in
    /// `x-api-key`.
    pub(super) fn admits(&self, headers: &HeaderMap) -> bool {
        self.is_open() || from_authorization(headers).is_some_and(|key| self.has(&key)) || {
            headers.get("x-api-key").is_some_and(|key| self.has(key.as_bytes()))
        }
    }

    fn has(&self, key: &[u8]) -> bool {
        let key = digest(key);
        let found = self.0.iter().fold(subtle::Choice::from(0), |found, known| found | known.ct_eq(&key));
        found.into()
    }
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

fn from_authorization(headers: &HeaderMap) -> Option<Vec<u8>> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, credentials) = value.split_once(' ')?;
    let credentials = credentials.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        Some(credentials.as_bytes().to_vec())
    } else if scheme.eq_ignore_ascii_case("basic") {
        let decoded = BASE64.decode(credentials).ok()?;
        let colon = decoded.iter().position(|byte| *byte == b':')?;
        Some(decoded[colon + 1..].to_vec())
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn with(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(
            header::HeaderName::from_static(name),
            HeaderValue::from_str(value).expect("a header value"),
        )])
    }

    #[test]
    fn without_keys_anyone_may() {
        assert!(KeyRing::new(&[]).admits(&HeaderMap::new()));
    }

    #[test]
    fn a_key_may_come_in_three_ways() {
        let ring = KeyRing::new(&["one".to_owned(), "two".to_owned()]);
        for headers in [
            with("authorization", "Bearer two"),
            with("authorization", "bearer  one"),
            with("authorization", &format!("Basic {}", BASE64.encode("user:one"))),
            with("x-api-key", "one"),
        ] {
            assert!(ring.admits(&headers), "{headers:?}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        let ring = KeyRing::new(&["one".to_owned()]);
        for headers in [
            HeaderMap::new(),
            with("authorization", "one"),
            with("authorization", "Bearer "),
            with("authorization", "Bearer on"),
            with("authorization", "Basic one"),
            with("authorization", &format!("Basic {}", BASE64.encode("one"))),
            with("authorization", "Digest one"),
            with("x-api-key", "One"),
        ] {
            assert!(!ring.admits(&headers), "{headers:?}");
        }
    }
}
