//! From a file whose values are of the right types to settings: what its parts say of each other is checked here.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use serde_json::{Map, Value as Json};
use switchyard_scheduler::{AdmissionSettings, BackoffSettings, BandSettings, Bounds, SerialSettings};

use super::{
    command,
    file::{File, FiltersFile, GroupFile, ModelFile, PeerFile, TimeoutsFile},
    problem::{Path, Sink, suggestion},
    reader::At,
    routing::{AdmissionFile, MatrixFile, Router, Scheduler},
    settings::{
        Eviction, Filters, Group, Headers, Launch, Limits, Model, SchedulerKind, Settings, Store, Timeouts, Upstream,
    },
};

/// llama-swap's default of `concurrencyLimit`.
const CONCURRENCY: u32 = 10;
/// A peer queues for itself; this only bounds what one of its models can take of our connections.
const PEER_CONCURRENCY: u32 = 1000;
/// llama-swap's default of `unloadTimeout`, which 0 stands for.
const UNLOAD_TIMEOUT: Duration = Duration::from_secs(10);
const STORE_ROWS: u64 = 10_000;

/// Checks a file and makes settings of it. They are only good for use when the sink is empty afterwards.
pub(super) fn check(file: &File, ports: &BTreeMap<String, u16>, sink: &Sink) -> Settings {
    let mut check = Check { file, sink, warnings: Vec::new() };
    let names = check.names();
    let models: Vec<Arc<Model>> = check.models(&names, ports).into_iter().map(Arc::new).collect();
    check.listen(ports);
    check.nothing_to_serve();
    let eviction = check.eviction(&names);
    let preload = check.preload(&names);
    let scheduler = check.scheduler(&names);
    check.selectors(&names);
    check.profiles(&names);
    check.without_effect();
    Settings {
        listen: file.listen.as_ref().map(|listen| listen.value),
        eviction,
        scheduler,
        admission: admission(&file.routing.admission),
        backoff: check.backoff(),
        limits: check.limits(),
        headers: Headers { priority: file.header_priority.value.clone(), forward_priority: file.forward_priority },
        store: check.store(),
        preload,
        include_aliases_in_list: file.include_aliases_in_list,
        api_keys: file.api_keys.iter().map(|key| key.value.clone()).collect(),
        log_buffer_bytes: usize::try_from(file.log_buffer).unwrap_or(usize::MAX),
        log_level: file.log_level,
        warnings: check.warnings,
        ports: ports.clone(),
        ..Settings::new(models)
    }
}

struct Check<'a> {
    file: &'a File,
    sink: &'a Sink,
    warnings: Vec<String>,
}

/// Every name that a request can ask for, and whose it is.
#[derive(Default)]
struct Names(HashMap<String, Owner>);

#[derive(Clone, PartialEq)]
enum Owner {
    /// A model's id.
    Model(String),
    /// A selector, which is accepted but does nothing.
    Selector,
    /// A model that several peers have.
    Ambiguous,
}

impl Names {
    /// The id of the model that a name stands for.
    fn id(&self, name: &str) -> Option<&str> {
        match self.0.get(name)? {
            Owner::Model(id) => Some(id),
            Owner::Selector | Owner::Ambiguous => None,
        }
    }

    fn suggest(&self, name: &str) -> String {
        let mut names: Vec<&str> = self.0.keys().map(String::as_str).collect();
        names.sort_unstable();
        suggestion(name, names)
    }
}

impl Check<'_> {
    /// Collects the names and reports those that two want.
    fn names(&self) -> Names {
        let mut names = Names::default();
        for (id, _) in &self.file.models {
            if id.trim().is_empty() {
                id.problem(self.sink, "a model's id is empty", "give it a name");
            }
            names.0.insert(id.value.clone(), Owner::Model(id.value.clone()));
        }
        for (id, model) in &self.file.models {
            for (at, alias) in model.aliases.iter().enumerate() {
                if model.aliases[..at].iter().any(|earlier| earlier.value == alias.value) {
                    alias.problem(self.sink, format!("the alias `{}` is here twice", alias.value), "remove one");
                } else {
                    self.alias(&mut names, alias, id);
                }
            }
            for (name, _) in &model.filters.set_params_by_id {
                self.alias(&mut names, name, id);
            }
        }
        let mut unqualified: HashMap<&str, Owner> = HashMap::new();
        for (peer, settings) in &self.file.peers {
            for (at, model) in settings.models.iter().enumerate() {
                if settings.models[..at].iter().any(|earlier| earlier.value == model.value) {
                    continue;
                }
                let id = format!("{}/{}", peer.value, model.value);
                if names.0.insert(id.clone(), Owner::Model(id.clone())).is_some() {
                    let message = format!("the name `{id}`, by which this model is asked for, is taken");
                    model.problem(self.sink, message, "rename the peer, or the model or alias of that name");
                }
                let owner = unqualified.entry(&model.value).or_insert_with(|| Owner::Model(id.clone()));
                if *owner != Owner::Model(id) {
                    *owner = Owner::Ambiguous;
                }
            }
        }
        for (name, _) in &self.file.selectors {
            if names.0.insert(name.value.clone(), Owner::Selector).is_some() {
                name.problem(self.sink, "a model or alias has the same name", "rename the selector");
            }
        }
        for (name, owner) in unqualified {
            names.0.entry(name.to_owned()).or_insert(owner);
        }
        names
    }

    fn alias(&self, names: &mut Names, alias: &At<String>, id: &At<String>) {
        match names.0.get(&alias.value) {
            Some(Owner::Model(owner)) if *owner == id.value => {}
            Some(Owner::Model(owner)) if *owner == alias.value => {
                let message = format!("`{owner}` is the id of another model");
                alias.problem(self.sink, message, "choose another alias");
            }
            Some(Owner::Model(owner)) => {
                let message = format!("`{}` already means the model `{owner}`", alias.value);
                alias.problem(self.sink, message, "let it mean one model");
            }
            _ => {
                names.0.insert(alias.value.clone(), Owner::Model(id.value.clone()));
            }
        }
    }

    fn models(&mut self, names: &Names, ports: &BTreeMap<String, u16>) -> Vec<Model> {
        let file = self.file;
        let mut models = Vec::new();
        for (id, model) in &file.models {
            models.extend(self.model(id, model, ports.get(&id.value).copied()));
        }
        for (id, peer) in &file.peers {
            models.extend(self.peer(id, peer, names));
        }
        models
    }

    fn model(&mut self, id: &At<String>, model: &ModelFile, port: Option<u16>) -> Option<Model> {
        let launch = self.launch(id, model);
        let upstream = match (&model.proxy, port) {
            (Some(proxy), _) => Some(proxy.value.clone()),
            (None, Some(port)) => {
                Some(Upstream { tls: false, host: "localhost".to_owned(), port, prefix: String::new() })
            }
            (None, None) => None,
        };
        if !model.has_proxy && !model.has_cmd {
            id.problem(
                self.sink,
                "the model has neither cmd nor proxy",
                "add `cmd:` to start a server here, or `proxy:` for one that runs elsewhere",
            );
        } else if !model.has_proxy
            && port.is_none()
            && let Some(cmd) = &model.cmd
        {
            cmd.problem(
                self.sink,
                "nothing says where the server listens",
                "use ${PORT} in cmd, or add `proxy:` with the server's URL",
            );
        }
        let ttl = model.ttl.unwrap_or(self.file.global_ttl.value);
        let global = self.file.unload_timeout.value;
        let global = if global.is_zero() { UNLOAD_TIMEOUT } else { global };
        let (filters, aliases) = self.filters(&id.value, &model.filters);
        let mut aliases_with_ids: Vec<String> = model.aliases.iter().map(|alias| alias.value.clone()).collect();
        for alias in aliases {
            if alias != id.value && !aliases_with_ids.contains(&alias) {
                aliases_with_ids.push(alias);
            }
        }
        self.model_without_effect(model);
        let upstream = upstream?;
        let check_endpoint = model.check_endpoint.value.clone();
        Some(Model {
            revision: revision(launch.as_ref(), &upstream, check_endpoint.as_deref()),
            id: id.value.clone(),
            name: model.name.clone(),
            description: model.description.clone(),
            aliases: aliases_with_ids,
            unlisted: model.unlisted,
            metadata: model.metadata.as_ref().map_or(Json::Null, |map| Json::Object(map.value.clone())),
            launch,
            upstream,
            check_endpoint,
            health_check_timeout: model.health_check_timeout.as_ref().unwrap_or(&self.file.health_check_timeout).value,
            ttl: nonzero(ttl),
            unload_timeout: model.unload_timeout.as_ref().map_or(global, |time| time.value),
            use_model_name: model.use_model_name.as_ref().map(|name| name.value.clone()),
            concurrency: if model.concurrency_limit == 0 { CONCURRENCY } else { model.concurrency_limit },
            takes_slot: true,
            filters,
            timeouts: timeouts(&model.timeouts),
            upstream_key: None,
        })
    }

    fn launch(&self, id: &At<String>, model: &ModelFile) -> Option<Launch> {
        let split = |text: &At<String>| {
            let cure = "close the quote, or put \\ before it";
            command::split(text).map_err(|why| match why {
                command::Unsplit::Empty => {
                    text.problem(self.sink, "the command is empty", "name a program, or remove it")
                }
                command::Unsplit::OpenQuote => text.problem(self.sink, "a quote is not closed", cure),
            })
        };
        for (at, variable) in model.env.iter().enumerate() {
            if model.env[..at].iter().any(|earlier| earlier.0 == variable.0) {
                variable.problem(self.sink, format!("{} is set twice", variable.0), "remove one");
            }
        }
        let stop = model.cmd_stop.as_ref().filter(|stop| !stop.trim().is_empty());
        if let Some(stop) = stop
            && !model.has_cmd
        {
            stop.problem(self.sink, "there is no cmd that it could stop", format!("add `cmd:` to {}", id.value));
        }
        let stop_argv = stop.and_then(|stop| split(stop).ok());
        let argv = split(model.cmd.as_ref()?).ok()?;
        Some(Launch { argv, env: model.env.iter().map(|variable| variable.value.clone()).collect(), stop_argv })
    }

    fn peer(&mut self, peer: &At<String>, file: &PeerFile, names: &Names) -> Vec<Model> {
        let (filters, _) = self.filters(&peer.value, &file.filters);
        let Some(proxy) = &file.proxy else { return Vec::new() };
        let upstream = proxy.value.clone();
        let mut models: Vec<Model> = Vec::new();
        for name in &file.models {
            let id = format!("{}/{}", peer.value, name.value);
            if models.iter().any(|model| model.id == id) {
                continue;
            }
            models.push(Model {
                revision: revision(None, &upstream, None),
                // The bare name, where it means this model and no other.
                aliases: if names.id(name) == Some(&id) { vec![name.value.clone()] } else { Vec::new() },
                id,
                name: String::new(),
                description: String::new(),
                unlisted: false,
                metadata: Json::Null,
                launch: None,
                upstream: upstream.clone(),
                check_endpoint: None,
                health_check_timeout: self.file.health_check_timeout.value,
                ttl: None,
                unload_timeout: UNLOAD_TIMEOUT,
                use_model_name: Some(name.value.clone()),
                concurrency: if file.concurrency_limit == 0 { PEER_CONCURRENCY } else { file.concurrency_limit },
                takes_slot: false,
                filters: filters.clone(),
                timeouts: timeouts(&file.timeouts),
                upstream_key: file.api_key.as_ref().map(|key| key.value.clone()),
            });
        }
        models
    }

    /// The filters, and the names that they bring along.
    fn filters(&mut self, id: &str, file: &FiltersFile) -> (Filters, Vec<String>) {
        let strip = file.strip_params.as_ref();
        let mut strip_params: Vec<String> = strip
            .map(|names| names.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect())
            .unwrap_or_default();
        strip_params.sort();
        strip_params.dedup();
        if let Some(strip) = strip
            && strip_params.iter().any(|name| name == "model")
        {
            self.warn(&strip.path, format!("`model` is never removed from requests for {id}"));
        }
        strip_params.retain(|name| name != "model");
        let set_params = self.params(file.set_params.as_ref());
        let by_id = file.set_params_by_id.iter();
        let by_id: BTreeMap<_, _> =
            by_id.map(|(name, params)| (name.value.clone(), self.params(params.as_ref()))).collect();
        let names = by_id.keys().cloned().collect();
        (Filters { strip_params, set_params, set_params_by_id: by_id }, names)
    }

    fn params(&mut self, params: Option<&At<Map<String, Json>>>) -> BTreeMap<String, Json> {
        let Some(params) = params else { return BTreeMap::new() };
        if params.contains_key("model") {
            self.warn(&params.path.key("model"), "is not changed by filters; useModelName does that".to_owned());
        }
        params.iter().filter(|(name, _)| *name != "model").map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    fn listen(&self, ports: &BTreeMap<String, u16>) {
        let Some(listen) = &self.file.listen else { return };
        if let Some((model, port)) = ports.iter().find(|(_, port)| **port == listen.port()) {
            let message = format!("port {port} is also what ${{PORT}} stands for in the model `{model}`");
            listen.problem(self.sink, message, "choose another port, or another startPort");
        }
    }

    fn nothing_to_serve(&self) {
        if self.file.models.is_empty() && self.file.peers.is_empty() && self.sink.is_empty() {
            self.sink.add(super::problem::Place::default(), "models", "there is no model", "add one under `models:`");
        }
    }

    fn eviction(&mut self, names: &Names) -> Eviction {
        let routing = &self.file.routing;
        let above = !self.file.groups.is_empty() || self.file.matrix.is_some();
        let below = routing.router.is_some() || !routing.groups.is_empty() || routing.matrix.is_some();
        let place = self.file.groups.first().map(|(name, _)| name.place);
        let place = place.unwrap_or_default();
        if above && below {
            let message = "groups or matrix are at the top of the file and under routing.router too";
            self.sink.add(place, "groups", message, "move them all under routing.router.settings");
        }
        if self.file.matrix.is_some() && !self.file.groups.is_empty() {
            self.sink.add(place, "groups", "the file has both groups and a matrix", "keep one of them");
        }
        let uses_matrix = routing.router.as_ref().is_some_and(|router| router.value == Router::Matrix);
        let matrix = if uses_matrix { routing.matrix.as_ref() } else { self.file.matrix.as_ref() };
        if let Some(router) = routing.router.as_ref().filter(|_| uses_matrix && matrix.is_none()) {
            router.problem(self.sink, "there is no matrix", "add routing.router.settings.matrix, or use: group");
        }
        if let Some(matrix) = matrix {
            self.matrix(matrix, names);
        }
        let groups = if above { &self.file.groups } else { &routing.groups };
        let groups = if uses_matrix || matrix.is_some() { &[][..] } else { groups };
        Eviction::Groups(self.groups(groups, names))
    }

    fn matrix(&mut self, matrix: &MatrixFile, names: &Names) {
        let models = matrix.vars.iter().filter_map(|(_, model)| model.as_ref());
        for model in models.filter(|model| names.id(model) != Some(model.value.as_str())) {
            model.problem(self.sink, format!("there is no model `{}`", model.value), names.suggest(model));
        }
        for (name, _) in &matrix.evict_costs {
            let is_var = matrix.vars.iter().any(|(var, _)| var.value == name.value);
            if !is_var && names.id(name) != Some(name.value.as_str()) {
                let message = format!("`{}` is neither in vars nor a model", name.value);
                name.problem(self.sink, message, names.suggest(name));
            }
        }
        if let Some((set, _)) = matrix.sets.first() {
            self.warn(&set.path, "has no effect yet: one model runs at a time; groups do work".to_owned());
        }
    }

    fn groups(&self, groups: &[(At<String>, GroupFile)], names: &Names) -> Vec<Group> {
        let mut seen: HashMap<&str, &str> = HashMap::new();
        for (name, group) in groups {
            for member in &group.members {
                match names.id(member) {
                    Some(id) if id != member.value => {
                        let message = format!("`{}` is another name of the model `{id}`", member.value);
                        member.problem(self.sink, message, format!("write `{id}`"));
                    }
                    Some(_) => {}
                    None => {
                        let message = format!("there is no model `{}`", member.value);
                        member.problem(self.sink, message, names.suggest(member));
                    }
                }
                match seen.insert(&member.value, &name.value) {
                    Some(first) if first == name.value => {
                        let message = format!("`{}` is in this group twice", member.value);
                        member.problem(self.sink, message, "remove one");
                    }
                    Some(first) => {
                        let message = format!("`{}` is in the group `{first}` too", member.value);
                        member.problem(self.sink, message, "leave it in one group");
                    }
                    None => {}
                }
            }
        }
        let group = |(name, group): &(At<String>, GroupFile)| Group {
            name: name.value.clone(),
            swap: group.swap,
            exclusive: group.exclusive,
            persistent: group.persistent,
            members: group.members.iter().map(|member| member.value.clone()).collect(),
        };
        groups.iter().map(group).collect()
    }

    fn preload(&self, names: &Names) -> Vec<String> {
        let mut preload: Vec<String> = Vec::new();
        for name in self.file.preload.iter().filter(|name| !name.trim().is_empty()) {
            match names.id(name.trim()) {
                Some(id) if !preload.iter().any(|known| known == id) => preload.push(id.to_owned()),
                Some(_) => {}
                None => {
                    let message = format!("there is no model `{}`", name.value);
                    name.problem(self.sink, message, names.suggest(name));
                }
            }
        }
        preload
    }

    fn scheduler(&self, names: &Names) -> SchedulerKind {
        let routing = &self.file.routing;
        let mut priority = BTreeMap::new();
        for (name, points) in &routing.fifo_priority {
            let Some(id) = names.id(name) else {
                let message = format!("there is no model `{}`", name.value);
                name.problem(self.sink, message, names.suggest(name));
                continue;
            };
            let points = points.as_ref().map_or(0, |points| points.value);
            if priority.insert(id.to_owned(), points).is_some() {
                name.problem(self.sink, format!("the model `{id}` is here twice"), "give it one priority");
            }
        }
        match routing.scheduler.value {
            Scheduler::Fifo => SchedulerKind::Fifo { priority },
            Scheduler::Serial => SchedulerKind::Serial(SerialSettings {
                swap_affinity_bonus: routing.swap_affinity_bonus,
                aging_divisor: routing.aging_divisor,
                slots: routing.slots,
            }),
        }
    }

    fn backoff(&self) -> BackoffSettings {
        let routing = &self.file.routing;
        let (initial, max) = (&routing.backoff_initial, &routing.backoff_max);
        if initial.value > max.value {
            let message = format!("{:?} is more than max, which is {:?}", initial.value, max.value);
            initial.problem(self.sink, message, "let initial be at most max");
        }
        BackoffSettings { initial: initial.value, max: max.value }
    }

    fn limits(&self) -> Limits {
        let limits = &self.file.limits;
        if limits.body.value == 0 {
            limits.body.problem(self.sink, "0 would refuse every request", "leave it out for 32MiB");
        }
        Limits { body_bytes: limits.body.value, body_read_timeout: limits.body_read_timeout.value }
    }

    fn store(&self) -> Store {
        let path = self.file.store_path.as_ref();
        if let Some(path) = path {
            let file = std::path::Path::new(&path.value);
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
            if path.trim().is_empty() {
                path.problem(
                    self.sink,
                    "the path is empty",
                    "name a file, or leave path out to keep the log in memory",
                );
            } else if file.is_dir() {
                path.problem(self.sink, format!("{} is a folder", path.value), "name a file in it");
            } else if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
                path.problem(self.sink, format!("there is no folder {}", folder.display()), "make it first");
            }
        }
        let rows = match (&self.file.store_rows, &self.file.metrics_max_in_memory) {
            (Some(rows), _) => rows.value,
            (None, Some(rows)) if path.is_none() => rows.value,
            (None, _) => STORE_ROWS,
        };
        Store { path: path.map(|path| path.value.clone().into()), rows }
    }

    fn selectors(&self, names: &Names) {
        for (_, selector) in &self.file.selectors {
            for target in &selector.targets {
                if names.0.get(&target.value) == Some(&Owner::Selector) {
                    target.problem(self.sink, "a selector cannot choose another selector", "name a model");
                } else if names.id(target).is_none() {
                    let message = format!("there is no model `{}`", target.value);
                    target.problem(self.sink, message, names.suggest(target));
                }
            }
        }
    }

    fn profiles(&self, names: &Names) {
        for (name, profile) in &self.file.profiles {
            if profile.pins.is_empty() {
                name.problem(self.sink, "the profile has no pins", "add at least one under `pins:`");
            }
            for target in profile.pins.iter().filter_map(|(_, target)| target.as_ref()).filter(|to| !to.is_empty()) {
                if !names.0.contains_key(&target.value) {
                    let message = format!("there is no model `{}`", target.value);
                    target.problem(self.sink, message, names.suggest(target));
                }
            }
        }
    }

    /// Names the settings that llama-swap acts upon and this gateway does not.
    fn without_effect(&mut self) {
        let file = self.file;
        if let Some(buffer) = file.capture_buffer.as_ref().filter(|buffer| buffer.value > 0) {
            self.warn(&buffer.path, "has no effect: requests and responses are never stored".to_owned());
        }
        if let Some(at) = &file.session_id {
            self.warn(&at.path, "has no effect: requests are listed without their session".to_owned());
        }
        if let Some(at) = &file.performance {
            self.warn(&at.path, "has no effect: /metrics has the gateway's own numbers, not the machine's".to_owned());
        }
        if let Some(at) = file.log_to_stdout.as_ref().filter(|at| !at.value) {
            self.warn(
                &at.path,
                "has no effect: standard error has the gateway's log, /logs the models' output".to_owned(),
            );
        }
        if let Some(at) = &file.log_time_format {
            self.warn(&at.path, "has no effect: times are RFC 3339".to_owned());
        }
        if let Some(at) = file.log_requests.as_ref().filter(|at| at.value) {
            self.warn(&at.path, "has no effect: /api/activity lists requests".to_owned());
        }
        if file.send_loading_state.value {
            let path = &file.send_loading_state.path;
            self.warn(path, "has no effect yet: waiting clients are not told how far the load is".to_owned());
        }
        if let Some(at) = file.ignore_paths.first() {
            self.warn(&at.path, "has no effect yet: every request to /upstream loads its model".to_owned());
        }
        if let Some((name, _)) = file.selectors.first() {
            self.warn(&name.path, "has no effect yet: requests for selectors get 404; name a model".to_owned());
        }
        if let Some((name, _)) = file.profiles.first() {
            self.warn(&name.path, "has no effect yet: names are never replaced; use aliases".to_owned());
        }
    }

    fn model_without_effect(&mut self, model: &ModelFile) {
        if let Some(at) = model.send_loading_state.as_ref().filter(|at| at.value) {
            self.warn(&at.path, "has no effect yet: waiting clients are not told how far the load is".to_owned());
        }
        if model.ignore_websockets.value {
            let path = &model.ignore_websockets.path;
            self.warn(path, "has no effect yet: websockets load the model and keep it loaded".to_owned());
        }
        if let Some(at) = model.timeouts.keepalive.as_ref().filter(|at| at.value != Duration::from_secs(30)) {
            self.warn(&at.path, "has no effect: the system decides when to probe a connection".to_owned());
        }
        if let Some(at) = &model.capabilities {
            self.warn(&at.path, "has no effect yet: /v1/models does not tell it; use metadata".to_owned());
        }
    }

    fn warn(&mut self, path: &Path, text: String) {
        self.warnings.push(format!("{path} {text}"));
    }
}

fn admission(file: &AdmissionFile) -> AdmissionSettings {
    let total = Bounds { requests: file.max_requests, bytes: file.max_bytes };
    let band = |index: usize| {
        let band = &file.bands[index];
        BandSettings {
            bounds: Bounds {
                requests: band.max_requests.as_ref().map_or(total.requests, |max| max.value),
                bytes: band.max_bytes.as_ref().map_or(total.bytes, |max| max.value),
            },
            ttl: nonzero(band.ttl.as_ref().map_or(file.default_request_ttl, |ttl| ttl.value)),
        }
    };
    AdmissionSettings { total, bands: [band(0), band(1), band(2)] }
}

fn timeouts(file: &TimeoutsFile) -> Timeouts {
    Timeouts {
        connect: nonzero(file.connect),
        response_header: nonzero(file.response_header),
        tls_handshake: nonzero(file.tls_handshake),
        idle_connection: nonzero(file.idle_connection),
    }
}

fn nonzero(time: Duration) -> Option<Duration> {
    (!time.is_zero()).then_some(time)
}

/// Equal for equal arguments within one run of the gateway.
fn revision(launch: Option<&Launch>, upstream: &Upstream, check_endpoint: Option<&str>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (launch, upstream, check_endpoint).hash(&mut hasher);
    hasher.finish()
}
