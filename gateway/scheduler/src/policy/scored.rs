//! Policies that give each request one score, highest first, equal scores in arrival order.
//!
//! All requests age at one rate, so their order never changes while they wait: comparing `priority + waited/divisor`
//! is comparing `priority·divisor − arrival`. A request is therefore keyed once, at arrival, in exact integers. Within
//! a level (one model, one priority) arrival order is the order; across levels and models winner trees keep the best.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    num::NonZeroU64,
};

use slab::Slab;

use super::{Candidate, ModelTraits, Passed, Policy, Standing, Terms, board::Board};
use crate::{
    Band, ModelId, Priority, RequestId, Timestamp,
    detector::Saturation,
    fleet::ModelIx,
    queue::{Chain, Entry, List, Requests, Slot, Tournament},
};

/// The parameters of a score.
#[derive(Clone, Debug)]
pub(super) struct Order {
    /// How long a request waits to gain one point; none when it gains nothing.
    pub(super) micros_per_point: Option<NonZeroU64>,
    /// Points for a request whose model is ready.
    pub(super) affinity: u32,
    /// How many jobs run at once.
    pub(super) slots: Option<u32>,
    /// Points for every request of a model.
    pub(super) model_priority: BTreeMap<ModelId, i64>,
}

impl Order {
    fn ages(&self) -> bool {
        self.micros_per_point.is_some()
    }

    /// What one point weighs in a [`Key`].
    fn unit(&self) -> i128 {
        self.micros_per_point.map_or(1, |micros| i128::from(micros.get()))
    }

    /// The place of a request in the order, affinity left out.
    fn key(&self, model_priority: i64, entry: &Entry) -> Key {
        let points = i128::from(entry.priority.0) + i128::from(model_priority);
        let arrived = if self.ages() { i128::from(entry.arrived.0) } else { 0 };
        Key { score: points * self.unit() - arrived, arrival: Reverse(entry.id) }
    }

    /// Affinity breaks near-ties and never lifts a request out of its band.
    fn affinity(&self, priority: Priority) -> u32 {
        let room = match priority.band() {
            Band::Interactive => return self.affinity,
            Band::Normal => 99 - priority.0,
            Band::Batch => (-1_i64).saturating_sub(priority.0),
        };
        self.affinity.min(u32::try_from(room).unwrap_or(u32::MAX))
    }
}

/// A place in the order; the greatest goes first. Equal scores go in arrival order, which is that of the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    score: i128,
    arrival: Reverse<RequestId>,
}

impl Key {
    /// Less than any that a request can have: scores keep far away from the end of their type.
    const NONE: Self = Self { score: i128::MIN, arrival: Reverse(RequestId(u64::MAX)) };

    fn plus(self, score: i128) -> Self {
        Self { score: self.score + score, ..self }
    }
}

/// The waiting requests of all models, ordered by score.
#[derive(Debug)]
pub(super) struct Scored {
    order: Order,
    models: Vec<ModelQueue>,
    /// The levels of all models; a request's [`Entry::queue`] is the number of its own.
    levels: Slab<List>,
    /// Models that take no slot, and models that do.
    lanes: [Lane; 2],
    /// Who is set aside, to be brought back at the end of the round.
    aside: Vec<ModelIx>,
}

/// The waiting requests of one model.
#[derive(Debug)]
struct ModelQueue {
    traits: ModelTraits,
    model_priority: i64,
    /// The numbers of its levels.
    levels: BTreeMap<Priority, u32>,
    /// The head of each level, the best on top, and further down some who no longer wait; only kept when requests age,
    /// for otherwise the highest level has the best.
    heads: BinaryHeap<(Key, Slot)>,
    standing: Standing,
    is_aside: bool,
    is_candidate: bool,
    best: Option<Slot>,
}

impl ModelQueue {
    /// The least number of heads at which it is worth clearing out those who no longer wait.
    const SLACK: usize = 64;

    /// The head of a level leaves, and the next takes its place.
    fn behead(&mut self, order: &Order, levels: &Slab<List>, requests: &Requests, slot: Slot, next: Option<Slot>) {
        let with_key = |slot: Slot| (order.key(self.model_priority, &requests[slot]), slot);
        let has_left = |&(key, other): &(Key, Slot)| other == slot || !requests.is_queued(key.arrival.0, other);
        let is_best = self.heads.peek().is_some_and(|&(_, best)| best == slot);
        match next.map(with_key) {
            Some(next) if is_best => self.heads.peek_mut().into_iter().for_each(|mut best| *best = next),
            next => self.heads.extend(next),
        }
        while self.heads.peek().is_some_and(has_left) {
            self.heads.pop();
        }
        if self.heads.len() > 2 * self.levels.len() + Self::SLACK {
            let heads = self.levels.values().filter_map(|&level| levels[level as usize].front());
            self.heads = heads.map(with_key).collect();
        }
    }
}

/// The candidates, one for each model: its best request.
#[derive(Debug)]
struct Lane {
    /// Affinity included.
    board: Board<Key>,
    /// To tell who was passed over: all candidates as they would stand without aging; and the ready ones to whom
    /// affinity gives less than to others, as they would stand without it.
    ageless: Tournament<Key>,
    curbed: Tournament<Key>,
}

impl Lane {
    fn new(models: &[ModelTraits]) -> Self {
        Self {
            board: Board::new(models, Key::NONE),
            ageless: Tournament::new(models.len(), Key::NONE),
            curbed: Tournament::new(models.len(), Key::NONE),
        }
    }
}

impl Scored {
    pub(super) fn new(order: Order, models: &[ModelTraits]) -> Self {
        let queues = models.iter().map(|&traits| ModelQueue {
            traits,
            model_priority: order.model_priority.get(&traits.id).copied().unwrap_or(0),
            levels: BTreeMap::new(),
            heads: BinaryHeap::new(),
            standing: Standing::Blocked,
            is_aside: false,
            is_candidate: false,
            best: None,
        });
        let (models, lanes) = (queues.collect(), [Lane::new(models), Lane::new(models)]);
        Self { models, levels: Slab::new(), lanes, order, aside: Vec::new() }
    }

    /// The points that affinity gives to a request of this model as it stands.
    fn lift(&self, model: &ModelQueue, priority: Priority) -> i128 {
        match model.standing {
            Standing::Ready => i128::from(self.order.affinity(priority)),
            Standing::Unloaded | Standing::Blocked => 0,
        }
    }

    /// The best request of a model if none aged: the oldest of its highest level, with its score in points.
    fn ageless(&self, requests: &Requests, model: &ModelQueue) -> Option<Key> {
        let (&priority, &level) = model.levels.last_key_value()?;
        let id = requests[self.levels[level as usize].front()?].id;
        let points = i128::from(priority.0) + self.lift(model, priority);
        Some(Key { score: points, arrival: Reverse(id) })
    }

    /// Brings a model's place among the candidates up to date.
    fn update(&mut self, requests: &Requests, model: ModelIx) {
        let queue = &self.models[model];
        let best = if self.order.ages() {
            queue.heads.peek().map(|&(_, slot)| slot)
        } else {
            queue.levels.last_key_value().and_then(|(_, &level)| self.levels[level as usize].front())
        };

        let is_candidate = best.is_some() && queue.standing != Standing::Blocked && !queue.is_aside;
        if !is_candidate && !queue.is_candidate {
            self.models[model].best = best;
            return;
        }
        let mut candidate = None;
        let mut curbed = None;
        let mut ageless = None;
        if let (Some(slot), true) = (best, is_candidate) {
            let entry = &requests[slot];
            let key = self.order.key(queue.model_priority, entry);
            if queue.standing == Standing::Ready {
                let affinity = self.order.affinity(entry.priority);
                candidate = Some((Standing::Ready, key.plus(i128::from(affinity) * self.order.unit())));
                curbed = (affinity < self.order.affinity).then_some(key);
            } else {
                candidate = Some((queue.standing, key));
            }
            ageless = if self.order.ages() { self.ageless(requests, queue) } else { None };
        }

        let queue = &mut self.models[model];
        queue.best = best;
        queue.is_candidate = is_candidate;
        let lane = &mut self.lanes[usize::from(queue.traits.takes_slot)];
        lane.board.set(model, candidate);
        lane.curbed.set(model, curbed);
        lane.ageless.set(model, ageless);
    }
}

impl Policy for Scored {
    fn slots(&self) -> Option<u32> {
        self.order.slots
    }

    fn push(&mut self, requests: &mut Requests, slot: Slot) {
        let entry = &requests[slot];
        let (model, priority) = (entry.model, entry.priority);
        let queue = &mut self.models[model];
        let key = self.order.key(queue.model_priority, entry);
        let number = *queue.levels.entry(priority).or_insert_with(|| self.levels.insert(List::default()) as u32);
        let level = &mut self.levels[number as usize];
        // Who was parked comes later than some that arrived after it.
        level.insert(requests.entries_mut(), Chain::Level, slot);
        requests.get_mut(slot).queue = number;
        if level.front() != Some(slot) {
            return;
        }
        if self.order.ages() {
            queue.heads.push((key, slot));
        }
        self.update(requests, model);
    }

    fn remove(&mut self, requests: &mut Requests, slot: Slot) {
        let &Entry { model, priority, queue: number, .. } = &requests[slot];
        let level = &mut self.levels[number as usize];
        let was_head = level.front() == Some(slot);
        level.unlink(requests.entries_mut(), Chain::Level, slot);
        if !was_head {
            return;
        }
        let next = level.front();
        let queue = &mut self.models[model];
        if next.is_none() {
            self.levels.remove(number as usize);
            queue.levels.remove(&priority);
        }
        if self.order.ages() {
            queue.behead(&self.order, &self.levels, requests, slot, next);
        }
        self.update(requests, model);
    }

    fn set_standing(&mut self, requests: &Requests, model: ModelIx, standing: Standing, _saturation: Saturation) {
        if self.models[model].standing != standing {
            self.models[model].standing = standing;
            self.update(requests, model);
        }
    }

    fn best(&self, slot_free: bool) -> Option<Candidate> {
        let [without_slot, with_slot] = &self.lanes;
        let best = without_slot.board.best().into_iter().chain(with_slot.board.best().filter(|_| slot_free));
        let (_, model, standing) = best.max_by_key(|&(key, ..)| key)?;
        let slot = self.models[model].best?;
        Some(Candidate { slot, model, standing })
    }

    fn head(&self, model: ModelIx) -> Option<Slot> {
        self.models[model].best
    }

    fn set_aside(&mut self, requests: &Requests, model: ModelIx) {
        self.models[model].is_aside = true;
        self.aside.push(model);
        self.update(requests, model);
    }

    fn set_aside_class(&mut self, class: usize) {
        for lane in &mut self.lanes {
            lane.board.set_aside_class(class);
        }
    }

    fn end_round(&mut self, requests: &Requests) {
        while let Some(model) = self.aside.pop() {
            self.models[model].is_aside = false;
            self.update(requests, model);
        }
        for lane in &mut self.lanes {
            lane.board.end_round();
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "for people; the order is decided in integers")]
    fn terms(&self, requests: &Requests, slot: Slot, now: Timestamp) -> Terms {
        let entry = &requests[slot];
        let waited = now.since(entry.arrived).as_micros() as f64;
        Terms {
            model_priority: self.models[entry.model].model_priority,
            affinity: self.order.affinity(entry.priority),
            aging: self.order.micros_per_point.map_or(0.0, |micros| waited / micros.get() as f64),
        }
    }

    fn passed_by(&self, requests: &Requests, candidate: Candidate) -> Passed {
        let queue = &self.models[candidate.model];
        let picked = &requests[candidate.slot];
        let lane = &self.lanes[usize::from(queue.traits.takes_slot)];
        let other = |key: Option<Key>| key.map(|key| key.arrival.0).filter(|&other| other != picked.id);
        let key_of = |best: Option<(usize, &Key)>| best.map(|(_, key)| *key);
        if !queue.traits.takes_slot {
            // Those that take no slot compete only with requests of their own model.
            let by_aging = if self.order.ages() { other(self.ageless(requests, queue)) } else { None };
            return Passed { by_aging, by_affinity: None };
        }
        // Without affinity it could lose only to one that has less of it: an unloaded model's, or a curbed one.
        let without_affinity = [
            Some(self.order.key(queue.model_priority, picked)),
            lane.board.best_unloaded().copied(),
            key_of(lane.curbed.best()),
        ];
        Passed {
            by_aging: other(key_of(lane.ageless.best())),
            by_affinity: other(without_affinity.into_iter().flatten().max()),
        }
    }
}
