//! What the HTTP side needs of an engine: a small trait, so that every route can be driven by the real engine or by a toy.

use std::{
    future::Future,
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bloomery_runtime::{
    board::Board,
    request::{Decide, Decided, Event, Generate, RequestError},
};
use bloomery_tokenizer::Tokenizer;

/// A future that is sent between threads.
pub type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Runs generations.
pub trait Engine: Send + Sync + 'static {
    /// Queues a generation. Dropping what comes back cancels it within a step.
    fn submit(&self, generate: Generate) -> Box<dyn Events>;
    /// Answers a decision request. Dropping what comes back cancels one that has not begun.
    fn decide(&self, decide: Decide) -> Later<Result<Decided, RequestError>>;
    /// The latest board. Never waits.
    fn board(&self) -> Arc<Board>;
    /// Writes a slot's state to a file.
    fn slot_save(&self, slot: usize, path: PathBuf) -> Later<Result<SlotFile, RequestError>>;
    /// Reads a slot's state from a file.
    fn slot_restore(&self, slot: usize, path: PathBuf) -> Later<Result<SlotFile, RequestError>>;
    /// Forgets a slot's state; gives the number of tokens that it held.
    fn slot_erase(&self, slot: usize) -> Later<Result<SlotFile, RequestError>>;
    /// Ends what runs; every request hears of it.
    fn shutdown(&self);
}

/// The events of one generation.
pub trait Events: Send {
    /// Number of the task.
    fn id(&self) -> u64;
    /// The next event; `None` after the last.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>>;
}

/// Waits for the next event.
pub async fn next_event(events: &mut dyn Events) -> Option<Event> {
    std::future::poll_fn(|context| events.poll_next(context)).await
}

/// What saving, restoring or erasing a slot did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlotFile {
    /// Tokens in the state.
    pub n_tokens: usize,
    /// Bytes written or read; 0 for an erasure.
    pub n_bytes: u64,
    /// Milliseconds that it took.
    pub ms: f64,
}

/// What the wire says of the model.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Path as it was given, or of the file in the cache.
    pub path: String,
    /// Name of the file type, such as `Q4_K - Medium`.
    pub file_type: String,
    /// Number that stands for the kind of vocabulary (1 SentencePiece, 2 byte-level BPE, 4 unigram).
    pub vocab_type: u32,
    /// Entries of the vocabulary.
    pub n_vocab: usize,
    /// The model's own next-token block drafts.
    pub drafts: bool,
    /// Tokens that a request may have, prompt and answer together.
    pub n_ctx_slot: usize,
    /// Tokens that the model was trained on.
    pub n_ctx_train: usize,
    /// Width of an embedding.
    pub n_embd: usize,
    /// Parameters.
    pub n_params: u64,
    /// Bytes of all tensors.
    pub size_bytes: u64,
    /// Slots.
    pub n_slots: usize,
    /// The file's chat template.
    pub chat_template: Option<String>,
    /// The file's template of decision requests.
    pub decision_template: Option<String>,
    /// The model answers decision requests and generates no text.
    pub decides: bool,
    /// Text of the begin token, empty where there is none.
    pub bos_text: String,
    /// Text of the end token, empty where there is none.
    pub eos_text: String,
}

/// A model that is ready to serve.
#[derive(Clone)]
pub struct Served {
    /// The engine.
    pub engine: Arc<dyn Engine>,
    /// The tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// What the wire says of the model.
    pub facts: Arc<Facts>,
}

impl std::fmt::Debug for Served {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Served").field("facts", &self.facts).finish_non_exhaustive()
    }
}
