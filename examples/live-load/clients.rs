//! The clients: each request leaves at its time, however slow the answers to others are.

use std::{sync::Arc, time::Duration};

use reqwest::{Client, RequestBuilder, Response, StatusCode};
use serde_json::json;
use switchyard_scheduler::{Outcome, Timestamp};
use switchyard_simulator::{Arrival, End, Life, Outcomes, Scenario};
use tokio::{task::JoinSet, time::Instant};

/// The end of a stream that is complete.
const DONE: &[u8] = b"data: [DONE]\n\n";
/// Requests that leave later than this spoil the figures.
const TOLERABLE: Duration = Duration::from_millis(20);

/// Sends all requests and waits for what becomes of them.
pub(super) async fn send(url: &str, scenario: &Scenario, arrivals: &[Arrival]) -> reqwest::Result<Outcomes> {
    // No proxy from the environment: all of this stays on this machine.
    let client = Client::builder().no_proxy().build()?;
    let url: Arc<str> = format!("{url}/v1/completions").into();
    let mut clients = JoinSet::new();
    let mut lives = Vec::with_capacity(arrivals.len());
    let mut late = Duration::ZERO;
    let start = Instant::now();
    for &arrival in arrivals {
        let due = start + Duration::from_micros(arrival.at.0);
        tokio::time::sleep_until(due).await;
        late = late.max(due.elapsed());
        let request = request(&client, &url, scenario, arrival);
        let patience = scenario.classes[arrival.class as usize].patience;
        clients.spawn(async move {
            let mut first_token = None;
            let end = ask(request, patience, || first_token = Some(since(start))).await;
            Life { arrival, dispatched: None, first_token, ended: since(start), end }
        });
        lives.extend(std::iter::from_fn(|| clients.try_join_next()).flatten());
    }
    lives.extend(clients.join_all().await);
    if late > TOLERABLE {
        eprintln!("note: this machine is too busy for these figures; a request left {} ms late", late.as_millis());
    }
    lives.sort_by_key(|life| life.arrival.at);
    let end = lives.iter().map(|life| life.ended).max().unwrap_or_default();
    Ok(Outcomes { lives, end, ..Outcomes::default() })
}

fn since(start: Instant) -> Timestamp {
    Timestamp::ZERO + start.elapsed()
}

fn request(client: &Client, url: &str, scenario: &Scenario, arrival: Arrival) -> RequestBuilder {
    let class = &scenario.classes[arrival.class as usize];
    let mut body = json!({
        "model": scenario.models[class.model.0 as usize].name,
        // As in the simulator, about four letters a token.
        "prompt": "and ".repeat(arrival.prompt as usize),
        "stream": true,
        // How long the pretend server's answer is; what `max_tokens` says is only the bound.
        "demo": { "tokens": arrival.output },
    });
    if let Some(most) = class.max_tokens {
        body["max_tokens"] = most.into();
    }
    let mut request = client
        .post(url)
        .header("x-llamaswap-priority", class.priority.0)
        .header("x-llm-d-inference-fairness-id", &class.tenants[arrival.tenant as usize]);
    let times = [("x-llm-d-slo-ttft-ms", class.goal), ("x-switchyard-queue-ttl-ms", class.ttl)];
    for (name, time) in times {
        if let Some(time) = time {
            request = request.header(name, time.as_millis().to_string());
        }
    }
    request.json(&body)
}

/// One client; it leaves when it has no token after its patience.
async fn ask(request: RequestBuilder, patience: Option<Duration>, on_first_token: impl FnOnce()) -> End {
    let begin = begin(request);
    let begun = match patience {
        Some(patience) => match tokio::time::timeout(patience, begin).await {
            Ok(begun) => begun,
            Err(_) => return End::Left,
        },
        None => begin.await,
    };
    let (mut response, first) = match begun {
        Ok(begun) => begun,
        Err(end) => return end,
    };
    on_first_token();
    let mut last = first;
    loop {
        match response.chunk().await {
            // What has come so far, as far as the end mark could be in it.
            Ok(Some(chunk)) => {
                last.extend_from_slice(&chunk);
                last.drain(..last.len().saturating_sub(DONE.len()));
            }
            Ok(None) if last.ends_with(DONE) => return End::Served,
            Ok(None) | Err(_) => return End::Lost,
        }
    }
}

/// The answer with its first token, or how it ended without one.
async fn begin(request: RequestBuilder) -> Result<(Response, Vec<u8>), End> {
    let mut response = request.send().await.map_err(|_| End::Lost)?;
    let dropped = response.headers().get("x-llm-d-request-dropped-reason").map(|reason| reason.as_bytes());
    match (response.status(), dropped) {
        (StatusCode::OK, _) => {}
        (_, Some(b"rejected-ttl-expired" | b"rejected-no-endpoints")) => {
            return Err(End::Rejected(Outcome::RejectedTtl));
        }
        (_, Some(b"evicted-priority")) => return Err(End::Rejected(Outcome::Evicted)),
        (_, Some(_)) => return Err(End::Rejected(Outcome::RejectedCapacity)),
        (_, None) => return Err(End::Lost),
    }
    match response.chunk().await {
        Ok(Some(first)) => Ok((response, first.to_vec())),
        Ok(None) | Err(_) => Err(End::Lost),
    }
}
