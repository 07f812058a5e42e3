//! The state machine itself.

use crate::{Action, Event, Generation, ReplicaId, Settings, Timestamp};

/// Decides who goes next. See the crate's documentation for how to drive it.
#[derive(Debug)]
pub struct Scheduler {
    settings: Settings,
}

impl Scheduler {
    /// An idle scheduler: nothing waits, nothing is loaded.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings }
    }

    /// Takes in one event. `now` must not be earlier than at any call before.
    pub fn handle(&mut self, now: Timestamp, event: Event) {
        let _ = (now, event, &self.settings);
        unimplemented!()
    }

    /// The next thing to do; call until `None`.
    pub fn poll_action(&mut self) -> Option<Action> {
        unimplemented!()
    }

    /// When to call again with [`Event::Tick`], if nothing happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Timestamp> {
        unimplemented!()
    }

    /// What waits in each band, by [`crate::Band::index`].
    #[must_use]
    pub fn bands(&self) -> [BandView; 3] {
        unimplemented!()
    }

    /// Requests that run now.
    #[must_use]
    pub fn running(&self) -> u64 {
        unimplemented!()
    }

    /// Every replica that is or was loaded, in order.
    pub fn replicas(&self) -> impl Iterator<Item = ReplicaView> + '_ {
        std::iter::empty()
    }
}

/// What waits in one band.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BandView {
    /// Waiting requests.
    pub requests: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// When the one that has waited longest arrived.
    pub oldest: Option<Timestamp>,
}

/// One replica as the scheduler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaView {
    /// Which.
    pub replica: ReplicaId,
    /// Its newest load.
    pub generation: Generation,
    /// Its state.
    pub state: ReplicaState,
    /// Requests it runs.
    pub running: u32,
}

/// The state of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplicaState {
    /// Not in memory.
    Stopped,
    /// `Load` was said, `LoadDone` has not come.
    Loading,
    /// Serves.
    Ready,
    /// `Stop` was said, `StopDone` has not come.
    Stopping,
    /// A load failed or it crashed; not tried again before the time given.
    Failed {
        /// When it may be tried again.
        until: Timestamp,
    },
}
