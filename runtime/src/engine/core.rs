//! The engine's heart, free of threads: it takes commands and makes steps. A step is schedule, run, postprocess.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use arc_swap::ArcSwap;
use tokio::sync::oneshot;

use super::{
    decide::DecideJob, draft::Drafting, prompt_cache::PromptCache, run::Pace, settings::EngineSettings,
    slot::Slot, task::Task, vocabulary::Vocabulary,
};
use crate::{
    board::{Board, Counters},
    executor::{Executor, SequenceId},
    request::RequestError,
    slot_file::SlotFileError,
};

/// Reads the time; tests bring their own.
pub(crate) type Clock = Box<dyn Fn() -> Instant + Send>;

/// Work on a slot's state; it waits until the slot is idle.
#[derive(Debug)]
pub(crate) enum SlotJob {
    Save { slot: usize, reply: oneshot::Sender<Result<SavedSlot, RequestError>> },
    Restore { slot: usize, saved: SavedSlot, reply: oneshot::Sender<Result<usize, RequestError>> },
    Erase { slot: usize, reply: oneshot::Sender<Result<usize, RequestError>> },
}

/// Tokens with their saved state.
#[derive(Debug, Default)]
pub(crate) struct SavedSlot {
    pub tokens: Vec<u32>,
    pub state: Vec<u8>,
}

/// Owns the executor and everything that runs on it.
pub(crate) struct Core {
    pub(super) executor: Box<dyn Executor>,
    pub(super) vocabulary: Arc<dyn Vocabulary>,
    pub(super) settings: EngineSettings,
    pub(super) slots: Vec<Slot>,
    /// Requests without a slot, oldest first.
    pub(super) waiting: VecDeque<Task>,
    pub(super) jobs: VecDeque<SlotJob>,
    pub(super) decisions: VecDeque<DecideJob>,
    pub(super) cache: PromptCache,
    pub(super) counters: Counters,
    pub(super) pace: Pace,
    pub(super) drafting: Drafting,
    pub(super) clock: Clock,
    /// Steps so far.
    pub(super) tick: u64,
    /// Why the executor cannot be used any more.
    pub(super) broken: Option<String>,
    board: Arc<ArcSwap<Board>>,
    /// Ends of requests and answers to jobs: they leave after the board has been published, so that whoever hears
    /// them finds the board agreeing.
    announcements: Vec<Box<dyn FnOnce() + Send>>,
}

impl Core {
    pub fn new(
        executor: Box<dyn Executor>,
        vocabulary: Arc<dyn Vocabulary>,
        settings: EngineSettings,
        board: Arc<ArcSwap<Board>>,
        clock: Clock,
    ) -> Self {
        let can_ask = executor.drafts();
        let slots = (0..settings.n_slots).map(|id| Slot::new(id, settings.n_ctx_slot)).collect();
        let mut core = Self {
            executor,
            vocabulary,
            slots,
            waiting: VecDeque::new(),
            jobs: VecDeque::new(),
            decisions: VecDeque::new(),
            cache: PromptCache::new(settings.cache_ram),
            counters: Counters::default(),
            pace: Pace::new(settings.decode_gap),
            drafting: Drafting::new(settings.draft.clone(), can_ask),
            clock,
            tick: 0,
            broken: None,
            board,
            announcements: Vec::new(),
            settings,
        };
        core.publish();
        core
    }

    /// Takes a request. Preempted ones keep their place: the queue is in order of arrival.
    pub fn submit(&mut self, task: Task) {
        if let Some(reason) = &self.broken {
            let error = RequestError::Executor(reason.clone());
            self.announce(move || task.fail(error));
            return self.publish();
        }
        let place = self.waiting.partition_point(|other| other.id < task.id);
        self.waiting.insert(place, task);
    }

    pub fn add_job(&mut self, job: SlotJob) {
        self.jobs.push_back(job);
    }

    pub fn add_decision(&mut self, job: DecideJob) {
        self.decisions.push_back(job);
    }

    /// There is something to do without another command.
    pub fn has_work(&self) -> bool {
        let is_asked = !self.waiting.is_empty() || !self.jobs.is_empty() || !self.decisions.is_empty();
        is_asked || self.slots.iter().any(|slot| !slot.is_idle())
    }

    /// One step: everybody who generates gets a token, and waiting prompts go on by a chunk.
    pub fn step(&mut self) {
        self.tick += 1;
        self.decide_next();
        let mut plan = self.schedule();
        if !plan.rows.is_empty() {
            let outcome = self.run(&mut plan);
            self.postprocess(&plan, outcome);
        }
        self.publish();
    }

    /// Every request fails, and nothing of any state is trusted any more.
    pub fn start_over(&mut self, error: &RequestError) {
        self.fail_all(error);
        self.reset_executor();
        self.publish();
    }

    /// Ends every request.
    pub fn shut_down(&mut self) {
        self.fail_all(&RequestError::ShuttingDown);
        self.jobs.clear();
        self.decisions.clear();
        self.publish();
    }

    fn fail_all(&mut self, error: &RequestError) {
        let running = self.slots.iter_mut().filter_map(|slot| slot.leave(self.tick));
        let tasks: Vec<Task> = running.chain(self.waiting.drain(..)).collect();
        for task in tasks {
            let error = error.clone();
            self.announce(move || task.fail(error));
        }
    }

    /// Says something once the board shows it.
    pub(super) fn announce(&mut self, words: impl FnOnce() + Send + 'static) {
        self.announcements.push(Box::new(words));
    }

    /// Publishes the board (readers swap a pointer and never wait), then says what was to be said.
    pub fn publish(&mut self) {
        self.board.store(Arc::new(Board {
            slots: self.slots.iter().map(|slot| slot.view.clone()).collect(),
            is_drafting: self.drafting.is_on(),
            counters: self.counters,
            n_processing: self.slots.iter().filter(|slot| !slot.is_idle()).count(),
            n_deferred: self.waiting.len(),
        }));
        self.announcements.drain(..).for_each(|words| words());
    }

    /// Answers the jobs whose slot is idle.
    pub(super) fn work_on_slots(&mut self) {
        for job in std::mem::take(&mut self.jobs) {
            let (SlotJob::Save { slot, .. } | SlotJob::Restore { slot, .. } | SlotJob::Erase { slot, .. }) =
                &job;
            let slot = *slot;
            match self.slots.get(slot).map(Slot::is_idle) {
                Some(true) => self.answer(slot, job),
                Some(false) => self.jobs.push_back(job),
                None => {
                    let error = RequestError::Invalid(format!(
                        "id_slot is {slot}, there are {} slots",
                        self.slots.len()
                    ));
                    // Whoever asked may have gone away; then nobody wants the answer.
                    match job {
                        SlotJob::Save { reply, .. } => self.announce(|| drop(reply.send(Err(error)))),
                        SlotJob::Restore { reply, .. } | SlotJob::Erase { reply, .. } => {
                            self.announce(|| drop(reply.send(Err(error))));
                        }
                    }
                }
            }
        }
    }

    fn answer(&mut self, slot: usize, job: SlotJob) {
        match job {
            SlotJob::Save { reply, .. } => {
                let saved = self.save_slot(slot);
                self.announce(|| drop(reply.send(saved)));
            }
            SlotJob::Restore { saved, reply, .. } => {
                let restored = self.restore_slot(slot, saved);
                self.announce(|| drop(reply.send(restored)));
            }
            SlotJob::Erase { reply, .. } => {
                let n_erased = self.slots.get(slot).map_or(0, |slot| slot.tokens.len());
                self.forget(slot);
                self.announce(move || drop(reply.send(Ok(n_erased))));
            }
        }
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.used = self.tick;
            slot.look();
        }
    }

    fn save_slot(&self, slot: usize) -> Result<SavedSlot, RequestError> {
        let Some(Slot { sequence: Some(sequence), tokens, .. }) = self.slots.get(slot) else {
            return Ok(SavedSlot::default());
        };
        let state =
            self.executor.save(*sequence).map_err(|error| SlotFileError::Refused(error.to_string()))?;
        Ok(SavedSlot { tokens: tokens.clone(), state })
    }

    fn restore_slot(&mut self, slot: usize, saved: SavedSlot) -> Result<usize, RequestError> {
        if saved.tokens.len() > self.settings.n_ctx_slot {
            let (n_tokens, n_ctx) = (saved.tokens.len(), self.settings.n_ctx_slot);
            return Err(SlotFileError::TooLong { n_tokens, n_ctx }.into());
        }
        let n_vocab = self.executor.shape().n_vocab;
        if let Some(token) = saved.tokens.iter().find(|&&token| token as usize >= n_vocab) {
            return Err(SlotFileError::Refused(format!(
                "the slot file holds token {token} of a vocabulary of {n_vocab}"
            ))
            .into());
        }
        self.retire(slot);
        if saved.tokens.is_empty() {
            return Ok(0);
        }
        let sequence = self.restore_verified(&saved.tokens, &saved.state).map_err(SlotFileError::Refused)?;
        let n_restored = saved.tokens.len();
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.sequence = Some(sequence);
            slot.tokens = saved.tokens;
        }
        Ok(n_restored)
    }

    /// Restores a state and makes sure that it is one of as many tokens as it should be. Idle slots make room.
    pub(super) fn restore_verified(&mut self, tokens: &[u32], state: &[u8]) -> Result<SequenceId, String> {
        let sequence = loop {
            match self.executor.restore(state) {
                Ok(sequence) => break sequence,
                Err(crate::executor::SequenceError::NoRoom { .. }) if self.evict_oldest(&[]) => {}
                Err(error) => return Err(error.to_string()),
            }
        };
        match self.executor.len(sequence) {
            Ok(n) if n == tokens.len() => Ok(sequence),
            _ => {
                self.executor.drop_sequence(sequence);
                Err(format!("the saved state is not one of {} tokens", tokens.len()))
            }
        }
    }

    /// Drops a slot's state.
    pub(super) fn forget(&mut self, slot: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            if let Some(sequence) = slot.sequence.take() {
                self.executor.drop_sequence(sequence);
            }
            slot.tokens.clear();
        }
    }

    /// Moves a slot's state to the prompt cache, if there is one, and drops it.
    pub(super) fn retire(&mut self, slot: usize) {
        self.keep_in_cache(slot);
        self.forget(slot);
    }

    pub(super) fn keep_in_cache(&mut self, slot: usize) {
        let Some(Slot { sequence: Some(sequence), tokens, .. }) = self.slots.get(slot) else { return };
        if !self.cache.is_enabled() || tokens.is_empty() || self.cache.covers(tokens) {
            return;
        }
        let rollback = self.executor.shape().rollback;
        let points = resume_points(self.executor.as_ref(), *sequence, tokens.len());
        match self.executor.save(*sequence) {
            Ok(state) => self.cache.insert(tokens.clone(), state, rollback, points),
            Err(error) => tracing::warn!(slot, %error, "a prompt could not be kept in the cache"),
        }
    }

    /// Gives up the idle slot that was unused for longest, except `spared`; false when none holds a state.
    pub(super) fn evict_oldest(&mut self, spared: &[usize]) -> bool {
        let idle = self
            .slots
            .iter()
            .enumerate()
            .filter(|(id, slot)| slot.is_idle() && !slot.tokens.is_empty() && !spared.contains(id));
        let Some(oldest) = idle.min_by_key(|(_, slot)| slot.used).map(|(id, _)| id) else { return false };
        self.retire(oldest);
        if let Some(slot) = self.slots.get_mut(oldest) {
            slot.look();
        }
        true
    }

    /// Fresh state after a failure. The prompt cache stays: its bytes never were in the executor.
    pub(super) fn reset_executor(&mut self) {
        for slot in &mut self.slots {
            slot.sequence = None;
            slot.tokens.clear();
            slot.look();
        }
        let executor = &mut self.executor;
        let reset = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| executor.reset()));
        let reason = match reset {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(panic) => super::run::panic_text(panic.as_ref()),
        };
        tracing::error!(reason, "the executor could not be reset; every request will be refused");
        self.fail_all(&RequestError::Executor(reason.clone()));
        self.broken = Some(reason);
    }
}

/// Positions below `len` at which a sequence can resume, ascending; empty where every position is one.
fn resume_points(executor: &dyn Executor, sequence: SequenceId, len: usize) -> Vec<usize> {
    let mut points = Vec::new();
    if executor.shape().rollback == crate::executor::Rollback::Truncate {
        return points;
    }
    let mut below = len;
    while below > 0 {
        let Ok(point) = executor.resumable(sequence, below - 1) else { break };
        if point == 0 || point >= below {
            break;
        }
        points.push(point);
        below = point;
    }
    points.reverse();
    points
}
