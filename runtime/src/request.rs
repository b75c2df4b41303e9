//! What a caller asks of the engine and what it hears back. Plain data, no wire format.

use bloomery_sampler::SamplingParams;

use crate::{executor::Question, slot_file::SlotFileError};

/// One generation. Nothing in it outlives the request.
#[derive(Debug, Clone)]
pub struct Generate {
    /// Token ids of the whole prompt, special tokens included.
    pub prompt: Vec<u32>,
    /// The sampler chain and its seed.
    pub sampling: SamplingParams,
    /// Most tokens to generate; `None` runs to an end token or the context's end, `Some(0)` only fills the cache.
    pub n_predict: Option<usize>,
    /// Strings that end the text; they are not part of it.
    pub stop: Vec<String>,
    /// Go on past end-of-generation tokens (they become impossible).
    pub ignore_eos: bool,
    /// Reuse a verified prefix of an earlier request's state.
    pub cache_prompt: bool,
    /// Pin to one slot.
    pub slot: Option<usize>,
    /// How many alternatives to report for each token; 0 reports none.
    pub n_probs: usize,
    /// Report probabilities after the sampler chain in place of the raw softmax.
    pub post_sampling_probs: bool,
    /// Send `Event::Progress` while the prompt is processed.
    pub return_progress: bool,
    /// Render control tokens as text.
    pub render_special: bool,
    /// Wall-clock budget of the generation phase, counted from its start and enforced once the text holds a new line
    /// (llama-server's `t_max_predict_ms`).
    pub t_max_predict_ms: Option<u64>,
}

/// One decision request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decide {
    /// Token ids of the whole prompt.
    pub prompt: Vec<u32>,
    /// Its questions.
    pub questions: Vec<Question>,
}

/// The answer of a decision request.
#[derive(Debug, Clone, PartialEq)]
pub struct Decided {
    /// One logit for every option, questions in order.
    pub logits: Vec<f32>,
    /// The prompt's pass, milliseconds.
    pub prompt_ms: f64,
    /// The head's, milliseconds.
    pub head_ms: f64,
}

/// What the engine sends, in order: progress events, `Token`s, then exactly one of `Done` and `Failed`.
#[derive(Debug, Clone)]
pub enum Event {
    /// Prompt tokens processed so far.
    Progress(PromptProgress),
    /// One generated token.
    Token(Token),
    /// The generation ended in good order.
    Done(Done),
    /// This request failed; others go on.
    Failed(RequestError),
}

/// State of prompt processing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PromptProgress {
    /// Tokens of the prompt.
    pub total: usize,
    /// Of these, taken from a cache.
    pub cache: usize,
    /// Processed so far, cached ones included.
    pub processed: usize,
    /// Milliseconds since processing began.
    pub time_ms: u64,
}

/// One generated token and the text that became certain with it.
#[derive(Debug, Clone)]
pub struct Token {
    /// Token id.
    pub id: u32,
    /// Text to append: whole characters only; empty while a character or a possible stop string is incomplete.
    pub text: String,
    /// Alternatives, when `n_probs` asked for them.
    pub probs: Option<TokenProbs>,
}

/// The chosen token and its alternatives.
#[derive(Debug, Clone)]
pub struct TokenProbs {
    /// The chosen token.
    pub chosen: Prob,
    /// The `n_probs` most likely tokens, best first.
    pub top: Vec<Prob>,
}

/// A token with its probability.
#[derive(Debug, Clone)]
pub struct Prob {
    /// Token id.
    pub id: u32,
    /// Its bytes (may be part of a character).
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopKind {
    /// An end-of-generation token.
    Eos,
    /// A stop string.
    Word,
    /// `n_predict`, the time budget or the context's end.
    Limit,
}

/// The closing report of a generation.
#[derive(Debug, Clone)]
pub struct Done {
    /// Why it ended.
    pub stop: StopKind,
    /// The stop string that ended it, for `StopKind::Word`.
    pub stopping_word: String,
    /// Text that was held back as a possible stop string or an incomplete character, now certain.
    pub text: String,
    /// The context was full before the generation ended by itself.
    pub truncated: bool,
    /// Prompt tokens.
    pub n_prompt: usize,
    /// Prompt tokens taken from a cache.
    pub n_cached: usize,
    /// Generated tokens, an end token included.
    pub n_decoded: usize,
    /// Slot that ran it.
    pub slot: usize,
    /// Prompt phase, milliseconds.
    pub prompt_ms: f64,
    /// Generation phase, milliseconds.
    pub predicted_ms: f64,
    /// Tokens in the slot's state now: the prompt and all generated tokens but the last.
    pub n_past: usize,
    /// Tokens that were drafted for it.
    pub n_drafted: usize,
    /// Of these, the ones that became part of the text.
    pub n_accepted: usize,
    /// The generated text holds a new line.
    pub has_new_line: bool,
    /// The seed that the draws used: the one asked for, or the random one.
    pub seed: u32,
}

/// Why one request failed. The process and the other requests live on.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RequestError {
    /// The prompt cannot fit.
    #[error(
        "request ({n_prompt} tokens) exceeds the available context size ({n_ctx} tokens), try increasing it"
    )]
    ContextExceeded {
        /// Tokens of the prompt.
        n_prompt: usize,
        /// Tokens that a slot can hold.
        n_ctx: usize,
    },
    /// A field of the request cannot be honoured.
    #[error("{0}")]
    Invalid(String),
    /// The caller went away.
    #[error("the request was cancelled")]
    Cancelled,
    /// The engine is ending.
    #[error("the engine is shutting down")]
    ShuttingDown,
    /// The executor failed on this request.
    #[error("{0}")]
    Executor(String),
    /// A slot could not be saved to a file or restored from it.
    #[error(transparent)]
    SlotFile(#[from] SlotFileError),
}
