//! Servers that run elsewhere: what they say of themselves, and what happens when they are gone.

use std::{collections::BTreeMap, sync::atomic::AtomicU64};

use switchyard_scheduler::Load;

use super::*;
use crate::{
    backend::Sample,
    config::{Look, Looks, Server as Endpoint},
    demo_backend::{MetricsStyle, Options, Server as Demo},
};

/// A model with another server that nobody asks.
fn pool(id: &str) -> Model {
    let model = remote_model(id);
    let other = Endpoint { number: 1, launch: None, upstream: model.upstream.clone() };
    Model { others: vec![other], ..model }
}

fn looks(id: &str, every: Duration) -> Looks {
    Arc::new(BTreeMap::from([(id.to_owned(), Look { every, is_needed: true })]))
}

async fn demo(upstream: &Upstream, metrics: MetricsStyle) -> JoinHandle<()> {
    let options = Options {
        host: upstream.host.clone(),
        port: upstream.port,
        metrics,
        slots: 2,
        token_time: Duration::from_secs(3600),
        kv_tokens: 100,
        ..Options::default()
    };
    let server = Demo::bind(options).await.expect("a free port");
    tokio::spawn(async { server.serve().await.expect("it serves") })
}

/// Sends a request of four words that will not end.
async fn ask(upstream: &Upstream) -> tokio::net::TcpStream {
    let body = r#"{"prompt":"a b c d","stream":true}"#;
    let request = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let mut stream = tokio::net::TcpStream::connect((upstream.host.as_str(), upstream.port)).await.expect("it accepts");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    stream
}

impl Yard {
    async fn sample(&mut self) -> (Sample, u64) {
        match self.event().await {
            BackendEvent::Sample { sample, sent, .. } => (sample, sent),
            other => panic!("not a sample: {other:?}"),
        }
    }

    async fn sample_of(&mut self, wanted: Load) {
        loop {
            if self.sample().await.0.load == wanted {
                return;
            }
        }
    }
}

#[tokio::test]
async fn a_replica_is_looked_at_while_it_is_ready() {
    let mut yard = Yard::new();
    let model = Model { check_endpoint: None, ..pool("m") };
    let upstream = model.upstream.clone();
    let _server = demo(&upstream, MetricsStyle::Vllm).await;
    let sent = Arc::new(AtomicU64::new(7));
    yard.fleet.load(replica(1), G1, Arc::new(model), Arc::clone(&sent));
    yard.ready(G1).await;
    yard.fleet.look(looks("m", Duration::from_millis(5)));
    let idle = Load { running: 0, waiting: 0, kv_cache: Some(0.0) };
    assert_eq!(yard.sample().await, (Sample { load: idle, has_running: true, preemptions: Some(0) }, 7));

    sent.store(8, Ordering::Relaxed);
    let clients = [ask(&upstream).await, ask(&upstream).await, ask(&upstream).await];
    // Two of four words, with the first token each.
    yard.sample_of(Load { running: 2, waiting: 1, kv_cache: Some(0.1) }).await;
    assert_eq!(yard.sample().await.1, 8);
    assert_eq!(yard.snapshot(replica(1)).sample.map(|sample| sample.load.waiting), Some(1));
    drop(clients);
    yard.sample_of(idle).await;

    yard.fleet.look(Looks::default());
    yard.fleet.stop(replica(1), G1);
    while let BackendEvent::Sample { .. } = yard.event().await {}
    assert_eq!(yard.snapshot(replica(1)).sample, None);
}

#[tokio::test]
async fn a_llama_server_is_read_with_and_without_metrics() {
    for metrics in [MetricsStyle::LlamaServer, MetricsStyle::Slots] {
        let mut yard = Yard::new();
        let model = Model { check_endpoint: None, ..pool("m") };
        let upstream = model.upstream.clone();
        let _server = demo(&upstream, metrics).await;
        yard.fleet.look(looks("m", Duration::from_millis(5)));
        yard.fleet.load(replica(1), G1, Arc::new(model), Arc::default());
        yard.ready(G1).await;
        yard.sample_of(Load { running: 0, waiting: 0, kv_cache: Some(0.0) }).await;
        let _client = ask(&upstream).await;
        yard.sample_of(Load { running: 1, waiting: 0, kv_cache: Some(0.5) }).await;
    }
}

#[tokio::test]
async fn metrics_that_are_compressed_are_said_to_be() {
    let model = remote_model("m");
    let listener = tokio::net::TcpListener::bind((model.upstream.host.as_str(), 0)).await.expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let model = Model { upstream: Upstream { port, ..model.upstream }, ..model };
    let answers =
        [&b"200 OK\r\ncontent-length: 4\r\n\r\n\x1f\x8b\x08\x00"[..], b"404 Not Found\r\ncontent-length: 0\r\n\r\n"];
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        for answer in answers {
            let mut request = [0; 1024];
            assert!(stream.read(&mut request).await.expect("a request") > 0);
            stream.write_all(&[b"HTTP/1.1 ", answer].concat()).await.expect("it is read");
        }
    });
    let fault = crate::backend::scrape::Scraper::of(&model).sample().await.expect_err("nothing to be read");
    let text = fault.to_string();
    assert!(
        text.starts_with("GET /metrics has a gzip body, which nobody asked for, and GET /slots no slots"),
        "{text}"
    );
}

#[tokio::test]
async fn a_server_that_somebody_found_gone_is_missed_before_they_go_on() {
    let mut yard = Yard::new();
    let mut model = pool("m");
    model.check_endpoint = None;
    let server = Server::start(&model.upstream, 200).await;
    let model = Arc::new(model);
    yard.fleet.load(replica(1), G1, Arc::clone(&model), Arc::default());
    yard.ready(G1).await;

    async fn check(yard: &mut Yard, generation: Generation) -> (bool, bool) {
        let fleet = yard.fleet.clone();
        let checking = tokio::spawn(async move { fleet.check(replica(1), generation).await });
        let mut was_missed = false;
        loop {
            match yard.event().await {
                BackendEvent::Exited { .. } => was_missed = true,
                BackendEvent::Checked(asking) => {
                    asking.send(()).expect("somebody waits");
                    return (checking.await.expect("no panic"), was_missed);
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(check(&mut yard, G1).await, (true, false), "it is there");
    assert_eq!(check(&mut yard, G2).await, (false, false), "nothing is known of that load");
    drop(server);
    while tokio::net::TcpStream::connect((model.upstream.host.as_str(), model.upstream.port)).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert_eq!(check(&mut yard, G1).await, (false, true), "it is gone, and that was told first");
    assert_eq!(check(&mut yard, G1).await, (false, false), "that is known");

    yard.fleet.load(replica(1), G2, Arc::clone(&model), Arc::default());
    let _server = Server::start(&model.upstream, 200).await;
    yard.ready(G2).await;
    assert_eq!(check(&mut yard, G2).await, (true, false));
}
