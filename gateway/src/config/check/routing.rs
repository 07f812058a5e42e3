//! Who goes next, and which models run together.

use std::collections::{BTreeMap, HashMap};

use regex::RegexSet;
use switchyard_scheduler::{AdmissionSettings, BackoffSettings, BandSettings, Bounds, SerialSettings};

use super::{Check, flow, names::Names, nonzero};
use crate::config::{
    matrix::Expander,
    reader::At,
    routing::{GroupFile, MatrixFile, Router, RoutingFile, Scheduler},
    settings::{Eviction, Group, Matrix, SchedulerKind},
};

impl Check<'_> {
    /// Each expression is right by itself.
    pub(super) fn ignored_paths(&self) -> RegexSet {
        let paths = &self.file.ignore_paths;
        RegexSet::new(paths.iter().map(|path| &path.value)).unwrap_or_else(|_| {
            if let Some(first) = paths.first() {
                first.problem(self.sink, "these expressions are too large together", "use simpler ones");
            }
            RegexSet::empty()
        })
    }

    pub(super) fn eviction(&mut self, names: &Names) -> Eviction {
        let file = self.file;
        let routing = &file.routing;
        let below = routing.router.is_some() || !routing.groups.is_empty() || routing.matrix.is_some();
        let groups_at = file.groups.first().map(|(name, _)| (name.place, &name.path));
        if let Some((place, path)) = groups_at.or(file.matrix.as_ref().map(|at| (at.place.place, &at.place.path))) {
            if below {
                let message = "groups or a matrix are here and under routing.router too";
                self.sink.add(place, path, message, "move all of it under routing.router.settings");
            }
            if groups_at.is_some() && file.matrix.is_some() {
                self.sink.add(place, path, "the file has both groups and a matrix", "keep one of them");
            }
        }
        let uses_matrix = routing.router.as_ref().is_some_and(|router| router.value == Router::Matrix);
        let matrix = if uses_matrix { routing.matrix.as_ref() } else { file.matrix.as_ref() };
        if let Some(router) = routing.router.as_ref().filter(|_| uses_matrix && matrix.is_none()) {
            router.problem(self.sink, "there is no matrix", "add routing.router.settings.matrix, or use: group");
        }
        if let Some(matrix) = matrix {
            return Eviction::Matrix(self.matrix(matrix, names));
        }
        let groups = if below { &routing.groups } else { &file.groups };
        Eviction::Groups(self.groups(groups, names))
    }

    fn matrix(&self, file: &MatrixFile, names: &Names) -> Matrix {
        let mut vars = BTreeMap::new();
        for (name, model) in &file.vars {
            if let Some(model) = model {
                if let Err(unknown) = names.is_id(model) {
                    model.problem(self.sink, unknown.message, unknown.cure);
                }
                vars.insert(name.value.as_str(), model.value.as_str());
            }
        }
        let model = |name: &str| {
            let id = vars.get(name).copied().or_else(|| names.id(name).filter(|id| *id == name))?;
            Some(id.to_owned())
        };
        let mut evict_costs = BTreeMap::new();
        for (name, cost) in &file.evict_costs {
            match (model(name), cost) {
                (Some(id), Some(cost)) => {
                    evict_costs.insert(id, cost.value);
                }
                (Some(_), None) => {}
                (None, _) => {
                    let message = format!("`{}` is neither in vars nor a model", name.value);
                    name.problem(self.sink, message, names.suggest(name));
                }
            }
        }
        if file.sets.is_empty() {
            file.place.problem(self.sink, "the matrix has no sets", "add at least one under `sets:`");
        }
        let expressions = file.sets.iter().filter_map(|(name, text)| Some((name, text.as_ref()?)));
        let mut expander =
            Expander::new(expressions.clone().map(|(name, text)| (name.as_str(), text.as_str())), &model);
        let mut sets: Vec<Vec<String>> = Vec::new();
        for (name, text) in expressions {
            match expander.expand(name) {
                Ok(more) => sets.extend(more.into_iter().map(|set| set.into_iter().collect())),
                Err(fault) => {
                    let cure = match &fault.unknown {
                        Some(name) => names.suggest(name),
                        None => fault.cure.to_owned(),
                    };
                    self.sink.add(self.sink.locate(text.place, 0, &fault.at), &text.path, fault.message, cure);
                }
            }
        }
        Matrix { sets, evict_costs }
    }

    /// Members that are no models do nothing.
    fn groups(&mut self, groups: &[(At<String>, GroupFile)], names: &Names) -> Vec<Group> {
        let mut seen: HashMap<&str, &str> = HashMap::new();
        for (name, group) in groups {
            for member in &group.members {
                if let Err(unknown) = names.is_id(member) {
                    self.warn(member, format!("is ignored: {unknown}"));
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
            members: group.members.iter().filter(|id| names.is_id(id).is_ok()).map(|id| id.value.clone()).collect(),
        };
        groups.iter().map(group).collect()
    }

    pub(super) fn scheduler(&mut self, names: &Names) -> SchedulerKind {
        let file = self.file;
        let routing = &file.routing;
        let mut priority = BTreeMap::new();
        for (name, points) in &routing.fifo_priority {
            let Some(id) = self.known(name, names) else { continue };
            let points = points.as_ref().map_or(0, |points| points.value);
            if priority.insert(id.to_owned(), points).is_some() {
                name.problem(self.sink, format!("the model `{id}` is here twice"), "give it one priority");
            }
        }
        // Wrong settings are wrong whether they are in use or not.
        let flow = self.flow(&routing.flow);
        match routing.scheduler.value {
            Scheduler::Fifo => SchedulerKind::Fifo { priority },
            Scheduler::Flow => SchedulerKind::Flow(flow),
            Scheduler::Serial => SchedulerKind::Serial(SerialSettings {
                swap_affinity_bonus: routing.swap_affinity_bonus,
                aging_divisor: routing.aging_divisor,
                slots: routing.slots,
            }),
        }
    }

    pub(super) fn backoff(&self) -> BackoffSettings {
        let routing = &self.file.routing;
        let (initial, max) = (&routing.backoff_initial, &routing.backoff_max);
        if initial.value > max.value {
            let message = format!("{:?} is more than max, which is {:?}", initial.value, max.value);
            initial.problem(self.sink, message, "let initial be at most max");
        }
        BackoffSettings { initial: initial.value, max: max.value }
    }
}

pub(super) fn admission(routing: &RoutingFile) -> AdmissionSettings {
    let file = &routing.admission;
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
    let mut admission = AdmissionSettings {
        total,
        bands: [band(0), band(1), band(2)],
        shed_when_saturated: file.shed_when_saturated.value,
        ..AdmissionSettings::default()
    };
    if routing.scheduler.value == Scheduler::Flow {
        admission.levels = flow::levels(&routing.flow, &admission);
    }
    admission
}
