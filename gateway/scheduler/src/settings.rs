//! Everything that steers the scheduler. The shell builds it from the configuration file.

use std::{collections::BTreeMap, time::Duration};

use crate::ModelId;

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
}

/// Finite on purpose: 10,000 waiting requests and 1 GiB of waiting bodies.
impl Default for AdmissionSettings {
    fn default() -> Self {
        let total = Bounds { requests: 10_000, bytes: 1 << 30 };
        Self { total, bands: [BandSettings { bounds: total, ttl: None }; 3] }
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
    /// How many replicas it has; at least 1. One is loaded for the first request; each other when all that are ready are
    /// full and it fits without sending anyone away. Requests go to the one that runs the least.
    pub replicas: u32,
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
}

impl Default for ModelSettings {
    fn default() -> Self {
        Self { replicas: 1, concurrency: 10, ttl: None, revision: 0, managed: true, takes_slot: true }
    }
}
