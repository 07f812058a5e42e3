//! `/metrics` in the words of the servers that are imitated.

use std::{fmt::Write, sync::atomic::Ordering::Relaxed};

use super::{MetricsStyle, engine::Engine};

/// The text, or `None` when the server is to have no metrics.
pub(super) fn render(engine: &Engine) -> Option<String> {
    let counters = &engine.counters;
    let (waiting, running) = (counters.waiting.load(Relaxed) as f64, counters.running.load(Relaxed) as f64);
    let kv_usage = (counters.kv_tokens.load(Relaxed) as f64 / engine.options.kv_tokens.max(1) as f64).min(1.0);
    let (prompt, completion) =
        (counters.prompt_tokens.load(Relaxed) as f64, counters.completion_tokens.load(Relaxed) as f64);
    let answers = counters.answers.load(Relaxed) as f64;
    let (labels, rows) = match engine.options.metrics {
        MetricsStyle::None | MetricsStyle::Slots => return None,
        MetricsStyle::Vllm => (
            format!("{{engine=\"0\",model_name=\"{}\"}}", engine.options.model),
            vec![
                ("vllm:num_requests_running", "gauge", running),
                ("vllm:num_requests_waiting", "gauge", waiting),
                ("vllm:kv_cache_usage_perc", "gauge", kv_usage),
                ("vllm:num_preemptions_total", "counter", 0.0),
                ("vllm:prompt_tokens_total", "counter", prompt),
                ("vllm:generation_tokens_total", "counter", completion),
                ("vllm:request_success_total", "counter", answers),
            ],
        ),
        MetricsStyle::LlamaServer => (
            String::new(),
            vec![
                ("llamacpp:requests_processing", "gauge", running),
                ("llamacpp:requests_deferred", "gauge", waiting),
                ("llamacpp:prompt_tokens_total", "counter", prompt),
                ("llamacpp:tokens_predicted_total", "counter", completion),
            ],
        ),
    };
    // What nobody else has: for tests that look whether a limit was ever passed.
    let most = [
        ("demo_requests_waiting_max", "gauge", counters.most_waiting.load(Relaxed) as f64),
        ("demo_requests_running_max", "gauge", counters.most_running.load(Relaxed) as f64),
    ];
    let mut text = String::new();
    for (name, kind, value) in rows.into_iter().chain(most) {
        let _ = writeln!(text, "# TYPE {name} {kind}\n{name}{labels} {value}");
    }
    Some(text)
}
