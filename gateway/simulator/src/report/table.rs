//! The report for a terminal.

use std::fmt::Write;

use super::{Report, readable, significant};
use crate::{ClassFigures, Run};

const HEAD: [&str; 11] =
    ["scheduler", "class", "arrived", "served", "shed", "left", "TTFT p50", "p95", "p99", "goal met", "tokens"];

pub(super) fn table(report: &Report) -> String {
    let mut out = format!("{}\n", report.name);
    if !report.description.is_empty() {
        let _ = writeln!(out, "{}", report.description);
    }
    if report.window != (0.0, report.duration) {
        let (from, to) = report.window;
        let _ = writeln!(out, "Figures of the requests that arrive from second {from} to second {to}.");
    }
    let mut rows = vec![HEAD.map(str::to_owned)];
    for run in &report.runs {
        for (index, class) in run.classes.iter().enumerate() {
            rows.push(row(if index == 0 { &run.name } else { "" }, class));
        }
    }
    let _ = write!(out, "\n{}\n", aligned(&rows, 2));
    let mut totals =
        vec![["scheduler", "requests/s", "tokens/s", "Jain", "loads", "preempted", "last end"].map(str::to_owned)];
    totals.extend(report.runs.iter().map(total));
    let _ = write!(out, "{}", aligned(&totals, 1));
    if !report.skipped.is_empty() {
        out.push('\n');
    }
    for (name, reason) in &report.skipped {
        let _ = writeln!(out, "{name} left out: {reason}");
    }
    out
}

fn row(scheduler: &str, class: &ClassFigures) -> [String; 11] {
    let time = |time: std::time::Duration| {
        if class.ttft.p50.is_zero() { "-".to_owned() } else { readable(time.as_secs_f64()) }
    };
    [
        scheduler.to_owned(),
        class.name.clone(),
        class.arrived.to_string(),
        class.served.to_string(),
        class.shed.to_string(),
        (class.left + class.lost).to_string(),
        time(class.ttft.p50),
        time(class.ttft.p95),
        time(class.ttft.p99),
        class.goal_met.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0)),
        class.tokens.to_string(),
    ]
}

fn total(run: &Run) -> [String; 7] {
    [
        run.name.clone(),
        significant(run.requests_per_second),
        format!("{:.0}", run.tokens_per_second),
        format!("{:.3}", run.fairness),
        run.loads.to_string(),
        run.preemptions.to_string(),
        readable(run.end.as_secs_f64()),
    ]
}

/// Columns of equal width: the first `texts` to the left, numbers to the right.
fn aligned<const N: usize>(rows: &[[String; N]], texts: usize) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..N).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column < texts { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}
