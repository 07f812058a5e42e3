//! Looks at a replica's own metrics, again and again.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use switchyard_scheduler::Load;
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval, sleep, timeout},
};

use super::{
    client::{Client, Fault, Kept},
    dialect::{self, Report},
    suspicion::Suspicions,
};
use crate::config::{Look, Looks, Model};

/// The longest that one look may take. A sample that comes late is still one.
const TIMEOUT: Duration = Duration::from_secs(2);
/// From the decision that a request goes to a replica until the replica knows of it, generously.
const TRANSIT: Duration = Duration::from_millis(5);
/// A vLLM with many adapters has some hundred kilobytes.
const MAX_BYTES: usize = 4 << 20;
/// How a compressed body begins.
const GZIP: &[u8] = b"\x1f\x8b";

/// What a replica said of its own work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Now.
    pub load: Load,
    /// Whether it told what runs.
    pub has_running: bool,
    /// Requests that it had to interrupt for want of memory, since it was started.
    pub preemptions: Option<u64>,
}

/// Looks at one replica as long as it is ready.
pub(super) struct Lookout<'a> {
    pub(super) model: &'a Model,
    pub(super) index: u32,
    pub(super) looks: watch::Receiver<Looks>,
    /// Counts the requests that the replica is sent.
    pub(super) sent: &'a AtomicU64,
    pub(super) suspicions: &'a Suspicions,
}

impl Lookout<'_> {
    /// Tells `tell` every sample, with the count of requests before it was asked for. Never ends.
    pub(super) async fn watch(mut self, mut tell: impl FnMut(Option<Sample>, u64)) -> Infallible {
        let mut scraper = Scraper::of(self.model);
        let mut is_blind = false;
        loop {
            let look = self.looks.borrow_and_update().get(&self.model.id).copied();
            let Some(Look { every, is_needed }) = look else {
                self.changed().await;
                continue;
            };
            let mut ticks = interval(every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = self.changed() => break,
                }
                // What has just been sent is still on its way.
                let sent = self.sent.load(Ordering::Relaxed);
                sleep(TRANSIT).await;
                let sample = scraper.sample().await;
                if let Err(fault) = &sample
                    && (fault.is_refusal() || fault.is_breach())
                {
                    self.suspicions.raise(None);
                }
                self.report(&sample, &mut is_blind, is_needed);
                tell(sample.ok(), sent);
            }
        }
    }

    async fn changed(&mut self) {
        if self.looks.changed().await.is_err() {
            // Nobody is left who could change it.
            std::future::pending::<()>().await;
        }
    }

    /// Says so when sight is lost, and when it is back.
    fn report(&self, sample: &Result<Sample, Fault>, is_blind: &mut bool, is_needed: bool) {
        let was_blind = std::mem::replace(is_blind, sample.is_err());
        let (model, replica) = (self.model.id.as_str(), self.index);
        match sample {
            Err(problem) if !was_blind && is_needed => {
                tracing::warn!(model, replica, %problem, "cannot read its metrics; it counts as full until they are back");
            }
            Err(problem) if !was_blind => tracing::debug!(model, replica, %problem, "cannot read its metrics"),
            Ok(_) if was_blind && is_needed => tracing::info!(model, replica, "its metrics are back"),
            _ => {}
        }
    }
}

/// Where a replica says it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Source {
    /// Not known yet.
    Any,
    Metrics,
    /// At `/metrics`, and `/slots` for what is missing there.
    Both,
    Slots,
}

/// Looks at one replica's metrics.
pub(super) struct Scraper {
    client: Client,
    /// Its name is looked up again only after something went wrong.
    address: Option<SocketAddr>,
    source: Source,
    connection: Option<Kept>,
    body: Vec<u8>,
}

impl Scraper {
    pub(super) fn of(model: &Model) -> Self {
        Self {
            client: Client::of(model, TIMEOUT),
            address: None,
            source: Source::Any,
            connection: None,
            body: Vec::new(),
        }
    }

    /// One look.
    pub(super) async fn sample(&mut self) -> Result<Sample, Fault> {
        let looked = match timeout(TIMEOUT, self.look()).await {
            Ok(looked) => looked,
            Err(_) => Err(Fault::new(format!("no answer within {} s", TIMEOUT.as_secs()))),
        };
        if looked.is_err() {
            self.address = None;
            self.source = Source::Any;
        }
        looked
    }

    async fn look(&mut self) -> Result<Sample, Fault> {
        let addresses = match self.address {
            Some(address) => vec![address],
            None => self.client.addresses().await?,
        };
        let mut fault = Fault::new("its name has no address");
        for address in addresses {
            match self.look_at(address).await {
                Ok(sample) => {
                    self.address = Some(address);
                    return Ok(sample);
                }
                Err(error) => fault = error,
            }
        }
        Err(fault)
    }

    async fn look_at(&mut self, address: SocketAddr) -> Result<Sample, Fault> {
        let mut at_metrics = String::new();
        if self.source != Source::Slots {
            match self.metrics(address).await? {
                Ok(report) => return self.complete(address, report).await,
                Err(instead) => at_metrics = instead,
            }
        }
        match self.slots(address).await? {
            Some(load) => {
                self.source = Source::Slots;
                Ok(Sample { load, has_running: true, preemptions: None })
            }
            None => Err(Fault::new(format!(
                "GET /metrics has {at_metrics}, and GET /slots no slots; vLLM, SGLang, TensorRT-LLM, TGI and llama-server \
                 are understood"
            ))),
        }
    }

    /// What is there instead is the inner error.
    async fn metrics(&mut self, address: SocketAddr) -> Result<Result<Report, String>, Fault> {
        match self.client.get(address, "/metrics", &mut self.connection, MAX_BYTES, &mut self.body).await? {
            200 if self.body.starts_with(GZIP) => Ok(Err("a gzip body, which nobody asked for".to_owned())),
            200 => Ok(dialect::metrics(&self.body).ok_or_else(|| "no metrics of a known name".to_owned())),
            status => Ok(Err(format!("status {status}"))),
        }
    }

    async fn slots(&mut self, address: SocketAddr) -> Result<Option<Load>, Fault> {
        let status = self.client.get(address, "/slots", &mut self.connection, MAX_BYTES, &mut self.body).await?;
        Ok(dialect::slots(&self.body).filter(|_| status == 200))
    }

    /// Adds what llama-server says elsewhere.
    async fn complete(&mut self, address: SocketAddr, report: Report) -> Result<Sample, Fault> {
        let Report { mut load, has_running, preemptions, has_slots } = report;
        let wants_slots = has_slots && load.kv_cache.is_none() && self.source != Source::Metrics;
        let slots = if wants_slots { self.slots(address).await? } else { None };
        self.source = if slots.is_some() { Source::Both } else { Source::Metrics };
        load.kv_cache = load.kv_cache.or(slots.and_then(|slots| slots.kv_cache));
        Ok(Sample { load, has_running, preemptions })
    }
}
