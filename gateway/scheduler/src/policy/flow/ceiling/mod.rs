//! How much of a model's capacity is kept from the less urgent levels.
//!
//! Another policy is another file here and a line in [`build`].

mod adaptive;
mod demand;
mod fixed;
mod holdback;
mod ladder;

use std::{collections::BTreeMap, fmt, time::Duration};

pub(super) use demand::Demand;

use crate::{
    CeilingSettings, FlowSettings, Priority,
    detector::{Saturation, Share},
};

/// The saturation at which a level stops.
pub(super) trait Ceiling: fmt::Debug + Send + Sync {
    /// For one model, of which so much is asked, and whose replicas are so full.
    fn of(&self, level: Priority, demand: &Demand, saturation: Saturation) -> Share;

    /// How fast a level with this ceiling may take places, if it may not take all at once.
    fn pace(&self, _level: Priority, _ceiling: Share, _demand: &Demand, _saturation: Saturation) -> Option<Pace> {
        None
    }

    /// Whether it looks at the demand.
    fn follows_demand(&self) -> bool {
        false
    }
}

/// A limit on how fast places are taken, that a level keeps to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// The time between two, whoever takes them.
    pub(super) interval: Duration,
    /// The saturation from which on it holds.
    pub(super) from: Share,
}

fn build(settings: &FlowSettings) -> Box<dyn Ceiling> {
    let configured = || settings.levels.keys().copied();
    match settings.ceilings {
        CeilingSettings::Fixed(ceiling) => Box::new(fixed::Fixed::new(ceiling)),
        CeilingSettings::Holdback { least, greatest, by } => {
            Box::new(holdback::Holdback::new(configured(), least, greatest, by))
        }
        CeilingSettings::Adaptive { least, greatest } => {
            Box::new(adaptive::Adaptive::new(configured(), least, greatest))
        }
    }
}

/// The ceilings of all levels: their own, or what the policy says; never above that of a more urgent level.
#[derive(Debug)]
pub(super) struct Ceilings {
    policy: Box<dyn Ceiling>,
    template: Option<Share>,
    own: BTreeMap<Priority, Option<Share>>,
}

impl Ceilings {
    pub(super) fn new(settings: &FlowSettings) -> Self {
        Self {
            policy: build(settings),
            template: settings.template.ceiling.map(Share::new),
            own: settings.levels.iter().map(|(&level, settings)| (level, settings.ceiling.map(Share::new))).collect(),
        }
    }

    pub(super) fn follow_demand(&self) -> bool {
        self.policy.follows_demand()
    }

    pub(super) fn pace(&self, level: Priority, ceiling: Share, demand: &Demand, full: Saturation) -> Option<Pace> {
        self.policy.pace(level, ceiling, demand, full)
    }

    pub(super) fn of(&self, level: Priority, demand: &Demand, saturation: Saturation) -> Share {
        let own = self.own.get(&level).copied().unwrap_or(self.template);
        let above = self.own.range(level..).filter_map(|(_, &ceiling)| ceiling).min();
        let ceiling = own.unwrap_or_else(|| self.policy.of(level, demand, saturation));
        above.map_or(ceiling, |above| above.min(ceiling))
    }
}
