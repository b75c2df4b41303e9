//! A slot: a sequence of the executor, the tokens whose state it holds, and the request that runs on it.

use super::task::Task;
use crate::{board::SlotView, executor::SequenceId};

/// The invariant that keeps talks apart: the state of `sequence` is the state of exactly `tokens`; while a task runs,
/// `tokens` is a prefix of the task's own tokens.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub sequence: Option<SequenceId>,
    pub tokens: Vec<u32>,
    pub task: Option<Task>,
    /// Step at which a request last left it or took it.
    pub used: u64,
    /// Step in which it last had rows.
    pub served: u64,
    /// What the board shows of it.
    pub view: SlotView,
}

impl Slot {
    pub fn new(id: usize, n_ctx: usize) -> Self {
        Self { view: SlotView { id, n_ctx, ..SlotView::default() }, ..Self::default() }
    }

    pub fn is_idle(&self) -> bool {
        self.task.is_none()
    }

    /// Tokens of the task that still have to be run.
    pub fn pending(&self) -> usize {
        self.task.as_ref().map_or(0, |task| task.tokens.len().saturating_sub(self.tokens.len()))
    }

    /// Takes the task off the slot; the board keeps showing how far it came.
    pub fn leave(&mut self, tick: u64) -> Option<Task> {
        self.look();
        self.used = tick;
        let task = self.task.take();
        self.look();
        task
    }

    /// Rewrites what the board shows.
    pub fn look(&mut self) {
        self.view.is_processing = self.task.is_some();
        self.view.n_past = self.tokens.len();
        let Some(task) = &self.task else { return };
        let new = self.view.task != Some(task.id);
        self.view.task = Some(task.id);
        self.view.n_prompt = task.n_prompt;
        self.view.n_prompt_cached = task.n_cached;
        self.view.n_prompt_processed = self.tokens.len().min(task.n_prompt).saturating_sub(task.n_cached);
        self.view.n_decoded = task.n_decoded;
        if new {
            self.view.sampling = Some(task.request.sampling.clone());
            self.view.n_predict = task.request.n_predict;
            self.view.stop.clone_from(&task.request.stop);
        }
    }
}
