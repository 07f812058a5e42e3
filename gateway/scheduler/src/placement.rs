//! Which replica of its model a request goes to.
//!
//! To the least loaded; or, if it belongs to a session, to the session's own replica as long as that one has no more
//! than its share. Sessions find their replicas by rendezvous hashing (Thaler and Ravishankar, 1998), so that one more or
//! one less replica moves only the sessions that have to move; the share is that of consistent hashing with bounded loads
//! (Mirrokni, Thorup and Zadimoghaddam, SODA 2018): 5/4 of the mean, rounded up.

use crate::SessionId;

/// What placement has to know of one replica: whether it has room, then how loaded it is. The least is the best place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Spot(u64);

/// Whether a replica can take one more request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Yes.
    Free,
    /// Yes, but nobody knows how it fares: only if no other can.
    Unsure,
    Full,
}

impl Spot {
    const LOAD: u64 = (1 << 62) - 1;

    /// Of a replica that does not serve, and counts for nothing.
    pub(crate) const ABSENT: Self = Self(u64::MAX);

    pub(crate) fn new(room: Room, load: u64) -> Self {
        Self((room as u64) << 62 | load.min(Self::LOAD - 1))
    }

    fn load(self) -> u64 {
        self.0 & Self::LOAD
    }

    fn is_free(self) -> bool {
        self.0 >> 62 == Room::Free as u64
    }

    /// Whether one more request could go here.
    pub(crate) fn has_room(self) -> bool {
        self.0 >> 62 < Room::Full as u64
    }
}

/// The replica for one more request, by its place among `spots`.
pub(crate) fn place(spots: &[Spot], session: Option<SessionId>) -> Option<usize> {
    let (mut least, mut best) = (0, Spot::ABSENT);
    for (index, &spot) in spots.iter().enumerate() {
        if spot < best {
            (least, best) = (index, spot);
        }
    }
    match session {
        _ if !best.has_room() => None,
        Some(session) if best.is_free() => Some(home(spots, session).unwrap_or(least)),
        _ => Some(least),
    }
}

/// The replica that a session likes best of those with room that stay within the bound.
fn home(spots: &[Spot], session: SessionId) -> Option<usize> {
    let ready = || spots.iter().filter(|&&spot| spot != Spot::ABSENT);
    let total = ready().fold(1, |sum: u64, spot| sum.saturating_add(spot.load()));
    let bound = total.saturating_mul(5).div_ceil(4 * ready().count().max(1) as u64);
    (0..spots.len())
        .filter(|&index| spots[index].is_free() && spots[index].load() < bound)
        .max_by_key(|&index| mix(session.0 ^ mix(index as u64 + 1)))
}

/// The finalizer of splitmix64: every bit of the input changes half of the output's.
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spots(loads: &[u64]) -> Vec<Spot> {
        loads.iter().map(|&load| Spot::new(Room::Free, load)).collect()
    }

    #[test]
    fn the_least_loaded_goes_first_and_the_first_of_equals() {
        assert_eq!(place(&spots(&[3, 1, 1]), None), Some(1));
        let mut spots = spots(&[3, 1, 0]);
        spots[2] = Spot::new(Room::Unsure, 0);
        assert_eq!(place(&spots, None), Some(1), "one that is known to have room");
        spots[1] = Spot::new(Room::Full, 1);
        spots[0] = Spot::ABSENT;
        assert_eq!(place(&spots, None), Some(2));
        spots[2] = Spot::new(Room::Full, 0);
        assert_eq!(place(&spots, None), None);
        assert_eq!(place(&[], Some(SessionId(1))), None);
    }

    #[test]
    fn sessions_stay_within_the_bound_and_spread() {
        let mut loads = [0_u64; 8];
        for session in 0..800 {
            let spots = spots(&loads);
            let at = place(&spots, Some(SessionId(mix(session)))).expect("room");
            let total: u64 = loads.iter().sum::<u64>() + 1;
            loads[at] += 1;
            assert!(loads[at] <= (5 * total).div_ceil(4 * 8), "{loads:?}");
        }
        assert!(loads.iter().all(|&load| load >= 75), "{loads:?}");
    }

    #[test]
    fn only_the_sessions_of_a_replica_that_leaves_move() {
        let mut spots = spots(&[0; 5]);
        let before: Vec<_> = (0..100).map(|session| place(&spots, Some(SessionId(mix(session))))).collect();
        spots[3] = Spot::ABSENT;
        for (session, before) in (0..100).zip(before) {
            let after = place(&spots, Some(SessionId(mix(session))));
            assert!(after == before || before == Some(3));
            assert_ne!(after, Some(3));
        }
    }
}
