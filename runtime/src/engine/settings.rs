//! How an engine is run: decided when a model is opened, fixed from then on.

use std::time::Duration;

use super::draft::DraftSettings;

/// Settings of an engine.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineSettings {
    /// Requests that run at the same time.
    pub n_slots: usize,
    /// Tokens that one slot can hold.
    pub n_ctx_slot: usize,
    /// Most rows of a step; the executor's `max_rows` bounds it too.
    pub n_batch: usize,
    /// While others generate, a step's prompt rows are held to about this time, so that no stream waits longer.
    pub decode_gap: Duration,
    /// Bytes of host memory for the states of evicted prompts; `None` is unlimited, 0 keeps none.
    pub cache_ram: Option<usize>,
    /// Share of a prompt that a slot must hold to be chosen for it; 0 leaves the choice to age alone.
    pub slot_prompt_similarity: f32,
    /// Identifies the model file in slot files.
    pub model_fingerprint: u64,
    /// Distance of checkpoints in a long prompt, tokens; only for states that cannot be cut anywhere.
    pub checkpoint_every: usize,
    /// Where drafts come from.
    pub draft: DraftSettings,
}

impl Default for EngineSettings {
    /// llama-server's defaults where it has one.
    fn default() -> Self {
        Self {
            n_slots: 4,
            n_ctx_slot: 4096,
            n_batch: 2048,
            decode_gap: Duration::from_millis(250),
            cache_ram: Some(8192 << 20),
            slot_prompt_similarity: 0.1,
            model_fingerprint: 0,
            checkpoint_every: 2048,
            draft: DraftSettings::default(),
        }
    }
}
