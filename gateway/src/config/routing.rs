//! The keys under `routing`, and the groups and the matrix, which may also stand at the top of the file.

use std::time::Duration;

use super::{
    flow::{self, FlowFile},
    kinds::{Bytes, Flag, OneOf, POSITIVE_TIME, TIME, Text, int},
    reader::{At, Named, Section},
};

pub(super) struct RoutingFile {
    pub(super) scheduler: At<Scheduler>,
    pub(super) swap_affinity_bonus: u32,
    pub(super) aging_divisor: u32,
    pub(super) slots: u32,
    pub(super) fifo_priority: Vec<Named<i64>>,
    pub(super) flow: FlowFile,
    pub(super) router: Option<At<Router>>,
    pub(super) groups: Vec<(At<String>, GroupFile)>,
    pub(super) matrix: Option<MatrixFile>,
    pub(super) admission: AdmissionFile,
    pub(super) backoff_initial: At<Duration>,
    pub(super) backoff_max: At<Duration>,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Scheduler {
    Serial,
    Fifo,
    Flow,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Router {
    Group,
    Matrix,
}

pub(super) struct AdmissionFile {
    pub(super) max_requests: u64,
    pub(super) max_bytes: u64,
    pub(super) default_request_ttl: Duration,
    pub(super) shed_when_saturated: At<bool>,
    /// By [`switchyard_scheduler::Band::index`].
    pub(super) bands: [BandFile; 3],
}

pub(super) struct BandFile {
    pub(super) max_requests: Option<At<u64>>,
    pub(super) max_bytes: Option<At<u64>>,
    pub(super) ttl: Option<At<Duration>>,
}

pub(super) struct GroupFile {
    pub(super) swap: bool,
    pub(super) exclusive: bool,
    pub(super) persistent: bool,
    pub(super) members: Vec<At<String>>,
}

pub(super) struct MatrixFile {
    pub(super) place: At<()>,
    pub(super) vars: Vec<Named<String>>,
    pub(super) evict_costs: Vec<Named<u32>>,
    pub(super) sets: Vec<Named<String>>,
}

pub(super) fn read(s: &mut Section<'_>) -> RoutingFile {
    let (scheduler, serial, fifo_priority, flow) =
        s.section("scheduler", "The order in which waiting requests go.", |s| {
            let kinds = OneOf(&[("serial", Scheduler::Serial), ("fifo", Scheduler::Fifo), ("flow", Scheduler::Flow)]);
            let about =
                "serial runs one job at a time, fifo as many as the models allow, flow as many as saturate no server.";
            let scheduler = s.or("use", about, kinds, "fifo");
            let (serial, fifo, flow) = s.section("settings", "Of each scheduler.", |s| {
                let serial = s.section("serial", "One job at a time: priority, swap affinity and aging.", |s| {
                    [
                        s.or("swapAffinityBonus", "Points for a model that is loaded; 0 is off.", int(0..=99), 10)
                            .value,
                        s.or("agingDivisor", "Seconds of waiting that make a point; 0 is off.", int(0..=u32::MAX), 60)
                            .value,
                        s.or("slots", "Jobs that run at once.", int(1..=u32::MAX), 1).value,
                    ]
                });
                let fifo = s.section("fifo", "As many at once as the models allow.", |s| {
                    s.map("priority", "Points of a model, added to each request's own.", int(i64::MIN..=i64::MAX))
                });
                (
                    serial,
                    fifo,
                    s.section("flow", "By bands, fair among tenants, while no server is saturated.", flow::read),
                )
            });
            (scheduler, serial, fifo, flow)
        });
    let (router, groups, matrix) = s.section("router", "Which models run together.", |s| {
        let kinds = OneOf(&[("group", Router::Group), ("matrix", Router::Matrix)]);
        let router = s.opt("use", "Groups, or a matrix of sets.", kinds);
        s.section("settings", "Of each router.", |s| (router, groups(s), matrix(s)))
    });
    let admission = s.section("admission", "How much may wait, and how long.", admission);
    let (backoff_initial, backoff_max) = s.section("backoff", "The pause after a failed load.", |s| {
        let initial = s.or("initial", "After the first failure; doubles with each further one.", POSITIVE_TIME, "1s");
        (initial, s.or("max", "At the most.", POSITIVE_TIME, "1m"))
    });
    let [swap_affinity_bonus, aging_divisor, slots] = serial;
    RoutingFile {
        scheduler,
        swap_affinity_bonus,
        aging_divisor,
        slots,
        fifo_priority,
        flow,
        router,
        groups,
        matrix,
        admission,
        backoff_initial,
        backoff_max,
    }
}

fn admission(s: &mut Section<'_>) -> AdmissionFile {
    AdmissionFile {
        max_requests: s.or("maxRequests", "Waiting requests.", int(0..=u64::MAX), 10_000).value,
        max_bytes: s.or("maxBytes", "Bytes of their bodies.", Bytes, "1GiB").value,
        default_request_ttl: s
            .or("defaultRequestTTL", "The longest wait in bands without ttl; 0 is forever.", TIME, 0)
            .value,
        shed_when_saturated: s.or(
            "shedWhenSaturated",
            "Refuse batch at once while its servers are saturated (flow).",
            Flag,
            false,
        ),
        bands: s.section("bands", "Bounds of each band alone.", |s| {
            [
                s.section("batch", "Priorities below 0.", band),
                s.section("normal", "Priorities 0 to 99.", band),
                s.section("interactive", "Priorities from 100.", band),
            ]
        }),
    }
}

fn band(s: &mut Section<'_>) -> BandFile {
    BandFile {
        max_requests: s.opt("maxRequests", "Waiting requests; as above without it.", int(0..=u64::MAX)),
        max_bytes: s.opt("maxBytes", "Bytes of their bodies; as above without it.", Bytes),
        ttl: s.opt("ttl", "The longest wait; 0 is forever.", TIME),
    }
}

pub(super) fn groups(s: &mut Section<'_>) -> Vec<(At<String>, GroupFile)> {
    s.sections("groups", "Models that run together or take turns, by the group's name.", |s| GroupFile {
        swap: s.or("swap", "One member at a time.", Flag, true).value,
        exclusive: s.or("exclusive", "Loading a member unloads the other groups.", Flag, true).value,
        persistent: s.or("persistent", "Other groups never unload this one.", Flag, false).value,
        members: s.list("members", "Ids of its models.", Text),
    })
}

pub(super) fn matrix(s: &mut Section<'_>) -> Option<MatrixFile> {
    let present = s.has("matrix");
    let matrix = s.section("matrix", "Sets of models that may run together.", |s| MatrixFile {
        place: At { value: (), place: s.place, path: s.path.clone() },
        vars: s.map("vars", "Short names for models.", Text),
        evict_costs: s.map("evict_costs", "What it costs to unload a model; 1 without it.", int(1..=u32::MAX)),
        sets: s.map("sets", "Each an expression of names, &, |, ( ) and +set.", Text),
    });
    present.then_some(matrix)
}
