//! One request in the engine: its tokens, sampler, text and clock.

use std::time::Instant;

use bloomery_sampler::Sampler;
use tokio::sync::mpsc::UnboundedSender;

use super::{draft::TaskDraft, text::TextOut, vocabulary::Vocabulary};
use crate::request::{Done, Event, Generate, PromptProgress, RequestError, StopKind};

/// Everything that belongs to one request and goes with it.
#[derive(Debug)]
pub(crate) struct Task {
    pub id: u64,
    pub request: Generate,
    pub sampler: Sampler,
    /// Prompt and generated tokens.
    pub tokens: Vec<u32>,
    pub n_prompt: usize,
    /// Prompt tokens taken from a cache when it first got a slot.
    pub n_cached: usize,
    pub n_decoded: usize,
    pub text: TextOut,
    pub draft: TaskDraft,
    pub has_new_line: bool,
    /// First got a slot.
    pub started: Option<Instant>,
    /// The prompt was done.
    pub generating: Option<Instant>,
    /// Up to here its time has been counted.
    pub counted: Option<Instant>,
    events: UnboundedSender<Event>,
}

/// What a request must fit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub n_vocab: usize,
    pub n_slots: usize,
    pub n_ctx_slot: usize,
    /// The executor has logits of a next token.
    pub generates: bool,
}

impl Limits {
    pub fn check(&self, request: &Generate) -> Result<(), RequestError> {
        let invalid = |message: String| Err(RequestError::Invalid(message));
        if !self.generates {
            return invalid("this model answers decision requests and generates no text".into());
        }
        if request.prompt.is_empty() {
            return invalid("the prompt is empty".into());
        }
        if request.prompt.len() >= self.n_ctx_slot {
            return Err(RequestError::ContextExceeded {
                n_prompt: request.prompt.len(),
                n_ctx: self.n_ctx_slot,
            });
        }
        if let Some(token) = request.prompt.iter().find(|&&token| token as usize >= self.n_vocab) {
            return invalid(format!("the prompt holds token {token}, the vocabulary has {}", self.n_vocab));
        }
        match request.slot {
            Some(slot) if slot >= self.n_slots => {
                invalid(format!("id_slot is {slot}, there are {} slots", self.n_slots))
            }
            _ => Ok(()),
        }
    }
}

impl Task {
    /// Checks a request and prepares what it needs, on the caller's thread.
    pub fn new(
        id: u64,
        request: Generate,
        events: UnboundedSender<Event>,
        vocabulary: &dyn Vocabulary,
        limits: &Limits,
    ) -> Result<Self, RequestError> {
        limits.check(&request)?;
        let mut sampling = request.sampling.clone();
        let mut forbid = |token: u32| {
            if (token as usize) < limits.n_vocab {
                sampling.logit_bias.push((token, f32::NEG_INFINITY));
            }
        };
        vocabulary.suppressed().iter().for_each(|&token| forbid(token));
        if request.ignore_eos {
            vocabulary.end_tokens().into_iter().for_each(forbid);
        }
        let mut sampler = Sampler::new(sampling, limits.n_vocab, &mut |text| vocabulary.sequences_with(text))
            .map_err(|error| RequestError::Invalid(error.to_string()))?;
        request.prompt.iter().for_each(|&token| sampler.accept(token));
        Ok(Self {
            id,
            sampler,
            tokens: request.prompt.clone(),
            n_prompt: request.prompt.len(),
            n_cached: 0,
            n_decoded: 0,
            draft: TaskDraft::default(),
            text: TextOut::new(request.render_special, &request.stop),
            has_new_line: false,
            started: None,
            generating: None,
            counted: None,
            request,
            events,
        })
    }

    /// The caller dropped its ticket.
    pub fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }

    /// A caller that is gone hears nothing; the next step frees its slot.
    pub fn send(&self, event: Event) {
        let _ = self.events.send(event);
    }

    pub fn fail(self, error: RequestError) {
        self.send(Event::Failed(error));
    }

    /// Rows that the last token's logits are asked of.
    pub fn wants_logits(&self) -> bool {
        self.request.n_predict != Some(0)
    }

    pub fn report_progress(&self, n_past: usize, now: Instant) {
        if self.request.return_progress && self.n_decoded == 0 {
            self.send(Event::Progress(PromptProgress {
                total: self.n_prompt,
                cache: self.n_cached,
                processed: n_past.min(self.n_prompt),
                time_ms: u64::try_from(since(self.started, now).as_millis()).unwrap_or(u64::MAX),
            }));
        }
    }

    pub fn finish(self, stop: StopKind, closing: Closing, slot: usize, n_past: usize, now: Instant) {
        let generating = self.generating.unwrap_or(now);
        let done = Done {
            stop,
            stopping_word: closing.stopping_word,
            text: closing.text,
            truncated: closing.truncated,
            n_prompt: self.n_prompt,
            n_cached: self.n_cached,
            n_decoded: self.n_decoded,
            slot,
            prompt_ms: since(self.started, generating).as_secs_f64() * 1e3,
            predicted_ms: since(Some(generating), now).as_secs_f64() * 1e3,
            n_past,
            n_drafted: self.draft.n_drafted,
            n_accepted: self.draft.n_accepted,
            has_new_line: self.has_new_line,
            seed: self.sampler.seed(),
        };
        self.send(Event::Done(done));
    }
}

/// The words of a `Done` that depend on why it came.
#[derive(Debug, Default)]
pub(crate) struct Closing {
    pub stopping_word: String,
    pub text: String,
    pub truncated: bool,
}

pub(crate) fn since(from: Option<Instant>, now: Instant) -> std::time::Duration {
    from.map_or_else(Default::default, |from| now.saturating_duration_since(from))
}
