//! Drafting with a program's next-token block: a graph that takes the target's hidden row of the position before, and goes on
//! from its own. Which backend runs the block is behind a trait; what is kept, caught up and taken back is here.

use crate::executor::{DraftAsk, SequenceId};
use bloomery_program::{Graph, InputKind, OutputKind, Program, Role, StateId, StateKind};
use std::collections::HashMap;

/// Hidden rows that are kept for the drafter while it is not asked, tokens of a sequence.
const MOST_KEPT: usize = 4096;
/// Hidden rows behind the drafter's place, in case the target goes back a little.
const LEAST_KEPT: usize = 64;

/// Where the block stands in a program.
#[derive(Debug, Clone)]
pub(crate) struct BlockOf {
    /// Number of its graph.
    pub graph: usize,
    /// Name of the hidden rows, the target's and its own.
    pub name: String,
    /// Values of such a row.
    pub width: usize,
    /// A store that it writes: it tells how far the block is.
    pub store: StateId,
}

impl BlockOf {
    /// The block that can be run here: one that chains, and writes stores of its own only.
    pub fn find(program: &Program) -> Option<BlockOf> {
        let target = program.target()?;
        let (graph, declared) = program.graphs.iter().enumerate().find(|(_, graph)| {
            matches!(graph.role, Role::Draft { depth: 1, chain: true, mask_token: None })
        })?;
        let mut hidden = declared.inputs.iter().filter_map(|input| match &input.kind {
            InputKind::TargetHidden { name, same_position: false } => {
                Some((name.clone(), input.shape.row_len()?))
            }
            _ => None,
        });
        let ((name, width), None) = (hidden.next()?, hidden.next()) else { return None };
        let gives = |graph: &Graph, kind, name: &str| {
            graph.outputs.iter().any(|o| o.kind == kind && (kind == OutputKind::Logits || o.name == name))
        };
        let complete = gives(target, OutputKind::Hidden, &name)
            && gives(declared, OutputKind::Hidden, &name)
            && gives(declared, OutputKind::Logits, &name);
        let written: Vec<StateId> = declared.nodes.iter().filter_map(|node| node.op.writes()).collect();
        let of_target = |state: &StateId| target.nodes.iter().any(|n| n.op.writes() == Some(*state));
        let is_store = |state: &StateId| {
            let kind = program.states.get(state.0 as usize).map(|state| &state.kind);
            matches!(kind, Some(StateKind::Rows { .. })) && !of_target(state)
        };
        if !complete || !written.iter().all(is_store) {
            return None;
        }
        Some(BlockOf { graph, name, width: usize::try_from(width).ok()?, store: *written.first()? })
    }
}

/// A token for the block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockRow {
    pub sequence: SequenceId,
    pub token: u32,
    pub position: usize,
}

/// Hears the results of a row: its number, logits, hidden row.
pub(crate) type Hear<'a> = &'a mut dyn FnMut(usize, &[f32], &[f32]);

/// Runs the block.
pub(crate) trait Block {
    type Error;
    /// Tokens of the target's sequence.
    fn length(&self, sequence: SequenceId) -> Result<usize, Self::Error>;
    /// Tokens that the block has run.
    fn written(&mut self, sequence: SequenceId) -> Result<usize, Self::Error>;
    /// Forgets what the block has run behind the first `n` tokens.
    fn cut(&mut self, sequence: SequenceId, n: usize) -> Result<(), Self::Error>;
    /// Runs rows, each with the hidden row of the position before it: `[rows, width]`. Several rows of one sequence stand in order
    /// and side by side. Without a hearer nothing but the block's stores is of interest.
    fn forward(
        &mut self,
        rows: &[BlockRow],
        hidden: &[f32],
        hear: Option<Hear<'_>>,
    ) -> Result<(), Self::Error>;
}

/// The target's rows that the block has not read yet.
pub(crate) struct Drafter {
    width: usize,
    kept: HashMap<SequenceId, Kept>,
}

/// The target's hidden rows of the last tokens of one sequence.
#[derive(Default, Clone)]
struct Kept {
    /// Position of the first row.
    from: usize,
    /// `[tokens, width]`.
    rows: Vec<f32>,
}

/// The rows of one sequence that have a draft under way.
struct Chain {
    ask: usize,
    sequence: SequenceId,
    position: usize,
    token: u32,
    hidden: Vec<f32>,
}

impl Drafter {
    pub fn new(width: usize) -> Drafter {
        Drafter { width: width.max(1), kept: HashMap::new() }
    }

    /// Keeps hidden rows of a step of the target, from a position on: `[tokens, width]`.
    pub fn follow(&mut self, sequence: SequenceId, position: usize, rows: &[f32]) {
        let kept = self.kept.entry(sequence).or_default();
        if kept.from + kept.rows.len() / self.width != position {
            *kept = Kept { from: position, rows: Vec::new() };
        }
        kept.rows.extend_from_slice(rows);
        kept.keep_last(MOST_KEPT, self.width);
    }

    /// The target has gone back to its first `n` tokens.
    pub fn cut(&mut self, sequence: SequenceId, n: usize) {
        if let Some(kept) = self.kept.get_mut(&sequence) {
            kept.from = kept.from.min(n);
            kept.rows.truncate((n - kept.from) * self.width);
        }
    }

    /// `target` is a copy of the first `n` tokens of `source`.
    pub fn copy(&mut self, source: SequenceId, target: SequenceId, n: usize) {
        if let Some(kept) = self.kept.get(&source).cloned() {
            self.kept.insert(target, kept);
            self.cut(target, n);
        }
    }

    pub fn forget(&mut self, sequence: SequenceId) {
        self.kept.remove(&sequence);
    }

    pub fn clear(&mut self) {
        self.kept.clear();
    }

    /// Likely tokens behind each text, as far as each is at least as likely as `p_min`. All chains advance together.
    pub fn draft<B: Block>(
        &mut self,
        block: &mut B,
        asks: &[DraftAsk<'_>],
        p_min: f32,
        max_rows: usize,
    ) -> Result<Vec<Vec<u32>>, B::Error> {
        let mut drafts = vec![Vec::new(); asks.len()];
        let mut chains = Vec::new();
        for (index, ask) in asks.iter().enumerate() {
            if let Some(chain) = self.catch_up(block, index, ask, max_rows)? {
                chains.push(chain);
            }
        }
        // What is drafted on the way is no part of the text: the stores forget it.
        let ends: Vec<(SequenceId, usize)> =
            chains.iter().map(|chain| (chain.sequence, chain.position + 1)).collect();
        while !chains.is_empty() {
            let rows: Vec<BlockRow> = chains
                .iter()
                .map(|chain| BlockRow {
                    sequence: chain.sequence,
                    token: chain.token,
                    position: chain.position,
                })
                .collect();
            let hidden: Vec<f32> = chains.iter().flat_map(|chain| chain.hidden.iter().copied()).collect();
            let mut hear = |row: usize, logits: &[f32], own: &[f32]| {
                let Some(chain) = chains.get_mut(row) else { return };
                let (Some(draft), Some(ask)) = (drafts.get_mut(chain.ask), asks.get(chain.ask)) else {
                    return;
                };
                let (token, is_likely) = likeliest(logits, p_min);
                if is_likely {
                    draft.push(token);
                }
                (chain.token, chain.position) = (token, chain.position + 1);
                chain.hidden.clear();
                if is_likely && draft.len() < ask.n_max {
                    chain.hidden.extend_from_slice(own);
                }
            };
            block.forward(&rows, &hidden, Some(&mut hear))?;
            // Whoever was not heard goes too: nothing runs for ever.
            let goes_on = |chain: &Chain, row: &BlockRow| {
                !chain.hidden.is_empty() && chain.position == row.position + 1
            };
            let mut rows = rows.iter();
            chains.retain(|chain| rows.next().is_some_and(|row| goes_on(chain, row)));
        }
        for (sequence, n) in ends {
            block.cut(sequence, n)?;
        }
        for ask in asks {
            if let Some(kept) = self.kept.get_mut(&ask.sequence) {
                kept.keep_last(LEAST_KEPT, self.width);
            }
        }
        Ok(drafts)
    }

    /// Runs the block over what the target has seen since, and returns the row that stands for the text's last token.
    fn catch_up<B: Block>(
        &self,
        block: &mut B,
        ask_index: usize,
        ask: &DraftAsk<'_>,
        max_rows: usize,
    ) -> Result<Option<Chain>, B::Error> {
        let (sequence, length) = (ask.sequence, block.length(ask.sequence)?);
        let Some(&last) = ask.text.last().filter(|_| ask.text.len() == length + 1 && ask.n_max > 0) else {
            return Ok(None);
        };
        // A token that was drafted upon and then replaced.
        block.cut(sequence, length)?;
        let mut at = block.written(sequence)?;
        while at < length {
            let end = length.min(at + max_rows.max(1));
            let texts = (at..end).zip(ask.text.iter().skip(at));
            let rows: Vec<BlockRow> =
                texts.map(|(position, &token)| BlockRow { sequence, token, position }).collect();
            let mut hidden = Vec::with_capacity(rows.len() * self.width);
            (at..end).for_each(|position| self.before(sequence, position, &mut hidden));
            block.forward(&rows, &hidden, None)?;
            at = end;
        }
        let mut hidden = Vec::with_capacity(self.width);
        self.before(sequence, length, &mut hidden);
        Ok(Some(Chain { ask: ask_index, sequence, position: length, token: last, hidden }))
    }

    /// Appends the target's row before a position; zeros where there is none any more, which makes guesses worse and nothing wrong.
    fn before(&self, sequence: SequenceId, position: usize, to: &mut Vec<f32>) {
        let kept = self.kept.get(&sequence);
        let row = kept.and_then(|kept| {
            let at = position.checked_sub(1)?.checked_sub(kept.from)? * self.width;
            kept.rows.get(at..at + self.width)
        });
        match row {
            Some(row) => to.extend_from_slice(row),
            None => to.resize(to.len() + self.width, 0.0),
        }
    }
}

impl Kept {
    fn keep_last(&mut self, most: usize, width: usize) {
        let tokens = self.rows.len() / width.max(1);
        // Moved in larger pieces than single rows.
        if tokens > 2 * most {
            self.rows.drain(..(tokens - most) * width);
            self.from += tokens - most;
        }
    }
}

/// The likeliest token, and whether it is at least as likely as `p_min`.
fn likeliest(logits: &[f32], p_min: f32) -> (u32, bool) {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, &logit) in (0..).zip(logits) {
        if logit > best.1 {
            best = (token, logit);
        }
    }
    if p_min <= 0.0 {
        return (best.0, true);
    }
    let sum: f32 = logits.iter().map(|logit| (logit - best.1).exp()).sum();
    (best.0, 1.0 / sum >= p_min)
}
