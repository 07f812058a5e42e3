//! Draining: nobody new, let what runs finish, stop everything.

use std::time::Duration;

use super::Scheduler;
use crate::{Action, Outcome};

/// The usual time of a restart; the queue's own pace says nothing here.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(5);

/// How far a drain has come.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Drain {
    #[default]
    NotAsked,
    Begun,
    Over,
}

impl Drain {
    pub(super) fn has_begun(&self) -> bool {
        *self != Self::NotAsked
    }
}

impl Scheduler {
    pub(super) fn begin_drain(&mut self) {
        if self.drain.has_begun() {
            return;
        }
        self.drain = Drain::Begun;
        self.preloads.clear();
        for slot in self.requests.waiting() {
            self.reject(slot, Outcome::Shutdown);
        }
        // What still waits for its evictions will not be loaded.
        let swapping: Vec<_> = self.fleet.swapping().collect();
        for model in swapping {
            if self.fleet[model].is_evicting() {
                self.fleet.get_mut(model).swap = None;
            }
        }
        self.refresh_all();
    }

    /// Says so once a drain is over.
    pub(super) fn end_drain(&mut self) {
        if self.drain == Drain::Begun
            && self.running == 0
            && !self.fleet.iter().any(|model| model.replicas.iter().any(|replica| replica.is_up()))
        {
            self.drain = Drain::Over;
            self.actions.push_back(Action::Drained);
        }
    }
}
