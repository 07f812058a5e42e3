//! A model server with continuous batching, in virtual time.
//!
//! It works in steps, as vLLM does: each step gives one token to every running sequence and fills what is left of its
//! token budget with prompts, first come first served, as long as a place in the batch and room in the KV cache are
//! free. A step takes a fixed time, plus some for each sequence, plus some for each prompt token. When the KV cache is
//! full, the sequence that was admitted last goes back to the queue and is computed anew later.

use std::{collections::VecDeque, time::Duration};

use switchyard_scheduler::{RequestId, Timestamp};

/// How fast a model server is and how much it holds.
///
/// The default is gpt-oss-20b on one H100 with 128 sequences, calibrated to published measurements at 512 tokens in
/// and 128 out: 7.5 ms a token alone and 20 ms in a full batch, and a knee between 40 and 51 requests a second. Of the
/// time to the first token (p95) two are published that do not go together here: about 140 ms unloaded, and 135 ms for
/// the most urgent tier with half of the server held back for it, where a step takes longer. The overhead is the one
/// between them, by least squares: it gives 135 ms at 25 requests a second and 141 ms with `holdback`, so 5 ms less and
/// 6 ms more than measured.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineSettings {
    /// Sequences that run at once; at least 1.
    pub max_running: u32,
    /// Tokens computed in one step, prompts and answers together; at least 1.
    pub step_tokens: u32,
    /// Tokens that the KV cache holds; at least 2.
    pub kv_tokens: u64,
    /// Time of a step with nothing in it.
    pub step_base: Duration,
    /// Added for each running sequence.
    pub step_per_sequence: Duration,
    /// Prompt tokens computed in a second, on top of a step's other work; above 0.
    pub prefill_rate: f64,
    /// Least and most time from the arrival of a request at the server to its place in the queue: network, HTTP,
    /// tokenizer. Takes no slot in the batch.
    pub overhead: (Duration, Duration),
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            max_running: 128,
            step_tokens: 8_192,
            kv_tokens: 1_000_000,
            step_base: Duration::from_nanos(7_440_000),
            step_per_sequence: Duration::from_nanos(57_000),
            prefill_rate: 100_000.0,
            overhead: (Duration::from_millis(55), Duration::from_millis(115)),
        }
    }
}

/// Something that a step brought about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// The first token of a request.
    FirstToken(RequestId),
    /// The last token of a request; it has left the server.
    Done(RequestId),
}

/// What a model server's metrics would say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineLoad {
    /// Sequences in the batch.
    pub running: u32,
    /// Requests in the server's own queue.
    pub waiting: u32,
    /// Used part of the KV cache, 0 to 1.
    pub kv: f64,
    /// Sequences that lost their place since the start.
    pub preemptions: u64,
}

/// One running model server.
#[derive(Debug)]
pub struct Engine {
    settings: EngineSettings,
    waiting: VecDeque<Sequence>,
    /// In order of admission.
    running: Vec<Sequence>,
    kv_used: u64,
    step_end: Option<Timestamp>,
    preemptions: u64,
}

#[derive(Debug)]
struct Sequence {
    id: RequestId,
    prompt: u64,
    /// Tokens to generate.
    output: u64,
    generated: u64,
    /// Prompt tokens (after a preemption: and generated ones) still to be computed.
    to_prefill: u64,
    /// What of them the current step computes.
    in_step: u64,
}

impl Sequence {
    const fn decodes(&self) -> bool {
        self.to_prefill == 0
    }

    /// Tokens held in the KV cache while it is in the batch.
    const fn held(&self) -> u64 {
        self.prompt + self.generated
    }
}

impl Engine {
    /// An idle server.
    #[must_use]
    pub const fn new(settings: EngineSettings) -> Self {
        Self { settings, waiting: VecDeque::new(), running: Vec::new(), kv_used: 0, step_end: None, preemptions: 0 }
    }

    /// Puts a request at the end of the server's own queue. One that could never fit into the KV cache is cut to
    /// what does, as a context limit would.
    pub fn submit(&mut self, now: Timestamp, id: RequestId, prompt: u32, output: u32) {
        let prompt = u64::from(prompt).clamp(1, self.settings.kv_tokens - 1);
        let output = u64::from(output).clamp(1, self.settings.kv_tokens - prompt);
        self.waiting.push_back(Sequence { id, prompt, output, generated: 0, to_prefill: prompt, in_step: 0 });
        if self.step_end.is_none() {
            self.start_step(now);
        }
    }

    /// Takes a request out, wherever it is; a running step goes on without its result.
    pub fn cancel(&mut self, id: RequestId) {
        if let Some(at) = self.running.iter().position(|sequence| sequence.id == id) {
            self.kv_used -= self.running.remove(at).held();
        } else {
            self.waiting.retain(|sequence| sequence.id != id);
        }
    }

    /// When the running step ends; `None` while there is nothing to do.
    #[must_use]
    pub const fn step_end(&self) -> Option<Timestamp> {
        self.step_end
    }

    /// Ends the running step and begins the next one. Call at [`Engine::step_end`].
    pub fn advance(&mut self, now: Timestamp, outputs: &mut Vec<Output>) {
        for sequence in &mut self.running {
            sequence.to_prefill -= sequence.in_step;
            sequence.in_step = 0;
            if !sequence.decodes() {
                continue;
            }
            sequence.generated += 1;
            self.kv_used += 1;
            if sequence.generated == 1 {
                outputs.push(Output::FirstToken(sequence.id));
            }
            if sequence.generated == sequence.output {
                outputs.push(Output::Done(sequence.id));
            }
        }
        let kv_used = &mut self.kv_used;
        self.running.retain(|sequence| {
            let goes_on = sequence.generated < sequence.output;
            if !goes_on {
                *kv_used -= sequence.held();
            }
            goes_on
        });
        self.start_step(now);
    }

    /// Unfinished requests.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.running.len() + self.waiting.len()
    }

    /// What the server's metrics say.
    #[must_use]
    pub fn load(&self) -> EngineLoad {
        EngineLoad {
            running: u32::try_from(self.running.len()).unwrap_or(u32::MAX),
            waiting: u32::try_from(self.waiting.len()).unwrap_or(u32::MAX),
            kv: self.kv_used as f64 / self.settings.kv_tokens as f64,
            preemptions: self.preemptions,
        }
    }

    fn start_step(&mut self, now: Timestamp) {
        let preempted = self.make_room();
        let decoding = self.running.iter().filter(|sequence| sequence.decodes()).count() as u64;
        let budget = u64::from(self.settings.step_tokens).saturating_sub(decoding);
        let mut left = budget;
        for sequence in &mut self.running {
            sequence.in_step = sequence.to_prefill.min(left);
            left -= sequence.in_step;
        }
        if !preempted {
            left = self.admit(left);
        }
        let prefilled = budget - left;
        self.step_end = (decoding + prefilled > 0).then(|| {
            let nanos = self.settings.step_base.as_nanos() as f64
                + self.settings.step_per_sequence.as_nanos() as f64 * decoding as f64
                + prefilled as f64 * 1e9 / self.settings.prefill_rate;
            now + Duration::from_micros(((nanos / 1e3).round() as u64).max(1))
        });
    }

    /// Puts sequences back, newest first, until each one that decodes has room for its next token.
    fn make_room(&mut self) -> bool {
        let mut preempted = false;
        while self.running.len() > 1 && self.kv_used + self.running.len() as u64 > self.settings.kv_tokens {
            let Some(mut sequence) = self.running.pop() else { break };
            self.kv_used -= sequence.held();
            sequence.to_prefill = sequence.held();
            sequence.in_step = 0;
            self.waiting.push_front(sequence);
            self.preemptions += 1;
            preempted = true;
        }
        preempted
    }

    /// Moves requests from the queue into the batch and returns what is left of the step's budget.
    fn admit(&mut self, mut left: u64) -> u64 {
        while left > 0 && self.running.len() < self.settings.max_running as usize {
            let Some(next) = self.waiting.front() else { break };
            // One token more for each sequence, itself included: what this step may generate.
            if self.kv_used + next.held() + self.running.len() as u64 + 1 > self.settings.kv_tokens
                && !self.running.is_empty()
            {
                break;
            }
            let Some(mut sequence) = self.waiting.pop_front() else { break };
            self.kv_used += sequence.held();
            sequence.in_step = sequence.to_prefill.min(left);
            left -= sequence.in_step;
            self.running.push(sequence);
        }
        left
    }
}
