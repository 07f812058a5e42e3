//! What outlives a change of settings: what is known of tenants and models, and how much each tenant has had.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use super::Flow;
use crate::{FairnessSettings, policy::Payers};

impl Flow {
    /// Takes over from a policy with other settings. Nobody waits in this one yet; who waited in the other is queued anew.
    ///
    /// Answers' usual lengths go on whatever changed, and so do turns where they still mean the same: at levels of the same
    /// fairness, among models that were in each other's way before.
    pub(super) fn take_over(&mut self, before: Self) -> Payers {
        let mut origin: BTreeMap<usize, Option<usize>> = BTreeMap::new();
        for (pool, old) in self.pools.iter().zip(&before.pools) {
            match origin.entry(pool.domain) {
                Entry::Vacant(entry) => _ = entry.insert(Some(old.domain)),
                Entry::Occupied(mut entry) if *entry.get() != Some(old.domain) => _ = entry.insert(None),
                Entry::Occupied(_) => {}
            }
        }
        let mut domains: BTreeMap<usize, usize> = BTreeMap::new();
        for (new, old) in origin {
            if let Some(old) = old {
                domains.entry(old).or_insert(new);
            }
        }
        let same_tokens = (self.settings.prompt_weight, self.settings.completion_weight)
            == (before.settings.prompt_weight, before.settings.completion_weight);
        (self.now, self.next_window) = (before.now, before.next_window);
        let mut payers = Payers::default();
        let mut known = BTreeSet::new();
        for (number, old) in before.flows.iter() {
            let old_level = &before.flows.levels[old.level];
            let Some(&domain) = domains.get(&old_level.domain) else { continue };
            let settings = self.settings.levels.get(&old_level.priority).unwrap_or(&self.settings.template);
            let means_the_same = settings.fairness == old_level.fairness
                && (same_tokens || settings.fairness != FairnessSettings::Weighted);
            let level = self.flows.level(domain, old_level.priority, settings);
            let fairness = self.fairness.get(settings.fairness);
            let tenant = fairness.payer(old.tenant());
            let flow = self.flows.flow(level, tenant, || fairness.weight(tenant));
            let state = self.flows.get_mut(flow);
            state.usual = old.usual;
            state.running += old.running;
            if means_the_same {
                state.tag = old.tag;
                self.flows.levels[level].clock = old_level.clock;
            }
            payers.insert(number, flow);
            known.insert(flow);
        }
        for flow in known {
            self.rest(flow);
        }
        for (pool, old) in self.pools.iter_mut().zip(before.pools) {
            (pool.usual, pool.lead, pool.held, pool.demand) = (old.usual, old.lead, old.held, old.demand);
        }
        payers
    }
}
