//! What `flow` promises to tenants and levels, whatever they send.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use proptest::{prelude::*, sample::Index};
use switchyard_scheduler::{
    Action, CeilingSettings, Event, FairnessSettings, FlowSettings, LevelSettings, OrderingSettings, PolicySettings,
    Priority, Request, RequestId, TenantId, Timestamp, Usage,
};

use crate::{
    properties::{all_ready, config, dispatched, request, traffic},
    shell::Shell,
    steps::{MODELS, flow_settings, pick},
};

const FAIR: [FairnessSettings; 2] = [FairnessSettings::RoundRobin, FairnessSettings::Weighted];

fn fair(fairness: FairnessSettings, weights: &[u32]) -> FlowSettings {
    FlowSettings {
        template: LevelSettings { fairness, ..LevelSettings::default() },
        weights: (0..).map(TenantId).zip(weights.iter().copied()).collect(),
        ..FlowSettings::default()
    }
}

/// One model with so many places, all of them taken.
fn full(flow: FlowSettings, places: u32) -> Shell {
    let mut shell = all_ready(PolicySettings::Flow(flow), 1, places);
    for _ in 0..places {
        shell.arrive(Request { tenant: TenantId(u64::MAX), ..request(0, i64::MAX) });
    }
    shell
}

fn of(tenant: u64, prompt_tokens: u64) -> Request {
    Request { tenant: TenantId(tenant), prompt_tokens, max_tokens: Some(0), ..request(0, 0) }
}

/// One of those that run.
fn running(shell: &Shell, which: Index) -> RequestId {
    pick(which, &shell.running.keys().copied().collect::<Vec<_>>()).expect("somebody runs")
}

/// Ends one request, and says which one goes in its place, and when that one arrived.
fn next(shell: &mut Shell, ends: RequestId, usage: Usage) -> Option<(Request, Timestamp)> {
    let before = shell.waiting.clone();
    let seen = shell.actions.len();
    shell.tell(Event::Finished { id: ends, usage });
    match dispatched(&shell.actions[seen..])[..] {
        [id] => before.get(&id).cloned(),
        _ => None,
    }
}

/// The greatest difference between what two get over any stretch of turns, where `turns` says what each turn gave.
fn spread(turns: &[i128]) -> i128 {
    let mut sum = 0;
    let sums: Vec<_> = std::iter::once(0)
        .chain(turns.iter().map(|turn| {
            sum += turn;
            sum
        }))
        .collect();
    sums.iter().max().unwrap_or(&0) - sums.iter().min().unwrap_or(&0)
}

/// Jain's index: 1 when all get the same, 1/n when one gets all.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    sum * sum / (shares.len() as f64 * shares.iter().map(|share| share * share).sum::<f64>())
}

proptest! {
    #![proptest_config(config())]

    /// As long as no ceiling keeps anything back, no place stands empty while somebody waits for it; and within a model
    /// nobody goes before one of a higher level.
    #[test]
    fn no_place_stands_empty_and_levels_are_strict(
        mut flow in flow_settings(),
        places in 1_u32..4,
        traffic in traffic(MODELS),
        tenants in prop::collection::vec(0_u64..5, 120),
    ) {
        flow.aging_divisor = 0;
        flow.ceilings = CeilingSettings::Fixed(1.0);
        flow.template.ceiling = None;
        flow.levels.values_mut().for_each(|level| level.ceiling = None);
        let mut shell = all_ready(PolicySettings::Flow(flow), MODELS, places);
        for ((arrival, which, micros), tenant) in traffic.into_iter().zip(tenants) {
            shell.now = shell.now + Duration::from_micros(micros);
            let mut waiting: Vec<_> = shell.waiting.values().map(|(request, _)| request.clone()).collect();
            let seen = shell.actions.len();
            match arrival {
                Some((model, priority)) => {
                    let request = Request { tenant: TenantId(tenant), ..request(model, priority) };
                    let id = shell.arrive(request.clone());
                    waiting.push(Request { id, ..request });
                }
                None => {
                    let Some(id) = pick(which, &shell.running.keys().copied().collect::<Vec<_>>()) else { continue };
                    shell.finish(id);
                }
            }
            for action in &shell.actions[seen..] {
                let Action::Dispatch { id, replica, decision, .. } = action else { panic!("{action:?}") };
                let same = waiting.iter().filter(|request| request.model == replica.model);
                prop_assert_eq!(same.map(|request| request.priority).max(), Some(decision.priority));
                waiting.retain(|request| request.id != *id);
            }
            for (request, _) in shell.waiting.values() {
                let running = shell.running.values().filter(|(replica, _)| replica.model == request.model).count();
                prop_assert_eq!(running, places as usize);
            }
        }
    }

    /// With one tenant, one order and nothing to load, flow is fifo.
    #[test]
    fn without_tenants_flow_is_priority_then_arrival(places in 1_u32..4, traffic in traffic(1)) {
        let mut shell = all_ready(PolicySettings::Flow(FlowSettings::default()), 1, places);
        for (arrival, which, micros) in traffic {
            shell.now = shell.now + Duration::from_micros(micros);
            let best = shell.waiting.values().map(|(request, _)| (request.priority, Reverse(request.id))).max();
            match arrival {
                Some((_, priority)) => _ = shell.arrive(request(0, priority)),
                None if shell.running.is_empty() => {}
                None => {
                    let ends = running(&shell, which);
                    let next = next(&mut shell, ends, Usage::default());
                    prop_assert_eq!(next.map(|(request, _)| request.id), best.map(|(_, Reverse(id))| id));
                }
            }
        }
    }

    /// Two tenants with requests waiting differ by at most one request over any stretch of time, whoever else comes and
    /// goes.
    #[test]
    fn round_robin_serves_the_backlogged_alike(
        places in 1_u32..4,
        others in prop::collection::vec((prop::option::of(2_u64..6), any::<Index>()), 1..100),
    ) {
        let mut shell = full(fair(FairnessSettings::RoundRobin, &[]), places);
        for tenant in [0, 1, 0, 1] {
            shell.arrive(of(tenant, 1));
        }
        let mut turns = Vec::new();
        for (other, which) in others {
            if let Some(tenant) = other {
                shell.arrive(of(tenant, 1));
            }
            let ends = running(&shell, which);
            let (request, _) = next(&mut shell, ends, Usage::default()).expect("they are backlogged");
            if let tenant @ (0 | 1) = request.tenant.0 {
                turns.push(1 - 2 * i128::from(tenant));
                shell.arrive(of(tenant, 1));
            }
        }
        prop_assert!(spread(&turns) <= 1, "{turns:?}");
    }

    /// Start-time fair queueing, theorem 1: over any stretch of time in which two tenants have requests waiting, what they
    /// are charged over their weights differs by no more than the greatest request of each over its weight.
    #[test]
    fn weighted_keeps_the_bound_of_start_time_fair_queueing(
        places in 1_u32..4,
        weights in prop::collection::vec(1_u32..10, 6),
        sizes in prop::collection::vec((1_u64..1_000, 1_u64..5_000), 100),
        others in prop::collection::vec((prop::option::of((2_u64..6, 1_u64..20_000)), any::<Index>()), 1..100),
    ) {
        let mut shell = full(fair(FairnessSettings::Weighted, &weights), places);
        for &(small, large) in &sizes {
            shell.arrive(of(0, small));
            shell.arrive(of(1, large));
        }
        let (w0, w1) = (i128::from(weights[0]), i128::from(weights[1]));
        let mut turns = Vec::new();
        for (other, which) in others {
            if let Some((tenant, tokens)) = other {
                shell.arrive(of(tenant, tokens));
            }
            let ends = running(&shell, which);
            let (request, _) = next(&mut shell, ends, Usage::default()).expect("they are backlogged");
            let tokens = i128::from(request.prompt_tokens);
            turns.push(match request.tenant.0 { 0 => tokens * w1, 1 => -tokens * w0, _ => 0 });
        }
        // All of it times both weights.
        let most = |pick: fn(&(u64, u64)) -> u64| i128::from(sizes.iter().map(pick).max().unwrap_or(0));
        let bound = most(|size| size.0) * w1 + most(|size| size.1) * w0;
        prop_assert!(spread(&turns) <= bound + w0 * w1, "{} over {bound}", spread(&turns));
    }

    /// A tenant that asks for little gets it at once, however much another asks for.
    #[test]
    fn small_tenants_get_their_full_demand_beside_a_large_one(
        fairness in prop::sample::select(FAIR.to_vec()),
        first in prop::collection::vec(0_u64..20, 9),
    ) {
        let mut shell = full(fair(fairness, &[]), 1);
        let mut waits = Vec::new();
        for turn in 0..100 {
            // Nine ask once in twenty turns each, the tenth a hundred times as often.
            for small in (0..9).filter(|&small| (turn + first[small as usize]).is_multiple_of(20)) {
                shell.arrive(of(small, 100));
            }
            for _ in 0..5 {
                shell.arrive(of(9, 100));
            }
            shell.now = shell.now + Duration::from_secs(1);
            let ends = *shell.running.keys().next().expect("the place is taken");
            let (request, arrived) = next(&mut shell, ends, Usage::default()).expect("the large one is backlogged");
            if request.tenant.0 < 9 {
                waits.push(shell.now.since(arrived).as_secs());
            }
        }
        prop_assert!(waits.len() >= 40 && waits.iter().all(|&wait| wait <= 10), "{waits:?}");
    }

    /// Tokens really used are what counts: one tenant's prompts are ten times as long, answers are of any length, and
    /// nobody can tell before.
    #[test]
    fn backlogged_tenants_get_the_same_tokens(
        places in 1_u32..5,
        turns in prop::collection::vec((any::<Index>(), 1_u64..400), 500),
    ) {
        let mut shell = full(fair(FairnessSettings::Weighted, &[]), places);
        let arrive = |shell: &mut Shell, tenant| {
            let prompt_tokens = if tenant == 0 { 2_000 } else { 200 };
            shell.arrive(Request { max_tokens: None, ..of(tenant, prompt_tokens) });
        };
        for _ in 0..5 {
            (0..4).for_each(|tenant| arrive(&mut shell, tenant));
        }
        let mut runs = BTreeMap::new();
        let mut used = [0.0; 4];
        for (which, completion_tokens) in turns {
            let ends = running(&shell, which);
            // Those who were there before are nobody's.
            let prompt_tokens = match runs.remove(&ends) {
                Some(Request { tenant, prompt_tokens, .. }) => {
                    used[tenant.0 as usize] += (prompt_tokens + 2 * completion_tokens) as f64;
                    prompt_tokens
                }
                None => 0,
            };
            let (prompt_tokens, completion_tokens) = (Some(prompt_tokens), Some(completion_tokens));
            let usage = Usage { prompt_tokens, completion_tokens, first_token: None };
            let (request, _) = next(&mut shell, ends, usage).expect("they are backlogged");
            arrive(&mut shell, request.tenant.0);
            runs.insert(request.id, request);
        }
        prop_assert!(jain(&used) >= 0.98, "{used:?}");
    }

    /// With aging on, a steady stream of more urgent requests holds nobody up for longer than it takes to catch up.
    #[test]
    fn no_level_starves_while_levels_age(
        divisor in 1_u32..5,
        behind in 1_i64..30,
        fairness in prop::sample::select(FAIR.to_vec()),
        ordering in prop::sample::select(vec![OrderingSettings::Fcfs, OrderingSettings::Edf, OrderingSettings::SloDeadline]),
    ) {
        let flow = FlowSettings {
            aging_divisor: divisor,
            template: LevelSettings { fairness, ordering, ceiling: None },
            ..FlowSettings::default()
        };
        let mut shell = full(flow, 1);
        let low = shell.arrive(Request { tenant: TenantId(7), ..request(0, -behind) });
        let mut seconds = 0;
        while shell.waiting.contains_key(&low) {
            shell.arrive(Request { tenant: TenantId(seconds % 3), ..request(0, 0) });
            shell.now = shell.now + Duration::from_secs(1);
            seconds += 1;
            let id = *shell.running.keys().next().expect("the place is taken");
            shell.finish(id);
            prop_assert!(seconds <= behind as u64 * u64::from(divisor) + 2, "it starves");
        }
        prop_assert!(seconds >= (behind as u64 - 1) * u64::from(divisor), "{seconds}: levels count for nothing");
    }
}

/// A tenant gains nothing by being idle, and loses nothing by having been busy long ago.
#[test]
fn idleness_is_no_credit() {
    for fairness in FAIR {
        let mut shell = full(fair(fairness, &[]), 1);
        for _ in 0..100 {
            shell.arrive(of(0, 100));
        }
        let any = |shell: &mut Shell| {
            let ends = *shell.running.keys().next().expect("the place is taken");
            next(shell, ends, Usage::default()).expect("they are backlogged").0.id
        };
        for _ in 0..50 {
            any(&mut shell);
        }
        let late: BTreeSet<_> = (0..20).map(|_| shell.arrive(of(1, 100))).collect();
        let turns: Vec<_> = (0..40).map(|_| late.contains(&any(&mut shell))).collect();
        assert_eq!(turns.iter().filter(|&&late| late).count(), 20, "{turns:?}");
        assert!(turns.windows(2).all(|pair| pair[0] != pair[1]), "they take turns: {turns:?}");
    }
}

/// What is remembered is bounded while tenants and levels come and go, and forgotten when nobody comes any more.
#[test]
fn ten_thousand_tenants_come_and_go_without_growth() {
    for fairness in FAIR {
        let flow = FlowSettings { idle_timeout: Duration::from_secs(60), ..fair(fairness, &[]) };
        let mut shell = all_ready(PolicySettings::Flow(flow), 1, 2);
        let mut most = (0, 0);
        for tenant in 0..30_000 {
            shell.now = shell.now + Duration::from_micros(10);
            let priority = (tenant % 10_000) as i64;
            let id = shell.arrive(Request { tenant: TenantId(tenant), ..request(0, priority) });
            shell.finish(id);
            let (flows, levels) = shell.scheduler.remembered();
            most = (most.0.max(flows), most.1.max(levels));
        }
        assert!(most.0 <= 8_193 && most.1 <= 8_193, "{most:?}");
        // Nobody for a while, then one.
        shell.now = shell.now + Duration::from_secs(61);
        shell.tell(Event::Tick);
        assert_eq!(shell.scheduler.remembered(), (0, 0));
        shell.arrive(Request { tenant: TenantId(1), priority: Priority(1), ..request(0, 0) });
        assert_eq!(shell.scheduler.remembered(), (1, 1));
    }
}
