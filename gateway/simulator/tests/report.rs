//! What a report looks like.

use switchyard_simulator::{Report, Scenario, simulate};

fn report() -> Report {
    let text = r#"
name: 'a "small" <box>'
description: Two & more
duration: 60s
window: 10s..50s
replicas: { pool: { count: 2, engine: { maxRunning: 2 } } }
classes:
  - { name: "fast, of course", priority: interactive, rate: 1, prompt: 100, output: 10, sloTtft: 1s }
  - { name: never, rate: { 59s: 0.0001 }, burst: { 5s: 1 }, prompt: 64..128, output: { median: 10, p95: 20 } }
comparisons:
  - use: no-gate
  - use: fifo
  - use: flow
"#;
    let scenario = Scenario::parse("box.yaml", text).unwrap_or_else(|problems| panic!("{problems:?}"));
    simulate(&scenario).unwrap()
}

#[test]
fn the_table_has_a_line_for_each_class() {
    let table = report().table();
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(
        lines[..3],
        ["a \"small\" <box>", "Two & more", "Figures of the requests that arrive from second 10 to second 50."]
    );
    assert_eq!(lines.iter().filter(|line| line.contains("fast, of course")).count(), 3);
    // Nothing of this class arrives within the window.
    assert!(lines.iter().filter(|line| line.contains("never")).all(|line| line.contains(" - ")), "{table}");
}

#[test]
fn every_csv_line_has_the_columns_of_the_header() {
    let csv = report().csv();
    let lines: Vec<_> = csv.lines().collect();
    assert_eq!(lines.len(), 1 + 3 * 2);
    let columns = lines[0].split(',').count();
    let prefix = "\"a \"\"small\"\" <box>\",no gate,\"fast, of course\",";
    let rest = lines[1].strip_prefix(prefix).unwrap_or_else(|| panic!("{}", lines[1]));
    assert_eq!(rest.split(',').count() + 3, columns);
}

#[test]
fn the_picture_is_sound_xml_with_everything_escaped() {
    let svg = report().svg();
    assert!(svg.starts_with("<svg xmlns=") && svg.trim_end().ends_with("</svg>"));
    assert!(svg.contains("a &quot;small&quot; &lt;box&gt;") && !svg.contains("<box>"));
    assert!(svg.contains("Two &amp; more"));
    // Numbers are all numbers: nothing was divided by zero.
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    let opened = svg.matches("<text").count();
    assert_eq!(opened, svg.matches("</text>").count());
}
