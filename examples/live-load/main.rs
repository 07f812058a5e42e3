//! A scenario's clients against a real gateway in front of pretend model servers, in real time and on this machine alone.
//! `switchyard simulate` computes what happens, this sees it happen; the table is the same. `tests/bench.sh FILE` runs it.

mod clients;
mod servers;

use std::{error::Error, path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;
use serde_json::Value;
use servers::Servers;
use switchyard_scheduler::PolicySettings;
use switchyard_simulator::{Arrival, Comparison, Policy, Report, Scenario, arrivals, measure};
use tokio::signal::unix::{SignalKind, signal};

/// Run a scenario's clients against a real gateway and pretend model servers.
#[derive(Parser)]
struct Arguments {
    /// The `switchyard` program.
    switchyard: PathBuf,
    /// The scenario (YAML), as for `switchyard simulate`; with a `pool`.
    scenario: PathBuf,
    /// Only so many seconds, from the beginning of the scenario's window.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// The comparison of this name; can be given more than once. Without it, the first that uses flow.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let result = tokio::select! {
        result = run(Arguments::parse()) => result,
        // The servers go with what is dropped here.
        signal = interrupted() => signal,
    };
    match result {
        Ok(report) => {
            print!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn interrupted() -> Result<String, Box<dyn Error>> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
    Err("stopped by a signal".into())
}

async fn run(arguments: Arguments) -> Result<String, Box<dyn Error>> {
    let file = arguments.scenario.display().to_string();
    let text = std::fs::read_to_string(&arguments.scenario).map_err(|error| format!("cannot read {file}: {error}"))?;
    let mut scenario = Scenario::parse(&file, &text)
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))?;
    if let Some(model) = scenario.models.iter().find(|model| model.managed) {
        return Err(format!("{file}: {} takes turns with others; a live run needs a `pool`", model.name).into());
    }
    // The gateway reads a comparison's settings itself, as they are written.
    let document: Value = serde_saphyr::from_str(&text)?;
    let written = document["comparisons"].as_array().map_or(&[][..], Vec::as_slice);
    let compared: Vec<_> = chosen(&scenario, &arguments.only)?.into_iter().map(|at| (at, &written[at])).collect();
    let arrivals = cut(&mut scenario, arguments.seconds.map(Duration::from_secs));

    let mut runs = Vec::new();
    for (at, written) in compared {
        let comparison = &scenario.comparisons[at];
        let servers = Servers::start(&arguments.switchyard, &scenario, comparison, written, &arrivals).await?;
        let outcomes = clients::send(servers.url(), &scenario, &arrivals).await?;
        runs.push(measure(&scenario, &comparison.name, &outcomes));
    }
    let (from, to) = scenario.window;
    let report = Report {
        name: scenario.name,
        description: scenario.description,
        window: (from.as_secs_f64(), to.as_secs_f64()),
        duration: scenario.duration.as_secs_f64(),
        runs,
    };
    Ok(report.table())
}

/// The numbers of the comparisons to run.
fn chosen(scenario: &Scenario, only: &[String]) -> Result<Vec<usize>, String> {
    let gated = |comparison: &Comparison| comparison.policy != Policy::NoGate;
    let find = |name: &String| {
        let at = scenario.comparisons.iter().position(|comparison| comparison.name == *name && gated(comparison));
        at.ok_or_else(|| {
            let names = scenario.comparisons.iter().filter(|comparison| gated(comparison));
            let names = names.map(|comparison| comparison.name.as_str()).collect::<Vec<_>>().join(", ");
            format!("no comparison {name} with a gate; there are: {names}")
        })
    };
    if !only.is_empty() {
        return only.iter().map(find).collect();
    }
    let uses_flow = |comparison: &Comparison| matches!(comparison.policy, Policy::Scheduler(PolicySettings::Flow(_)));
    let first = scenario.comparisons.iter().position(uses_flow);
    first.map(|at| vec![at]).ok_or_else(|| "no comparison uses flow; name another with --only".to_owned())
}

/// The requests to send. With a limit, those of so much of the window, which becomes the whole scenario.
fn cut(scenario: &mut Scenario, limit: Option<Duration>) -> Vec<Arrival> {
    let mut arrivals = arrivals(scenario);
    if let Some(limit) = limit {
        let (from, to) = scenario.window;
        let length = limit.min(to - from);
        arrivals.retain_mut(|arrival| {
            let at = Duration::from_micros(arrival.at.0);
            arrival.at.0 = at.saturating_sub(from).as_micros() as u64;
            (from..from + length).contains(&at)
        });
        scenario.duration = length;
        scenario.window = (Duration::ZERO, length);
    }
    arrivals
}
