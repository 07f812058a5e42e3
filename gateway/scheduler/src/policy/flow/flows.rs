//! Who has requests, at which level, and what is remembered of those who have none.

use std::collections::BTreeSet;

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
    /// Its queues, one for each model that it waits for; not kept where tags say nothing.
    pub(super) queues: Vec<u32>,
    /// Since when it is idle, if it is.
    idle_since: Option<Timestamp>,
}

/// Every level and flow that is known.
#[derive(Debug, Default)]
pub(super) struct Flows {
    pub(super) levels: Store<Level>,
    flows: Store<Flow>,
    idle: BTreeSet<(Timestamp, u32)>,
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
                queues: Vec::new(),
                idle_since: None,
            })
        })
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
            if let Some(since) = state.idle_since.take() {
                self.idle.remove(&(since, flow));
            }
        }
        state.waiting += 1;
    }

    /// The flow may have become idle.
    pub(super) fn rest(&mut self, flow: u32, now: Timestamp) {
        let state = &mut self.flows[flow];
        if state.waiting > 0 || state.running > 0 {
            return;
        }
        state.idle_since = Some(now);
        self.idle.insert((now, flow));
        if self.idle.len() > MOST_IDLE {
            self.forget_first();
        }
    }

    /// Forgets those who have been idle since before `then`.
    pub(super) fn forget(&mut self, then: Timestamp) {
        while self.idle.first().is_some_and(|&(since, _)| since < then) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        let Some((_, flow)) = self.idle.pop_first() else { return };
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
