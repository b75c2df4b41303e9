//! The published board: what the engine thread last said of itself. HTTP threads read it and never wait for the engine.

use bloomery_sampler::SamplingParams;

/// A snapshot of the engine.
#[derive(Debug, Clone, Default)]
pub struct Board {
    /// One entry a slot.
    pub slots: Vec<SlotView>,
    /// Streams may be drafted for.
    pub is_drafting: bool,
    /// Running totals since start.
    pub counters: Counters,
    /// Requests running now.
    pub n_processing: usize,
    /// Requests waiting for a slot.
    pub n_deferred: usize,
}

/// A slot as seen from outside.
#[derive(Debug, Clone, Default)]
pub struct SlotView {
    /// Slot number.
    pub id: usize,
    /// Tokens that this slot can hold.
    pub n_ctx: usize,
    /// A request runs on it.
    pub is_processing: bool,
    /// Number of the task that runs or ran last, if any did.
    pub task: Option<u64>,
    /// The request's sampler settings.
    pub sampling: Option<SamplingParams>,
    /// The request's generation limit.
    pub n_predict: Option<usize>,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Prompt tokens processed.
    pub n_prompt_processed: usize,
    /// Prompt tokens taken from a cache.
    pub n_prompt_cached: usize,
    /// Tokens generated so far.
    pub n_decoded: usize,
    /// Tokens in the slot's state.
    pub n_past: usize,
    /// Stop strings of the request.
    pub stop: Vec<String>,
}

/// Totals since start.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counters {
    /// Prompt tokens processed (not cached ones).
    pub prompt_tokens: u64,
    /// Seconds spent in prompt processing.
    pub prompt_seconds: f64,
    /// Tokens generated.
    pub predicted_tokens: u64,
    /// Seconds spent in generation.
    pub predicted_seconds: f64,
    /// Executor steps.
    pub decode_calls: u64,
    /// Sum over steps of slots that took part.
    pub busy_slots: u64,
    /// Most tokens that any sequence held.
    pub n_tokens_max: u64,
    /// Prompt tokens taken from a cache.
    pub cached_tokens: u64,
    /// Drafts verified.
    pub drafts: u64,
    /// Tokens drafted.
    pub drafted_tokens: u64,
    /// Drafted tokens that were accepted.
    pub accepted_tokens: u64,
}
