//! The checked settings: what the rest of the gateway works with. Everything that could be computed once has been.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use switchyard_scheduler::{
    AdmissionSettings, BackoffSettings, DetectorSettings, EvictionSettings, FifoSettings, FlowSettings, GroupSettings,
    MatrixSettings, ModelId, ModelSettings, PolicySettings, TenantId,
};

use super::{
    identity::{Callers, Headers},
    problem::Warning,
};

/// A whole configuration that has passed every check.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to listen unless the command line says otherwise.
    pub listen: Option<SocketAddr>,
    /// The models in the order of the file, peers' models included.
    pub models: Vec<Arc<Model>>,
    /// Which models run together.
    pub eviction: Eviction,
    /// In which order requests go.
    pub scheduler: SchedulerKind,
    /// How many may wait, and for how long.
    pub admission: AdmissionSettings,
    /// The pause after a failed load.
    pub backoff: BackoffSettings,
    /// Bounds on what a client can send.
    pub limits: Limits,
    /// Names of the headers that steer.
    pub headers: Headers,
    /// The activity log.
    pub store: Store,
    /// Models to load at start, by id.
    pub preload: Vec<String>,
    /// List aliases in `GET /v1/models` as models of their own.
    pub include_aliases_in_list: bool,
    /// Who may use the gateway.
    pub callers: Callers,
    /// Paths below `/upstream/MODEL` that never load a model.
    pub ignored_paths: regex::RegexSet,
    /// Bytes of output kept of each model.
    pub log_buffer_bytes: usize,
    /// Minimum level of the gateway's own log.
    pub log_level: LogLevel,
    /// Things that are not wrong but deserve a word at start, such as a llama-swap setting without effect here, in the
    /// order of the file.
    pub warnings: Vec<Warning>,
    /// The place in `models` of every name that a request can ask for.
    pub(super) index: HashMap<String, usize>,
    /// What `${PORT}` stands for: kept over reloads, so that a new model moves nobody.
    pub(super) ports: Ports,
}

/// Ports by model and replica.
pub(super) type Ports = BTreeMap<(String, u32), u16>;

impl Settings {
    /// These models and the defaults for the rest.
    #[must_use]
    pub fn new(models: Vec<Arc<Model>>) -> Self {
        let mut index = HashMap::new();
        for (at, model) in models.iter().enumerate() {
            index.insert(model.id.clone(), at);
        }
        for (at, model) in models.iter().enumerate() {
            for alias in &model.aliases {
                index.entry(alias.clone()).or_insert(at);
            }
        }
        Self {
            listen: None,
            models,
            eviction: Eviction::Groups(Vec::new()),
            scheduler: SchedulerKind::Fifo { priority: BTreeMap::new() },
            admission: AdmissionSettings::default(),
            backoff: BackoffSettings::default(),
            limits: Limits { body_bytes: 32 << 20, body_read_timeout: Duration::from_secs(60) },
            headers: Headers::default(),
            store: Store { path: None, rows: 10_000 },
            preload: Vec::new(),
            include_aliases_in_list: false,
            callers: Callers::default(),
            ignored_paths: regex::RegexSet::empty(),
            log_buffer_bytes: 128 << 10,
            log_level: LogLevel::default(),
            warnings: Vec::new(),
            index,
            ports: BTreeMap::new(),
        }
    }

    /// The model of a name: an id, an alias, `PEER/MODEL`, or `MODEL` where exactly one peer has it.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Arc<Model>> {
        self.index.get(name).and_then(|at| self.models.get(*at))
    }

    /// Endpoints that stay keep their numbers, whatever others come or go, so that what runs on them still counts; one
    /// that comes gets the least number that is free.
    pub(super) fn keep_places(&mut self, running: &Self) {
        for model in &mut self.models {
            let before = running.find(&model.id).filter(|before| before.id == model.id && before.launch.is_none());
            let Some(before) = before.filter(|_| model.launch.is_none()) else { continue };
            let known: HashMap<_, _> = before.endpoints().map(|(number, upstream)| (upstream, number)).collect();
            let (stay, come): (Vec<_>, Vec<_>) =
                model.endpoints().map(|(_, upstream)| upstream).partition(|upstream| known.contains_key(upstream));
            let mut places: BTreeMap<u32, &Upstream> =
                stay.into_iter().map(|upstream| (known[upstream], upstream)).collect();
            let mut next = 0;
            for upstream in come {
                while places.contains_key(&next) {
                    next += 1;
                }
                places.insert(next, upstream);
            }
            let mut servers: Vec<_> = places
                .into_iter()
                .map(|(number, upstream)| Server { number, launch: None, upstream: upstream.clone() })
                .collect();
            let first = servers.remove(0);
            let model = Arc::make_mut(model);
            (model.number, model.upstream, model.others) = (first.number, first.upstream, servers);
        }
    }

    /// The tenants that the file names, those with a share first.
    #[must_use]
    pub fn tenants(&self) -> Vec<String> {
        let shares = match &self.scheduler {
            SchedulerKind::Flow(flow) => Some(flow.weights.keys()),
            SchedulerKind::Serial(_) | SchedulerKind::Fifo { .. } => None,
        };
        shares.into_iter().flatten().chain(&self.callers.tenants).cloned().collect()
    }

    /// How often each model's replicas are to be looked at: as its detector wants it, and with flow control now and then
    /// for those who look at the gateway's own metrics.
    #[must_use]
    pub fn looks(&self) -> Looks {
        const NOW_AND_THEN: Duration = Duration::from_secs(5);
        let is_flow = matches!(self.scheduler, SchedulerKind::Flow(_));
        let look = |model: &Arc<Model>| {
            let refresh = model.detector.refresh;
            (model.id.clone(), Look { every: refresh.unwrap_or(NOW_AND_THEN), is_needed: refresh.is_some() })
        };
        Arc::new(self.models.iter().filter(|model| is_flow && model.takes_slot).map(look).collect())
    }

    /// The part that the scheduler works by, with models numbered by `ids` and tenants by `tenants`.
    pub fn scheduler_settings(
        &self,
        ids: impl Fn(&str) -> ModelId,
        tenants: impl Fn(&str) -> TenantId,
    ) -> switchyard_scheduler::Settings {
        let policy = match &self.scheduler {
            SchedulerKind::Serial(serial) => PolicySettings::Serial(serial.clone()),
            SchedulerKind::Fifo { priority } => PolicySettings::Fifo(FifoSettings {
                model_priority: priority.iter().map(|(id, points)| (ids(id), *points)).collect(),
            }),
            SchedulerKind::Flow(flow) => PolicySettings::Flow(FlowSettings {
                weights: flow.weights.iter().map(|(tenant, weight)| (tenants(tenant), *weight)).collect(),
                ..flow.settings.clone()
            }),
        };
        let eviction = match &self.eviction {
            Eviction::Groups(groups) => EvictionSettings::Groups(
                groups
                    .iter()
                    .map(|group| GroupSettings {
                        swap: group.swap,
                        exclusive: group.exclusive,
                        persistent: group.persistent,
                        members: group.members.iter().map(|id| ids(id)).collect(),
                    })
                    .collect(),
            ),
            Eviction::Matrix(matrix) => EvictionSettings::Matrix(MatrixSettings {
                sets: matrix.sets.iter().map(|set| set.iter().map(|id| ids(id)).collect()).collect(),
                costs: matrix.evict_costs.iter().map(|(id, cost)| (ids(id), *cost)).collect(),
            }),
        };
        let model = |model: &Arc<Model>| {
            let settings = ModelSettings {
                replicas: u32::try_from(1 + model.others.len()).unwrap_or(u32::MAX),
                gaps: model.gaps(),
                concurrency: model.concurrency,
                ttl: model.ttl,
                revision: model.revision,
                managed: model.launch.is_some(),
                takes_slot: model.takes_slot,
                detector: model.detector.settings,
                headroom: model.detector.headroom,
            };
            (ids(&model.id), settings)
        };
        switchyard_scheduler::Settings {
            policy,
            admission: self.admission.clone(),
            eviction,
            backoff: self.backoff,
            models: self.models.iter().map(model).collect(),
        }
    }
}

/// One model.
#[derive(Clone, Debug)]
pub struct Model {
    /// The key under `models`, or `PEER/MODEL` for a peer's.
    pub id: String,
    /// Shown by `GET /v1/models`; empty when not set.
    pub name: String,
    /// Shown by `GET /v1/models`; empty when not set.
    pub description: String,
    /// Other names by which it is asked for.
    pub aliases: Vec<String>,
    /// Left out of `GET /v1/models`.
    pub unlisted: bool,
    /// Passed through to `GET /v1/models` as `meta.llamaswap`; `Null` when not set.
    pub metadata: serde_json::Value,
    /// What it can do, for `GET /v1/models`.
    pub capabilities: Capabilities,
    /// How to start and stop it; `None` for a remote server, which is only checked.
    pub launch: Option<Launch>,
    /// Where requests go.
    pub upstream: Upstream,
    /// Of the replica to which `launch` and `upstream` belong; the least of all.
    pub number: u32,
    /// The other replicas, by their numbers.
    pub others: Vec<Server>,
    /// Path of the health check; `None` when switched off with `none`.
    pub check_endpoint: Option<String>,
    /// The longest that a load may take.
    pub health_check_timeout: Duration,
    /// Unload after this long without a request.
    pub ttl: Option<Duration>,
    /// From SIGTERM (or `cmdStop`) to SIGKILL.
    pub unload_timeout: Duration,
    /// Written over `model` in the request's body.
    pub use_model_name: Option<String>,
    /// Requests that one replica runs at once.
    pub concurrency: u32,
    /// How full its replicas are.
    pub detector: Detector,
    /// Whether and how bodies carry the priority upstream.
    pub forward_priority: Option<ForwardPriority>,
    /// A running request counts against `serial`'s slots: true except for peers.
    pub takes_slot: bool,
    /// Changes to the request's JSON body.
    pub filters: Filters,
    /// Connection timeouts.
    pub timeouts: Timeouts,
    /// Added to every request upstream as bearer token and `x-api-key` (a peer's `apiKey`).
    pub upstream_key: Option<String>,
    /// Stable digest of all that a running process depends on: equal digests mean it need not restart.
    pub revision: u64,
}

impl Model {
    /// Where each of its replicas answers, with the replica's number.
    pub fn endpoints(&self) -> impl Iterator<Item = (u32, &Upstream)> {
        let others = self.others.iter().map(|other| (other.number, &other.upstream));
        std::iter::once((self.number, &self.upstream)).chain(others)
    }

    /// Whether it has a replica of this number.
    #[must_use]
    pub fn has_replica(&self, number: u32) -> bool {
        self.endpoints().any(|(known, _)| known == number)
    }

    /// The numbers below the greatest that no replica has.
    fn gaps(&self) -> BTreeSet<u32> {
        let numbers: BTreeSet<u32> = self.endpoints().map(|(number, _)| number).collect();
        let end = numbers.last().copied().unwrap_or_default();
        (0..end).filter(|number| !numbers.contains(number)).collect()
    }

    /// Whether it is served elsewhere, by several servers: each can take over for another.
    #[must_use]
    pub fn is_pool(&self) -> bool {
        self.launch.is_none() && !self.others.is_empty()
    }

    /// The model as one of its replicas serves it.
    #[must_use]
    pub fn replica(self: &Arc<Self>, number: u32) -> Arc<Self> {
        self.others.iter().find(|other| other.number == number).map_or_else(
            || Arc::clone(self),
            |Server { number, launch, upstream }| {
                let (number, launch, upstream) = (*number, launch.clone(), upstream.clone());
                Arc::new(Self { number, launch, upstream, ..(**self).clone() })
            },
        )
    }
}

/// How often replicas of a model are looked at, and whether anything depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Between two looks.
    pub every: Duration,
    /// Requests wait while nothing is heard of a replica.
    pub is_needed: bool,
}

/// How often each model's replicas are looked at, by id; those of other models are not.
pub type Looks = Arc<BTreeMap<String, Look>>;

/// One server of a model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    /// Its number among the model's replicas.
    pub number: u32,
    /// How to start and stop it; `None` for a remote one.
    pub launch: Option<Launch>,
    /// Where requests go.
    pub upstream: Upstream,
}

/// What tells how full a model's replicas are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Detector {
    /// The scheduler's part.
    pub settings: DetectorSettings,
    /// How far over its capacity a single replica may be, as a part of it.
    pub headroom: f64,
    /// Between two looks at a replica's metrics, where those tell.
    pub refresh: Option<Duration>,
}

/// Who reads the priority in a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardPriority {
    /// vLLM with its priority policy: lower goes first.
    Vllm,
}

/// What a model can do, as far as the file tells; for clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// What it understands: `text`, `audio`, `image`.
    pub input: Vec<&'static str>,
    /// What it makes: `text`, `audio`, `image`.
    pub output: Vec<&'static str>,
    /// It calls functions.
    pub tools: bool,
    /// It answers `/v1/rerank`.
    pub reranker: bool,
    /// Tokens it can look at.
    pub context: Option<u64>,
}

/// A child process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Launch {
    /// The program and its arguments, macros substituted.
    pub argv: Vec<String>,
    /// Added to the gateway's own environment.
    pub env: Vec<(String, String)>,
    /// The command that stops it in place of SIGTERM; `${PID}` still in it.
    pub stop_argv: Option<Vec<String>>,
}

/// The base of a server's URL.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Upstream {
    /// `https`.
    pub tls: bool,
    /// Host name or address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path before every request's path: empty, or `/…` without a slash at its end.
    pub prefix: String,
}

/// Changes to a request's JSON body before it goes upstream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filters {
    /// Keys to remove; never `model`.
    pub strip_params: Vec<String>,
    /// Keys to set; never `model`.
    pub set_params: BTreeMap<String, serde_json::Value>,
    /// Further keys to set when the request named the model by this id.
    pub set_params_by_id: BTreeMap<String, BTreeMap<String, serde_json::Value>>,
}

/// Connection timeouts; `None` is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Timeouts {
    /// Of connecting.
    pub connect: Option<Duration>,
    /// From the request's last byte to the response's header.
    pub response_header: Option<Duration>,
    /// The longest silence while a response arrives.
    pub response_idle: Option<Duration>,
    /// Of the TLS handshake.
    pub tls_handshake: Option<Duration>,
    /// After which an unused pooled connection is closed.
    pub idle_connection: Option<Duration>,
}

/// Which models run together.
#[derive(Clone, Debug, PartialEq)]
pub enum Eviction {
    /// llama-swap's groups.
    Groups(Vec<Group>),
    /// llama-swap's matrix.
    Matrix(Matrix),
}

/// Sets of models that may run together; so may the models of any part of a set. A model in no set runs alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Ids of models; where two sets are equally good, the earlier is chosen.
    pub sets: Vec<Vec<String>>,
    /// What it costs to unload a model, by id; 1 where absent.
    pub evict_costs: BTreeMap<String, u32>,
}

/// One group.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Its key in the file.
    pub name: String,
    /// Only one member runs at a time.
    pub swap: bool,
    /// Loading a member unloads the other groups.
    pub exclusive: bool,
    /// Other groups never unload this one.
    pub persistent: bool,
    /// Ids of the members.
    pub members: Vec<String>,
}

/// The dispatch order.
#[derive(Clone, Debug, PartialEq)]
pub enum SchedulerKind {
    /// `serial`.
    Serial(switchyard_scheduler::SerialSettings),
    /// `fifo`, with each model's priority by id.
    Fifo {
        /// Points by model id.
        priority: BTreeMap<String, i64>,
    },
    /// `flow`.
    Flow(Flow),
}

/// Settings of `flow`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flow {
    /// The scheduler's, but for the weights.
    pub settings: FlowSettings,
    /// Shares of tenants, by name.
    pub weights: BTreeMap<String, u32>,
}

/// Bounds on what a client can send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request's body; more is answered with 413.
    pub body_bytes: u64,
    /// The longest pause between two reads of a request's body.
    pub body_read_timeout: Duration,
}

/// Where the activity log lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// A SQLite file; `None` keeps the log in memory.
    pub path: Option<PathBuf>,
    /// Rows kept; the oldest go first.
    pub rows: u64,
}

/// Minimum level of the gateway's own log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LogLevel {
    /// Everything.
    Debug,
    /// The usual.
    #[default]
    Info,
    /// Only what deserves attention.
    Warn,
    /// Only what failed.
    Error,
}
