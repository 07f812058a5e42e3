//! What model servers say of themselves at `/metrics`, each in words of its own, and llama-server's `/slots`.
//!
//! Of several spellings of one thing the newest that is there counts. Several series of one name, as with data
//! parallelism, are added up; uses of KV caches, which are parts of a whole, are averaged.

use serde::Deserialize;
use switchyard_scheduler::Load;

/// What a server says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Report {
    pub(super) load: Load,
    /// Whether it says what runs.
    pub(super) has_running: bool,
    /// Requests that it had to interrupt for want of memory, since it was started.
    pub(super) preemptions: Option<u64>,
    /// It is a llama-server, whose slots say what its metrics do not.
    pub(super) has_slots: bool,
}

/// What a series counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gauge {
    Running,
    Waiting,
    KvCache,
    Preemptions,
}

const GAUGES: usize = 4;

/// A name, and the label that it has to have, if so.
struct Spelling {
    name: &'static str,
    gauge: Gauge,
    label: Option<(&'static str, &'static str)>,
}

const fn spelling(name: &'static str, gauge: Gauge) -> Spelling {
    Spelling { name, gauge, label: None }
}

const fn labelled(name: &'static str, label: (&'static str, &'static str), gauge: Gauge) -> Spelling {
    Spelling { name, gauge, label: Some(label) }
}

/// Every spelling of every server; of one thing the newest first.
const SPELLINGS: &[Spelling] = &[
    // vLLM. The older use of the cache is that of version 0.
    spelling("vllm:num_requests_running", Gauge::Running),
    spelling("vllm:num_requests_waiting", Gauge::Waiting),
    spelling("vllm:kv_cache_usage_perc", Gauge::KvCache),
    spelling("vllm:gpu_cache_usage_perc", Gauge::KvCache),
    spelling("vllm:num_preemptions_total", Gauge::Preemptions),
    spelling("vllm:num_preemptions", Gauge::Preemptions),
    // SGLang. With priorities it has the sum, which has none, and each priority's part of it.
    labelled("sglang:num_running_reqs", ("priority", ""), Gauge::Running),
    labelled("sglang:num_queue_reqs", ("priority", ""), Gauge::Waiting),
    labelled("sglang:token_usage", ("priority", ""), Gauge::KvCache),
    labelled("sglang:num_retracted_requests_total", ("priority", ""), Gauge::Preemptions),
    // TensorRT-LLM by itself, then behind Triton.
    spelling("trtllm_num_requests_running", Gauge::Running),
    spelling("trtllm_num_requests_waiting", Gauge::Waiting),
    spelling("trtllm_kv_cache_utilization", Gauge::KvCache),
    labelled("nv_trt_llm_request_metrics", ("request_type", "scheduled"), Gauge::Running),
    labelled("nv_trt_llm_request_metrics", ("request_type", "waiting"), Gauge::Waiting),
    labelled("nv_trt_llm_kv_cache_block_metrics", ("kv_cache_block_type", "fraction"), Gauge::KvCache),
    // TGI says nothing of its cache.
    spelling("tgi_batch_current_size", Gauge::Running),
    spelling("tgi_queue_size", Gauge::Waiting),
    // llama-server. Versions before 2025 had the use of the cache.
    spelling("llamacpp:requests_processing", Gauge::Running),
    spelling("llamacpp:requests_deferred", Gauge::Waiting),
    spelling("llamacpp:kv_cache_usage_ratio", Gauge::KvCache),
];

/// Reads `/metrics`. None if it has neither what runs nor what waits under any name that is known.
pub(super) fn metrics(text: &[u8]) -> Option<Report> {
    let mut sums = [(0.0_f64, 0_u32); SPELLINGS.len()];
    for series in text.split(|byte| *byte == b'\n').filter_map(Series::parse) {
        for (spelling, sum) in SPELLINGS.iter().zip(&mut sums) {
            if spelling.name.as_bytes() == series.name && spelling.label.is_none_or(|label| series.has(label)) {
                *sum = (sum.0 + series.value, sum.1 + 1);
            }
        }
    }
    let mut found: [Option<(f64, u32)>; GAUGES] = [None; GAUGES];
    let mut has_slots = false;
    for (spelling, sum) in SPELLINGS.iter().zip(sums).filter(|(_, sum)| sum.1 > 0) {
        found[spelling.gauge as usize].get_or_insert(sum);
        has_slots |= spelling.name.starts_with("llamacpp:");
    }
    let [running, waiting, kv_cache, preemptions] = found;
    if running.is_none() && waiting.is_none() {
        return None;
    }
    let load = Load {
        running: running.map_or(0, |(sum, _)| count(sum)),
        waiting: waiting.map_or(0, |(sum, _)| count(sum)),
        kv_cache: kv_cache.map(|(sum, series)| (sum / f64::from(series)).min(1.0)),
    };
    let preemptions = preemptions.map(|(sum, _)| sum as u64);
    Some(Report { load, has_running: running.is_some(), preemptions, has_slots })
}

/// Reads llama-server's `/slots`: each slot has its part of the KV cache, so the part of them that are busy stands for
/// the part of it that is used. None if it is no list of slots.
pub(super) fn slots(text: &[u8]) -> Option<Load> {
    #[derive(Deserialize)]
    struct Slot {
        is_processing: Option<bool>,
        /// Versions before 2025: 1 while it is busy.
        state: Option<u32>,
    }

    let slots: Vec<Slot> = serde_json::from_slice(text).ok()?;
    let is_busy = |slot: &&Slot| slot.is_processing.unwrap_or(slot.state == Some(1));
    let busy = slots.iter().filter(is_busy).count();
    let kv_cache = (!slots.is_empty()).then(|| busy as f64 / slots.len() as f64);
    Some(Load { running: u32::try_from(busy).unwrap_or(u32::MAX), waiting: 0, kv_cache })
}

/// Saturates at both ends.
fn count(sum: f64) -> u32 {
    sum.round() as u32
}

/// One line of the text format.
struct Series<'a> {
    name: &'a [u8],
    /// What is between the braces, as it is written.
    labels: &'a [u8],
    /// Finite, and not below 0.
    value: f64,
}

impl<'a> Series<'a> {
    /// None for comments, for what is not well formed, and for values that no count can have.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let line = line.trim_ascii();
        let end = line.iter().position(|byte| matches!(byte, b'{' | b' ' | b'\t'))?;
        let (name, rest) = line.split_at(end);
        if name.first().is_none_or(|byte| *byte == b'#') {
            return None;
        }
        let (labels, rest) = match rest.strip_prefix(b"{") {
            Some(rest) => rest.split_at(labels_end(rest)?),
            None => (&[][..], rest),
        };
        let rest = rest.strip_prefix(b"}").unwrap_or(rest).trim_ascii_start();
        // A time may follow.
        let value = rest.split(u8::is_ascii_whitespace).next()?;
        let value: f64 = std::str::from_utf8(value).ok()?.parse().ok()?;
        (value.is_finite() && value >= 0.0).then_some(Self { name, labels, value })
    }

    /// Whether a label has this value; a label that is missing is empty.
    fn has(&self, (wanted, value): (&str, &str)) -> bool {
        let mut rest = self.labels;
        while let Some(equals) = rest.iter().position(|byte| *byte == b'=') {
            let name = rest[..equals].trim_ascii();
            let Some(quoted) = rest[equals + 1..].trim_ascii_start().strip_prefix(b"\"") else { return false };
            let Some(end) = quote_end(quoted) else { return false };
            if name == wanted.as_bytes() {
                return &quoted[..end] == value.as_bytes();
            }
            rest = quoted[end + 1..].trim_ascii_start();
            rest = rest.strip_prefix(b",").unwrap_or(rest);
        }
        value.is_empty()
    }
}

/// Where the closing brace is; those in quotes are none.
fn labels_end(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match text.get(at)? {
            b'}' => return Some(at),
            b'"' => at += quote_end(&text[at + 1..])? + 2,
            _ => at += 1,
        }
    }
}

/// Where the closing quote is; one after a backslash is none.
fn quote_end(text: &[u8]) -> Option<usize> {
    let mut escaped = false;
    text.iter().position(|byte| {
        let closes = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        closes
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn load(running: u32, waiting: u32, kv_cache: Option<f64>) -> Load {
        Load { running, waiting, kv_cache }
    }

    #[track_caller]
    fn read(text: &str) -> Report {
        metrics(text.as_bytes()).expect("known metrics")
    }

    #[test]
    fn vllm_with_two_engines() {
        let text = "# HELP vllm:num_requests_running Number of requests in model execution batches.\n\
            # TYPE vllm:num_requests_running gauge\n\
            vllm:num_requests_running{engine=\"0\",model_name=\"org/m\"} 12.0\n\
            vllm:num_requests_running{engine=\"1\",model_name=\"org/m\"} 3.0\n\
            vllm:num_requests_waiting{engine=\"0\",model_name=\"org/m\"} 2.0\n\
            vllm:num_requests_waiting{engine=\"1\",model_name=\"org/m\"} 0.0\n\
            vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"capacity\"} 9.0\n\
            vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"org/m\"} 0.5\n\
            vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"org/m\"} 0.25\n\
            vllm:num_preemptions_total{engine=\"0\",model_name=\"org/m\"} 3.0\n\
            vllm:num_preemptions_total{engine=\"1\",model_name=\"org/m\"} 4.0\n\
            vllm:num_preemptions_created{engine=\"0\",model_name=\"org/m\"} 1.7e+09\n";
        let report = read(text);
        assert_eq!(report.load, load(15, 2, Some(0.375)));
        assert_eq!((report.preemptions, report.has_slots), (Some(7), false));
    }

    #[test]
    fn an_older_spelling_counts_only_where_the_newer_is_missing() {
        let older = "vllm:num_requests_running 1\nvllm:gpu_cache_usage_perc 0.5\n";
        assert_eq!(read(older).load, load(1, 0, Some(0.5)));
        assert_eq!(read(&format!("{older}vllm:kv_cache_usage_perc 0.25\n")).load, load(1, 0, Some(0.25)));
    }

    #[test]
    fn sglang_with_priorities() {
        let text = "sglang:num_running_reqs{model_name=\"m\",priority=\"\",tp_rank=\"0\"} 5.0\n\
            sglang:num_running_reqs{model_name=\"m\",priority=\"1\",tp_rank=\"0\"} 3.0\n\
            sglang:num_queue_reqs{model_name=\"m\",tp_rank=\"0\"} 4.0\n\
            sglang:token_usage{model_name=\"m\"} 0.28\n\
            sglang:num_retracted_requests_total{model_name=\"m\"} 6.0\n";
        assert_eq!(read(text).load, load(5, 4, Some(0.28)));
        assert_eq!(read(text).preemptions, Some(6));
    }

    #[test]
    fn tensorrt_llm_by_itself_and_behind_triton() {
        let text = "trtllm_num_requests_running{model_name=\"m\"} 7\ntrtllm_num_requests_waiting{model_name=\"m\"} 8\n\
            trtllm_kv_cache_utilization{model_name=\"m\"} 0.62\n";
        assert_eq!(read(text).load, load(7, 8, Some(0.62)));
        let text = "nv_trt_llm_request_metrics{model=\"m\",request_type=\"waiting\",version=\"1\"} 1\n\
            nv_trt_llm_request_metrics{model=\"m\",request_type=\"scheduled\",version=\"1\"} 2\n\
            nv_trt_llm_request_metrics{model=\"m\",request_type=\"max\",version=\"1\"} 512\n\
            nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\",model=\"m\"} 0.1\n\
            nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\",model=\"m\"} 6239\n";
        assert_eq!(read(text).load, load(2, 1, Some(0.1)));
    }

    #[test]
    fn tgi_and_llama_server() {
        assert_eq!(read("tgi_queue_size 7\ntgi_batch_current_size 4\n").load, load(4, 7, None));
        let report = read("llamacpp:requests_processing 4\nllamacpp:requests_deferred 46\n");
        assert_eq!(report, Report { load: load(4, 46, None), has_running: true, preemptions: None, has_slots: true });
    }

    #[test]
    fn slots_of_a_llama_server() {
        let text = r#"[{"id":0,"n_ctx":4096,"is_processing":true,"next_token":{"n_remain":-1}},
            {"id":1,"is_processing":false},{"id":2,"is_processing":true},{"id":3,"state":0}]"#;
        assert_eq!(slots(text.as_bytes()), Some(load(2, 0, Some(0.5))));
        assert_eq!(slots(br#"[{"id":0,"state":1}]"#), Some(load(1, 0, Some(1.0))));
        assert_eq!(slots(b"[]"), Some(load(0, 0, None)));
        assert_eq!(slots(br#"{"error":{"code":501}}"#), None);
    }

    #[test]
    fn what_looks_like_a_series_and_is_none() {
        let text = "vllm:num_requests_running{model_name=\"a } b\\\" c\\\\\", x=\"}\"} 2 1700000000000\r\n\
            \t vllm:num_requests_waiting 3 \n\
            vllm:num_requests_waiting NaN\nvllm:num_requests_waiting -4\nvllm:num_requests_waiting +Inf\n\
            vllm:num_requests_waiting{model_name=\"open} 5\nvllm:num_requests_waiting{x=\"1\"\n\
            vllm:num_requests_waiting\n#vllm:num_requests_waiting 6\n# vllm:num_requests_waiting 6\n";
        assert_eq!(read(text).load, load(2, 3, None));
        assert_eq!(read("vllm:num_requests_waiting 1e300\n").load, load(0, u32::MAX, None));
        assert!(!read("vllm:num_requests_waiting 1\n").has_running);
        assert_eq!(read("tgi_queue_size 1\nvllm:kv_cache_usage_perc 7").load.kv_cache, Some(1.0));
        for text in ["", "up 1\n", "vllm:kv_cache_usage_perc 0.5\n", "<html>", "{}"] {
            assert_eq!(metrics(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn any_bytes_are_read_or_passed_over(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = (metrics(&bytes), slots(&bytes));
        }

        #[test]
        fn any_labels_are_read_or_passed_over(labels in r#"[a-z"\\{},= \n]{0,40}"#, value in "[0-9.eE+Na-]{0,8}") {
            for spelling in SPELLINGS {
                let text = format!("{}{{{labels}}} {value}\n{} 1\n", spelling.name, spelling.name);
                if let Some(report) = metrics(text.as_bytes()) {
                    prop_assert!(report.load.kv_cache.is_none_or(|part| (0.0..=1.0).contains(&part)));
                }
            }
        }

        #[test]
        fn what_is_written_is_read(series in proptest::collection::vec((0u32..1000, 0u32..1000), 1..5)) {
            let text: String = series
                .iter()
                .enumerate()
                .map(|(engine, (running, waiting))| {
                    format!(
                        "vllm:num_requests_running{{engine=\"{engine}\"}} {running}\n\
                         vllm:num_requests_waiting{{engine=\"{engine}\"}} {waiting}.0\n"
                    )
                })
                .collect();
            let sums = (series.iter().map(|pair| pair.0).sum(), series.iter().map(|pair| pair.1).sum());
            let found = read(&text).load;
            prop_assert_eq!((found.running, found.waiting), sums);
        }
    }
}
