//! Slots, time and counters: what makes the server feel like one with a model behind it.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use super::{
    Options,
    fail::{self, Fail, Fails},
    plan::Plan,
};

/// Time for what was sent to leave the process, before something breaks on purpose.
const FLUSH: Duration = Duration::from_millis(20);

/// The server's state.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) options: Options,
    pub(super) fingerprint: String,
    pub(super) counters: Counters,
    ready_at: Option<Instant>,
    permits: Arc<Semaphore>,
    busy: Mutex<Vec<bool>>,
}

/// What `/metrics` shows.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) waiting: AtomicU64,
    pub(super) running: AtomicU64,
    pub(super) kv_tokens: AtomicU64,
    pub(super) answers: AtomicU64,
    pub(super) prompt_tokens: AtomicU64,
    pub(super) completion_tokens: AtomicU64,
    /// The most that ever waited, and ran, at once.
    pub(super) most_waiting: AtomicU64,
    pub(super) most_running: AtomicU64,
}

impl Engine {
    pub(super) fn new(options: Options) -> Self {
        let slots = match options.slots {
            0 => Semaphore::MAX_PERMITS,
            slots => slots as usize,
        };
        let never = Fails::new(options.fail.iter().copied()).never_healthy();
        Self {
            fingerprint: format!("demo-{}-{}", options.model, std::process::id()),
            counters: Counters::default(),
            ready_at: (!never).then(|| Instant::now() + options.load_time),
            permits: Arc::new(Semaphore::new(slots)),
            busy: Mutex::new(vec![false; options.slots as usize]),
            options,
        }
    }

    /// Whether loading is over.
    pub(super) fn is_ready(&self) -> bool {
        self.ready_at.is_some_and(|at| at <= Instant::now())
    }

    /// One entry a slot: whether it is in use.
    pub(super) fn slots(&self) -> Vec<bool> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a slot and for the prompt to be read. Dropping the future leaves the queue.
    pub(super) async fn start(self: &Arc<Self>, plan: Plan) -> Generation {
        // The semaphore is never closed; if it were, there would be no limit left to hold.
        let permit = match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => Some(permit),
            Err(_) => {
                let _waiting = Gauge::raise(self, |counters| &counters.waiting, 1);
                self.counters.most_waiting.fetch_max(self.counters.waiting.load(Relaxed), Relaxed);
                Arc::clone(&self.permits).acquire_owned().await.ok()
            }
        };
        let slot = Slot::take(self, permit, plan.prompt_tokens);
        self.counters.prompt_tokens.fetch_add(plan.prompt_tokens.into(), Relaxed);
        if plan.fails.hangs() {
            std::future::pending::<()>().await;
        }
        pause(plan.prefill).await;
        Generation { due: Instant::now(), sent: 0, plan, slot }
    }
}

/// A counter that goes back down when dropped.
#[derive(Debug)]
struct Gauge {
    engine: Arc<Engine>,
    counter: fn(&Counters) -> &AtomicU64,
    by: u64,
}

impl Gauge {
    fn raise(engine: &Arc<Engine>, counter: fn(&Counters) -> &AtomicU64, by: u64) -> Self {
        counter(&engine.counters).fetch_add(by, Relaxed);
        Self { engine: Arc::clone(engine), counter, by }
    }
}

impl Drop for Gauge {
    fn drop(&mut self) {
        (self.counter)(&self.engine.counters).fetch_sub(self.by, Relaxed);
    }
}

/// A slot in use; free again when dropped, so also when the client goes.
#[derive(Debug)]
struct Slot {
    engine: Arc<Engine>,
    number: usize,
    _permit: Option<OwnedSemaphorePermit>,
    _running: Gauge,
    kv: Gauge,
}

impl Slot {
    fn take(engine: &Arc<Engine>, permit: Option<OwnedSemaphorePermit>, prompt_tokens: u32) -> Self {
        let mut busy = engine.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let number = busy.iter().position(|busy| !busy).unwrap_or_else(|| {
            busy.push(false);
            busy.len() - 1
        });
        busy[number] = true;
        let running = Gauge::raise(engine, |counters| &counters.running, 1);
        engine.counters.most_running.fetch_max(engine.counters.running.load(Relaxed), Relaxed);
        Self {
            engine: Arc::clone(engine),
            number,
            _permit: permit,
            _running: running,
            kv: Gauge::raise(engine, |counters| &counters.kv_tokens, prompt_tokens.into()),
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.engine.busy.lock().unwrap_or_else(PoisonError::into_inner)[self.number] = false;
    }
}

/// An answer in the making, with its slot.
#[derive(Debug)]
pub(super) struct Generation {
    pub(super) plan: Plan,
    slot: Slot,
    due: Instant,
    sent: u32,
}

/// The connection is to be closed in the middle of the answer.
#[derive(Debug, thiserror::Error)]
#[error("told to cut the connection")]
pub(super) struct Cut;

impl Generation {
    /// The next token, when it is due.
    pub(super) async fn next(&mut self) -> Result<Option<&str>, Cut> {
        match self.plan.fails.after_tokens(self.sent) {
            Some(Fail::Stall(_)) => std::future::pending().await,
            Some(Fail::Cut(_)) => {
                tokio::time::sleep(FLUSH).await;
                return Err(Cut);
            }
            Some(Fail::Crash(tokens)) => {
                tokio::time::sleep(FLUSH).await;
                fail::crash(&format!("told to crash after {tokens} tokens"))
            }
            _ => {}
        }
        let Some(token) = self.plan.tokens.get(self.sent as usize) else { return Ok(None) };
        if self.sent > 0 {
            self.due += self.plan.token_time;
            if !self.plan.token_time.is_zero() {
                tokio::time::sleep_until(self.due).await;
            }
        }
        self.sent += 1;
        self.slot.kv.by += 1;
        let counters = &self.slot.engine.counters;
        counters.kv_tokens.fetch_add(1, Relaxed);
        counters.completion_tokens.fetch_add(1, Relaxed);
        Ok(Some(token))
    }

    /// All tokens that are left, when the last is due.
    pub(super) async fn rest(&mut self) -> Result<String, Cut> {
        let mut text = String::new();
        while let Some(token) = self.next().await? {
            text.push_str(token);
        }
        Ok(text)
    }

    /// The answer is complete: counts it, and gives the slot back.
    pub(super) fn finish(self) -> Plan {
        let engine = &self.slot.engine;
        let answers = engine.counters.answers.fetch_add(1, Relaxed) + 1;
        if Fails::new(engine.options.fail.iter().copied()).exit_after() == Some(answers) {
            tokio::spawn(async {
                tokio::time::sleep(FLUSH).await;
                fail::crash("told to exit after that many answers")
            });
        }
        self.plan
    }
}

async fn pause(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}
