//! An explanation in plain sentences.

use std::fmt::{self, Write};

use super::{
    explain::{Explanation, Group, Neighbour, Reason, Term},
    record::ActivityRecord,
};

/// So many requests are called by their ids in a sentence.
const FEW: usize = 2;

/// The summary, a sentence or two an entry.
pub(super) fn tell(explanation: &Explanation) -> Vec<String> {
    let request = &explanation.request;
    let mut story = vec![arrival(request)];
    story.extend(request.unread_priority.as_ref().map(|text| {
        format!(
            "Its priority header said {text:?}, which is neither a 64-bit whole number nor a band, and did not count."
        )
    }));
    let waited = request.serial_queue_wait_ms > 0;
    if waited && !explanation.running_on_arrival.is_empty() {
        story.push(running(request, &explanation.running_on_arrival));
    }
    if !explanation.went_first.is_empty() {
        story.push(went_first(request, &explanation.went_first));
    }
    story.extend(score(request));
    story.extend(flow(request));
    story.extend(held_up(request));
    story.extend(explanation.passed_by.iter().map(|passed| {
        let whom = match &passed.request {
            Some(other) => format!("`{}` ({}, priority {})", other.id, other.model, other.serial_priority),
            None => format!("request number {} (not ended yet, or no longer in the log)", passed.seq),
        };
        match passed.term {
            Term::Aging => format!("Because it had waited so long it went before {whom}."),
            Term::SwapAffinity => format!("Because its model was loaded it went before {whom}."),
        }
    }));
    story.push(ending(request));
    if waited && !explanation.log.complete {
        let log = &explanation.log;
        story.push(format!(
            "The log keeps {} rows, and its oldest ended at {}, after this request arrived: others that went first may \
             be missing above.",
            log.keeps,
            time(log.oldest_ended_ms)
        ));
    }
    story
}

fn arrival(request: &ActivityRecord) -> String {
    let tenant = request.tenant.as_ref().map(|tenant| format!(" of tenant {tenant}")).unwrap_or_default();
    let tier = request.tier.as_ref().map(|tier| format!(", tier {tier}")).unwrap_or_default();
    let model = match request.model.as_str() {
        "" => " without a model".to_owned(),
        model => format!(" for model {model}"),
    };
    let who = format!(
        "The request{tenant}{model} (priority {}, band {}{tier}) arrived at {}",
        request.serial_priority,
        request.serial_band,
        time(request.arrived_ms)
    );
    match (request.dispatched_ms, request.serial_queue_wait_ms) {
        (Some(_), 0) => format!("{who} and was let through at once."),
        (Some(_), wait) => {
            let swap = request.swap_ms.map(|ms| format!(", {} of that while its model was made ready", span(ms)));
            format!("{who} and waited {} until it was let through{}.", span(wait), swap.unwrap_or_default())
        }
        (None, 0) => format!("{who} and did not enter the queue."),
        (None, wait) => format!("{who} and waited {} without being let through.", span(wait)),
    }
}

fn running(request: &ActivityRecord, running: &[Neighbour]) -> String {
    let until = running.iter().map(|other| other.ended_ms).max().unwrap_or(request.arrived_ms);
    let went_on = span(until - request.arrived_ms);
    match running {
        [one] => format!(
            "When it arrived, `{}` ({}, priority {}) was running, and ran for {went_on} more.",
            one.id, one.model, one.serial_priority
        ),
        several => format!(
            "When it arrived, {} requests were running; the last of them ran for {went_on} more.",
            several.len()
        ),
    }
}

fn went_first(request: &ActivityRecord, groups: &[Group]) -> String {
    let total: usize = groups.iter().map(|group| group.count).sum();
    let others = if total == 1 { "other request was" } else { "other requests were" };
    let reasons: Vec<_> = groups
        .iter()
        .map(|group| format!("{} {}{}", group.count, because(request, group), names(group).unwrap_or_default()))
        .collect();
    format!("While it waited, {total} {others} let through: {}.", reasons.join("; "))
}

/// Names a few; of many only the table does.
fn names(group: &Group) -> Option<String> {
    let ids: Vec<_> = group.requests.iter().map(|other| format!("`{}`", other.id)).collect();
    (group.count <= FEW).then(|| format!(" ({})", ids.join(" and ")))
}

fn because(request: &ActivityRecord, group: &Group) -> String {
    let one = group.count == 1;
    match group.reason {
        Reason::MoreUrgent => {
            let priorities = if group.lowest_priority == group.highest_priority {
                format!("priority {}", group.highest_priority)
            } else {
                format!("priorities {} to {}", group.lowest_priority, group.highest_priority)
            };
            // With a model's priority on top, the caller's alone may be no higher.
            let models = if group.lowest_priority > request.serial_priority { "" } else { " and the model's on top" };
            format!("more urgent, with {priorities}{models}")
        }
        Reason::ArrivedEarlier => "just as urgent, and there before".to_owned(),
        Reason::FairShare => "just as urgent, of tenants whose turn it was".to_owned(),
        Reason::DueSooner => "just as urgent, and due sooner".to_owned(),
        Reason::WaitedLonger => "less urgent, but waiting for longer".to_owned(),
        Reason::WarmModel => {
            format!("for {} loaded already", if one { "a model that was" } else { "models that were" })
        }
        Reason::AlreadyChosen => "whose turn had come before, when its model was loaded for it".to_owned(),
        Reason::WhileLoading => "on other models, while its own was being made ready".to_owned(),
        Reason::Beside => "on room that this one could not use".to_owned(),
    }
}

/// The score by its terms, for a request that was dispatched.
fn score(request: &ActivityRecord) -> Option<String> {
    request.dispatched_ms?;
    let mut terms = format!("priority {}", request.serial_priority);
    if request.model_priority != 0 {
        let _ = write!(terms, " + model's priority {}", request.model_priority);
    }
    if request.affinity != 0 {
        let _ = write!(terms, " + {} for a loaded model", request.affinity);
    }
    if request.aging != 0.0 {
        let _ = write!(terms, " + {:.2} for having waited", request.aging);
    }
    Some(format!("Its score was {}: {terms}.", rounded(request.serial_score)))
}

/// What only flow control looks at.
fn flow(request: &ActivityRecord) -> Option<String> {
    let fairness = request.fairness.as_deref()?;
    let full = match (request.saturation, request.ceiling) {
        (Some(saturation), Some(ceiling)) => format!(
            "Its model's servers were {} full then, and requests of its priority go on up to {}.",
            percent(saturation),
            percent(ceiling)
        ),
        _ => String::new(),
    };
    let unit = match fairness {
        "round-robin" => "turn",
        "weighted" => "weighted token",
        _ => return (!full.is_empty()).then_some(full),
    };
    let ahead = request.fairness_ahead.unwrap_or_default();
    let after = if ahead > 0.0 {
        let ahead = rounded(ahead);
        let plural = if ahead == "1" { "" } else { "s" };
        format!(", {ahead} {unit}{plural} after the latest before it")
    } else {
        String::new()
    };
    Some(format!("{full} At its priority it was its tenant's turn ({fairness}){after}.").trim().to_owned())
}

/// What a request came up against that was not let through.
fn held_up(request: &ActivityRecord) -> Option<String> {
    let (saturation, ceiling) = (request.saturation?, request.ceiling?);
    if request.dispatched_ms.is_some() {
        return None;
    }
    let (full, most) = (percent(saturation), percent(ceiling));
    Some(if saturation >= ceiling {
        format!(
            "It waited for room: its model's servers were {full} full to the last, and requests of its priority go on \
             only below {most}."
        )
    } else {
        format!("At the last its model's servers were {full} full, and requests of its priority go on up to {most}.")
    })
}

fn percent(share: f64) -> String {
    format!("{}%", rounded(share * 100.0))
}

fn ending(request: &ActivityRecord) -> String {
    let total = span(request.duration_ms);
    let why = request.error.as_ref().map(|error| format!(": {}", error.trim_end_matches('.'))).unwrap_or_default();
    let status = match request.status {
        0 => "before any answer was sent".to_owned(),
        status => format!("with status {status}"),
    };
    if request.dispatched_ms.is_none() {
        return match &*request.outcome {
            "cancelled" => format!("Its client left after {total}, while it waited{why}."),
            outcome => format!("It ended after {total} {status} ({outcome}){why}."),
        };
    }
    let first_byte = request
        .first_byte_ms
        .map(|ms| format!("; the first byte of the answer came {} after it was let through", span(ms)));
    let tokens = match (request.prompt_tokens, request.completion_tokens) {
        (None, None) => String::new(),
        (Some(input), None) => format!("; {input} tokens in"),
        (None, Some(output)) => format!("; {output} tokens out"),
        (Some(input), Some(output)) => format!("; {input} tokens in, {output} out"),
    };
    let outcome = if request.outcome == "dispatched" { String::new() } else { format!(" ({})", request.outcome) };
    format!("It ended {status}{outcome}, {total} after it arrived{}{tokens}{why}.", first_byte.unwrap_or_default())
}

/// The explanation for a terminal.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.id)?;
        for sentence in &self.summary {
            writeln!(f, "{sentence}")?;
        }
        if !self.running_on_arrival.is_empty() {
            table(f, "Running when it arrived", &self.running_on_arrival, self.running_on_arrival.len())?;
        }
        for group in &self.went_first {
            let because = because(&self.request, group);
            table(f, &format!("Went first: {because}"), &group.requests, group.count)?;
        }
        Ok(())
    }
}

fn table(f: &mut fmt::Formatter<'_>, title: &str, requests: &[Neighbour], count: usize) -> fmt::Result {
    writeln!(f, "\n{title}\n  {:>9}  {:>9}  {:>9}  {:>9}  {:<20}  id", "priority", "score", "waited", "ran", "model")?;
    for other in requests {
        let dispatched = other.dispatched_ms.unwrap_or(other.ended_ms);
        writeln!(
            f,
            "  {:>9}  {:>9}  {:>9}  {:>9}  {:<20}  {}",
            other.serial_priority,
            rounded(other.serial_score),
            span(dispatched - other.arrived_ms),
            span(other.ended_ms - dispatched),
            other.model,
            other.id
        )?;
    }
    match count - requests.len() {
        0 => Ok(()),
        more => writeln!(f, "  and {more} more"),
    }
}

/// At most two decimals.
fn rounded(score: f64) -> String {
    let text = format!("{score:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A time span from milliseconds, in at most two units.
fn span(ms: i64) -> String {
    let seconds = ms / 1000;
    match ms {
        ..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{:.1} s", ms as f64 / 1000.0),
        60_000..3_600_000 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// Unix milliseconds as a date and time in UTC.
fn time(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |time| format!("{time:.3}"))
}
