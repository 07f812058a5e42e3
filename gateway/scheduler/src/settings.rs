//! Everything that steers the scheduler. The shell builds it from the configuration file.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{ModelId, Priority, TenantId};

/// The whole of the scheduler's settings; replaced as one by [`crate::Event::Reconfigure`].
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Settings {
    /// In which order waiting requests go.
    pub policy: PolicySettings,
    /// How many may wait, and for how long.
    pub admission: AdmissionSettings,
    /// Which models have to leave before another can be loaded.
    pub eviction: EvictionSettings,
    /// The pause after a failed load.
    pub backoff: BackoffSettings,
    /// The models, by number.
    pub models: BTreeMap<ModelId, ModelSettings>,
}

/// The dispatch order.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum PolicySettings {
    /// One job at a time: priority + bounded swap affinity + unbounded aging.
    Serial(SerialSettings),
    /// Concurrent: the model's priority plus the caller's, then arrival.
    Fifo(FifoSettings),
    /// Concurrent: by levels of priority, fair among the tenants of a level, as far as the servers are not saturated.
    Flow(FlowSettings),
}

impl Default for PolicySettings {
    fn default() -> Self {
        Self::Fifo(FifoSettings::default())
    }
}

/// Settings of [`PolicySettings::Serial`].
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SerialSettings {
    /// Points for a request whose model is ready now: 0 (off) to 99. A request near the upper end of its band gets only
    /// what is left up to there, so that the bonus never crosses a band.
    pub swap_affinity_bonus: u32,
    /// A waiting request gains one point each time this many seconds pass; 0 turns aging off.
    pub aging_divisor: u32,
    /// How many jobs run at once; at least 1. A request that a model is being loaded for holds one, and so does one
    /// that waits for room: what the best request waits for, nobody less urgent uses up meanwhile.
    pub slots: u32,
}

impl Default for SerialSettings {
    fn default() -> Self {
        Self { swap_affinity_bonus: 10, aging_divisor: 60, slots: 1 }
    }
}

/// Settings of [`PolicySettings::Fifo`].
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FifoSettings {
    /// Points added to every request for a model; absent is 0.
    pub model_priority: BTreeMap<ModelId, i64>,
}

/// Settings of [`PolicySettings::Flow`].
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FlowSettings {
    /// Levels of priority with settings of their own.
    pub levels: BTreeMap<Priority, LevelSettings>,
    /// What every other level is like.
    pub template: LevelSettings,
    /// How much of the servers' capacity is kept from the less urgent levels, where a level does not say so itself.
    pub ceilings: CeilingSettings,
    /// A level gains one point each time its oldest request has waited this many seconds more; 0 turns aging off.
    pub aging_divisor: u32,
    /// Among tenants that are equally due, one goes first whose request needs no swap.
    pub swap_affinity: bool,
    /// The shares of tenants (`weighted`), at least 1 each; 1 where absent.
    pub weights: BTreeMap<TenantId, u32>,
    /// What a token in costs (`weighted`).
    pub prompt_weight: u32,
    /// What a token out costs (`weighted`).
    pub completion_weight: u32,
    /// What is known of a tenant is forgotten after this long without a request.
    pub idle_timeout: Duration,
}

impl Default for FlowSettings {
    fn default() -> Self {
        Self {
            levels: BTreeMap::new(),
            template: LevelSettings::default(),
            ceilings: CeilingSettings::default(),
            aging_divisor: 0,
            swap_affinity: true,
            weights: BTreeMap::new(),
            prompt_weight: 1,
            completion_weight: 2,
            idle_timeout: Duration::from_secs(300),
        }
    }
}

/// What one level of priority is like (`flow`).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LevelSettings {
    /// Which tenant is next.
    pub fairness: FairnessSettings,
    /// Which of that tenant's requests.
    pub ordering: OrderingSettings,
    /// The saturation of a model's servers, 0 to 1, from which on none of the level is dispatched to them; none for what
    /// [`FlowSettings::ceilings`] says. A level's own ceiling holds for all below it, too. Above 0.
    pub ceiling: Option<f64>,
}

/// How the tenants of one level share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum FairnessSettings {
    /// Not at all: the best request of the level goes, whosesoever it is.
    #[default]
    GlobalStrict,
    /// One request each in turn.
    RoundRobin,
    /// By tokens used over the tenant's weight: start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996).
    Weighted,
}

/// In which order requests of one tenant and level go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum OrderingSettings {
    /// By arrival.
    #[default]
    Fcfs,
    /// The one whose ttl ends first; those without one by arrival, after the others.
    Edf,
    /// The one whose first token is due first; those without a goal by arrival, after the others.
    SloDeadline,
}

/// The ceilings of levels that have none of their own.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum CeilingSettings {
    /// The same for all.
    Fixed(f64),
    /// From `least` for the lowest level to `greatest` for the highest, linear in between.
    Holdback {
        /// Of the lowest level.
        least: f64,
        /// Of the highest level.
        greatest: f64,
        /// What is linear.
        by: HoldbackScale,
    },
    /// Keeps as much free as the higher levels are likely to need before the next place becomes free, by how fast their
    /// requests came and how fast requests ended lately; never more than `Holdback` would, and nothing while they are idle.
    /// Above the ceiling of `Holdback`, lower levels take places evenly, as often as places turn over.
    Adaptive {
        /// Of the lowest level, at the least.
        least: f64,
        /// Of the highest level, and of every level while the higher ones are idle.
        greatest: f64,
    },
}

impl Default for CeilingSettings {
    fn default() -> Self {
        Self::Fixed(1.0)
    }
}

/// What [`CeilingSettings::Holdback`] is linear in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum HoldbackScale {
    /// The level's place among those that are configured; one that is not has the place of the next below. Where none is
    /// configured, the places are those of `batch`, `normal` and `interactive`.
    #[default]
    Rank,
    /// The level's priority.
    Value,
}

/// Bounds on what waits. A request that goes at once never counts. An arrival that would exceed a bound displaces the
/// newest of the least urgent sheddable requests that are less urgent than itself, as many as it needs; if they are too
/// few, it is refused and they stay. Only the lowest band is sheddable: at the bound of another band, the arrival is
/// refused.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AdmissionSettings {
    /// Bounds over all bands together.
    pub total: Bounds,
    /// Bounds of each band, by [`crate::Band::index`].
    pub bands: [BandSettings; 3],
    /// Bounds of single levels of priority, within those of their bands. A level's own ttl counts in place of its band's.
    #[cfg_attr(feature = "serde", serde(default))]
    pub levels: BTreeMap<Priority, BandSettings>,
    /// Sheddable arrivals are refused at once while the servers of their model are saturated for them (`flow`).
    #[cfg_attr(feature = "serde", serde(default))]
    pub shed_when_saturated: bool,
}

/// Finite on purpose: 10,000 waiting requests and 1 GiB of waiting bodies.
impl Default for AdmissionSettings {
    fn default() -> Self {
        let total = Bounds { requests: 10_000, bytes: 1 << 30 };
        Self {
            total,
            bands: [BandSettings { bounds: total, ttl: None }; 3],
            levels: BTreeMap::new(),
            shed_when_saturated: false,
        }
    }
}

/// How much may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Bounds {
    /// Waiting requests.
    pub requests: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
}

/// Admission settings of one band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BandSettings {
    /// Bounds of this band alone.
    pub bounds: Bounds,
    /// The longest a request may wait; a request can ask for less, never for more.
    pub ttl: Option<Duration>,
}

/// Which replicas have to leave before another can be loaded.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum EvictionSettings {
    /// llama-swap's groups. A model in no group belongs to one implicit group with `swap` and `exclusive`.
    Groups(Vec<GroupSettings>),
    /// llama-swap's matrix. A model in no set runs alone.
    Matrix(MatrixSettings),
}

impl Default for EvictionSettings {
    fn default() -> Self {
        Self::Groups(Vec::new())
    }
}

/// One of llama-swap's groups.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct GroupSettings {
    /// Only one member runs at a time.
    pub swap: bool,
    /// Loading a member unloads every other group that is not persistent.
    pub exclusive: bool,
    /// Other groups never unload this one.
    pub persistent: bool,
    /// The members.
    pub members: Vec<ModelId>,
}

/// Sets of models that may be in memory together, as may any part of a set.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MatrixSettings {
    /// The sets. To load a model, the models outside one of its sets are unloaded: of the set for which that costs
    /// least, and of the first among equals.
    pub sets: Vec<Vec<ModelId>>,
    /// What it costs to unload a model; 1 where absent.
    pub costs: BTreeMap<ModelId, u32>,
}

/// The pause between a failed load, or a crash, and the next try: doubles from `initial` to `max`, and starts
/// anew after a load that succeeded and a request that was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BackoffSettings {
    /// After the first failure.
    pub initial: Duration,
    /// At the most.
    pub max: Duration,
}

impl Default for BackoffSettings {
    fn default() -> Self {
        Self { initial: Duration::from_secs(1), max: Duration::from_secs(60) }
    }
}

/// What the scheduler has to know of a model.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ModelSettings {
    /// How many replicas it has; at least 1. They are numbered from 0, but for the numbers in `gaps`. Requests go to the
    /// least loaded of those that are ready; those of one session to the same, as long as that one has no more than 5/4 of
    /// the mean.
    ///
    /// Of a managed model one is loaded for the first request; each other when all that are ready are full and it fits
    /// without sending anyone away. Several replicas of a remote model are a pool: each is checked from the start, asked
    /// for or not, and again after the pause when it has failed.
    pub replicas: u32,
    /// The numbers below the greatest that no replica has: of those that have gone, while others stay and keep theirs.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "BTreeSet::is_empty"))]
    pub gaps: BTreeSet<u32>,
    /// Requests that one replica runs at once; at least 1. Bounds what runs, not what waits.
    pub concurrency: u32,
    /// Unload after this long without a request, counted from the end of the last one, or of the load. It does not run
    /// out while somebody waits for the model.
    pub ttl: Option<Duration>,
    /// Changes when the process would have to be restarted: a replica that was loaded at another revision is
    /// stopped once it is idle, and serves nothing more. So does a change of `managed`.
    pub revision: u64,
    /// Whether loading it takes room on this machine. A remote server does not: it evicts nothing, nothing evicts
    /// it, it has no ttl, and its `Load` is a health check.
    pub managed: bool,
    /// Whether a running request counts against `serial`'s slots. One that does not, goes whenever its model has a place
    /// free, unless it would keep busy what a better request needs gone.
    pub takes_slot: bool,
    /// How full its replicas are (`flow`).
    #[cfg_attr(feature = "serde", serde(default))]
    pub detector: DetectorSettings,
    /// The part of a replica's capacity by which it may be over it, while all together are below the ceiling (`flow`).
    #[cfg_attr(feature = "serde", serde(default))]
    pub headroom: f64,
}

/// What tells how full a model's ready replicas are: 0 empty, 1 full (`flow`). While none is ready, no ceiling holds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum DetectorSettings {
    /// What runs over [`ModelSettings::concurrency`].
    #[default]
    Slots,
    /// What runs over what may run, in all replicas together.
    Concurrency {
        /// Requests that one replica takes.
        requests: u32,
    },
    /// Tokens of what runs (prompts, and answers as estimated) over those that may run, in all replicas together.
    Tokens {
        /// Tokens that one replica takes.
        tokens: u64,
    },
    /// What the replicas say of themselves in [`crate::Event::Sample`], with what was dispatched since: the mean over
    /// them of the greater of waiting over `queue_depth` and KV use over `kv_cache`, at most 1 each. One whose sample is
    /// missing or older than `staleness` counts as full, and gets nothing while another has room.
    Utilization {
        /// Requests in a replica's own queue that make it full; at least 1.
        queue_depth: u32,
        /// The use of its KV cache that makes it full, above 0.
        kv_cache: f64,
        /// How long a sample is good for.
        staleness: Duration,
    },
}

impl ModelSettings {
    /// The numbers of its replicas end below this one.
    pub(crate) fn end(&self) -> u64 {
        u64::from(self.replicas.max(1)) + self.gaps.len() as u64
    }

    /// Whether it has a replica of this number.
    #[must_use]
    pub fn has_replica(&self, index: u32) -> bool {
        u64::from(index) < self.end() && !self.gaps.contains(&index)
    }
}

impl Default for ModelSettings {
    fn default() -> Self {
        Self {
            replicas: 1,
            gaps: BTreeSet::new(),
            concurrency: 10,
            ttl: None,
            revision: 0,
            managed: true,
            takes_slot: true,
            detector: DetectorSettings::default(),
            headroom: 0.0,
        }
    }
}
