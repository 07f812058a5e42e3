//! Models and peers.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use serde_json::{Map, Value as Json};

use super::{Check, names::Names, nonzero};
use crate::config::{
    command::{self, Unsplit},
    file::{self, FiltersFile, ModelFile, PeerFile, TimeoutsFile},
    problem::Sink,
    reader::{At, Section},
    routing::Scheduler,
    settings::{Capabilities, Detector, Filters, Launch, Model, Server, Timeouts, Upstream},
};

/// llama-swap's default of `concurrencyLimit`.
const CONCURRENCY: u32 = 10;
/// llm-d's default of `maxConcurrency`, for servers that are made for many requests at once.
const ENDPOINT_CONCURRENCY: u32 = 100;
/// A peer queues for itself; this only bounds what one of its models can take of our connections.
const PEER_CONCURRENCY: u32 = 1000;
/// llama-swap's default of `unloadTimeout`, which 0 stands for.
const UNLOAD_TIMEOUT: Duration = Duration::from_secs(10);

impl Check<'_> {
    pub(super) fn models(&mut self, names: &Names) -> Vec<Model> {
        let file = self.file;
        let detector = file.routing.flow.detector.as_ref().map(|detector| self.detector(detector));
        let mut models = Vec::new();
        for (id, model) in &file.models {
            models.extend(self.model(id, model, detector, names));
        }
        for (id, peer) in &file.peers {
            models.extend(self.peer(id, peer, names));
        }
        models
    }

    fn model(
        &mut self,
        id: &At<String>,
        model: &ModelFile,
        detector: Option<Detector>,
        names: &Names,
    ) -> Option<Model> {
        let servers = self.servers(id, model);
        let ttl = model.ttl.unwrap_or(self.file.global_ttl.value);
        let global = self.file.unload_timeout.value;
        let global = if global.is_zero() { UNLOAD_TIMEOUT } else { global };
        let filters = self.filters(&id.value, &model.filters);
        let own = model.aliases.iter().filter(|alias| names.id(alias) == Some(&*id.value));
        let mut aliases: Vec<String> = own.map(|alias| alias.value.clone()).collect();
        for name in filters.set_params_by_id.keys() {
            if *name != id.value && !aliases.contains(name) {
                aliases.push(name.clone());
            }
        }
        self.model_without_effect(model);
        let own = model.detector.as_ref().map(|detector| self.detector(detector));
        let is_flow = self.file.routing.scheduler.value == Scheduler::Flow;
        let detector = own.or(detector).filter(|_| is_flow);
        let mut servers = servers.into_iter();
        let Server { number, launch, upstream } = servers.next()?;
        let others: Vec<Server> = servers.collect();
        let check_endpoint = model.check_endpoint.value.clone();
        Some(Model {
            revision: match model.has_endpoints {
                // Which of them is where can change without a word to the others.
                Some(_) => revision(None, None, &[], check_endpoint.as_deref()),
                None => revision(launch.as_ref(), Some(&upstream), &others, check_endpoint.as_deref()),
            },
            id: id.value.clone(),
            name: model.name.clone(),
            description: model.description.clone(),
            aliases,
            unlisted: model.unlisted,
            metadata: model.metadata.as_ref().map_or(Json::Null, |map| Json::Object(map.value.clone())),
            capabilities: model.capabilities.clone(),
            launch,
            upstream,
            number,
            others,
            check_endpoint,
            health_check_timeout: model.health_check_timeout.as_ref().unwrap_or(&self.file.health_check_timeout).value,
            ttl: nonzero(ttl),
            unload_timeout: model.unload_timeout.as_ref().map_or(global, |time| time.value),
            use_model_name: model.use_model_name.as_ref().map(|name| name.value.clone()),
            concurrency: match model.concurrency_limit {
                // A second bound below the detector's would only hide it.
                0 if detector.is_some() => u32::MAX,
                0 if model.has_endpoints.is_some() => ENDPOINT_CONCURRENCY,
                0 => CONCURRENCY,
                limit => limit,
            },
            detector: detector.unwrap_or_default(),
            forward_priority: model.forward_priority,
            takes_slot: true,
            filters,
            timeouts: timeouts(&model.timeouts),
            upstream_key: None,
        })
    }

    /// The servers of a model; none after a problem.
    fn servers(&mut self, id: &At<String>, model: &ModelFile) -> Vec<Server> {
        if let Some(place) = &model.has_endpoints {
            let endpoints = self.endpoints(place, model);
            if !model.has_cmd && !model.has_proxy {
                return endpoints;
            }
        }
        let port = self.source.ports.get(&(id.value.clone(), 0)).copied();
        if let (Some(port), Some(cmd)) = (port, &model.cmd)
            && !cmd.contains(&port.to_string())
        {
            let cure = "use ${PORT} in cmd, or add `proxy:` with the server's URL";
            self.warn(
                cmd,
                format!("does not say where the server listens, so it is looked for at port {port}; {cure}"),
            );
        }
        let first = match (self.launch(id, model), self.upstream(id, model, port)) {
            (launch, Some(upstream)) => Server { number: 0, launch, upstream },
            (_, None) => return Vec::new(),
        };
        let Some(replicas) = model.replicas.as_ref().filter(|replicas| replicas.value > 1) else { return vec![first] };
        if first.launch.is_none() {
            if !model.has_cmd {
                replicas.problem(self.sink, "there is no cmd to start them with", "list their URLs under `endpoints:`");
            }
            return vec![first];
        }
        // What is wrong with them is wrong with the first, and was said there.
        let (sink, mut servers) = (Sink::default(), vec![first]);
        for (index, node) in (1..).zip(self.source.replicas.get(&id.value).into_iter().flatten()) {
            let file = file::model(&mut Section::root(node, &sink));
            let quiet =
                Check { source: self.source, file: self.file, sink: &sink, warnings: Vec::new(), tenants: Vec::new() };
            let port = self.source.ports.get(&(id.value.clone(), index)).copied();
            if let Some(upstream) = quiet.upstream(id, &file, port) {
                servers.push(Server { number: index, launch: quiet.launch_of(&file), upstream });
            }
        }
        let mut seen = HashMap::new();
        if self.sink.concerns(&["startPort"]) {
            // There were not enough ports, which was said.
        } else if let Some(twice) = servers.iter().find(|server| seen.insert(&server.upstream, ()).is_some()) {
            let message = format!("two of them would listen on port {}", twice.upstream.port);
            replicas.problem(self.sink, message, "use ${PORT} in cmd, and in proxy if there is one: each gets its own");
        }
        servers
    }

    fn endpoints(&self, place: &At<()>, model: &ModelFile) -> Vec<Server> {
        let endpoints = &model.endpoints;
        if endpoints.is_empty() && self.sink.is_empty() {
            place.problem(self.sink, "the list is empty", "name at least one URL");
        }
        for (at, endpoint) in endpoints.iter().enumerate() {
            if endpoints[..at].iter().any(|earlier| earlier.value == endpoint.value) {
                endpoint.problem(self.sink, "this endpoint is here twice", "remove one");
            }
        }
        if model.has_cmd || model.has_proxy {
            let (message, cure) = if model.has_cmd {
                ("a model that is started here has no endpoints elsewhere", "use `replicas:` for more servers of cmd")
            } else {
                ("the model has both endpoints and a proxy", "move the proxy's URL into the list")
            };
            place.problem(self.sink, message, cure);
        }
        if let Some(replicas) = &model.replicas {
            replicas.problem(self.sink, "each endpoint is a replica", "leave replicas out");
        }
        (0..).zip(endpoints).map(|(number, at)| Server { number, launch: None, upstream: at.value.clone() }).collect()
    }

    fn upstream(&self, id: &At<String>, model: &ModelFile, port: Option<u16>) -> Option<Upstream> {
        match (&model.proxy, port, &model.cmd) {
            (Some(proxy), _, _) => return Some(proxy.value.clone()),
            (None, Some(port), _) if !model.has_proxy => {
                return Some(Upstream { tls: false, host: "localhost".to_owned(), port, prefix: String::new() });
            }
            (None, None, Some(cmd)) if !model.has_proxy => cmd.problem(
                self.sink,
                "nothing says where the server listens",
                "use ${PORT} in cmd, or add `proxy:` with the server's URL",
            ),
            (None, None, None) if !model.has_proxy && !model.has_cmd => id.problem(
                self.sink,
                "the model has neither cmd nor proxy",
                "add `cmd:` to start a server here, or `proxy:` or `endpoints:` for what runs elsewhere",
            ),
            // What is there has been reported as wrong.
            _ => {}
        }
        None
    }

    fn launch(&mut self, id: &At<String>, model: &ModelFile) -> Option<Launch> {
        for (at, variable) in model.env.iter().enumerate() {
            if model.env[..at].iter().any(|earlier| earlier.0 == variable.0) {
                self.warn(variable, format!("sets {} again: only this one counts", variable.0));
            }
        }
        let stop = model.cmd_stop.as_ref().filter(|stop| !stop.trim().is_empty());
        if let Some(stop) = stop
            && !model.has_cmd
        {
            stop.problem(self.sink, "there is no cmd that it could stop", format!("add `cmd:` to {}", id.value));
        }
        self.launch_of(model)
    }

    fn launch_of(&self, model: &ModelFile) -> Option<Launch> {
        let stop = model.cmd_stop.as_ref().filter(|stop| !stop.trim().is_empty());
        let stop_argv = stop.and_then(|stop| self.split(stop));
        let argv = self.split(model.cmd.as_ref()?)?;
        Some(Launch { argv, env: model.env.iter().map(|variable| variable.value.clone()).collect(), stop_argv })
    }

    fn split(&self, command: &At<String>) -> Option<Vec<String>> {
        let (message, cure) = match command::split(command) {
            Ok(words) => return Some(words),
            Err(Unsplit::Empty) => ("the command is empty", "name a program, or remove it"),
            Err(Unsplit::OpenQuote) => ("a quote is not closed", "close the quote, or put \\ before it"),
        };
        command.problem(self.sink, message, cure);
        None
    }

    fn peer(&mut self, peer: &At<String>, file: &PeerFile, names: &Names) -> Vec<Model> {
        let filters = self.filters(&peer.value, &file.filters);
        let Some(proxy) = &file.proxy else { return Vec::new() };
        let upstream = proxy.value.clone();
        let mut models: Vec<Model> = Vec::new();
        for name in &file.models {
            let id = format!("{}/{}", peer.value, name.value);
            if models.iter().any(|model| model.id == id) {
                continue;
            }
            models.push(Model {
                revision: revision(None, Some(&upstream), &[], None),
                // The bare name, where it means this model and no other.
                aliases: if names.id(name) == Some(&id) { vec![name.value.clone()] } else { Vec::new() },
                id,
                name: String::new(),
                description: String::new(),
                unlisted: false,
                metadata: Json::Null,
                capabilities: Capabilities::default(),
                launch: None,
                upstream: upstream.clone(),
                number: 0,
                others: Vec::new(),
                check_endpoint: None,
                health_check_timeout: self.file.health_check_timeout.value,
                ttl: None,
                unload_timeout: UNLOAD_TIMEOUT,
                use_model_name: Some(name.value.clone()),
                concurrency: if file.concurrency_limit == 0 { PEER_CONCURRENCY } else { file.concurrency_limit },
                detector: Detector::default(),
                forward_priority: None,
                takes_slot: false,
                filters: filters.clone(),
                timeouts: timeouts(&file.timeouts),
                upstream_key: file.api_key.as_ref().map(|key| key.value.clone()),
            });
        }
        models
    }

    fn filters(&mut self, id: &str, file: &FiltersFile) -> Filters {
        let strip = file.strip_params.as_ref();
        let mut strip_params: Vec<String> = strip
            .map(|names| names.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect())
            .unwrap_or_default();
        strip_params.sort();
        strip_params.dedup();
        if let Some(strip) = strip
            && strip_params.iter().any(|name| name == "model")
        {
            self.warn(strip, format!("`model` is never removed from requests for {id}"));
        }
        strip_params.retain(|name| name != "model");
        let set_params = self.params(file.set_params.as_ref());
        let by_id = file.set_params_by_id.iter();
        let set_params_by_id = by_id.map(|(name, params)| (name.value.clone(), self.params(params.as_ref()))).collect();
        Filters { strip_params, set_params, set_params_by_id }
    }

    fn params(&mut self, params: Option<&At<Map<String, Json>>>) -> BTreeMap<String, Json> {
        let Some(params) = params else { return BTreeMap::new() };
        if params.contains_key("model") {
            let at = At { value: (), place: params.place, path: params.path.key("model") };
            self.warn(&at, "is not changed by filters; useModelName does that");
        }
        params.iter().filter(|(name, _)| *name != "model").map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}

fn timeouts(file: &TimeoutsFile) -> Timeouts {
    Timeouts {
        connect: nonzero(file.connect),
        response_header: nonzero(file.response_header),
        response_idle: nonzero(file.response_idle),
        tls_handshake: nonzero(file.tls_handshake),
        idle_connection: nonzero(file.idle_connection),
    }
}

/// Equal for equal arguments within one run of the gateway.
fn revision(
    launch: Option<&Launch>,
    upstream: Option<&Upstream>,
    others: &[Server],
    check_endpoint: Option<&str>,
) -> u64 {
    let mut hasher = DefaultHasher::new();
    (launch, upstream, others, check_endpoint).hash(&mut hasher);
    hasher.finish()
}
