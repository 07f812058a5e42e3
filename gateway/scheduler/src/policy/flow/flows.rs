//! Who has requests, at which level, and what is remembered of those who have none.

use super::{
    estimate::Average,
    fairness::Tag,
    store::{Keyed, Store},
};
use crate::{FairnessSettings, LevelSettings, OrderingSettings, Priority, TenantId, Timestamp};

/// What is kept of idle flows is bounded, whatever the idle timeout is: a tenant that is forgotten before its time loses
/// what was known of its answers, and any debt, which the level's virtual time has all but caught up with by then.
const MOST_IDLE: usize = 8_192;

/// One level of priority of one domain of models.
#[derive(Debug)]
pub(super) struct Level {
    pub(super) priority: Priority,
    pub(super) domain: usize,
    pub(super) fairness: FairnessSettings,
    pub(super) ordering: OrderingSettings,
    /// The virtual time: the greatest start tag that was served.
    pub(super) clock: Tag,
    flows: usize,
}

/// One tenant at one level.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) level: u32,
    tenant: TenantId,
    pub(super) weight: u32,
    /// Where its next request starts in the level's virtual time; and when, in order of all flows, it got there.
    pub(super) tag: Tag,
    pub(super) stamp: u64,
    pub(super) waiting: u32,
    pub(super) running: u32,
    /// Tokens out of one request.
    pub(super) usual: Average,
    /// The first of its queues, one for each model that it waits for; not kept where tags say nothing.
    pub(super) queues: Option<u32>,
    /// Since when it is idle, if it is, and its neighbours among those who are.
    idle: Option<Idle>,
}

#[derive(Clone, Copy, Debug)]
struct Idle {
    since: Timestamp,
    before: Option<u32>,
    after: Option<u32>,
}

impl Flow {
    pub(super) fn tenant(&self) -> TenantId {
        self.tenant
    }
}

/// Every level and flow that is known.
#[derive(Debug, Default)]
pub(super) struct Flows {
    pub(super) levels: Store<Level>,
    flows: Store<Flow>,
    /// Those who have nothing to do: who has been idle longest, who for the shortest time, and how many they are.
    idlest: Option<u32>,
    latest: Option<u32>,
    idle: usize,
    stamps: u64,
}

impl Flows {
    /// The level of this priority, made now if it is new.
    pub(super) fn level(&mut self, domain: usize, priority: Priority, settings: &LevelSettings) -> u32 {
        let key = (domain as u64, priority.0.cast_unsigned());
        self.levels.find(key).unwrap_or_else(|| {
            let LevelSettings { fairness, ordering, .. } = *settings;
            self.levels.insert(Level { priority, domain, fairness, ordering, clock: 0, flows: 0 })
        })
    }

    /// The flow of a tenant, made now if it is new.
    pub(super) fn flow(&mut self, level: u32, tenant: TenantId, weight: impl FnOnce() -> u32) -> u32 {
        self.flows.find((level.into(), tenant.0)).unwrap_or_else(|| {
            self.levels[level].flows += 1;
            self.flows.insert(Flow {
                level,
                tenant,
                weight: weight(),
                tag: 0,
                stamp: 0,
                waiting: 0,
                running: 0,
                usual: Average::default(),
                queues: None,
                idle: None,
            })
        })
    }

    /// Every flow, by its number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Flow)> {
        self.flows.iter()
    }

    pub(super) fn get(&self, flow: u32) -> &Flow {
        &self.flows[flow]
    }

    pub(super) fn get_mut(&mut self, flow: u32) -> &mut Flow {
        &mut self.flows[flow]
    }

    /// The next in the order in which flows get where they are.
    pub(super) fn stamp(&mut self) -> u64 {
        self.stamps += 1;
        self.stamps
    }

    /// One more request of the flow waits. From idle it starts at the level's virtual time, and so gains no credit.
    pub(super) fn wait(&mut self, flow: u32) {
        let stamp = self.stamp();
        let state = &mut self.flows[flow];
        if state.waiting == 0 {
            state.tag = state.tag.max(self.levels[state.level].clock);
            state.stamp = stamp;
        }
        state.waiting += 1;
        self.wake(flow);
    }

    /// Takes a flow out of the idle ones, if it is one.
    fn wake(&mut self, flow: u32) {
        let Some(Idle { before, after, .. }) = self.flows[flow].idle.take() else { return };
        match before.and_then(|before| self.flows[before].idle.as_mut()) {
            Some(before) => before.after = after,
            None => self.idlest = after,
        }
        match after.and_then(|after| self.flows[after].idle.as_mut()) {
            Some(after) => after.before = before,
            None => self.latest = before,
        }
        self.idle -= 1;
    }

    /// The flow may have become idle.
    pub(super) fn rest(&mut self, flow: u32, now: Timestamp) {
        let state = &mut self.flows[flow];
        if state.waiting > 0 || state.running > 0 {
            return;
        }
        let before = self.latest.replace(flow);
        state.idle = Some(Idle { since: now, before, after: None });
        match before.and_then(|before| self.flows[before].idle.as_mut()) {
            Some(before) => before.after = Some(flow),
            None => self.idlest = Some(flow),
        }
        self.idle += 1;
        if self.idle > MOST_IDLE {
            self.forget_idlest();
        }
    }

    /// Forgets those who have been idle since before `then`.
    pub(super) fn forget(&mut self, then: Timestamp) {
        while let Some(flow) = self.idlest
            && self.flows[flow].idle.is_some_and(|idle| idle.since < then)
        {
            self.forget_idlest();
        }
    }

    fn forget_idlest(&mut self) {
        let Some(flow) = self.idlest else { return };
        self.wake(flow);
        let level = self.flows.remove(flow).level;
        self.levels[level].flows -= 1;
        if self.levels[level].flows == 0 {
            self.levels.remove(level);
        }
    }

    /// How many flows there are, and how many levels.
    pub(super) fn count(&self) -> (usize, usize) {
        (self.flows.len(), self.levels.len())
    }
}

impl Keyed for Level {
    fn key(&self) -> (u64, u64) {
        (self.domain as u64, self.priority.0.cast_unsigned())
    }
}

impl Keyed for Flow {
    fn key(&self) -> (u64, u64) {
        (self.level.into(), self.tenant.0)
    }
}
