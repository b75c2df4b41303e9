//! From the events of one generation to its answer, whole or in chunks. Any way the text is cut into events, the joined chunks
//! equal the whole.

use bloomery_runtime::request::{Done, Event, PromptProgress, RequestError, StopKind, TokenProbs};
use serde_json::Value;

use super::{chat, completion, native, settings::Settings, timings::Timings, unix_time};

/// Which wire an answer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// llama-server's own `/completion`.
    Native,
    /// OpenAI's `/v1/completions`.
    Completion,
    /// OpenAI's `/v1/chat/completions`.
    Chat,
}

/// What all answers of a request share.
#[derive(Debug, Clone)]
pub struct Answering {
    /// The wire.
    pub shape: Shape,
    /// Id of the completion.
    pub id: String,
    /// Name of the model.
    pub model: String,
    /// The settings, as they are reported.
    pub settings: Settings,
    /// Add `__verbose`.
    pub verbose: bool,
    /// Report token ids in whole native answers.
    pub return_tokens: bool,
    /// Send progress of the prompt.
    pub return_progress: bool,
    /// Send a chunk with usage.
    pub include_usage: bool,
    /// Native answers keep only these fields.
    pub response_fields: Vec<String>,
}

/// A piece of text with what belongs to it.
#[derive(Debug, Clone, Default)]
pub struct Piece {
    /// Which of the request's generations.
    pub index: usize,
    /// The text.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Their probabilities, where asked for.
    pub probs: Vec<TokenProbs>,
    /// Tokens generated so far.
    pub n_predicted: usize,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Times so far, where asked for.
    pub timings: Option<Timings>,
    /// Progress of the prompt, in a chunk without text.
    pub progress: Option<PromptProgress>,
    /// The first piece with text of this generation.
    pub first: bool,
}

/// A generation that ended.
#[derive(Debug, Clone)]
pub struct Finished {
    /// Which of the request's generations.
    pub index: usize,
    /// The whole text; a chat's begins with what the answer was made to go on from.
    pub text: String,
    /// Text before that, which the model did not generate.
    pub prefill: String,
    /// All tokens.
    pub tokens: Vec<u32>,
    /// Their probabilities, where asked for.
    pub probs: Vec<TokenProbs>,
    /// Text of the prompt.
    pub prompt: String,
    /// The engine's report.
    pub done: Done,
}

impl Finished {
    /// OpenAI's word for the end.
    #[must_use]
    pub const fn finish_reason(&self) -> &'static str {
        match self.done.stop {
            StopKind::Eos | StopKind::Word => "stop",
            StopKind::Limit => "length",
        }
    }
}

/// Follows one generation.
#[derive(Debug)]
pub struct Follower {
    index: usize,
    prompt: String,
    n_prompt: usize,
    prefill: String,
    /// Text so far, without the prefill.
    text: String,
    tokens: Vec<u32>,
    probs: Vec<TokenProbs>,
    /// Tokens and probabilities that were not sent yet, because they have completed no text.
    unsent: (usize, usize),
    progress: PromptProgress,
    started: bool,
    first_token: Option<std::time::Instant>,
    now: fn() -> std::time::Instant,
}

/// What an event leads to.
#[derive(Debug)]
pub enum Step {
    /// Nothing to send.
    Nothing,
    /// Pieces to send in a stream.
    Piece(Piece),
    /// The end; the last text may still have to be sent.
    End(Option<Piece>, Box<Finished>),
    /// The generation failed.
    Failed(RequestError),
}

impl Follower {
    /// A follower of generation `index`, whose prompt has this text and this many tokens. A chat's `prefill` is the beginning
    /// of the answer that came with the request.
    #[must_use]
    pub fn new(index: usize, prompt: String, n_prompt: usize, prefill: String) -> Self {
        Self {
            index,
            prompt,
            n_prompt,
            prefill,
            text: String::new(),
            tokens: Vec::new(),
            probs: Vec::new(),
            unsent: (0, 0),
            progress: PromptProgress::default(),
            started: false,
            first_token: None,
            now: std::time::Instant::now,
        }
    }

    /// Takes in one event.
    pub fn step(&mut self, event: Event, answering: &Answering) -> Step {
        match event {
            Event::Progress(progress) => {
                self.progress = progress;
                if !answering.return_progress {
                    return Step::Nothing;
                }
                let mut piece = self.piece(String::new(), answering);
                piece.progress = Some(progress);
                Step::Piece(piece)
            }
            Event::Token(token) => {
                let now = (self.now)();
                self.first_token.get_or_insert(now);
                self.tokens.push(token.id);
                self.probs.extend(token.probs);
                if token.text.is_empty() {
                    return Step::Nothing;
                }
                self.text.push_str(&token.text);
                Step::Piece(self.text_piece(token.text, answering))
            }
            Event::Done(done) => {
                let last = if done.text.is_empty() {
                    None
                } else {
                    self.text.push_str(&done.text);
                    Some(self.text_piece(done.text.clone(), answering))
                };
                let finished = Finished {
                    index: self.index,
                    text: std::mem::take(&mut self.text),
                    prefill: std::mem::take(&mut self.prefill),
                    tokens: std::mem::take(&mut self.tokens),
                    probs: std::mem::take(&mut self.probs),
                    prompt: std::mem::take(&mut self.prompt),
                    done,
                };
                Step::End(last, Box::new(finished))
            }
            Event::Failed(error) => Step::Failed(error),
        }
    }

    fn text_piece(&mut self, text: String, answering: &Answering) -> Piece {
        let mut piece = self.piece(text, answering);
        piece.tokens = self.tokens.get(self.unsent.0..).unwrap_or_default().to_vec();
        piece.probs = self.probs.get(self.unsent.1..).unwrap_or_default().to_vec();
        self.unsent = (self.tokens.len(), self.probs.len());
        piece.first = !self.started;
        if piece.first && answering.shape == Shape::Chat {
            piece.text.insert_str(0, &self.prefill);
        }
        self.started = true;
        piece
    }

    fn piece(&self, text: String, answering: &Answering) -> Piece {
        let timings = answering.settings.timings_per_token.then(|| Timings {
            n_cached: self.progress.cache,
            n_prompt: self.progress.processed.saturating_sub(self.progress.cache),
            prompt_ms: self.progress.time_ms as f64,
            n_predicted: self.tokens.len(),
            predicted_ms: self
                .first_token
                .map_or(0.0, |first| (self.now)().duration_since(first).as_secs_f64() * 1e3),
            ..Timings::default()
        });
        Piece {
            index: self.index,
            text,
            n_predicted: self.tokens.len(),
            n_prompt: self.n_prompt,
            timings,
            ..Piece::default()
        }
    }
}

/// The chunks of a stream for a piece.
#[must_use]
pub fn chunks(piece: &Piece, answering: &Answering) -> Vec<Value> {
    match answering.shape {
        Shape::Native => vec![native::chunk(piece, answering)],
        Shape::Completion => vec![completion::chunk(piece, answering, unix_time())],
        Shape::Chat => chat::chunks(piece, answering, unix_time()),
    }
}

/// The last chunks of one generation in a stream. `started` says whether any text was sent.
#[must_use]
pub fn last_chunks(finished: &Finished, answering: &Answering, started: bool) -> Vec<Value> {
    match answering.shape {
        Shape::Native => vec![native::answer(finished, answering, true)],
        Shape::Completion => {
            vec![completion::answer(std::slice::from_ref(finished), answering, unix_time(), true)]
        }
        Shape::Chat => chat::last_chunks(finished, answering, unix_time(), started),
    }
}

/// The whole answer of a request.
#[must_use]
pub fn whole(all: &[Finished], answering: &Answering) -> Value {
    match answering.shape {
        Shape::Native => {
            let mut answers: Vec<Value> =
                all.iter().map(|finished| native::answer(finished, answering, false)).collect();
            if answers.len() == 1 { answers.swap_remove(0) } else { Value::Array(answers) }
        }
        Shape::Completion => completion::answer(all, answering, unix_time(), false),
        Shape::Chat => chat::answer(all, answering, unix_time()),
    }
}

/// `usage`, over all generations of a request.
#[must_use]
pub fn usage(all: &[Finished]) -> Value {
    let completion: usize = all.iter().map(|finished| finished.done.n_decoded).sum();
    let prompt: usize = prompts(all).map(|finished| finished.done.n_prompt).sum();
    let cached: usize = prompts(all).map(|finished| finished.done.n_cached).sum();
    serde_json::json!({
        "completion_tokens": completion,
        "prompt_tokens": prompt,
        "total_tokens": completion + prompt,
        "prompt_tokens_details": {"cached_tokens": cached},
    })
}

/// One generation for each distinct prompt: several answers to one prompt count it once.
fn prompts(all: &[Finished]) -> impl Iterator<Item = &Finished> {
    all.iter()
        .enumerate()
        .filter(|(i, finished)| *i == 0 || all[i - 1].prompt != finished.prompt)
        .map(|(_, finished)| finished)
}
