//! The gateway and the pretend model servers, each a process of its own.

use std::{
    error::Error,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::{Map, Value, json};
use switchyard_simulator::{Arrival, Comparison, EngineSettings, Scenario};

/// What runs until it is dropped.
pub(super) struct Servers {
    _processes: Vec<Process>,
    _folder: tempfile::TempDir,
    url: String,
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Servers {
    /// Starts all that a scenario has, under a gateway with the settings of one comparison as they are `written`, and
    /// waits until each model answers.
    pub(super) async fn start(
        switchyard: &Path,
        scenario: &Scenario,
        comparison: &Comparison,
        written: &Value,
        arrivals: &[Arrival],
    ) -> Result<Self, Box<dyn Error>> {
        let (mut processes, mut models) = (Vec::new(), Map::new());
        for (number, model) in (0..).zip(&scenario.models) {
            let pace = Pace::of(
                &model.engine,
                arrivals.iter().filter(|arrival| scenario.classes[arrival.class as usize].model.0 == number),
            );
            let mut endpoints = Vec::new();
            for _ in 0..model.replicas {
                let (process, address) = backend(switchyard, &model.name, &model.engine, &pace)?;
                processes.push(process);
                endpoints.push(format!("http://{address}"));
            }
            let mut settings = json!({ "endpoints": endpoints });
            // As in the simulator: a second bound below the detector's would only hide it.
            let default = comparison.detector.is_none().then_some(model.engine.max_running);
            if let Some(limit) = model.concurrency.or(default) {
                settings["concurrencyLimit"] = limit.into();
            }
            models.insert(model.name.clone(), settings);
        }
        let mut routing = json!({ "scheduler": { "use": written["use"] } });
        if let Some(settings) = written.get("settings") {
            routing["scheduler"]["settings"] = settings.clone();
        }
        if let Some(admission) = written.get("admission") {
            routing["admission"] = admission.clone();
        }
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("switchyard.yaml");
        // JSON is YAML.
        std::fs::write(&file, json!({ "models": models, "routing": routing }).to_string())?;
        let (process, address) = gateway(switchyard, &file)?;
        processes.push(process);
        let servers = Self { _processes: processes, _folder: folder, url: format!("http://{address}") };
        servers.answer(scenario).await?;
        Ok(servers)
    }

    /// Where the gateway is.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// One request to each model, so that none of the measured ones waits for a first look at the servers.
    async fn answer(&self, scenario: &Scenario) -> Result<(), Box<dyn Error>> {
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30)).build()?;
        for model in &scenario.models {
            let body = json!({ "model": model.name, "prompt": "ready?", "max_tokens": 1 });
            let response = client.post(format!("{}/v1/completions", self.url)).json(&body).send().await?;
            if !response.status().is_success() {
                return Err(format!("{} does not answer: {}", model.name, response.text().await?).into());
            }
        }
        Ok(())
    }
}

/// A scenario's engine as the pretend model server has it: a token always takes the time that it takes in a full batch.
struct Pace {
    slots: u32,
    prefill: Duration,
    prefill_token: Duration,
    token: Duration,
}

impl Pace {
    fn of<'a>(engine: &EngineSettings, arrivals: impl Iterator<Item = &'a Arrival>) -> Self {
        let (mut requests, mut prompts, mut outputs) = (0.0_f64, 0.0, 0.0_f64);
        for arrival in arrivals {
            requests += 1.0;
            prompts += f64::from(arrival.prompt);
            outputs += f64::from(arrival.output);
        }
        let batch = f64::from(engine.max_running);
        // As many prompts come into a full batch as answers end.
        let ends_per_step = batch * requests / outputs.max(1.0);
        let prompt = prompts / requests.max(1.0) / engine.prefill_rate;
        let token = engine.step_base
            + engine.step_per_sequence * engine.max_running
            + Duration::from_secs_f64(ends_per_step * prompt);
        // What is on its way to a server holds no place in the batch there; here it has a slot.
        let overhead = (engine.overhead.0 + engine.overhead.1) / 2;
        let on_its_way = ends_per_step * overhead.as_secs_f64() / token.as_secs_f64();
        Self {
            slots: engine.max_running.saturating_add(on_its_way.round() as u32),
            prefill: overhead + token,
            prefill_token: Duration::from_secs_f64(1.0 / engine.prefill_rate),
            token,
        }
    }
}

/// A pretend model server and its address.
fn backend(
    switchyard: &Path,
    model: &str,
    engine: &EngineSettings,
    pace: &Pace,
) -> Result<(Process, String), Box<dyn Error>> {
    let time = |time: Duration| format!("{}ns", time.as_nanos());
    let mut process = Process(
        Command::new(switchyard)
            .args(["demo-backend", "--port", "0", "--metrics", "vllm", "--model", model])
            .args(["--slots", &pace.slots.to_string(), "--kv-tokens", &engine.kv_tokens.to_string()])
            .args(["--token-time", &time(pace.token), "--prefill-time", &time(pace.prefill)])
            .args(["--prefill-token-time", &time(pace.prefill_token)])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", switchyard.display()))?,
    );
    let mut line = String::new();
    if let Some(stdout) = process.0.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    match line.trim() {
        "" => Err(format!("a model server did not start; try {} demo-backend", switchyard.display()).into()),
        address => Ok((process, address.to_owned())),
    }
}

/// The gateway and its address. From then on its warnings go to stderr.
fn gateway(switchyard: &Path, config: &Path) -> Result<(Process, String), Box<dyn Error>> {
    let mut process = Process(
        Command::new(switchyard)
            .args(["serve", "--listen", "127.0.0.1:0", "--log-format", "json", "--config"])
            .arg(config)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?,
    );
    let stderr = process.0.stderr.take().ok_or("the gateway has no stderr")?;
    let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
    let mut said = Vec::new();
    for line in lines.by_ref() {
        let entry: Value = serde_json::from_str(&line).unwrap_or_default();
        if entry["message"] == "listening"
            && let Some(address) = entry["address"].as_str()
        {
            std::thread::spawn(move || {
                lines.filter(|line| !line.contains("\"INFO\"")).for_each(|line| eprintln!("{line}"));
            });
            return Ok((process, address.to_owned()));
        }
        said.push(line);
    }
    Err(format!("the gateway did not start:\n{}", said.join("\n")).into())
}
