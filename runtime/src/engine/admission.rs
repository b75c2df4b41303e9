//! Which waiting request gets which slot, and how much of its prompt is there already.
//!
//! A state is only ever reused as far as its token ids equal the request's own: the slot's ids, or those stored with a
//! cached state, are compared one by one. Nothing else decides.

use super::{
    core::Core,
    prompt_cache::{Hit, common_prefix},
    task::Task,
};
use crate::{
    executor::{SequenceError, SequenceId},
    request::RequestError,
};

/// Tokens that are cheaper to keep in the prompt cache than to run again.
const WORTH_KEEPING: usize = 256;

/// Where the beginning of a prompt comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The slot's own state, cut back.
    InPlace,
    /// Another slot's state: pages are shared, that slot keeps its own.
    Slot(SequenceId),
    /// The prompt cache.
    Cache(usize),
    Nothing,
}

impl Core {
    /// Gives slots to waiting requests, oldest first, as long as there are idle slots and room. A request that is
    /// pinned to a busy slot waits without holding up the others; one that lacks room holds up the younger ones, so
    /// that it is not overtaken for ever.
    pub(super) fn admit(&mut self) {
        let mut index = 0;
        while let Some(task) = self.waiting.get(index) {
            let Some(target) = self.choose_slot(task) else {
                if task.request.slot.is_none() {
                    break;
                }
                index += 1;
                continue;
            };
            let Some(task) = self.waiting.remove(index) else { break };
            if let Some(task) = self.place(task, target) {
                self.waiting.insert(index, task);
                break;
            }
        }
    }

    /// An idle slot for the request: the pinned one; one that holds a good part of the prompt and would lose little; or
    /// the one unused for longest.
    fn choose_slot(&self, task: &Task) -> Option<usize> {
        if let Some(pinned) = task.request.slot {
            return self.slots.get(pinned).filter(|slot| slot.is_idle()).map(|_| pinned);
        }
        let idle = || self.slots.iter().enumerate().filter(|(_, slot)| slot.is_idle());
        let threshold = self.settings.slot_prompt_similarity;
        if threshold > 0.0 && task.request.cache_prompt {
            let held = idle().map(|(id, slot)| (id, slot, self.usable(id, &task.tokens)));
            let good = held.filter(|&(_, slot, usable)| {
                usable as f32 > threshold * task.tokens.len() as f32 && 2 * usable >= slot.tokens.len()
            });
            if let Some((id, ..)) = good.max_by_key(|&(id, _, usable)| (usable, std::cmp::Reverse(id))) {
                return Some(id);
            }
        }
        idle().min_by_key(|(_, slot)| (!slot.tokens.is_empty(), slot.used)).map(|(id, _)| id)
    }

    /// Tokens of the prompt that a slot's state can stand for. The last token is always run again: its logits are wanted.
    fn usable(&self, slot: usize, tokens: &[u32]) -> usize {
        let Some(slot) = self.slots.get(slot) else { return 0 };
        let Some(sequence) = slot.sequence else { return 0 };
        let limit = common_prefix(&slot.tokens, tokens).min(tokens.len().saturating_sub(1));
        self.executor.resumable(sequence, limit).unwrap_or(0)
    }

    /// Puts a request on a slot with the longest beginning that can be had. Gives it back when there is no room yet.
    fn place(&mut self, mut task: Task, target: usize) -> Option<Task> {
        let now = (self.clock)();
        let (mut source, mut n) = (Source::Nothing, 0);
        if task.request.cache_prompt {
            (source, n) = self.best_source(target, &task.tokens);
        }
        let attached = match self.attach(target, source, n, &task.tokens) {
            Err(error) if source != Source::Nothing => {
                tracing::warn!(target, %error, "a cached prompt could not be used");
                self.attach(target, Source::Nothing, 0, &task.tokens)
            }
            attached => attached,
        };
        if let Err(error) = attached {
            self.announce(move || task.fail(RequestError::Executor(error.to_string())));
            return None;
        }
        if !self.has_room_for(target, &task) {
            if self.slots.iter().any(|slot| !slot.is_idle()) {
                return Some(task);
            }
            // Nobody else runs and nothing is left to evict: it will never fit.
            let capacity = self.executor.capacity();
            let (n_prompt, n_ctx) = (task.n_prompt, capacity.page_tokens * capacity.pages_total);
            self.announce(move || task.fail(RequestError::ContextExceeded { n_prompt, n_ctx }));
            return None;
        }
        let tick = self.tick;
        if let Some(slot) = self.slots.get_mut(target) {
            let n_past = slot.tokens.len();
            if task.started.is_none() {
                task.started = Some(now);
                task.n_cached = n_past;
                self.counters.cached_tokens += n_past as u64;
            }
            task.counted = Some(now);
            task.report_progress(n_past, now);
            (slot.used, slot.served) = (tick, tick);
            slot.task = Some(task);
            slot.look();
        }
        None
    }

    fn best_source(&self, target: usize, tokens: &[u32]) -> (Source, usize) {
        let mut best = (Source::Nothing, 0);
        let mut offer = |source, n| {
            if n > best.1 {
                best = (source, n);
            }
        };
        // In order of cost: what costs more must save more.
        offer(Source::InPlace, self.usable(target, tokens));
        for (id, slot) in self.slots.iter().enumerate() {
            if let Some(sequence) = slot.sequence.filter(|_| id != target) {
                offer(Source::Slot(sequence), self.usable(id, tokens));
            }
        }
        if let Some(Hit { index, n }) = self.cache.best(tokens, 1) {
            offer(Source::Cache(index), n);
        }
        best
    }

    /// Makes the slot's state that of the first `n` of `tokens`.
    fn attach(
        &mut self,
        target: usize,
        source: Source,
        n: usize,
        tokens: &[u32],
    ) -> Result<(), SequenceError> {
        let sequence = match source {
            Source::InPlace => {
                let Some(slot) = self.slots.get(target) else { return Ok(()) };
                let Some(sequence) = slot.sequence else { return Ok(()) };
                // A talk that loses much of itself to a short common beginning is worth keeping.
                if 2 * n < slot.tokens.len() || n + WORTH_KEEPING < slot.tokens.len() {
                    self.keep_in_cache(target);
                }
                self.executor.truncate(sequence, n)?;
                sequence
            }
            Source::Slot(from) => {
                self.retire(target);
                let sequence = self.create(target)?;
                if let Err(error) = self.executor.copy_prefix(from, sequence, n) {
                    self.executor.drop_sequence(sequence);
                    return Err(error);
                }
                sequence
            }
            Source::Cache(index) => self.take_from_cache(target, index, n)?,
            Source::Nothing => {
                self.retire(target);
                self.create(target)?
            }
        };
        if let Some(slot) = self.slots.get_mut(target) {
            slot.sequence = Some(sequence);
            slot.tokens.clear();
            slot.tokens.extend(tokens.iter().take(n));
        }
        Ok(())
    }

    fn take_from_cache(
        &mut self,
        target: usize,
        index: usize,
        n: usize,
    ) -> Result<SequenceId, SequenceError> {
        let Some(entry) = self.cache.take(index) else {
            return Err(SequenceError::BadState("it is gone from the cache".into()));
        };
        self.retire(target);
        let sequence = self.restore_verified(&entry.tokens, &entry.state).map_err(SequenceError::BadState)?;
        self.executor.truncate(sequence, n).inspect_err(|_| self.executor.drop_sequence(sequence))?;
        if n < entry.tokens.len() {
            // Another talk's: it only lent its beginning.
            self.cache.put(entry);
        }
        Ok(sequence)
    }

    fn create(&mut self, target: usize) -> Result<SequenceId, SequenceError> {
        loop {
            match self.executor.create() {
                Err(SequenceError::NoRoom { .. }) if self.evict_oldest(&[target]) => {}
                created => return created,
            }
        }
    }

    /// Room for the whole prompt and the token after it, beside what the running requests still need for theirs.
    /// Idle slots are given up for it, oldest first.
    fn has_room_for(&mut self, target: usize, task: &Task) -> bool {
        loop {
            let wanted = self.slots.iter().enumerate().map(|(id, slot)| {
                let pending =
                    if id == target { task.tokens.len() - slot.tokens.len() } else { slot.pending() };
                let grows = (pending > 0).then_some(slot.sequence).flatten();
                grows.map_or(0, |sequence| self.executor.pages_to_grow(sequence, pending + 1).unwrap_or(0))
            });
            let wanted: usize = wanted.sum();
            if wanted <= self.executor.capacity().pages_free {
                return true;
            }
            if !self.evict_oldest(&[target]) {
                return false;
            }
        }
    }
}
