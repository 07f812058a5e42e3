//! The report for a spreadsheet. Times are in seconds.

use std::{borrow::Cow, fmt::Write};

use super::Report;

pub(super) fn csv(report: &Report) -> String {
    let mut out = String::from(
        "scenario,scheduler,class,arrived,served,shed,left,lost,ttft_p50,ttft_p95,ttft_p99,latency_p50,latency_p95,\
         latency_p99,goal_met,tokens,run_requests_per_second,run_tokens_per_second,run_fairness,run_loads,run_end\n",
    );
    for run in &report.runs {
        for class in &run.classes {
            let times = [
                class.ttft.p50,
                class.ttft.p95,
                class.ttft.p99,
                class.latency.p50,
                class.latency.p95,
                class.latency.p99,
            ];
            let times = times.map(|time| format!("{:.6}", time.as_secs_f64())).join(",");
            let goal = class.goal_met.map_or_else(String::new, |share| format!("{share:.4}"));
            let _ = writeln!(
                out,
                "{},{},{},{},{},{},{},{},{times},{goal},{},{:.4},{:.2},{:.4},{},{:.6}",
                field(&report.name),
                field(&run.name),
                field(&class.name),
                class.arrived,
                class.served,
                class.shed,
                class.left,
                class.lost,
                class.tokens,
                run.requests_per_second,
                run.tokens_per_second,
                run.fairness,
                run.loads,
                run.end.as_secs_f64(),
            );
        }
    }
    out
}

/// Quoted where RFC 4180 wants it.
fn field(text: &str) -> Cow<'_, str> {
    if text.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\"")).into()
    } else {
        text.into()
    }
}
