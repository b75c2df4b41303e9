//! Decision requests: each is one whole pass between two steps, and nothing of it stays.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::sync::oneshot;

use super::{Command, Engine, core::Core, run::panic_text};
use crate::{
    executor::{SequenceError, StepError},
    request::{Decide, Decided, RequestError},
};

/// The answer to a decision request, to be awaited. Dropping it cancels a request that has not begun.
pub type DecideReply = oneshot::Receiver<Result<Decided, RequestError>>;

/// A request that waits.
#[derive(Debug)]
pub(crate) struct DecideJob {
    pub request: Decide,
    pub reply: oneshot::Sender<Result<Decided, RequestError>>,
}

impl Engine {
    /// Hands in a decision request. Never blocks; an engine that has ended lets go of the question.
    #[must_use]
    pub fn decide(&self, request: Decide) -> DecideReply {
        let (reply, answer) = oneshot::channel();
        // Without an engine the sender is dropped, which is what the receiver hears.
        _ = self.inner.commands.send(Command::Decide(DecideJob { request, reply }));
        answer
    }
}

impl Core {
    /// Answers the oldest decision request that somebody still waits for.
    pub(super) fn decide_next(&mut self) {
        self.decisions.retain(|job| !job.reply.is_closed());
        let Some(DecideJob { request, reply }) = self.decisions.pop_front() else { return };
        let answer = match &self.broken {
            Some(reason) => Err(RequestError::Executor(reason.clone())),
            None => self.decide(&request),
        };
        // Whoever asked may have gone away.
        self.announce(|| drop(reply.send(answer)));
    }

    fn decide(&mut self, request: &Decide) -> Result<Decided, RequestError> {
        let started = (self.clock)();
        let executor = &mut self.executor;
        // After a panic or a failure no state of the executor is used until it is reset.
        let ran = catch_unwind(AssertUnwindSafe(|| executor.decide(&request.prompt, &request.questions)));
        let failure = match ran {
            Ok(Ok(decision)) => {
                let took = (self.clock)().saturating_duration_since(started);
                let prompt = took.saturating_sub(decision.head);
                self.counters.prompt_tokens += request.prompt.len() as u64;
                self.counters.prompt_seconds += took.as_secs_f64();
                let (prompt_ms, head_ms) = (prompt.as_secs_f64() * 1e3, decision.head.as_secs_f64() * 1e3);
                return Ok(Decided { logits: decision.logits, prompt_ms, head_ms });
            }
            Ok(Err(StepError::Malformed(what))) => return Err(RequestError::Invalid(what)),
            Ok(Err(StepError::Sequence { error: SequenceError::TooLong { asked, max_tokens }, .. })) => {
                return Err(RequestError::ContextExceeded { n_prompt: asked, n_ctx: max_tokens });
            }
            Ok(Err(StepError::Sequence { error, .. })) => {
                return Err(RequestError::Executor(error.to_string()));
            }
            Ok(Err(StepError::Executor(reason))) => reason,
            Err(panic) => format!("the executor panicked: {}", panic_text(panic.as_ref())),
        };
        tracing::error!(reason = failure, "a decision failed; the engine starts over");
        let error = RequestError::Executor(failure);
        self.start_over(&error);
        Err(error)
    }
}
