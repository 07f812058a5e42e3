//! The report for a terminal.

use std::fmt::Write;

use super::{Report, readable, significant};
use crate::{ClassFigures, Run};

const HEAD: [&str; 11] =
    ["scheduler", "class", "arrived", "served", "shed", "left", "TTFT p50", "p95", "p99", "goal met", "tokens"];
const TOTALS: [&str; 7] = ["scheduler", "requests/s", "tokens/s", "Jain", "loads", "preempted", "last end"];

pub(super) fn text(report: &Report) -> String {
    let mut out = format!("{}\n", report.name);
    if !report.description.is_empty() {
        let _ = writeln!(out, "{}", report.description);
    }
    if let Some(window) = window(report) {
        let _ = writeln!(out, "{window}");
    }
    let _ = write!(out, "\n{}\n{}", aligned(&classes(report), 2), aligned(&totals(report), 1));
    out
}

pub(super) fn markdown(report: &Report) -> String {
    let mut out = format!("## {}\n\n", escaped(&report.name));
    for paragraph in [Some(report.description.clone()), window(report)].into_iter().flatten() {
        if !paragraph.is_empty() {
            let _ = write!(out, "{}\n\n", escaped(&paragraph));
        }
    }
    let _ = write!(out, "{}\n{}", pipes(&classes(report), 2), pipes(&totals(report), 1));
    out
}

fn window(report: &Report) -> Option<String> {
    let (from, to) = report.window;
    (report.window != (0.0, report.duration))
        .then(|| format!("Figures of the requests that arrive from second {from} to second {to}."))
}

fn classes(report: &Report) -> Vec<[String; 11]> {
    let mut rows = vec![HEAD.map(str::to_owned)];
    for run in &report.runs {
        for (index, class) in run.classes.iter().enumerate() {
            rows.push(row(if index == 0 { &run.name } else { "" }, class));
        }
    }
    rows
}

fn totals(report: &Report) -> Vec<[String; 7]> {
    let mut rows = vec![TOTALS.map(str::to_owned)];
    rows.extend(report.runs.iter().map(total));
    rows
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

/// A Markdown table: the first row is its head, the first `texts` columns are to the left.
fn pipes<const N: usize>(rows: &[[String; N]], texts: usize) -> String {
    let mut out = String::new();
    for (index, row) in rows.iter().enumerate() {
        let _ = writeln!(out, "| {} |", row.iter().map(|cell| escaped(cell)).collect::<Vec<_>>().join(" | "));
        if index == 0 {
            let _ = writeln!(out, "|{}{}", " --- |".repeat(texts), " ---: |".repeat(N - texts));
        }
    }
    out
}

/// What Markdown would take for its own, and cells for their end.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('|', "\\|").replace('<', "&lt;").replace('*', "\\*").replace('_', "\\_")
}
