//! Somebody found that a replica is gone, and waits until it has been looked at.

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

/// The suspicions about one replica that nobody has looked into yet.
#[derive(Debug, Default)]
pub(super) struct Suspicions {
    raised: Notify,
    asking: Mutex<Vec<oneshot::Sender<()>>>,
}

impl Suspicions {
    pub(super) fn raise(&self, asking: Option<oneshot::Sender<()>>) {
        self.asking.lock().extend(asking);
        self.raised.notify_one();
    }

    /// Leaves them to be told later.
    pub(super) fn put_back(&self, asking: Vec<oneshot::Sender<()>>) {
        self.asking.lock().extend(asking);
    }

    /// Waits for the next.
    pub(super) async fn raised(&self) {
        self.raised.notified().await;
    }

    /// Those who are to be told that it has been looked into.
    pub(super) fn take(&self) -> Vec<oneshot::Sender<()>> {
        std::mem::take(&mut *self.asking.lock())
    }
}
