//! The first third of a step: who runs, and which rows.

use super::{
    core::Core,
    share::{Load, share},
    task::Closing,
};
use crate::{
    executor::{Rollback, Row, SequenceId},
    request::{RequestError, StopKind},
};

/// The rows of a step and whom they belong to.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub rows: Vec<Row>,
    /// In the order of the rows.
    pub parts: Vec<Part>,
}

/// The rows of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub slot: usize,
    pub sequence: SequenceId,
    /// Rows of its own tokens.
    pub n_rows: usize,
    /// Rows of drafted tokens behind them.
    pub n_draft: usize,
    /// The last row's logits are asked for, and those of the drafted ones.
    pub samples: bool,
}

impl Core {
    pub(super) fn schedule(&mut self) -> Plan {
        self.drop_cancelled();
        self.work_on_slots();
        self.admit();
        let mut shares = self.shares();
        self.make_room(&mut shares);
        self.draft(&shares);
        self.plan(&shares)
    }

    /// Requests whose caller went away leave at once; what their slot holds stays a usable prefix.
    fn drop_cancelled(&mut self) {
        self.waiting.retain(|task| !task.is_cancelled());
        for slot in &mut self.slots {
            if slot.task.as_ref().is_some_and(super::task::Task::is_cancelled) {
                slot.leave(self.tick);
            }
        }
    }

    fn shares(&self) -> Vec<(usize, usize)> {
        let loads: Vec<Load> = self
            .slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.pending() > 0)
            .map(|(id, slot)| Load {
                slot: id,
                pending: slot.pending(),
                limit: self.rows_to_checkpoint(id),
                served: slot.served,
            })
            .collect();
        let max_rows = self.settings.n_batch.min(self.executor.shape().max_rows).max(1);
        share(&loads, max_rows, self.pace.rows_beside(max_rows))
    }

    /// Rows until the next position at which a checkpoint is due.
    fn rows_to_checkpoint(&self, slot: usize) -> usize {
        let Some(slot) = self.slots.get(slot) else { return usize::MAX };
        let (Some(task), Rollback::Checkpoints) = (&slot.task, self.executor.shape().rollback) else {
            return usize::MAX;
        };
        let n_past = slot.tokens.len();
        checkpoints(task.n_prompt, self.settings.checkpoint_every)
            .filter(|&position| position > n_past)
            .min()
            .map_or(usize::MAX, |position| position - n_past)
    }

    pub(super) fn is_checkpoint(&self, n_prompt: usize, n_past: usize) -> bool {
        self.executor.shape().rollback == Rollback::Checkpoints
            && checkpoints(n_prompt, self.settings.checkpoint_every).any(|position| position == n_past)
    }

    /// Sees to the pages that these rows take. In order: idle slots are given up, prompts wait, and then the youngest
    /// request steps back and runs later; its tokens are kept and the others never notice.
    fn make_room(&mut self, shares: &mut Vec<(usize, usize)>) {
        loop {
            let wanted: usize = shares.iter().map(|&(slot, n_rows)| self.pages(slot, n_rows)).sum();
            if wanted <= self.executor.capacity().pages_free || shares.is_empty() {
                return;
            }
            if self.evict_oldest(&[]) {
                continue;
            }
            let arrival = |slot: usize| {
                self.slots.get(slot).and_then(|slot| slot.task.as_ref()).map_or(0, |task| task.id)
            };
            let waits = shares
                .iter()
                .enumerate()
                .filter(|(_, share)| share.1 > 1 && self.pages(share.0, share.1) > 0);
            let youngest_prompt = waits.max_by_key(|(_, share)| arrival(share.0)).map(|(index, _)| index);
            let running = self.slots.iter().enumerate().filter(|(_, slot)| !slot.is_idle());
            match (youngest_prompt, running.map(|(id, _)| id).max_by_key(|&id| arrival(id))) {
                (Some(index), _) if shares.len() > 1 => drop(shares.remove(index)),
                (_, Some(youngest)) if self.n_running() > 1 => {
                    self.step_back(youngest);
                    shares.retain(|share| share.0 != youngest);
                    // The room may serve prompts that were told to wait.
                    if shares.is_empty() {
                        *shares = self.shares();
                    }
                }
                (_, Some(last)) => {
                    self.end_for_lack_of_room(last);
                    shares.clear();
                }
                (_, None) => shares.clear(),
            }
        }
    }

    pub(super) fn pages(&self, slot: usize, n_rows: usize) -> usize {
        let sequence = self.slots.get(slot).and_then(|slot| slot.sequence);
        sequence.map_or(0, |sequence| self.executor.pages_to_grow(sequence, n_rows).unwrap_or(0))
    }

    pub(super) fn n_running(&self) -> usize {
        self.slots.iter().filter(|slot| !slot.is_idle()).count()
    }

    /// The request waits for room again; it will go on from its own tokens.
    pub(super) fn step_back(&mut self, slot: usize) {
        self.retire(slot);
        if let Some(task) = self.slots.get_mut(slot).and_then(|slot| slot.leave(self.tick)) {
            self.submit(task);
        }
    }

    /// The only request left, and the store is full: for its text this is the context's end.
    fn end_for_lack_of_room(&mut self, slot: usize) {
        let capacity = self.executor.capacity();
        let now = (self.clock)();
        let tick = self.tick;
        let Some(state) = self.slots.get_mut(slot) else { return };
        let Some(mut task) = state.leave(tick) else { return };
        if task.n_decoded == 0 {
            let (n_prompt, n_ctx) = (task.n_prompt, capacity.page_tokens * capacity.pages_total);
            return self.announce(move || task.fail(RequestError::ContextExceeded { n_prompt, n_ctx }));
        }
        let text = task.text.finish().text;
        let closing = Closing { text, truncated: true, ..Closing::default() };
        let n_past = state.tokens.len();
        self.announce(move || task.finish(StopKind::Limit, closing, slot, n_past, now));
    }

    fn plan(&self, shares: &[(usize, usize)]) -> Plan {
        let mut plan = Plan::default();
        for &(id, n_rows) in shares {
            let Some(slot) = self.slots.get(id) else { continue };
            let (Some(task), Some(sequence)) = (&slot.task, slot.sequence) else { continue };
            let n_past = slot.tokens.len();
            let samples = n_past + n_rows == task.tokens.len() && task.wants_logits();
            let drafted = if samples { task.draft.tokens.as_slice() } else { &[] };
            let tokens = task.tokens.iter().skip(n_past).take(n_rows).chain(drafted);
            plan.rows.extend((n_past..).zip(tokens).map(|(position, &token)| Row {
                token,
                position,
                sequence,
                wants_logits: samples && position + 1 >= task.tokens.len(),
                wants_hidden: false,
            }));
            plan.parts.push(Part { slot: id, sequence, n_rows, n_draft: drafted.len(), samples });
        }
        plan
    }
}

/// Positions of a prompt worth remembering: every `every` tokens; one token before its end, where the same prompt would
/// resume; and a few more before it, where the next turn resumes if it words the opening of the answer anew.
fn checkpoints(n_prompt: usize, every: usize) -> impl Iterator<Item = usize> {
    let every = every.max(1);
    let regular = (1..=n_prompt / every).map(move |index| index * every);
    let ends = [n_prompt.saturating_sub(8), n_prompt.saturating_sub(1)];
    regular.chain(ends).filter(|&position| position > 0)
}

#[cfg(test)]
mod tests {
    use super::checkpoints;

    #[test]
    fn checkpoints_stand_near_the_end_and_at_intervals() {
        assert_eq!(checkpoints(25, 10).collect::<Vec<_>>(), [10, 20, 17, 24]);
        assert_eq!(checkpoints(1, 10).count(), 0);
        assert_eq!(checkpoints(5, 10).collect::<Vec<_>>(), [4]);
    }
}
