//! The report as a picture: time to the first token over time, a panel for each scheduler, and a summary below with a
//! bar from p50 to p99 and a dot at p95. All share one logarithmic scale.

use super::{
    Report,
    canvas::{Anchor, Canvas},
    readable, significant,
};
use crate::{Run, SLICES};

const WIDTH: f64 = 980.0;
const MARGIN: f64 = 24.0;
/// Room for the scale's labels.
const GUTTER: f64 = 56.0;
const PANEL_HEIGHT: f64 = 170.0;
/// From the top of one row of panels to the next.
const PANEL_ROW: f64 = PANEL_HEIGHT + 62.0;
const ROW: f64 = 17.0;
/// Told apart by people with any colour vision.
const COLOURS: [&str; 8] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#555555"];

pub(super) fn svg(report: &Report) -> String {
    let mut canvas = Canvas::new();
    let scale = Scale::over(report);
    let mut y = heading(&mut canvas, report);
    let columns = report.runs.len().clamp(1, 2);
    let width = (WIDTH - 2.0 * MARGIN - columns as f64 * GUTTER) / columns as f64;
    for (index, run) in report.runs.iter().enumerate() {
        let x = MARGIN + GUTTER + (index % columns) as f64 * (width + GUTTER);
        let top = y + (index / columns) as f64 * PANEL_ROW;
        panel(&mut canvas, report, run, &scale, Area { x, y: top + 22.0, width, height: PANEL_HEIGHT });
    }
    y += report.runs.len().div_ceil(columns) as f64 * PANEL_ROW;
    y = summary(&mut canvas, report, &scale, y);
    canvas.finish(WIDTH, y + MARGIN, &format!("{}: time to the first token", report.name))
}

#[derive(Clone, Copy)]
struct Area {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

/// Ticks of a scale that spans little, in seconds.
const DENSE: [f64; 29] = [
    0.000_01,
    0.000_1,
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    60.0,
    120.0,
    300.0,
    600.0,
    1_200.0,
    3_600.0,
    7_200.0,
    18_000.0,
    36_000.0,
    86_400.0,
    432_000.0,
    864_000.0,
    8_640_000.0,
];
/// Ticks of a scale that spans much.
const SPARSE: [f64; 13] =
    [0.000_01, 0.000_1, 0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3_600.0, 36_000.0, 864_000.0, 8_640_000.0];

/// Seconds on a logarithmic scale with round ticks.
struct Scale {
    least: f64,
    most: f64,
    ticks: Vec<f64>,
}

impl Scale {
    fn over(report: &Report) -> Self {
        let series = report.runs.iter().flat_map(|run| &run.classes).flat_map(|class| {
            let quantiles = [class.ttft.p50, class.ttft.p99].into_iter().filter(|time| !time.is_zero());
            class.series.iter().flatten().copied().chain(quantiles)
        });
        let (least, most) = series
            .map(|time| time.as_secs_f64())
            .fold((f64::INFINITY, 0.0_f64), |(least, most), time| (least.min(time), most.max(time)));
        let (least, most) = if most > 0.0 { (least.max(1e-6), most) } else { (0.1, 1.0) };
        let all = if most / least > 500.0 { &SPARSE[..] } else { &DENSE[..] };
        let from = all.iter().rposition(|&tick| tick <= least).unwrap_or(0);
        let to = all.iter().position(|&tick| tick >= most && tick > all[from]).unwrap_or(all.len() - 1);
        let ticks = all[from..=to].to_vec();
        Self { least: all[from], most: all[to], ticks }
    }

    /// From 0 to 1.
    fn place(&self, seconds: f64) -> f64 {
        let seconds = seconds.clamp(self.least, self.most);
        libm::log(seconds / self.least) / libm::log(self.most / self.least)
    }
}

fn colour(class: usize) -> &'static str {
    COLOURS[class % COLOURS.len()]
}

/// Title, description and legend; returns where the next thing can begin.
fn heading(canvas: &mut Canvas, report: &Report) -> f64 {
    let mut y = MARGIN + 14.0;
    canvas.text((MARGIN, y), Anchor::Start, "title", &report.name);
    for line in wrapped(&report.description, 140) {
        y += 17.0;
        canvas.text((MARGIN, y), Anchor::Start, "soft", &line);
    }
    y += 24.0;
    canvas.text((MARGIN, y), Anchor::Start, "head", "Time to the first token, p95, by time of arrival");
    y += 20.0;
    let mut x = MARGIN;
    for (index, class) in report.runs.first().map_or(&[][..], |run| &run.classes).iter().enumerate() {
        let width = 34.0 + 7.0 * class.name.chars().count() as f64;
        if x + width > WIDTH - MARGIN && x > MARGIN {
            (x, y) = (MARGIN, y + ROW);
        }
        canvas.rect(x, y - 10.0, 12.0, 12.0, format_args!(r#"rx="2" fill="{}""#, colour(index)));
        canvas.text((x + 17.0, y), Anchor::Start, "", &class.name);
        x += width;
    }
    y + 12.0
}

fn panel(canvas: &mut Canvas, report: &Report, run: &Run, scale: &Scale, area: Area) {
    let Area { x, y, width, height } = area;
    let across = |seconds: f64| x + width * (seconds / report.duration).clamp(0.0, 1.0);
    let down = |seconds: f64| y + height * (1.0 - scale.place(seconds));
    canvas.text((x, y - 8.0), Anchor::Start, "head", &run.name);
    let facts = format!("{} requests/s, Jain {:.2}", significant(run.requests_per_second), run.fairness);
    let facts = if run.loads > 0 { format!("{facts}, {} loads", run.loads) } else { facts };
    canvas.text((x + width, y - 8.0), Anchor::End, "soft", &facts);
    let (from, to) = report.window;
    if report.window != (0.0, report.duration) {
        canvas.rect(across(from), y, across(to) - across(from), height, r##"fill="#f3f3f3""##);
    }
    for &tick in &scale.ticks {
        canvas.line((x, down(tick)), (x + width, down(tick)), r##"stroke="#ddd" stroke-width="1""##);
        canvas.text((x - 6.0, down(tick) + 4.0), Anchor::End, "soft", &tick_label(tick));
    }
    for (seconds, label) in time_ticks(report.duration) {
        let at = across(seconds);
        canvas.line((at, y + height), (at, y + height + 4.0), r##"stroke="#888""##);
        canvas.text((at, y + height + 17.0), Anchor::Middle, "soft", &label);
    }
    canvas.line((x, y + height), (x + width, y + height), r##"stroke="#888""##);
    let slice = report.duration / SLICES as f64;
    for (index, class) in run.classes.iter().enumerate() {
        let style = format!(r#"stroke="{}" stroke-width="1.8" stroke-linejoin="round""#, colour(index));
        let points = class.series.iter().enumerate().map(|(number, time)| {
            let middle = (number as f64 + 0.5) * slice;
            time.map(|time| (across(middle), down(time.as_secs_f64())))
        });
        // A slice in which nothing arrived is a gap.
        for stretch in points.collect::<Vec<_>>().split(Option::is_none) {
            match stretch.iter().copied().flatten().collect::<Vec<_>>().as_slice() {
                [] => {}
                [lone] => canvas.circle(*lone, 2.0, format_args!(r#"fill="{}""#, colour(index))),
                points => canvas.polyline(points, &style),
            }
        }
    }
}

/// A row for each class and scheduler; returns the lower end.
fn summary(canvas: &mut Canvas, report: &Report, scale: &Scale, top: f64) -> f64 {
    let classes = report.runs.first().map_or(0, |run| run.classes.len());
    let (left, right) = (MARGIN + 240.0, WIDTH - MARGIN - 74.0);
    let across = |seconds: f64| left + (right - left) * scale.place(seconds);
    let mut y = top + 14.0;
    canvas.text((MARGIN, y), Anchor::Start, "head", "Time to the first token: bar from p50 to p99, dot at p95");
    y += 12.0;
    let start = y;
    let height = classes as f64 * (report.runs.len() as f64 * ROW + 10.0);
    for &tick in &scale.ticks {
        canvas.line((across(tick), start), (across(tick), start + height), r##"stroke="#ddd" stroke-width="1""##);
        canvas.text((across(tick), start + height + 15.0), Anchor::Middle, "soft", &tick_label(tick));
    }
    for index in 0..classes {
        y += 5.0;
        for (number, run) in report.runs.iter().enumerate() {
            let class = &run.classes[index];
            let middle = y + ROW / 2.0;
            if number == 0 {
                canvas.text((MARGIN, middle + 4.0), Anchor::Start, "head", &class.name);
            }
            canvas.text((left - 10.0, middle + 4.0), Anchor::End, "soft", &run.name);
            if class.ttft.p50.is_zero() {
                canvas.text((left + 4.0, middle + 4.0), Anchor::Start, "soft", "no token");
            } else {
                let [p50, p95, p99] = [class.ttft.p50, class.ttft.p95, class.ttft.p99].map(|time| time.as_secs_f64());
                let fill = format!(r#"rx="2" fill="{}" fill-opacity="0.35""#, colour(index));
                canvas.rect(across(p50), middle - 4.0, (across(p99) - across(p50)).max(1.0), 8.0, fill);
                canvas.circle((across(p95), middle), 4.0, format_args!(r#"fill="{}""#, colour(index)));
                canvas.text((WIDTH - MARGIN, middle + 4.0), Anchor::End, "", &readable(p95));
            }
            y += ROW;
        }
        y += 5.0;
    }
    y + 16.0
}

fn tick_label(seconds: f64) -> String {
    match seconds {
        s if s < 0.001 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 60.0 => format!("{s:.0} s"),
        s if s < 3_600.0 => format!("{:.0} min", s / 60.0),
        s if s < 86_400.0 => format!("{:.0} h", s / 3_600.0),
        s => format!("{:.0} d", s / 86_400.0),
    }
}

/// About six round times from 0 to the duration, and how to write them.
fn time_ticks(duration: f64) -> Vec<(f64, String)> {
    let (unit, name) = match duration {
        d if d <= 600.0 => (1.0, "s"),
        d if d <= 7_200.0 => (60.0, "min"),
        _ => (3600.0, "h"),
    };
    let rough = duration / unit / 6.0;
    let power = libm::exp10(libm::log10(rough).floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * power).into_iter().find(|&step| step >= rough).unwrap_or(rough);
    let ticks = (0..=6).map(|number| f64::from(number) * step).take_while(|&tick| tick * unit <= duration * 1.000_1);
    ticks.map(|tick| (tick * unit, format!("{} {name}", (tick * 100.0).round() / 100.0))).collect()
}

/// Lines of at most so many letters, broken between words.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
