//! `flow`: levels, tenants, ceilings.

use std::time::Duration;

use switchyard_scheduler::{
    CeilingSettings, DetectorSettings, Event, FairnessSettings, FlowSettings, LevelSettings, OrderingSettings,
    PolicySettings, Priority, Request, RequestId, SessionId, Settings, TenantId, Usage,
};

use crate::yard::{Tune, Yard, secs, settings};

fn flow(models: &str, change: impl FnOnce(&mut FlowSettings)) -> Settings {
    let mut flow = FlowSettings::default();
    change(&mut flow);
    settings(PolicySettings::Flow(flow), models)
}

/// One slot of one model, in which request 1 runs.
fn busy(change: impl FnOnce(&mut FlowSettings)) -> Yard {
    let mut yard = Yard::new(flow("a", change).concurrency(1));
    yard.warm('a');
    yard.arrive(1, 'a', 1_000, "run 1 on a");
    yard
}

fn of(tenant: u64, id: u64) -> Request {
    Request { tenant: TenantId(tenant), ..Yard::plain(id, 'a', 0) }
}

fn fair(fairness: FairnessSettings) -> impl FnOnce(&mut FlowSettings) {
    move |flow| flow.template.fairness = fairness
}

fn ordered(ordering: OrderingSettings) -> impl FnOnce(&mut FlowSettings) {
    move |flow| flow.template.ordering = ordering
}

#[test]
fn levels_go_strictly_from_the_highest_down() {
    let mut yard = busy(|_| {});
    for (id, priority) in (2..).zip([-5, 7, 0, 7, i64::MIN, i64::MAX]) {
        yard.arrive(id, 'a', priority, "");
    }
    for (ends, next) in [(1, 7), (7, 3), (3, 5), (5, 4), (4, 2), (2, 6)] {
        yard.finish(ends, &format!("run {next} on a"));
    }
}

#[test]
fn tenants_take_turns() {
    let mut yard = busy(fair(FairnessSettings::RoundRobin));
    for id in 2..6 {
        yard.request(of(1, id), "");
    }
    yard.request(of(2, 6), "");
    yard.request(of(2, 7), "");
    yard.finish(1, "run 2 on a");
    yard.finish(2, "run 6 on a");
    yard.finish(6, "run 3 on a");
    // From idle: in this turn, but no credit for those before.
    yard.request(of(3, 8), "");
    yard.request(of(3, 9), "");
    yard.finish(3, "run 7 on a");
    yard.finish(7, "run 8 on a");
    yard.finish(8, "run 4 on a");
    yard.finish(4, "run 9 on a");
    yard.finish(9, "run 5 on a");
}

#[test]
fn global_strict_knows_no_tenants() {
    let mut yard = busy(fair(FairnessSettings::GlobalStrict));
    for (id, tenant) in [(2, 1), (3, 1), (4, 2)] {
        yard.request(of(tenant, id), "");
    }
    yard.finish(1, "run 2 on a");
    yard.finish(2, "run 3 on a");
    yard.finish(3, "run 4 on a");
}

#[test]
fn weighted_goes_by_tokens_and_shares() {
    let mut yard = busy(|flow| {
        flow.template.fairness = FairnessSettings::Weighted;
        flow.weights.insert(TenantId(2), 2);
    });
    let sized = |tenant, id, prompt_tokens| Request { prompt_tokens, max_tokens: Some(0), ..of(tenant, id) };
    for id in 2..6 {
        yard.request(sized(1, id, 100), "");
        yard.request(sized(2, id + 10, 100), "");
    }
    yard.finish(1, "run 2 on a");
    assert_eq!(yard.decision(2).flow.map(|flow| (flow.fairness, flow.ahead)), Some((FairnessSettings::Weighted, 0.0)));
    yard.finish(2, "run 12 on a");
    yard.finish(12, "run 13 on a");
    yard.finish(13, "run 3 on a");
    yard.finish(3, "run 14 on a");
    yard.finish(14, "run 15 on a");
    yard.finish(15, "run 4 on a");
}

#[test]
fn what_was_really_used_is_made_good() {
    let mut yard = busy(fair(FairnessSettings::Weighted));
    let sized = |tenant, id| Request { prompt_tokens: 10, max_tokens: Some(100), ..of(tenant, id) };
    for id in 2..6 {
        yard.request(sized(1, id), "");
        yard.request(sized(2, id + 10), "");
    }
    let used = |output| Usage { prompt_tokens: Some(10), completion_tokens: Some(output), first_token: None };
    yard.finish(1, "run 2 on a");
    // Tenant 1 was charged for 100 tokens out, and used none: it is next again.
    yard.event(Event::Finished { id: RequestId(2), usage: Usage { prompt_tokens: Some(5), ..used(0) } }, "run 12 on a");
    yard.event(Event::Finished { id: RequestId(12), usage: used(1_000) }, "run 3 on a");
    for id in 3..5 {
        yard.finish(id, &format!("run {} on a", id + 1));
    }
}

#[test]
fn turns_and_what_is_known_of_tenants_outlive_a_change_of_settings() {
    let weighted = |change: fn(&mut FlowSettings)| {
        let tuned = move |flow: &mut FlowSettings| {
            fair(FairnessSettings::Weighted)(flow);
            change(flow);
        };
        Box::new(flow("ab", tuned).concurrency(1))
    };
    let mut yard = Yard::new(*weighted(|_| {}));
    yard.warm('a');
    yard.request(of(1, 1), "run 1 on a");
    for id in 2..5 {
        yard.request(of(1, id), "");
        yard.request(of(2, id + 10), "");
    }
    // Tenant 1 uses far more than it was charged for, over a change of settings.
    yard.event(Event::Reconfigure(weighted(|flow| flow.swap_affinity = false)), "");
    let used = |output| Usage { prompt_tokens: Some(0), completion_tokens: Some(output), first_token: None };
    yard.event(Event::Finished { id: RequestId(1), usage: used(10_000) }, "run 12 on a");
    yard.event(Event::Reconfigure(weighted(|flow| flow.idle_timeout = secs(500))), "");
    yard.event(Event::Finished { id: RequestId(12), usage: used(40) }, "run 13 on a");
    assert_eq!(yard.decision(13).flow.map(|flow| flow.expected_tokens), Some(40), "as usual");
    yard.event(Event::Finished { id: RequestId(13), usage: used(40) }, "run 14 on a");
    assert_eq!(yard.scheduler.remembered().0, 2);
    yard.finish(14, "run 2 on a");
    assert_eq!(yard.decision(2).flow.map(|flow| flow.expected_tokens), Some(10_000), "as usual");
    // Another fairness counts otherwise, and begins anew.
    yard.event(Event::Reconfigure(Box::new(flow("ab", fair(FairnessSettings::RoundRobin)).concurrency(1))), "");
    yard.request(of(2, 20), "");
    yard.finish(2, "run 3 on a");
    yard.finish(3, "run 20 on a");
    yard.finish(20, "run 4 on a");
}

#[test]
fn what_came_to_nothing_is_not_paid_for_and_says_nothing_of_answers() {
    let mut yard = busy(fair(FairnessSettings::Weighted));
    let sized = |tenant, id| Request { prompt_tokens: 10, ..of(tenant, id) };
    for id in 2..6 {
        yard.request(sized(1, id), "");
        yard.request(sized(2, id + 10), "");
    }
    yard.finish(1, "run 2 on a");
    let nothing = Usage { prompt_tokens: Some(0), ..Usage::default() };
    yard.event(Event::Finished { id: RequestId(2), usage: nothing }, "run 12 on a");
    let expected = yard.decision(12).flow.expect("flow").expected_tokens;
    yard.event(Event::Finished { id: RequestId(12), usage: nothing }, "run 3 on a");
    assert_eq!(yard.decision(3).flow.expect("flow").expected_tokens, expected, "none were learnt from");
}

#[test]
fn the_earliest_deadline_goes_first() {
    let mut yard = busy(ordered(OrderingSettings::Edf));
    let due = |id, ttl| Request { ttl: Some(secs(ttl)), ..of(id, id) };
    yard.arrive(2, 'a', 0, "");
    yard.request(due(3, 90), "");
    yard.request(due(4, 30), "");
    yard.request(due(5, 60), "");
    yard.finish(1, "run 4 on a");
    yard.finish(4, "run 5 on a");
    yard.finish(5, "run 3 on a");
    yard.finish(3, "run 2 on a");
}

#[test]
fn a_goal_that_cannot_be_met_does_not_hold_up_those_that_can() {
    let mut yard = busy(ordered(OrderingSettings::SloDeadline));
    let goal = |id, secs| Request { ttft_goal: Some(Duration::from_secs(secs)), ..of(id, id) };
    yard.request(goal(2, 10), "");
    yard.request(goal(3, 20), "");
    yard.request(goal(4, 15), "");
    yard.arrive(5, 'a', 0, "");
    // The first token comes three seconds after a dispatch: 2 is too late by now.
    let usage = Usage { first_token: Some(secs(3)), ..Usage::default() };
    yard.wait(1).event(Event::Finished { id: RequestId(1), usage }, "run 2 on a");
    yard.request(goal(6, 6), "");
    yard.wait(3).finish(2, "run 4 on a");
    yard.finish(4, "run 3 on a");
    yard.finish(3, "run 5 on a");
    yard.finish(5, "run 6 on a");
}

#[test]
fn whoever_has_no_deadline_is_not_starved_by_those_who_have() {
    let mut yard = busy(ordered(OrderingSettings::Edf));
    yard.arrive(2, 'a', 0, "");
    for id in 3..20 {
        yard.request(Request { ttl: Some(secs(1_000)), ..of(1, id) }, "");
    }
    yard.finish(1, "run 3 on a");
    for id in 3..9 {
        yard.finish(id, &format!("run {} on a", id + 1));
    }
    yard.finish(9, "run 2 on a");
    yard.finish(2, "run 10 on a");
}

#[test]
fn a_ceiling_keeps_the_rest_for_others() {
    let level = |ceiling| LevelSettings { ceiling: Some(ceiling), ..LevelSettings::default() };
    let levels = [(Priority(0), level(1.0)), (Priority(-1), level(0.8))];
    let mut yard = Yard::new(flow("a", |flow| flow.levels = levels.into()));
    yard.warm('a');
    for id in 1..9 {
        yard.arrive(id, 'a', -1, &format!("run {id} on a"));
    }
    yard.arrive(9, 'a', -1, "");
    // Below all that is configured, and so under the same ceiling.
    yard.arrive(10, 'a', -2, "");
    yard.arrive(11, 'a', 0, "run 11 on a");
    yard.arrive(12, 'a', 5, "run 12 on a");
    yard.arrive(13, 'a', 0, "");
    let pool = yard.scheduler.pools().next().expect("one model");
    assert_eq!(pool.saturation, Some(1.0));
    let levels: Vec<_> = pool.levels.iter().map(|level| (level.priority.0, level.waiting, level.ceiling)).collect();
    assert_eq!(levels, [(0, 1, 1.0), (-1, 1, 0.8), (-2, 1, 0.8)]);
    yard.finish(1, "run 13 on a");
    yard.finish(2, "");
    yard.finish(3, "");
    yard.finish(4, "run 9 on a");
    assert_eq!(yard.decision(9).flow.map(|flow| (flow.saturation, flow.ceiling)), Some((Some(0.7), 0.8)));
    assert!(yard.scheduler.pools().all(|pool| pool.held[0] > 0));
}

#[test]
fn whoever_is_not_let_through_is_told_what_it_waited_for() {
    let level = LevelSettings { ceiling: Some(0.5), ..LevelSettings::default() };
    let mut settings = flow("a", |flow| flow.template = level);
    settings.admission.shed_when_saturated = true;
    let mut yard = Yard::new(settings.concurrency(2));
    yard.warm('a');
    yard.arrive(1, 'a', 0, "run 1 on a");
    yard.request(Request { ttl: Some(secs(3)), ..of(1, 2) }, "");
    yard.deadline(3, "reject 2 rejected_ttl");
    let seen = |yard: &Yard| yard.held_up().map(|flow| (flow.saturation, flow.ceiling));
    assert_eq!(seen(&yard), Some((Some(0.5), 0.5)));
    yard.arrive(3, 'a', -1, "reject 3 rejected_shed");
    assert_eq!(seen(&yard), Some((Some(0.5), 0.5)));
}

#[test]
fn an_adaptive_ceiling_opens_while_nobody_more_urgent_comes() {
    let ceilings = CeilingSettings::Adaptive { least: 0.5, greatest: 1.0 };
    let mut yard = Yard::new(flow("a", |flow| {
        flow.ceilings = ceilings;
        flow.levels = [(Priority(0), LevelSettings::default()), (Priority(10), LevelSettings::default())].into();
    }));
    yard.warm('a');
    for id in 1..11 {
        yard.arrive(id, 'a', 0, &format!("run {id} on a"));
    }
    yard.arrive(11, 'a', 0, "");
    yard.arrive(12, 'a', 0, "");
    // One in two that come is more urgent.
    for id in 0..40 {
        yard.wait(1).arrive(1_000 + id, 'a', 10, "");
        yard.finish(if id == 0 { 1 } else { 999 + id }, &format!("run {} on a", 1_000 + id));
    }
    yard.finish(1_039, "");
    assert!(yard.scheduler.pools().all(|pool| pool.levels[0].ceiling < 0.9), "a place is kept");
    // They have stopped coming.
    yard.wait(200).finish(2, "run 11 on a, run 12 on a");
}

#[test]
fn an_adaptive_ceiling_fills_what_is_freed_at_once_step_by_step() {
    let ceilings = CeilingSettings::Adaptive { least: 0.5, greatest: 1.0 };
    let levels = [(Priority(0), LevelSettings::default()), (Priority(10), LevelSettings::default())];
    let settings = flow("a", |flow| (flow.ceilings, flow.levels) = (ceilings, levels.into()));
    let mut yard = Yard::new(settings.concurrency(40));
    yard.warm('a');
    for id in 1..41 {
        yard.arrive(id, 'a', 0, &format!("run {id} on a"));
    }
    for id in 41..81 {
        yard.arrive(id, 'a', 0, "");
    }
    // One in two that come is more urgent.
    for id in 0..40 {
        yard.wait(1).arrive(1_000 + id, 'a', 10, "");
        yard.finish(if id == 0 { 1 } else { 999 + id }, &format!("run {} on a", 1_000 + id));
    }
    // Nineteen end together; half of the capacity and more is still in use.
    yard.wait(1);
    for id in 2..21 {
        yard.scheduler.handle(yard.now, Event::Finished { id: RequestId(id), usage: Usage::default() });
    }
    assert_eq!(std::iter::from_fn(|| yard.scheduler.poll_action()).count(), 1);
    let mut places = Vec::new();
    for _ in 0..3 {
        yard.now = yard.scheduler.deadline().expect("the next place");
        yard.scheduler.handle(yard.now, Event::Tick);
        places.push((yard.now.0 % 1_000_000, std::iter::from_fn(|| yard.scheduler.poll_action()).count()));
    }
    // As often as one a second for each of forty, but not as slowly as that.
    assert_eq!(places, [(98_000, 1), (198_000, 1), (298_000, 1)]);
}

#[test]
fn a_level_that_ages_overtakes() {
    let mut yard = busy(|flow| flow.aging_divisor = 60);
    yard.arrive(2, 'a', 0, "");
    yard.wait(601).arrive(3, 'a', 10, "");
    yard.finish(1, "run 2 on a");
    assert_eq!(yard.decision(2).passed_by_aging, Some(RequestId(3)));
    assert_eq!(yard.decision(2).aging, 601.0 / 60.0);
    yard.finish(2, "run 3 on a");
}

#[test]
fn among_tenants_equally_due_the_one_goes_first_that_needs_no_swap() {
    let mut yard = Yard::new(flow("ab", fair(FairnessSettings::RoundRobin)).concurrency(1));
    yard.warm('a');
    let ask = |tenant, id, letter| Request { tenant: TenantId(tenant), ..Yard::plain(id, letter, 0) };
    yard.request(ask(1, 1, 'a'), "run 1 on a");
    yard.request(ask(2, 2, 'b'), "");
    yard.request(ask(3, 3, 'a'), "");
    yard.request(ask(3, 4, 'a'), "");
    // 3 is as due as 2, and its model is there; its next request is a turn later.
    yard.finish(1, "run 3 on a");
    assert_eq!(yard.decision(3).passed_by_affinity, Some(RequestId(2)));
    yard.finish(3, "stop a evicted");
    yard.stopped('a', "load b for 2 after a");
    yard.loaded('b', "run 2 on b");
}

#[test]
fn sheddable_arrivals_are_refused_while_the_servers_are_saturated() {
    let shedding = flow("a", |_| {}).concurrency(1).tune(|settings| settings.admission.shed_when_saturated = true);
    let mut yard = Yard::new(shedding);
    // Nothing is saturated before it is loaded.
    yard.arrive(1, 'a', -1, "load a for 1");
    yard.loaded('a', "run 1 on a");
    yard.arrive(2, 'a', -1, "reject 2 rejected_shed");
    yard.arrive(3, 'a', 0, "");
    yard.finish(1, "run 3 on a");
    yard.finish(3, "");
    yard.arrive(4, 'a', -1, "run 4 on a");
}

#[test]
fn a_full_pool_of_tokens_takes_no_more() {
    let tokens = flow("a", |_| {}).model('a', |a| a.detector = DetectorSettings::Tokens { tokens: 1_000 });
    let mut yard = Yard::new(tokens);
    yard.warm('a');
    let sized = |id, prompt_tokens| Request { prompt_tokens, max_tokens: Some(100), ..of(1, id) };
    yard.request(sized(1, 500), "run 1 on a");
    yard.request(sized(2, 300), "run 2 on a");
    yard.request(sized(3, 1), "");
    yard.finish(2, "run 3 on a");
}

#[test]
fn a_session_stays_where_it_is() {
    let pool = flow("p", |_| {}).model('p', |p| (p.managed, p.replicas) = (false, 2));
    let mut yard = Yard::new(pool);
    yard.event(Event::Tick, "load p, load p.1");
    yard.loaded('p', "");
    yard.event(yard.load_done('p', 1), "");
    let turn = |id| Request { session: Some(SessionId(1)), ..Yard::plain(id, 'p', 0) };
    yard.request(turn(1), "run 1 on p");
    yard.arrive(2, 'p', 0, "run 2 on p.1");
    for id in 3..6 {
        yard.request(turn(id), &format!("run {id} on p"));
    }
    // One more would be more than 5/4 of the mean, rounded up: four of six.
    yard.request(turn(6), "run 6 on p.1");
}
