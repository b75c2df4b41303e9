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
use crate::executor::{DraftAsk, Rollback};

/// Where drafts come from, and how long they may be.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftSettings {
    /// Look the text's last tokens up in the text before them: so many must match, at least 1.
    pub lookup: Option<usize>,
    /// Ask the model's own drafter; `None` where the file has one that can be run.
    pub model: Option<bool>,
    /// Most tokens of a draft that was looked up.
    pub n_max: usize,
    /// Most tokens of a draft of the model's own.
    pub n_model: usize,
    /// A token that the model's drafter holds for less likely than this ends its draft.
    pub p_min: f32,
    /// Shorter drafts are not worth verifying.
    pub n_min: usize,
    /// Choose the depth by what drafts were measured to bring and to cost; without it every draft is as long as it can be.
    pub adapt: bool,
}

impl Default for DraftSettings {
    /// None.
    fn default() -> Self {
        Self { lookup: None, model: Some(false), n_max: 16, n_model: 3, p_min: 0.0, n_min: 0, adapt: true }
    }
}

impl DraftSettings {
    fn looks_up(&self) -> bool {
        self.lookup.is_some() && self.n_max > 0
    }

    fn asks(&self) -> bool {
        self.model != Some(false) && self.n_model > 0
    }
}

/// Matches of 1, 2-3, 4-7, 8-15, 16-31 and more tokens are right at rates of their own.
const N_LENGTHS: usize = 6;
/// And so is the model's drafter.
const OF_MODEL: usize = N_LENGTHS;
const N_KINDS: usize = N_LENGTHS + 1;

/// What the engine knows of drafting.
#[derive(Debug)]
pub(crate) struct Drafting {
    settings: DraftSettings,
    costs: StepCosts,
    /// Seconds for a token of the model's drafter, a moving average.
    seconds_per_token: f64,
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
        let rates = std::array::from_fn(|kind| {
            Rate::guess(if kind == OF_MODEL { 0.6 } else { 0.3 + 0.1 * kind as f64 })
        });
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
    /// `can_ask` says that the executor runs a drafter.
    pub fn new(mut settings: DraftSettings, can_ask: bool) -> Self {
        settings.model = Some(can_ask && settings.model != Some(false));
        Self { settings, costs: StepCosts::default(), seconds_per_token: 0.0 }
    }

    pub fn is_on(&self) -> bool {
        self.settings.looks_up() || self.settings.asks()
    }

    /// Learns the cost of a step that held no prompt rows.
    pub fn observe(&mut self, rows: usize, seconds: f64) {
        if self.is_on() {
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
        if !self.drafting.is_on() {
            return;
        }
        let max_rows = self.settings.n_batch.min(self.executor.shape().max_rows).max(1);
        let mut rows_left = max_rows.saturating_sub(shares.iter().map(|share| share.1).sum());
        let pages: usize = shares.iter().map(|&(slot, n_rows)| self.pages(slot, n_rows)).sum();
        let mut pages_left = self.executor.capacity().pages_free.saturating_sub(pages);
        let streams: Vec<(usize, usize)> =
            shares.iter().copied().filter(|&(slot, n_rows)| self.finishes(slot, n_rows)).collect();
        let mut rows: usize = streams.iter().map(|stream| stream.1).sum();
        let mut asking = Vec::new();
        for &(slot, n_rows) in &streams {
            // Rows that are run again would have to be run a third time.
            let n_max = if n_rows == 1 { self.most_drafted(slot).min(rows_left) } else { 0 };
            let before = self.pages(slot, n_rows);
            let fits = |n: &usize| self.pages(slot, n_rows + n).saturating_sub(before) <= pages_left;
            let n_max = (1..=n_max).rev().find(fits).unwrap_or(0);
            let mut n = self.look_up(slot, n_max, rows, streams.len());
            if n == 0 {
                n = self.depth_to_ask(slot, n_max, rows, streams.len());
                asking.extend((n > 0).then_some((slot, n)));
            }
            rows += n;
            rows_left -= n;
            pages_left = pages_left.saturating_sub(self.pages(slot, n_rows + n).saturating_sub(before));
        }
        if !asking.is_empty() {
            self.ask_model(&asking);
        }
        for (slot, _) in streams {
            let Some(slot) = self.slots.get_mut(slot) else { continue };
            let (Some(sequence), Some(task)) = (slot.sequence, &mut slot.task) else { continue };
            if !task.draft.tokens.is_empty()
                && let Err(error) = self.executor.mark(sequence)
            {
                tracing::warn!(%error, "nothing is drafted");
                task.draft.tokens.clear();
            }
        }
    }

    /// Asks the program's drafter for so many tokens of each slot, all in one go.
    fn ask_model(&mut self, asking: &[(usize, usize)]) {
        let started = (self.clock)();
        let asks: Vec<DraftAsk<'_>> = asking
            .iter()
            .filter_map(|&(slot, n_max)| {
                let slot = self.slots.get(slot)?;
                Some(DraftAsk { sequence: slot.sequence?, text: &slot.task.as_ref()?.tokens, n_max })
            })
            .collect();
        let settings = &self.drafting.settings;
        let drafts = match self.executor.draft(&asks, settings.p_min) {
            Ok(drafts) if drafts.len() == asking.len() => drafts,
            Ok(_) => return,
            Err(error) => {
                tracing::error!(%error, "the model's drafter fails; it is asked no more");
                self.drafting.settings.model = Some(false);
                return;
            }
        };
        let n_vocab = self.executor.shape().n_vocab;
        for (&(slot, n), mut draft) in asking.iter().zip(drafts) {
            draft.truncate(n);
            let possible = draft.iter().all(|&token| (token as usize) < n_vocab);
            let Some(task) = self.slots.get_mut(slot).and_then(|slot| slot.task.as_mut()) else { continue };
            if possible && draft.len() >= settings.n_min {
                (task.draft.tokens, task.draft.kind) = (draft, OF_MODEL);
            }
        }
        // All streams' tokens are drafted at once: a chain takes as long as its longest part.
        let longest = asking.iter().map(|ask| ask.1).max().unwrap_or(1) as f64;
        let seconds = (self.clock)().saturating_duration_since(started).as_secs_f64() / longest;
        let known = &mut self.drafting.seconds_per_token;
        *known = if *known > 0.0 { 0.8 * *known + 0.2 * seconds.min(3.0 * *known) } else { seconds };
    }

    /// How many tokens the model's drafter should be asked for.
    fn depth_to_ask(&mut self, slot: usize, n_max: usize, rows: usize, streams: usize) -> usize {
        let replays = self.executor.shape().rollback == Rollback::Checkpoints;
        let Drafting { settings, costs, seconds_per_token } = &self.drafting;
        let n_max = n_max.min(settings.n_model);
        if !settings.asks() || n_max < settings.n_min.max(1) {
            return 0;
        }
        let Some(task) = self.slots.get_mut(slot).and_then(|slot| slot.task.as_mut()) else { return 0 };
        if !settings.adapt {
            return n_max;
        }
        let share = task.draft.rates.get(OF_MODEL).map_or(0.0, Rate::share);
        let (n_min, seconds_per_token) = (settings.n_min, *seconds_per_token);
        let situation = Situation { rows, streams, n_min, n_max, share, seconds_per_token, replays };
        task.draft.pause.depth(best_depth(&situation, costs), n_min, n_max)
    }

    /// These rows are a generating request's last ones: a token is drawn behind them.
    fn finishes(&self, slot: usize, n_rows: usize) -> bool {
        let Some(slot) = self.slots.get(slot) else { return false };
        slot.pending() == n_rows && slot.task.as_ref().is_some_and(|task| task.generating.is_some())
    }

    /// Tokens that a request can take beside the one it will get anyway.
    fn most_drafted(&self, slot: usize) -> usize {
        let Some(task) = self.slots.get(slot).and_then(|slot| slot.task.as_ref()) else { return 0 };
        let asked =
            task.request.n_predict.map_or(usize::MAX, |limit| limit.saturating_sub(task.n_decoded + 1));
        let context = self.settings.n_ctx_slot.saturating_sub(task.tokens.len() + 1);
        asked.min(context)
    }

    /// Puts what was looked up into a request; returns its length.
    fn look_up(&mut self, slot: usize, n_max: usize, rows: usize, streams: usize) -> usize {
        let replays = self.executor.shape().rollback == Rollback::Checkpoints;
        let Some(Task { draft, tokens, .. }) = self.slots.get_mut(slot).and_then(|slot| slot.task.as_mut())
        else {
            return 0;
        };
        let Drafting { settings, costs, .. } = &self.drafting;
        let n_max = n_max.min(settings.n_max);
        let (Some(n_match), true) = (settings.lookup, n_max > 0) else { return 0 };
        let lookup = draft.lookup.get_or_insert_with(|| Lookup::new(n_match));
        let (n_same, mut found) = lookup.propose(tokens, n_max);
        if found.len() < settings.n_min.max(1) {
            return 0;
        }
        draft.kind = (n_same.ilog2() as usize).min(N_LENGTHS - 1);
        let mut n = found.len();
        if settings.adapt {
            let share = draft.rates.get(draft.kind).map_or(0.0, Rate::share);
            let (n_min, seconds_per_token) = (settings.n_min, 0.0);
            let situation = Situation { rows, streams, n_min, n_max: n, share, seconds_per_token, replays };
            n = draft.pause.depth(best_depth(&situation, costs), n_min, n);
        }
        found.truncate(n);
        draft.tokens = found;
        n
    }
}
