//! Just enough SVG for a chart.

use std::fmt::{Display, Write};

/// Where a text is held.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// An SVG document that grows.
pub(super) struct Canvas {
    body: String,
}

impl Canvas {
    pub(super) const fn new() -> Self {
        Self { body: String::new() }
    }

    pub(super) fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, style: impl Display) {
        self.element(format_args!(r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" {style}/>"#));
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), style: impl Display) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.element(format_args!(r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" {style}/>"#));
    }

    pub(super) fn circle(&mut self, centre: (f64, f64), radius: f64, style: impl Display) {
        let (x, y) = centre;
        self.element(format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius:.1}" {style}/>"#));
    }

    pub(super) fn polyline(&mut self, points: &[(f64, f64)], style: impl Display) {
        let points = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ");
        self.element(format_args!(r#"<polyline points="{points}" fill="none" {style}/>"#));
    }

    pub(super) fn text(&mut self, at: (f64, f64), anchor: Anchor, class: &str, text: &str) {
        let ((x, y), text) = (at, escape(text));
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        self.element(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" class="{class}">{text}</text>"#
        ));
    }

    /// The whole document.
    pub(super) fn finish(self, width: f64, height: f64, title: &str) -> String {
        let (title, body) = (escape(title), self.body);
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" role="img">
<title>{title}</title>
<style>
text {{ font: 12px system-ui, "DejaVu Sans", sans-serif; fill: #222; }}
.title {{ font-size: 18px; font-weight: 600; }}
.head {{ font-size: 13px; font-weight: 600; }}
.soft {{ fill: #666; font-size: 11px; }}
</style>
<rect width="100%" height="100%" fill="#fff"/>
{body}</svg>
"##
        )
    }

    fn element(&mut self, element: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.body, "{element}");
    }
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // XML has no way to say the other control characters.
            letter if letter.is_control() => escaped.push(' '),
            letter => escaped.push(letter),
        }
    }
    escaped
}
