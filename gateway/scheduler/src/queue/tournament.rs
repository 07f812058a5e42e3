//! The best of a few players whose scores change often: a winner tree.

use std::hint::select_unpredictable;

/// Keeps the player with the greatest key. A change costs at most one comparison for each doubling of the number of
/// players, without allocating; asking for the best costs nothing.
#[derive(Debug)]
pub(crate) struct Tournament<K> {
    /// The key of whoever does not play; less than any other.
    absent: K,
    playing: usize,
    keys: Vec<K>,
    /// A complete binary tree over the players, root at 1; each node holds the better of its two children.
    winners: Vec<u32>,
}

impl<K: Ord + Copy> Tournament<K> {
    /// A tournament that nobody plays in yet. `absent` has to be less than any key in use.
    pub(crate) fn new(players: usize, absent: K) -> Self {
        let size = players.next_power_of_two().max(2);
        let mut winners = vec![0; size];
        for node in (1..size).rev() {
            // Without keys any winner below will do; the left-most keeps the tree consistent.
            winners[node] = if node >= size / 2 { (2 * node - size) as u32 } else { winners[2 * node] };
        }
        Self { absent, playing: 0, keys: vec![absent; size], winners }
    }

    /// Sets a player's key; `None` takes it out.
    pub(crate) fn set(&mut self, player: usize, key: Option<K>) {
        if key.is_none() && self.playing == 0 {
            return;
        }
        let key = key.unwrap_or(self.absent);
        let before = std::mem::replace(&mut self.keys[player], key);
        if before == key {
            return;
        }
        self.playing = self.playing + usize::from(key != self.absent) - usize::from(before != self.absent);
        let mut node = (self.keys.len() + player) / 2;
        let mut rival = (player ^ 1) as u32;
        let mut winner = player as u32;
        loop {
            // A coin toss more often than not.
            winner = select_unpredictable(self.keys[rival as usize] > self.keys[winner as usize], rival, winner);
            // Someone else wins here as before: nothing changes further up.
            if self.winners[node] == winner && winner != player as u32 {
                return;
            }
            self.winners[node] = winner;
            if node == 1 {
                return;
            }
            rival = self.winners[node ^ 1];
            node /= 2;
        }
    }

    /// The player with the greatest key, and that key.
    pub(crate) fn best(&self) -> Option<(usize, &K)> {
        let player = self.winners[1] as usize;
        (self.playing > 0).then(|| (player, &self.keys[player]))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_a_scan(
            players in 1_usize..40,
            changes in prop::collection::vec((any::<prop::sample::Index>(), prop::option::of(1_u8..50)), 1..200),
        ) {
            let mut tournament = Tournament::new(players, (0, 0));
            let mut keys = vec![None; players];
            for (player, key) in changes {
                let player = player.index(players);
                // Keys are unique in use; make them so here.
                let key = key.map(|key| (key, player));
                tournament.set(player, key);
                keys[player] = key;
                prop_assert_eq!(tournament.best().map(|(_, key)| *key), keys.iter().flatten().max().copied());
            }
        }
    }
}
