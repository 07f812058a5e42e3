//! A decision must cost the same for ten keys and for a hundred thousand, and those load in well under a second.

use std::{fmt::Write, hint::black_box};

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use switchyard_policy::{Decision, Policy, PolicySettings, RequestView, hash_key};

fn json(keys: usize) -> String {
    let mut json = String::from(r#"{"keys":["#);
    for index in 0..keys {
        let (comma, digest) = (if index == 0 { "" } else { "," }, hash_key(format!("sk-{index}").as_bytes()));
        let _ = write!(json, r#"{comma}{{"sha256":"{digest}","tenant":"tenant-{}","tier":"pro"}}"#, index / 3);
    }
    json + "]}"
}

fn policy(json: &str) -> Policy {
    Policy::new(PolicySettings::from_json(json.as_bytes()).expect("readable")).expect("good")
}

fn decide(c: &mut Criterion) {
    let mut group = c.benchmark_group("decide");
    group.throughput(Throughput::Elements(1));
    for keys in [10, 100_000] {
        let policy = policy(&json(keys));
        let callers: Vec<_> = (0..keys).step_by(7).map(|index| format!("Bearer sk-{index}")).collect();
        // One caller shows what a lookup costs; many show it with caches as cold as a gateway's may be.
        for (name, callers) in [("one caller", &callers[..1]), ("many callers", &callers[..])] {
            let mut next = 0;
            group.bench_function(BenchmarkId::new(name, keys), |b| {
                b.iter(|| {
                    next = (next + 1) % callers.len();
                    let headers: [(&[u8], &[u8]); 6] = [
                        (b"host", b"gateway"),
                        (b"user-agent", b"OpenAI/Python 2.8.0"),
                        (b"content-type", b"application/json"),
                        (b"content-length", b"512"),
                        (b"authorization", callers[next].as_bytes()),
                        (b"x-llamaswap-priority", b"batch"),
                    ];
                    let request = RequestView { method: b"POST", path: b"/v1/chat/completions", headers: &headers };
                    let decision = policy.decide(black_box(&request), 1_800_000_000);
                    assert!(matches!(decision, Decision::Allow(_)));
                });
            });
        }
    }
    let policy = policy(&json(10));
    let long = vec![b'x'; 1 << 20];
    group.bench_function("key of a mebibyte", |b| {
        let headers: [(&[u8], &[u8]); 1] = [(b"x-api-key", &long)];
        let request = RequestView { method: b"POST", path: b"/v1/chat/completions", headers: &headers };
        b.iter(|| matches!(policy.decide(black_box(&request), 0), Decision::Deny(_)));
    });
    group.finish();
}

fn load(c: &mut Criterion) {
    let json = json(100_000);
    let mut group = c.benchmark_group("load");
    group.sample_size(10);
    group.throughput(Throughput::Bytes(json.len() as u64));
    group.bench_function("100,000 keys", |b| b.iter_batched(|| &json, |json| policy(json), BatchSize::PerIteration));
    group.finish();
}

criterion_group!(benches, decide, load);
criterion_main!(benches);
