//! What waits for one model.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    ceiling::{Demand, Pace},
    estimate::{Average, Lead},
    turns::Turns,
};
use crate::{
    Priority, RequestId, Timestamp,
    detector::{Saturation, Share},
    fleet::ModelIx,
    policy::Standing,
    queue::Slot,
};

/// A timer may be so late without a pace getting slower.
const LATE_MICROS: u64 = 2_000;
/// Those who keep no pace can be so many ahead of it before those who do are spared the wait.
const MOST_AHEAD: u32 = 4;

/// The flows that wait for one model, by level.
#[derive(Debug)]
pub(super) struct Pool {
    /// Models of different domains are never in each other's way, and so share no virtual time.
    pub(super) domain: usize,
    pub(super) standing: Standing,
    pub(super) saturation: Saturation,
    pub(super) is_aside: bool,
    pub(super) lanes: BTreeMap<Priority, Lane>,
    /// The levels by what they are worth now that their oldest request has waited so long; only kept when levels age.
    pub(super) aged: BTreeSet<(i128, Priority)>,
    /// The best request, and the level that it is at.
    pub(super) best: Option<(Slot, Priority)>,
    /// Whether the ceiling of its level keeps it from going.
    pub(super) is_held: bool,
    /// When a level that has to keep its pace may take the next place; and whether to look again then.
    pub(super) next_place: Timestamp,
    pub(super) looks_again: bool,
    /// How often that came about, by band.
    pub(super) held: [u64; 3],
    /// Tokens out of one request.
    pub(super) usual: Average,
    pub(super) lead: Lead,
    pub(super) demand: Demand,
}

/// The flows of one level.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) level: u32,
    pub(super) ceiling: Share,
    pub(super) pace: Option<Pace>,
    pub(super) turns: Turns,
    pub(super) waiting: u64,
    /// By arrival; only kept when levels age.
    oldest: BTreeSet<(Timestamp, RequestId)>,
}

impl Lane {
    pub(super) fn new(model: ModelIx, level: u32, ceiling: Share, pace: Option<Pace>) -> Self {
        Self { level, ceiling, pace, turns: Turns::new(model), waiting: 0, oldest: BTreeSet::new() }
    }

    /// What the level is worth to its oldest request.
    pub(super) fn points(&self, priority: Priority, micros_per_point: Option<u64>) -> i128 {
        micros_per_point.map_or(priority.0.into(), |micros| worth(priority, micros, self.oldest()))
    }

    /// When the request arrived that has waited longest; only known when levels age.
    fn oldest(&self) -> Option<Timestamp> {
        self.oldest.first().map(|&(arrived, _)| arrived)
    }
}

impl Pool {
    pub(super) fn new(domain: usize) -> Self {
        Self {
            domain,
            standing: Standing::Blocked,
            saturation: Saturation::default(),
            is_aside: false,
            lanes: BTreeMap::new(),
            aged: BTreeSet::new(),
            best: None,
            is_held: false,
            next_place: Timestamp::ZERO,
            looks_again: false,
            held: [0; 3],
            usual: Average::default(),
            lead: Lead::default(),
            demand: Demand::default(),
        }
    }

    /// The level whose turn it is, and whether its ceiling forbids it to go.
    ///
    /// Ceilings never rise from a level to a lower one, so where levels do not age the highest speaks for all. One that
    /// was overtaken by an aged one still goes when its own ceiling lets it.
    pub(super) fn turn(&self, now: Timestamp) -> Option<(Priority, &Lane, bool)> {
        let is_held = |lane: &Lane| {
            let keeps_pace = |pace: Pace| now < self.next_place && self.saturation.reaches(pace.from);
            self.standing == Standing::Ready
                && (self.saturation.reaches(lane.ceiling) || lane.pace.is_some_and(keeps_pace))
        };
        if self.aged.is_empty() {
            return self.lanes.last_key_value().map(|(&priority, lane)| (priority, lane, is_held(lane)));
        }
        let levels = || self.aged.iter().rev().map(|&(_, priority)| (priority, &self.lanes[&priority]));
        let free = levels().find(|(_, lane)| !is_held(lane));
        free.map(|(priority, lane)| (priority, lane, false))
            .or_else(|| levels().next().map(|(priority, lane)| (priority, lane, true)))
    }

    /// A request goes; whoever it is, those who keep a pace have to wait for longer.
    pub(super) fn keep_pace(&mut self, now: Timestamp) {
        // The lowest level is the one that fills what is left.
        let Some(Pace { interval, .. }) = self.lanes.first_key_value().and_then(|(_, lane)| lane.pace) else { return };
        let due = self.next_place.max(Timestamp(now.0.saturating_sub(LATE_MICROS)));
        self.next_place = (due + interval).min(now + interval * MOST_AHEAD);
    }

    /// When the request arrived that has waited longest at a level; only known when levels age.
    pub(super) fn oldest(&self, priority: Priority) -> Option<Timestamp> {
        self.lanes.get(&priority)?.oldest()
    }

    /// A request joins those by which its level ages, or leaves them.
    pub(super) fn age(&mut self, priority: Priority, micros: u64, request: (Timestamp, RequestId), joins: bool) {
        let Some(lane) = self.lanes.get_mut(&priority) else { return };
        let before = lane.oldest();
        if joins {
            lane.oldest.insert(request);
        } else {
            lane.oldest.remove(&request);
        }
        let after = lane.oldest();
        if before != after {
            if before.is_some() {
                self.aged.remove(&(worth(priority, micros, before), priority));
            }
            if after.is_some() {
                self.aged.insert((worth(priority, micros, after), priority));
            }
        }
    }
}

/// All age at one rate, so comparing `priority + waited/divisor` is comparing `priority·divisor − arrival`.
fn worth(priority: Priority, micros: u64, oldest: Option<Timestamp>) -> i128 {
    i128::from(priority.0) * i128::from(micros) - i128::from(oldest.unwrap_or_default().0)
}
