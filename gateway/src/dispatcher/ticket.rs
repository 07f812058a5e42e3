//! A place in the queue, and the right to run that it turns into. Both give themselves back when dropped.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use switchyard_scheduler::{Decision, Generation, Outcome, ReplicaId, RequestId, Timestamp, Usage};
use tokio::sync::{oneshot, watch};

use super::{Place, Refusal, Shared};
use crate::{backend::Failure, config::Model};

/// What the scheduler decided about a request. Plain data: giving back what it stands for is its holder's duty.
pub(super) enum Answer {
    Go(Passage),
    No(Refusal),
}

pub(super) struct Passage {
    pub(super) replica: ReplicaId,
    pub(super) generation: Generation,
    pub(super) model: Arc<Model>,
    pub(super) arrived: Timestamp,
    pub(super) decision: Decision,
    pub(super) failure: watch::Receiver<Option<Failure>>,
    pub(super) running: Running,
}

/// Counts a request among those of its replica until it is dropped.
pub(super) struct Running(Arc<AtomicU64>);

impl Running {
    pub(super) fn begin(count: &Arc<AtomicU64>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A place in the queue: resolves to a [`Slot`] or a [`Refusal`]. Dropping it leaves the queue.
#[must_use = "dropping a ticket takes its request out of the queue"]
pub struct Ticket {
    shared: Arc<Shared>,
    seq: RequestId,
    state: State,
}

enum State {
    Answered(Box<Answer>),
    Waiting(oneshot::Receiver<Answer>),
    Over,
}

impl Ticket {
    pub(super) fn answered(shared: Arc<Shared>, seq: RequestId, answer: Answer) -> Self {
        Self { shared, seq, state: State::Answered(Box::new(answer)) }
    }

    pub(super) fn waiting(shared: Arc<Shared>, seq: RequestId, answer: oneshot::Receiver<Answer>) -> Self {
        Self { shared, seq, state: State::Waiting(answer) }
    }

    /// The request's number.
    #[must_use]
    pub fn seq(&self) -> RequestId {
        self.seq
    }
}

impl Future for Ticket {
    type Output = Result<Slot, Refusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = match std::mem::replace(&mut self.state, State::Over) {
            State::Answered(answer) => *answer,
            State::Waiting(mut receiver) => match Pin::new(&mut receiver).poll(cx) {
                Poll::Ready(Ok(answer)) => answer,
                // The sender only goes without an answer when the whole dispatcher does.
                Poll::Ready(Err(_)) => {
                    Answer::No(Refusal::new(self.seq, Outcome::Shutdown, Duration::ZERO, None, None, None))
                }
                Poll::Pending => {
                    self.state = State::Waiting(receiver);
                    return Poll::Pending;
                }
            },
            State::Over => return Poll::Pending,
        };
        Poll::Ready(match answer {
            Answer::Go(Passage { replica, generation, model, arrived, decision, failure, running }) => Ok(Slot {
                seq: self.seq,
                model,
                replica,
                generation,
                arrived,
                decision,
                shared: Arc::clone(&self.shared),
                failure,
                usage: Usage::default(),
                _running: running,
            }),
            Answer::No(refusal) => Err(refusal),
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // A refused request is unknown to the scheduler by now, which ignores this.
        if !matches!(self.state, State::Over) {
            self.shared.leave(self.seq);
        }
    }
}

/// The right to run one request on one replica. Dropping it gives the slot back.
#[must_use = "dropping a slot gives it back"]
pub struct Slot {
    /// The request's number.
    pub seq: RequestId,
    /// The model, as configured when its replica was loaded.
    pub model: Arc<Model>,
    /// The replica to run on.
    pub replica: ReplicaId,
    /// Of which load.
    pub generation: Generation,
    /// Why this request, and why now.
    pub decision: Decision,
    arrived: Timestamp,
    shared: Arc<Shared>,
    failure: watch::Receiver<Option<Failure>>,
    usage: Usage,
    _running: Running,
}

impl Slot {
    /// The place in the queue that it had, for a request that has to come back.
    #[must_use]
    pub fn place(&self) -> Place {
        Place { seq: self.seq, arrived: self.arrived }
    }

    /// Says what the request used; reported when the slot is given back.
    pub fn set_usage(&mut self, usage: Usage) {
        self.usage = usage;
    }

    /// Resolves when the replica went away under the request, with the reason. Cancel safe, and independent of the
    /// slot.
    pub fn failure(&self) -> impl Future<Output = Failure> + Send + use<> {
        let mut failure = self.failure.clone();
        async move {
            let seen = failure.wait_for(Option::is_some).await.ok().and_then(|failure| failure.clone());
            // Only a replica that has been loaded anew since loses its sender without a word.
            seen.unwrap_or_else(|| Failure { message: "the model server was replaced".into() })
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.shared.finish(self.seq, self.usage);
    }
}
