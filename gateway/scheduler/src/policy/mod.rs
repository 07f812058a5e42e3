//! The order in which waiting requests go.
//!
//! A policy keeps the waiting requests and names the next candidate; it knows nothing of replicas beyond each model's
//! [`Standing`]. What a candidate needs (a place on a replica, a swap) and whether it gets it is the dispatcher's part.
//! Another policy is another file here and one line in [`build`].

mod board;
mod fifo;
mod flow;
mod scored;
mod serial;

use std::{collections::BTreeMap, fmt};

use crate::{
    FlowDecision, LevelView, ModelId, PolicySettings, Priority, RequestId, Timestamp, Usage,
    detector::Saturation,
    fleet::ModelIx,
    queue::{Charge, Entry, Requests, Slot},
};

/// What stands between a model's waiting requests and a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// A replica is ready and has a place free.
    Ready,
    /// A replica has to be loaded first.
    Unloaded,
    /// Nothing can be done for them now: every replica is full, loading for somebody, or paused after a failure.
    Blocked,
}

/// The request that goes next if it can.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) slot: Slot,
    pub(crate) model: ModelIx,
    pub(crate) standing: Standing,
}

/// What a request's place in the order is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) model_priority: i64,
    pub(crate) affinity: u32,
    pub(crate) aging: f64,
}

/// The requests that would have been picked in place of another.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Passed {
    pub(crate) by_aging: Option<RequestId>,
    pub(crate) by_affinity: Option<RequestId>,
}

/// What a policy knows of a model; fixed while the policy lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelTraits {
    pub(crate) id: ModelId,
    /// Whether its requests count against [`Policy::slots`].
    pub(crate) takes_slot: bool,
    /// Models of one class need the same replicas to leave; none for a model that needs nobody to leave.
    pub(crate) class: Option<usize>,
    /// Models of different domains are never in each other's way.
    pub(crate) domain: usize,
}

/// Who pays now, by who paid before; those who are not in it do not any more.
pub(crate) type Payers = BTreeMap<u32, u32>;

/// An order among waiting requests.
///
/// A *round* is a run of [`best`](Self::best) calls; each time the dispatcher either dispatches the candidate, begins
/// to load its model, or sets it aside until [`end_round`](Self::end_round).
pub(crate) trait Policy: fmt::Debug + Send + Sync {
    /// How many jobs may run at once; none for as many as the replicas take.
    fn slots(&self) -> Option<u32>;

    /// A request starts to wait.
    fn push(&mut self, requests: &mut Requests, slot: Slot);

    /// A request no longer waits.
    fn remove(&mut self, requests: &mut Requests, slot: Slot);

    /// The standing of a model changed, or how full its replicas are. Every model starts as [`Standing::Blocked`].
    fn set_standing(&mut self, requests: &Requests, model: ModelIx, standing: Standing, saturation: Saturation);

    /// The best candidate that is not set aside. Without `slot_free` only models that take no slot count.
    fn best(&self, slot_free: bool) -> Option<Candidate>;

    /// The best waiting request of one model.
    fn head(&self, model: ModelIx) -> Option<Slot>;

    /// The model is no candidate for the rest of the round.
    fn set_aside(&mut self, requests: &Requests, model: ModelIx);

    /// No unloaded model of the class is a candidate for the rest of the round.
    fn set_aside_class(&mut self, class: usize);

    /// Everybody set aside is a candidate again.
    fn end_round(&mut self, requests: &Requests);

    /// The terms of a waiting request's score, affinity as if its model were ready.
    fn terms(&self, requests: &Requests, slot: Slot, now: Timestamp) -> Terms;

    /// Who would be the best candidate in place of the one that is.
    fn passed_by(&self, requests: &Requests, candidate: Candidate) -> Passed;

    /// Time has passed.
    fn advance(&mut self, _requests: &mut Requests, _now: Timestamp) {}

    /// When time alone may make a difference.
    fn deadline(&self) -> Option<Timestamp> {
        None
    }

    /// What a waiting request is taken to need, if it goes now.
    fn charge(&self, _requests: &Requests, _slot: Slot) -> Charge {
        Charge::default()
    }

    /// A request no longer waits, for it has gone, and is charged for.
    fn dispatched(&mut self, requests: &mut Requests, slot: Slot, _charge: Charge) {
        self.remove(requests, slot);
    }

    /// A request that was dispatched has ended.
    fn finished(&mut self, _requests: &Requests, _entry: &Entry, _charge: Charge, _usage: Usage) {}

    /// Whether the best request of a model has to wait for its replicas to be less full.
    fn is_held(&self, _model: ModelIx) -> bool {
        false
    }

    /// Whether a model's replicas are so full that a request of this priority has to wait.
    fn is_saturated(&self, _model: ModelIx, _priority: Priority) -> bool {
        false
    }

    /// The account of a waiting request, as of now, and with what it would be charged.
    fn account(&self, _requests: &Requests, _slot: Slot, _charge: Charge) -> Option<FlowDecision> {
        None
    }

    /// What waits for a model, by level.
    fn levels(&self, _model: ModelIx) -> Vec<LevelView> {
        Vec::new()
    }

    /// How often requests for a model came up against their ceiling, by band.
    fn held(&self, _model: ModelIx) -> [u64; 3] {
        [0; 3]
    }

    /// Itself, if it is `flow`.
    fn into_flow(self: Box<Self>) -> Option<Box<flow::Flow>> {
        None
    }

    /// Takes over what still applies from the policy before it, while nobody waits yet. Returns who pays now for what
    /// runs.
    fn inherit(&mut self, _before: Box<dyn Policy>) -> Payers {
        Payers::default()
    }

    /// How many flows are remembered, and how many levels.
    fn remembered(&self) -> (usize, usize) {
        (0, 0)
    }
}

/// The policy that the settings ask for, with nobody waiting.
pub(crate) fn build(settings: &PolicySettings, models: &[ModelTraits]) -> Box<dyn Policy> {
    match settings {
        PolicySettings::Serial(settings) => Box::new(scored::Scored::new(serial::order(settings), models)),
        PolicySettings::Fifo(settings) => Box::new(scored::Scored::new(fifo::order(settings), models)),
        PolicySettings::Flow(settings) => Box::new(flow::Flow::new(settings, models)),
    }
}
