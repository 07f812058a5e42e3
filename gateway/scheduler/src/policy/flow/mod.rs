//! `flow`: by levels of priority, fair among the tenants of a level, as far as the servers are not saturated.
//!
//! For each model, the highest level with a request for it goes, unless the model's replicas are as full as the level's
//! ceiling; then nothing goes there for now, lower levels included. In a level the fairness policy picks the flow, which
//! is one tenant at one level, and in the flow its order picks the request. Across models the best of these candidates
//! goes first: by level, by whose turn it is, ready before unloaded among those equally due, then by arrival.
//!
//! All is kept sorted as it changes, so that a dispatch costs the logarithm of the number of flows, and of models.

mod ceiling;
mod estimate;
mod fairness;
mod flows;
mod inherit;
mod moves;
mod ordering;
mod pool;
mod queue;
mod store;
mod turns;

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
};

use ceiling::{Ceilings, Demand};
use fairness::{Fairness, Tag, Tokens};
use flows::Flows;
use moves::Key;
use ordering::Order;
use pool::{Lane, Pool};
use queue::Queue;
use slab::Slab;

use super::{Candidate, ModelTraits, Passed, Payers, Policy, Standing, Terms, board::Board};
use crate::{
    FlowDecision, FlowSettings, LevelView, Priority, Timestamp, Usage,
    detector::{Saturation, Share},
    fleet::ModelIx,
    queue::{Charge, Entry, Requests, Slot},
};

/// In a domain of several models a flow can wait long for one of them while virtual time goes on with the others. What
/// it is then owed is bounded by so many of its requests, so that it does not shut out those who come later.
const MOST_OWED: Tag = 64;

/// The waiting requests of all models, by level and flow.
#[derive(Debug)]
pub(crate) struct Flow {
    settings: FlowSettings,
    fairness: Fairness,
    ceilings: Ceilings,
    /// How long a level waits to gain one point; none when it gains nothing.
    micros_per_point: Option<u64>,
    now: Timestamp,
    pools: Vec<Pool>,
    /// Whether several models share a domain.
    is_shared: Vec<bool>,
    flows: Flows,
    queues: Slab<Queue>,
    /// When the first deadline of which queue will be too late.
    too_late: BTreeSet<(Timestamp, u32)>,
    /// Models that have to keep a pace, and until when.
    paced: BTreeSet<(Timestamp, ModelIx)>,
    /// When to look at the demand again.
    next_window: Timestamp,
    board: Board<Key>,
    /// Who is set aside, to be brought back at the end of the round.
    aside: Vec<ModelIx>,
}

impl Flow {
    pub(super) fn new(settings: &FlowSettings, models: &[ModelTraits]) -> Self {
        let mut members = BTreeMap::<usize, usize>::new();
        models.iter().for_each(|model| *members.entry(model.domain).or_default() += 1);
        Self {
            fairness: Fairness::new(settings),
            ceilings: Ceilings::new(settings),
            micros_per_point: (settings.aging_divisor > 0).then(|| u64::from(settings.aging_divisor) * 1_000_000),
            now: Timestamp::ZERO,
            pools: models.iter().map(|model| Pool::new(model.domain)).collect(),
            is_shared: models.iter().map(|model| members[&model.domain] > 1).collect(),
            flows: Flows::default(),
            queues: Slab::new(),
            too_late: BTreeSet::new(),
            paced: BTreeSet::new(),
            next_window: Timestamp::ZERO,
            board: Board::new(models, Key::NONE),
            aside: Vec::new(),
            settings: settings.clone(),
        }
    }

    fn order(&self, flow: u32) -> &'static dyn Order {
        ordering::get(self.flows.levels[self.flows.get(flow).level].ordering)
    }

    fn fairness(&self, level: u32) -> &dyn fairness::Share {
        self.fairness.get(self.flows.levels[level].fairness)
    }

    /// A flow may have nothing left to do.
    fn rest(&mut self, flow: u32) {
        self.flows.rest(flow, self.now);
    }
}

impl Policy for Flow {
    fn slots(&self) -> Option<u32> {
        None
    }

    fn push(&mut self, requests: &mut Requests, slot: Slot) {
        let entry = &requests[slot];
        let (model, priority, request) = (entry.model, entry.priority, (entry.arrived, entry.id));
        let pool = &mut self.pools[model];
        if self.ceilings.follow_demand() {
            pool.demand.arrived(priority);
        }
        let lane = pool.lanes.entry(priority).or_insert_with(|| {
            let settings = self.settings.levels.get(&priority).unwrap_or(&self.settings.template);
            let level = self.flows.level(pool.domain, priority, settings);
            let ceiling = self.ceilings.of(priority, &pool.demand, pool.saturation);
            let pace = self.ceilings.pace(priority, ceiling, &pool.demand, pool.saturation);
            Lane::new(model, level, ceiling, pace)
        });
        lane.waiting += 1;
        let level = &self.flows.levels[lane.level];
        let (fairness, order) = (self.fairness.get(level.fairness), ordering::get(level.ordering));
        let tenant = fairness.payer(entry.tenant);
        let flow = self.flows.flow(lane.level, tenant, || fairness.weight(tenant));
        self.flows.wait(flow);

        let state = self.flows.get_mut(flow);
        let is_fair = fairness.window().is_some();
        let found = if is_fair {
            let next = |&ix: &u32| self.queues[ix as usize].next;
            std::iter::successors(state.queues, next).find(|&ix| self.queues[ix as usize].model == model)
        } else {
            lane.turns.first().map(|(.., ix)| ix)
        };
        let ix = found.unwrap_or_else(|| {
            let mut queue = Queue::new(flow, model, state.stamp);
            queue.next = if is_fair { state.queues } else { None };
            let ix = u32::try_from(self.queues.insert(queue)).expect("no more queues than requests");
            if is_fair {
                state.queues = Some(ix);
            }
            lane.turns.push(&self.queues, (state.tag, state.stamp, ix), lane.waiting);
            ix
        });
        self.queues[ix as usize].push(requests, order, slot);
        requests.get_mut(slot).queue = ix;
        // Most arrivals are behind somebody.
        let is_first =
            lane.turns.first().is_some_and(|(.., first)| first == ix) && self.queues[ix as usize].head() == Some(slot);
        if let Some(micros) = self.micros_per_point {
            pool.age(priority, micros, request, true);
        }
        self.watch(ix);
        if is_first || self.micros_per_point.is_some() {
            self.update(requests, model);
        }
    }

    fn remove(&mut self, requests: &mut Requests, slot: Slot) {
        let model = requests[slot].model;
        let flow = self.queues[requests[slot].queue as usize].flow;
        self.take(requests, slot, false);
        self.rest(flow);
        self.update(requests, model);
    }

    fn set_standing(&mut self, requests: &Requests, model: ModelIx, standing: Standing, saturation: Saturation) {
        let pool = &mut self.pools[model];
        if (pool.standing, pool.saturation) == (standing, saturation) {
            return;
        }
        let has_grown = pool.saturation.capacity != saturation.capacity;
        pool.standing = standing;
        pool.saturation = saturation;
        if self.ceilings.follow_demand() {
            pool.demand.filled(self.now, saturation.share().unwrap_or(Share::NOTHING));
        }
        if has_grown && self.ceilings.follow_demand() {
            self.lay_ceilings(requests, model);
        } else {
            self.update(requests, model);
        }
    }

    fn best(&self, _slot_free: bool) -> Option<Candidate> {
        let (_, model, standing) = self.board.best()?;
        let (slot, _) = self.pools[model].best?;
        Some(Candidate { slot, model, standing })
    }

    fn head(&self, model: ModelIx) -> Option<Slot> {
        self.pools[model].best.map(|(slot, _)| slot)
    }

    fn set_aside(&mut self, requests: &Requests, model: ModelIx) {
        self.pools[model].is_aside = true;
        self.aside.push(model);
        self.update(requests, model);
    }

    fn set_aside_class(&mut self, class: usize) {
        self.board.set_aside_class(class);
    }

    fn end_round(&mut self, requests: &Requests) {
        while let Some(model) = self.aside.pop() {
            self.pools[model].is_aside = false;
            self.update(requests, model);
        }
        self.board.end_round();
    }

    #[expect(clippy::cast_precision_loss, reason = "for people; the order is decided in integers")]
    fn terms(&self, requests: &Requests, slot: Slot, now: Timestamp) -> Terms {
        let entry = &requests[slot];
        let oldest = self.pools[entry.model].oldest(entry.priority).unwrap_or(now);
        let waited = now.since(oldest).as_micros() as f64;
        let aging = self.micros_per_point.map_or(0.0, |micros| waited / micros as f64);
        Terms { model_priority: 0, affinity: 0, aging }
    }

    fn passed_by(&self, requests: &Requests, candidate: Candidate) -> Passed {
        let mut passed = Passed::default();
        if let (Some((own, _, Standing::Ready)), Some(other)) = (self.board.best(), self.board.best_unloaded())
            && *other > own.without_affinity()
        {
            passed.by_affinity = Some(other.arrival.0);
        }
        if self.micros_per_point.is_some() {
            // As far as requests for the same model go.
            let highest = self.pools[candidate.model].lanes.last_key_value();
            let first = highest.and_then(|(_, lane)| lane.turns.first());
            let ageless = first.and_then(|(.., ix)| self.queues[ix as usize].head());
            passed.by_aging = ageless.filter(|&other| other != candidate.slot).map(|slot| requests[slot].id);
        }
        passed
    }

    fn advance(&mut self, requests: &mut Requests, now: Timestamp) {
        self.now = now;
        while let Some(&(at, ix)) = self.too_late.first()
            && at <= now
        {
            self.queues[ix as usize].give_up_first(requests);
            self.watch(ix);
            self.update(requests, self.queues[ix as usize].model);
        }
        while let Some(&(at, model)) = self.paced.first()
            && at <= now
        {
            self.paced.pop_first();
            self.pools[model].looks_again = false;
            self.update(requests, model);
        }
        if self.ceilings.follow_demand() && now >= self.next_window {
            self.next_window = now + Demand::WINDOW;
            for model in 0..self.pools.len() {
                if self.pools[model].demand.roll(now) && !self.pools[model].lanes.is_empty() {
                    self.lay_ceilings(requests, model);
                }
            }
        }
        let timeout = u64::try_from(self.settings.idle_timeout.as_micros()).unwrap_or(u64::MAX);
        if let Some(then) = now.0.checked_sub(timeout) {
            self.flows.forget(Timestamp(then));
        }
    }

    fn deadline(&self) -> Option<Timestamp> {
        self.paced.first().map(|&(at, _)| at)
    }

    fn charge(&self, requests: &Requests, slot: Slot) -> Charge {
        let entry = &requests[slot];
        let flow = self.queues[entry.queue as usize].flow;
        let output = estimate::output(self.flows.get(flow).usual, self.pools[entry.model].usual, entry.max_tokens);
        Charge { payer: NonZeroU32::new(flow + 1), output, tokens: u64::from(entry.prompt_tokens) + u64::from(output) }
    }

    fn dispatched(&mut self, requests: &mut Requests, slot: Slot, charge: Charge) {
        let (model, prompt) = (requests[slot].model, requests[slot].prompt_tokens.into());
        let flow = self.queues[requests[slot].queue as usize].flow;
        let pool = &mut self.pools[model];
        if self.ceilings.follow_demand() {
            pool.keep_pace(self.now);
        }
        self.take(requests, slot, true);
        let state = self.flows.get_mut(flow);
        state.running += 1;
        let (level, weight, tag) = (state.level, state.weight, state.tag);
        let fairness = self.fairness(level);
        if fairness.window().is_some() {
            let cost = fairness.cost(Tokens { prompt, output: charge.output.into() }, weight);
            let clock = &mut self.flows.levels[level].clock;
            let least = if self.is_shared[model] { clock.saturating_sub(cost * MOST_OWED) } else { 0 };
            let start = tag.max(least);
            *clock = start.max(*clock);
            self.shift(requests, flow, start + cost, model);
        }
        self.update(requests, model);
    }

    fn finished(&mut self, requests: &Requests, entry: &Entry, charge: Charge, usage: Usage) {
        let pool = &mut self.pools[entry.model];
        if self.ceilings.follow_demand() {
            pool.demand.departed();
        }
        if let Some(lead) = usage.first_token {
            pool.lead.note(lead);
        }
        if let Some(output) = usage.completion_tokens {
            pool.usual.note(output);
        }
        let Some(payer) = charge.payer else { return };
        let flow = payer.get() - 1;
        let state = self.flows.get_mut(flow);
        state.running -= 1;
        if let Some(output) = usage.completion_tokens {
            state.usual.note(output);
        }
        let (level, weight, tag) = (state.level, state.weight, state.tag);
        if usage.prompt_tokens.is_some() || usage.completion_tokens.is_some() {
            let prompt = entry.prompt_tokens.into();
            let expected = Tokens { prompt, output: charge.output.into() };
            let prompt = usage.prompt_tokens.unwrap_or(prompt);
            let used = Tokens { prompt, output: usage.completion_tokens.unwrap_or(0) };
            let fairness = self.fairness(level);
            let (expected, used) = (fairness.cost(expected, weight), fairness.cost(used, weight));
            if used != expected {
                self.shift(requests, flow, (tag + used).saturating_sub(expected), ModelIx::MAX);
            }
        }
        self.rest(flow);
    }

    fn is_held(&self, model: ModelIx) -> bool {
        self.pools[model].is_held
    }

    fn is_saturated(&self, model: ModelIx, priority: Priority) -> bool {
        let pool = &self.pools[model];
        let ceiling = self.ceilings.of(priority, &pool.demand, pool.saturation);
        pool.saturation.reaches(ceiling) || (pool.saturation.capacity > 0 && pool.standing != Standing::Ready)
    }

    fn account(&self, requests: &Requests, slot: Slot, charge: Charge) -> Option<FlowDecision> {
        let entry = &requests[slot];
        let state = self.flows.get(self.queues[entry.queue as usize].flow);
        let level = &self.flows.levels[state.level];
        let fairness = self.fairness(state.level);
        let pool = &self.pools[entry.model];
        Some(FlowDecision {
            fairness: level.fairness,
            ahead: fairness.say(i64::try_from(state.tag.wrapping_sub(level.clock).cast_signed()).unwrap_or(i64::MAX)),
            expected_tokens: charge.output.into(),
            saturation: pool.saturation.share().map(Share::as_f64),
            ceiling: pool.lanes.get(&entry.priority).map_or(Share::WHOLE, |lane| lane.ceiling).as_f64(),
        })
    }

    fn levels(&self, model: ModelIx) -> Vec<LevelView> {
        let lanes = self.pools[model].lanes.iter().rev();
        lanes
            .map(|(&priority, lane)| LevelView { priority, waiting: lane.waiting, ceiling: lane.ceiling.as_f64() })
            .collect()
    }

    fn held(&self, model: ModelIx) -> [u64; 3] {
        self.pools[model].held
    }

    fn into_flow(self: Box<Self>) -> Option<Box<Self>> {
        Some(self)
    }

    fn inherit(&mut self, before: Box<dyn Policy>) -> Payers {
        before.into_flow().map(|before| self.take_over(*before)).unwrap_or_default()
    }

    fn remembered(&self) -> (usize, usize) {
        self.flows.count()
    }
}
