//! Drafts: tokens that may come next, verified in the same step that draws the next one.
//!
//! The sampler draws from the target's own row behind every drafted token for as long as what it draws is what was drafted.
//! A draft therefore changes when tokens are computed and never which: its rows are rows like all others, and what was
//! drafted wrongly is taken back out of the state before the step ends.

mod depth;
mod lookup;

use self::{
    depth::{Pause, Rate, Situation, StepCosts, best_depth},
    lookup::Lookup,
};
use super::{core::Core, task::Task};
use crate::executor::Rollback;

/// Where drafts come from, and how long they may be.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftSettings {
    /// Look the text's last tokens up in the text before them: so many must match, at least 1.
    pub lookup: Option<usize>,
    /// Most tokens of a draft.
    pub n_max: usize,
    /// Shorter drafts are not worth verifying.
    pub n_min: usize,
    /// Choose the depth by what drafts were measured to bring and to cost; without it every draft is as long as it can be.
    pub adapt: bool,
}

impl Default for DraftSettings {
    /// None.
    fn default() -> Self {
        Self { lookup: None, n_max: 16, n_min: 0, adapt: true }
    }
}

impl DraftSettings {
    pub(crate) fn is_on(&self) -> bool {
        self.lookup.is_some() && self.n_max > 0
    }
}

/// Matches of 1, 2-3, 4-7, 8-15, 16-31 and more tokens are right at rates of their own.
const N_KINDS: usize = 6;

/// What the engine knows of drafting.
#[derive(Debug)]
pub(crate) struct Drafting {
    settings: DraftSettings,
    costs: StepCosts,
}

/// What a request keeps of its drafts.
#[derive(Debug)]
pub(crate) struct TaskDraft {
    /// Tokens that this step verifies; empty in between.
    pub tokens: Vec<u32>,
    pub n_drafted: usize,
    pub n_accepted: usize,
    lookup: Option<Lookup>,
    kind: usize,
    rates: [Rate; N_KINDS],
    pause: Pause,
}

impl Default for TaskDraft {
    fn default() -> Self {
        // The longer a match, the likelier it goes on.
        let rates = std::array::from_fn(|kind| Rate::guess(0.3 + 0.1 * kind as f64));
        let (tokens, pause) = (Vec::new(), Pause::default());
        Self { tokens, n_drafted: 0, n_accepted: 0, lookup: None, kind: 0, rates, pause }
    }
}

impl TaskDraft {
    /// This step's draft was verified: so many of its tokens were right.
    pub fn learn(&mut self, n_accepted: usize) {
        let n_drafted = self.tokens.len();
        self.n_drafted += n_drafted;
        self.n_accepted += n_accepted;
        if let Some(rate) = self.rates.get_mut(self.kind) {
            rate.learn(n_drafted, n_accepted);
        }
        self.tokens.clear();
    }
}

impl Drafting {
    pub fn new(settings: DraftSettings) -> Self {
        Self { settings, costs: StepCosts::default() }
    }

    /// Learns the cost of a step that held no prompt rows.
    pub fn observe(&mut self, rows: usize, seconds: f64) {
        if self.settings.is_on() {
            self.costs.observe(rows, seconds);
        }
    }
}

impl Core {
    /// Drafts for the streams of this step, within the rows and pages that its shares leave free: a draft never displaces
    /// anything.
    pub(super) fn draft(&mut self, shares: &[(usize, usize)]) {
        for slot in &mut self.slots {
            if let Some(task) = &mut slot.task {
                task.draft.tokens.clear();
            }
        }
        if !self.drafting.settings.is_on() {
            return;
        }
        let max_rows = self.settings.n_batch.min(self.executor.shape().max_rows).max(1);
        let mut rows_left = max_rows.saturating_sub(shares.iter().map(|share| share.1).sum());
        let pages: usize = shares.iter().map(|&(slot, n_rows)| self.pages(slot, n_rows)).sum();
        let mut pages_left = self.executor.capacity().pages_free.saturating_sub(pages);
        let streams: Vec<(usize, usize)> =
            shares.iter().copied().filter(|&(slot, n_rows)| self.finishes(slot, n_rows)).collect();
        let mut rows: usize = streams.iter().map(|stream| stream.1).sum();
        for &(slot, n_rows) in &streams {
            // Rows that are run again would have to be run a third time.
            let n_max = if n_rows == 1 { self.most_drafted(slot).min(rows_left) } else { 0 };
            let before = self.pages(slot, n_rows);
            let fits = |n: &usize| self.pages(slot, n_rows + n).saturating_sub(before) <= pages_left;
            let n_max = (1..=n_max).rev().find(fits).unwrap_or(0);
            let n = self.draft_for(slot, n_max, rows, streams.len());
            let Some(sequence) = self.slots.get(slot).and_then(|slot| slot.sequence).filter(|_| n > 0) else {
                continue;
            };
            if let Err(error) = self.executor.mark(sequence) {
                tracing::warn!(slot, %error, "nothing is drafted");
                if let Some(task) = self.slots.get_mut(slot).and_then(|slot| slot.task.as_mut()) {
                    task.draft.tokens.clear();
                }
                continue;
            }
            rows += n;
            rows_left -= n;
            pages_left -= self.pages(slot, n_rows + n).saturating_sub(before);
        }
    }

    /// These rows are a generating request's last ones: a token is drawn behind them.
    fn finishes(&self, slot: usize, n_rows: usize) -> bool {
        let Some(slot) = self.slots.get(slot) else { return false };
        slot.pending() == n_rows && slot.task.as_ref().is_some_and(|task| task.generating.is_some())
    }

    /// Tokens that a request can take beside the one it will get anyway.
    fn most_drafted(&self, slot: usize) -> usize {
        let Some(task) = self.slots.get(slot).and_then(|slot| slot.task.as_ref()) else { return 0 };
        let asked = task.request.n_predict.map_or(usize::MAX, |limit| limit.saturating_sub(task.n_decoded + 1));
        let context = self.settings.n_ctx_slot.saturating_sub(task.tokens.len() + 1);
        self.drafting.settings.n_max.min(asked).min(context)
    }

    /// Puts a draft into a request; returns its length.
    fn draft_for(&mut self, slot: usize, n_max: usize, rows: usize, streams: usize) -> usize {
        let replays = self.executor.shape().rollback == Rollback::Checkpoints;
        let Some(Task { draft, tokens, .. }) = self.slots.get_mut(slot).and_then(|slot| slot.task.as_mut())
        else {
            return 0;
        };
        let Drafting { settings, costs } = &self.drafting;
        let (Some(n_match), true) = (settings.lookup, n_max > 0) else { return 0 };
        let lookup = draft.lookup.get_or_insert_with(|| Lookup::new(n_match));
        let (n_same, mut found) = lookup.propose(tokens, n_max);
        if found.len() < settings.n_min.max(1) {
            return 0;
        }
        draft.kind = (n_same.ilog2() as usize).min(N_KINDS - 1);
        let mut n = found.len();
        if settings.adapt {
            let share = draft.rates.get(draft.kind).map_or(0.0, Rate::share);
            let (n_min, seconds_per_token) = (settings.n_min, 0.0);
            let situation = Situation { rows, streams, n_min, n_max: n, share, seconds_per_token, replays };
            n = draft.pause.depth(best_depth(&situation, costs), n);
        }
        found.truncate(n);
        draft.tokens = found;
        n
    }
}
