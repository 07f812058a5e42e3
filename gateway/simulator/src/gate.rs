//! What stands between the clients and the servers.

use switchyard_scheduler::{Action, Event, Scheduler, Timestamp};

/// Whoever decides what goes next, seen from outside.
pub(crate) trait Gate {
    fn handle(&mut self, now: Timestamp, event: Event);
    fn poll_action(&mut self) -> Option<Action>;
    fn deadline(&self) -> Option<Timestamp>;
    /// What it says of itself, to be compared with what is true; `None` when it says nothing.
    fn view(&self) -> Option<View>;
}

impl<G: Gate> Gate for &mut G {
    fn handle(&mut self, now: Timestamp, event: Event) {
        (**self).handle(now, event);
    }

    fn poll_action(&mut self) -> Option<Action> {
        (**self).poll_action()
    }

    fn deadline(&self) -> Option<Timestamp> {
        (**self).deadline()
    }

    fn view(&self) -> Option<View> {
        (**self).view()
    }
}

/// A gate's own account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// Waiting requests by band.
    pub(crate) waiting: [u64; 3],
    pub(crate) running: u64,
}

impl Gate for Scheduler {
    fn handle(&mut self, now: Timestamp, event: Event) {
        self.handle(now, event);
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.poll_action()
    }

    fn deadline(&self) -> Option<Timestamp> {
        self.deadline()
    }

    fn view(&self) -> Option<View> {
        Some(View { waiting: self.bands().map(|band| band.requests), running: self.running() })
    }
}
