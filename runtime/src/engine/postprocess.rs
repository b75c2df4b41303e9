//! The last third of a step: tokens become text and events, and whoever is done leaves.

use super::{
    core::Core,
    run::{Draw, Drawn, Outcome, take_seconds},
    schedule::Plan,
    slot::Slot,
    task::{Closing, since},
    vocabulary::Vocabulary,
};
use crate::{
    executor::SequenceError,
    request::{Event, RequestError, StopKind, Token},
};

impl Core {
    pub(super) fn postprocess(&mut self, plan: &Plan, outcome: Outcome) {
        for (slot, error) in outcome.refused {
            self.refuse(slot, error);
        }
        if let Some(reason) = outcome.failure {
            return self.fail_step(plan, &reason);
        }
        self.advance(plan);
        for draw in outcome.draws {
            self.deliver(draw);
        }
        for part in &plan.parts {
            if let Some(slot) = self.slots.get_mut(part.slot) {
                slot.look();
            }
        }
    }

    /// One sequence could not be run. Without room it runs later, if others will make some; else its request fails.
    fn refuse(&mut self, slot: usize, error: SequenceError) {
        if matches!(error, SequenceError::NoRoom { .. }) && self.n_running() > 1 {
            return self.step_back(slot);
        }
        self.forget(slot);
        self.leave(slot, move |task| task.fail(RequestError::Executor(error.to_string())));
    }

    /// The executor failed: the requests of this step fail with it. The others lose their state and start again from
    /// their own tokens.
    fn fail_step(&mut self, plan: &Plan, reason: &str) {
        tracing::error!(reason, "a step failed; the engine goes on with fresh state");
        for part in &plan.parts {
            let error = RequestError::Executor(reason.to_owned());
            self.leave(part.slot, |task| task.fail(error));
        }
        self.reset_executor();
        // A state that was lost has no sequence; the next step needs one.
        for slot in 0..self.slots.len() {
            if self.slots.get(slot).is_some_and(|slot| !slot.is_idle()) {
                self.step_back(slot);
            }
        }
    }

    fn leave(&mut self, slot: usize, end: impl FnOnce(super::task::Task) + Send + 'static) {
        let tick = self.tick;
        if let Some(task) = self.slots.get_mut(slot).and_then(|slot| slot.leave(tick)) {
            self.announce(move || end(task));
        }
    }

    /// The rows are in the state now.
    fn advance(&mut self, plan: &Plan) {
        let now = (self.clock)();
        self.counters.decode_calls += 1;
        self.counters.busy_slots += plan.parts.len() as u64;
        let mut filled = Vec::new();
        for part in &plan.parts {
            let Some(slot) = self.slots.get_mut(part.slot) else { continue };
            slot.served = self.tick;
            let Some(task) = &mut slot.task else { continue };
            slot.tokens.extend(task.tokens.iter().skip(slot.tokens.len()).take(part.n_rows));
            let n_past = slot.tokens.len();
            self.counters.n_tokens_max = self.counters.n_tokens_max.max(n_past as u64);
            if task.generating.is_none() {
                self.counters.prompt_tokens += part.n_rows as u64;
                self.counters.prompt_seconds += take_seconds(&mut task.counted, now);
                task.report_progress(n_past, now);
                if n_past == task.n_prompt {
                    task.generating = Some(now);
                    if !task.wants_logits() {
                        filled.push(part.slot);
                    }
                }
            }
            let n_prompt = task.n_prompt;
            if self.is_checkpoint(n_prompt, n_past)
                && let Err(error) = self.executor.checkpoint(part.sequence)
            {
                tracing::warn!(slot = part.slot, %error, "no checkpoint was kept");
            }
        }
        for slot in filled {
            let n_past = self.slots.get(slot).map_or(0, |slot| slot.tokens.len());
            self.end(slot, StopKind::Limit, Closing::default(), n_past);
        }
    }

    fn deliver(&mut self, draw: Draw) {
        let now = (self.clock)();
        let vocabulary = self.vocabulary.clone();
        let Some(slot) = self.slots.get_mut(draw.slot) else { return };
        let n_draft = slot.task.as_ref().map_or(0, |task| task.draft.tokens.len());
        let mut n_accepted = 0;
        let mut end = None;
        for (index, drawn) in draw.tokens.into_iter().enumerate() {
            let drawn = match drawn {
                Ok(drawn) => drawn,
                Err(error) => {
                    end = Some(Err(error));
                    break;
                }
            };
            let Some(task) = &mut slot.task else { break };
            self.counters.predicted_tokens += 1;
            self.counters.predicted_seconds += take_seconds(&mut task.counted, now);
            let is_drafted = task.draft.tokens.get(index) == Some(&drawn.token);
            n_accepted += usize::from(is_drafted);
            let token = drawn.token;
            if let Some(ended) = take_token(slot, drawn, vocabulary.as_ref(), self.settings.n_ctx_slot, now) {
                end = Some(Ok(ended));
                break;
            }
            if is_drafted {
                // Its row is in the state already.
                slot.tokens.push(token);
            }
        }
        let n_past = slot.tokens.len();
        self.counters.n_tokens_max = self.counters.n_tokens_max.max(n_past as u64);
        if n_draft > 0 {
            if let Some(task) = &mut slot.task {
                task.draft.learn(n_accepted);
            }
            self.counters.drafts += 1;
            self.counters.drafted_tokens += n_draft as u64;
            self.counters.accepted_tokens += n_accepted as u64;
            self.take_back(draw.slot);
        }
        match end {
            Some(Err(error)) => self.leave(draw.slot, |task| task.fail(error)),
            Some(Ok((stop, closing))) => self.end(draw.slot, stop, closing, n_past),
            // A slot whose state was lost goes on from its own tokens.
            None if self.slots.get(draw.slot).is_some_and(|slot| slot.sequence.is_none()) => {
                self.step_back(draw.slot);
            }
            None => {}
        }
    }

    /// Takes what was drafted wrongly out of a slot's state.
    fn take_back(&mut self, id: usize) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let (Some(sequence), n_past) = (slot.sequence, slot.tokens.len()) else { return };
        let taken_back = match self.executor.len(sequence) {
            Ok(len) if len == n_past => return,
            Ok(_) => self.executor.take_back(sequence, n_past),
            Err(error) => Err(error),
        };
        match taken_back {
            Ok(n) => slot.tokens.truncate(n),
            Err(error) => {
                tracing::warn!(slot = id, %error, "a draft could not be taken back; its state is computed again");
                self.forget(id);
            }
        }
    }

    fn end(&mut self, slot: usize, stop: StopKind, closing: Closing, n_past: usize) {
        let now = (self.clock)();
        self.leave(slot, move |task| task.finish(stop, closing, slot, n_past, now));
    }
}

/// Adds a drawn token to its request and says whether that was the last one.
fn take_token(
    slot: &mut Slot,
    Drawn { token, probs }: Drawn,
    vocabulary: &dyn Vocabulary,
    n_ctx: usize,
    now: std::time::Instant,
) -> Option<(StopKind, Closing)> {
    let task = slot.task.as_mut()?;
    task.tokens.push(token);
    task.n_decoded += 1;
    let emitted = task.text.push(vocabulary.piece(token, task.request.render_special));
    task.has_new_line |= emitted.text.contains('\n');
    task.send(Event::Token(Token { id: token, text: emitted.text, probs }));

    if let Some(stopping_word) = emitted.stopped_by {
        return Some((StopKind::Word, Closing { stopping_word, ..Closing::default() }));
    }
    let is_full = slot.tokens.len() + 1 >= n_ctx;
    let late = |limit: u64| since(task.generating, now).as_millis() > u128::from(limit);
    let stop = if vocabulary.is_end_of_generation(token) {
        StopKind::Eos
    } else if task.request.n_predict.is_some_and(|limit| task.n_decoded >= limit)
        || is_full
        || (task.has_new_line && task.request.t_max_predict_ms.is_some_and(late))
    {
        StopKind::Limit
    } else {
        return None;
    };
    let rest = task.text.finish();
    let truncated = is_full
        && stop == StopKind::Limit
        && task.request.n_predict.is_none_or(|limit| task.n_decoded < limit);
    let (stop, stopping_word) = match rest.stopped_by {
        Some(word) => (StopKind::Word, word),
        None => (stop, String::new()),
    };
    Some((stop, Closing { stopping_word, text: rest.text, truncated }))
}
