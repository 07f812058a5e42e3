//! `switchyard simulate`.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use switchyard_simulator::{Report, Scenario, simulate};

use super::{fail, print};

/// Try schedulers on a workload: the real scheduler with simulated clients and model servers, in virtual time.
///
/// Prints a table for each file and writes a picture and the figures beside it, as NAME.svg and NAME.csv. Times are
/// from a request's arrival at the gate, in the units shown (in the CSV file: seconds); TTFT is the time to the first
/// token; tokens are those in and out. The same file and seed give the same figures. The files are described in
/// examples/scenarios/README.md.
#[derive(clap::Args)]
pub(super) struct SimulateArguments {
    /// Scenario files (YAML).
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Where to write the pictures and the figures, in place of beside each file; made if it is not there.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Draw arrivals, lengths and faults from this seed, in place of the file's.
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Run only the comparison of this name, such as `fifo`; can be given more than once.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// How the table looks.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    /// Aligned columns, for a terminal.
    Text,
    /// For a document.
    Markdown,
}

pub(super) fn run(arguments: &SimulateArguments) -> ExitCode {
    let Some(jobs) = jobs(arguments) else { return ExitCode::FAILURE };
    if let Some(folder) = &arguments.out
        && let Err(error) = fs::create_dir_all(folder)
    {
        return fail(format_args!("cannot make the folder {}: {error}", folder.display()));
    }
    for (number, job) in jobs.iter().enumerate() {
        let report = match simulate(&job.scenario) {
            Ok(report) => report,
            Err(error) => {
                return fail(format_args!(
                    "{}: {error}\nThis is a defect of the scheduler; please report it with the file and the seed, {}.",
                    job.file.display(),
                    job.scenario.seed
                ));
            }
        };
        let table = match arguments.format {
            Format::Text => report.table(),
            Format::Markdown => report.markdown(),
        };
        let gap = if number > 0 { "\n" } else { "" };
        let printed = print(format_args!("{gap}{table}"));
        if printed != ExitCode::SUCCESS {
            return printed;
        }
        if let Err((file, error)) = job.write(&report) {
            return fail(format_args!("cannot write {}: {error}; name another folder with --out DIR", file.display()));
        }
    }
    ExitCode::SUCCESS
}

/// One file's part of the work.
struct Job {
    file: PathBuf,
    scenario: Scenario,
    /// Where its results go, without an extension.
    stem: PathBuf,
}

/// All files, read and checked before any of them runs. `None` once what is wrong has been said.
fn jobs(arguments: &SimulateArguments) -> Option<Vec<Job>> {
    let mut jobs = Vec::new();
    let mut stems = BTreeSet::new();
    for file in &arguments.files {
        let Some(scenario) = read(file, arguments) else { continue };
        let beside = file.with_extension("");
        let stem = match (&arguments.out, beside.file_name()) {
            (Some(folder), Some(name)) => folder.join(name),
            _ => beside,
        };
        if stems.insert(stem.clone()) {
            jobs.push(Job { file: file.clone(), scenario, stem });
        } else {
            fail(format_args!("{}: another file's results would be {}.svg too", file.display(), stem.display()));
        }
    }
    (jobs.len() == arguments.files.len()).then_some(jobs)
}

fn read(file: &Path, arguments: &SimulateArguments) -> Option<Scenario> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) => {
            fail(format_args!("cannot read {}: {error}", file.display()));
            return None;
        }
    };
    let mut scenario = match Scenario::parse(&file.display().to_string(), &text) {
        Ok(scenario) => scenario,
        Err(problems) => {
            problems.iter().for_each(|problem| eprintln!("{problem}"));
            return None;
        }
    };
    scenario.seed = arguments.seed.unwrap_or(scenario.seed);
    let names: Vec<_> = scenario.comparisons.iter().map(|comparison| comparison.name.clone()).collect();
    if let Some(unknown) = arguments.only.iter().find(|name| !names.contains(name)) {
        fail(format_args!("{}: nothing is called `{unknown}`; there are: {}", file.display(), names.join("; ")));
        return None;
    }
    if !arguments.only.is_empty() {
        scenario.comparisons.retain(|comparison| arguments.only.contains(&comparison.name));
    }
    Some(scenario)
}

impl Job {
    fn write(&self, report: &Report) -> Result<(), (PathBuf, io::Error)> {
        for (extension, text) in [("svg", report.svg()), ("csv", report.csv())] {
            // Not `with_extension`, which would take a dot in the name for one.
            let mut file = self.stem.clone().into_os_string();
            file.push(format!(".{extension}"));
            fs::write(&file, text).map_err(|error| (file.into(), error))?;
        }
        Ok(())
    }
}
