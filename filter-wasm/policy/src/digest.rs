//! Digests of keys, and a map keyed by them.

use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasherDefault, Hash, Hasher},
};

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

/// SHA-256 of a key. Never printed by `Debug`: a digest of a weak key is as good as the key.
#[derive(Clone, Copy)]
pub(crate) struct Digest([u8; 32]);

impl Digest {
    pub(crate) fn of(key: &[u8]) -> Self {
        Self(Sha256::digest(key).into())
    }

    /// Reads 64 hex digits in either case.
    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        let text = text.as_bytes();
        if text.len() != 64 {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Some(Self(bytes))
    }

    /// Its first eight bytes.
    pub(crate) fn mark(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    pub(crate) fn to_hex(self) -> String {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        self.0.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|n| DIGITS[usize::from(n)] as char).collect()
    }
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest(..)")
    }
}

/// The only comparison there is, and it takes the same time wherever two digests differ.
impl PartialEq for Digest {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Digest {}

impl Hash for Digest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.mark());
    }
}

/// A map from digests, whose lookup costs the same for ten keys and for a hundred thousand.
///
/// Which bucket is probed, and so how long a lookup takes, depends on the digest of what was presented. That tells a
/// guesser nothing of use: nobody can steer a digest towards a stored one bit by bit, as they could steer the text of
/// a key, and who could would have to invert SHA-256 to make use of it.
pub(crate) type DigestMap<T> = HashMap<Digest, T, BuildHasherDefault<Prefix>>;

/// A digest is uniform already: its first eight bytes are the hash. Which keys are stored is the operator's choice
/// alone, so nobody can fill a bucket from outside.
#[derive(Default)]
pub(crate) struct Prefix(u64);

impl Hasher for Prefix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, prefix: u64) {
        self.0 = prefix;
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }
}
