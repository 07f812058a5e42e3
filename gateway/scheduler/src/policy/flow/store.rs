//! Things that are found by two numbers, and otherwise known by a small one.

use std::ops::{Index, IndexMut};

use hashbrown::HashTable;
use slab::Slab;

pub(super) trait Keyed {
    /// What it is found by; never changes.
    fn key(&self) -> (u64, u64);
}

/// A slab with an index. The hash is fixed and the index's own order never used, so it is the same in every run.
#[derive(Debug)]
pub(super) struct Store<T> {
    things: Slab<T>,
    by_key: HashTable<u32>,
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self { things: Slab::new(), by_key: HashTable::new() }
    }
}

impl<T: Keyed> Store<T> {
    pub(super) fn find(&self, key: (u64, u64)) -> Option<u32> {
        self.by_key.find(hash(key), |&ix| self[ix].key() == key).copied()
    }

    /// Takes in something whose key is not known yet.
    pub(super) fn insert(&mut self, thing: T) -> u32 {
        let key = thing.key();
        let ix = u32::try_from(self.things.insert(thing)).expect("fewer than 2^32 of them fit into memory");
        let things = &self.things;
        self.by_key.insert_unique(hash(key), ix, |&ix| hash(things[ix as usize].key()));
        ix
    }

    pub(super) fn remove(&mut self, ix: u32) -> T {
        let thing = self.things.remove(ix as usize);
        if let Ok(found) = self.by_key.find_entry(hash(thing.key()), |&other| other == ix) {
            found.remove();
        }
        thing
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.things.iter().map(|(ix, thing)| (ix as u32, thing))
    }

    pub(super) fn len(&self) -> usize {
        self.things.len()
    }
}

impl<T> Index<u32> for Store<T> {
    type Output = T;

    fn index(&self, ix: u32) -> &T {
        &self.things[ix as usize]
    }
}

impl<T> IndexMut<u32> for Store<T> {
    fn index_mut(&mut self, ix: u32) -> &mut T {
        &mut self.things[ix as usize]
    }
}

/// Fibonacci hashing of both numbers, folded so that the high bits count at both ends.
fn hash((a, b): (u64, u64)) -> u64 {
    let mixed = (a.rotate_left(32) ^ b).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}
