//! The second third of a step: the executor computes, and each finished row's token is drawn.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use bloomery_sampler::row_probs;

use super::{core::Core, schedule::Plan, slot::Slot, task::Task, vocabulary::Vocabulary};
use crate::{
    executor::{Executor, Row, SequenceError, StepError},
    request::{Prob, RequestError, TokenProbs},
};

/// What came of a step.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Draws, for each part of the plan that asked for one, in order.
    pub draws: Vec<Draw>,
    /// Parts that the executor refused; they are no longer in the plan.
    pub refused: Vec<(usize, SequenceError)>,
    /// The executor failed: no row of the step was computed.
    pub failure: Option<String>,
}

/// What a part's rows gave: one token, or as many as its draft got right and one more.
#[derive(Debug)]
pub(crate) struct Draw {
    pub slot: usize,
    /// An error is the last one.
    pub tokens: Vec<Result<Drawn, RequestError>>,
}

/// A drawn token, which its sampler has accepted.
#[derive(Debug)]
pub(crate) struct Drawn {
    pub token: u32,
    pub probs: Option<TokenProbs>,
}

impl Core {
    pub(super) fn run(&mut self, plan: &mut Plan) -> Outcome {
        let started = (self.clock)();
        let mut outcome = Outcome { draws: Vec::new(), refused: Vec::new(), failure: None };
        while !plan.rows.is_empty() {
            let (executor, slots, vocabulary) =
                (&mut self.executor, &mut self.slots, self.vocabulary.as_ref());
            // After a panic no state of the executor is used until it is reset, and every sampler that took part goes
            // with its request: nothing half changed is seen.
            let run =
                catch_unwind(AssertUnwindSafe(|| run_and_draw(executor.as_mut(), slots, vocabulary, plan)));
            match run {
                Ok(Ok(draws)) => outcome.draws = draws,
                Ok(Err(StepError::Sequence { sequence, error })) => {
                    let Some(part) = plan.parts.iter().find(|part| part.sequence == sequence) else {
                        outcome.failure = Some(format!(
                            "the executor refused a {sequence} that is not in the step: {error}"
                        ));
                        break;
                    };
                    outcome.refused.push((part.slot, error));
                    plan.rows.retain(|row| row.sequence != sequence);
                    plan.parts.retain(|part| part.sequence != sequence);
                    continue;
                }
                Ok(Err(error)) => outcome.failure = Some(error.to_string()),
                Err(panic) => {
                    outcome.failure = Some(format!("the executor panicked: {}", panic_text(panic.as_ref())))
                }
            }
            break;
        }
        let took = (self.clock)().saturating_duration_since(started);
        let prompt_rows: usize = plan.parts.iter().map(|part| part.n_rows).filter(|&rows| rows > 1).sum();
        self.pace.observe(prompt_rows, took);
        if prompt_rows == 0 && outcome.failure.is_none() {
            self.drafting.observe(plan.rows.len(), took.as_secs_f64());
        }
        outcome
    }
}

fn run_and_draw(
    executor: &mut dyn Executor,
    slots: &mut [Slot],
    vocabulary: &dyn Vocabulary,
    plan: &Plan,
) -> Result<Vec<Draw>, StepError> {
    let n_vocab = executor.shape().n_vocab;
    let output = executor.run(&plan.rows)?;
    let wanted = plan.rows.iter().filter(|row: &&Row| row.wants_logits).count();
    if output.logits.len() != wanted * n_vocab {
        let (got, expected) = (output.logits.len(), wanted * n_vocab);
        return Err(StepError::Executor(format!("it returned {got} logits where {expected} were asked for")));
    }
    let mut logits = output.logits.chunks_exact(n_vocab);
    let draws = plan.parts.iter().filter(|part| part.samples).filter_map(|part| {
        let rows: Vec<&[f32]> = logits.by_ref().take(1 + part.n_draft).collect();
        let task = slots.get_mut(part.slot)?.task.as_mut()?;
        Some(Draw { slot: part.slot, tokens: draw_along(task, vocabulary, &rows) })
    });
    Ok(draws.collect())
}

/// Draws from a row and, as long as what was drawn is what was drafted, from the row behind it.
fn draw_along(
    task: &mut Task,
    vocabulary: &dyn Vocabulary,
    rows: &[&[f32]],
) -> Vec<Result<Drawn, RequestError>> {
    let mut tokens = Vec::new();
    for (index, logits) in rows.iter().enumerate() {
        let drawn = draw(task, vocabulary, logits);
        let goes_on = drawn.as_ref().is_ok_and(|drawn| {
            task.draft.tokens.get(index) == Some(&drawn.token)
                && !vocabulary.is_end_of_generation(drawn.token)
        });
        tokens.push(drawn);
        if !goes_on {
            break;
        }
    }
    tokens
}

fn draw(task: &mut Task, vocabulary: &dyn Vocabulary, logits: &[f32]) -> Result<Drawn, RequestError> {
    let executor = |error: bloomery_sampler::SampleError| RequestError::Executor(error.to_string());
    let token = task.sampler.sample(logits).map_err(executor)?;
    let n_probs = task.request.n_probs;
    if n_probs == 0 {
        task.sampler.accept(token);
        return Ok(Drawn { token, probs: None });
    }
    let prob = |id: u32, logprob: f32| Prob { id, bytes: vocabulary.piece(id, true).to_vec(), logprob };
    let probs = if task.request.post_sampling_probs {
        let mut candidates = task.sampler.last_candidates().to_vec();
        let chosen =
            candidates.iter().find(|candidate| candidate.id == token).map_or(0.0, |candidate| candidate.p);
        candidates.retain(|candidate| candidate.p > 0.0);
        candidates.sort_by(|a, b| b.p.total_cmp(&a.p).then(a.id.cmp(&b.id)));
        let top = candidates.iter().take(n_probs).map(|candidate| prob(candidate.id, candidate.p.ln()));
        TokenProbs { top: top.collect(), chosen: prob(token, chosen.ln()) }
    } else {
        let raw = row_probs(logits, token, n_probs).map_err(executor)?;
        let top = raw.top.iter().map(|&(id, logprob)| prob(id, logprob));
        TokenProbs { top: top.collect(), chosen: prob(token, raw.chosen) }
    };
    task.sampler.accept(token);
    Ok(Drawn { token, probs: Some(probs) })
}

/// The text of a panic.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".into())
}

/// Learns how long a prompt row takes, and holds a step's prompt rows to the gap that streams may see.
#[derive(Debug)]
pub(crate) struct Pace {
    gap: Duration,
    seconds_per_row: Option<f64>,
}

/// Steps with fewer prompt rows say little about the cost of one.
const ENOUGH_ROWS: usize = 8;
/// Prompt rows beside streams are never held below this: a tiny chunk reads all weights for little.
const FEWEST_ROWS: usize = 16;
/// Before anything was measured.
const FIRST_ROWS: usize = 64;

impl Pace {
    pub fn new(gap: Duration) -> Self {
        Self { gap, seconds_per_row: None }
    }

    /// Prompt rows for a step in which others generate.
    pub fn rows_beside(&self, max_rows: usize) -> usize {
        let rows = self.seconds_per_row.map_or(FIRST_ROWS, |cost| (self.gap.as_secs_f64() / cost) as usize);
        rows.clamp(FEWEST_ROWS.min(max_rows), max_rows)
    }

    fn observe(&mut self, prompt_rows: usize, took: Duration) {
        if prompt_rows < ENOUGH_ROWS {
            return;
        }
        let cost = (took.as_secs_f64() / prompt_rows as f64).max(1e-9);
        self.seconds_per_row = Some(self.seconds_per_row.map_or(cost, |old| 0.7 * old + 0.3 * cost));
    }
}

/// A moment that a phase began, for sums over phases.
pub(crate) fn take_seconds(counted: &mut Option<Instant>, now: Instant) -> f64 {
    let from = counted.replace(now);
    super::task::since(from, now).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_follows_the_measured_cost() {
        let mut pace = Pace::new(Duration::from_millis(200));
        assert_eq!(pace.rows_beside(512), 64);
        pace.observe(100, Duration::from_millis(200));
        assert_eq!(pace.rows_beside(512), 100);
        pace.observe(4, Duration::from_secs(9));
        assert_eq!(pace.rows_beside(512), 100, "too few rows to learn from");
        for _ in 0..50 {
            pace.observe(100, Duration::from_secs(100));
        }
        assert_eq!(pace.rows_beside(512), FEWEST_ROWS);
        assert_eq!(pace.rows_beside(4), 4);
    }
}
