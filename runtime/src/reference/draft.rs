//! The program's next-token drafter, run by its definition: a graph that takes the target's hidden row of the position before,
//! and goes on from its own.

use crate::executor::{DraftAsk, SequenceId};
use bloomery_program::{Graph, InputKind, OutputKind, Program, Role, StateId, StateKind};
use bloomery_reference::{NamedOutput, Reference, ReferenceError, Row, States, Step, Table, Weights};
use std::collections::HashMap;

/// Hidden rows that are kept for the drafter while it is not asked, tokens of a sequence.
const MOST_KEPT: usize = 4096;
/// Hidden rows behind the drafter's place, in case the target goes back a little.
const LEAST_KEPT: usize = 64;

/// Where the drafter is in the program, and the target's rows that it has not read yet.
pub(super) struct Drafter {
    graph: usize,
    /// Name of the hidden rows, the target's and its own.
    name: String,
    width: usize,
    /// A store that the drafter writes: it tells how far the drafter is.
    store: StateId,
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
    sequence: u64,
    position: usize,
    token: u32,
    hidden: Vec<f32>,
}

impl Drafter {
    /// The drafter that can be run here: a next-token graph that chains and writes stores only.
    pub fn of(program: &Program) -> Option<Drafter> {
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
        let (store, width) = (*written.first()?, usize::try_from(width).ok()?);
        Some(Drafter { graph, name, width, store, kept: HashMap::new() })
    }

    /// Keeps the hidden rows of a step of the target.
    pub fn follow(&mut self, rows: &[crate::executor::Row], outputs: &[NamedOutput]) {
        let of_name = |o: &&NamedOutput| o.kind == OutputKind::Hidden && o.name == self.name;
        let Some(output) = outputs.iter().find(of_name) else { return };
        for (index, row) in rows.iter().enumerate() {
            let kept = self.kept.entry(row.sequence).or_default();
            if kept.from + kept.rows.len() / self.width != row.position {
                *kept = Kept { from: row.position, rows: Vec::new() };
            }
            kept.rows.extend_from_slice(output.table.row(index));
            kept.keep_last(MOST_KEPT, self.width);
        }
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
    pub fn draft<W: Weights>(
        &mut self,
        reference: &Reference<W>,
        states: &mut States,
        asks: &[DraftAsk<'_>],
        p_min: f32,
        max_rows: usize,
    ) -> Result<Vec<Vec<u32>>, ReferenceError> {
        let mut drafts = vec![Vec::new(); asks.len()];
        let mut chains = Vec::new();
        for (index, ask) in asks.iter().enumerate() {
            if let Some(chain) = self.catch_up(reference, states, index, ask, max_rows)? {
                chains.push(chain);
            }
        }
        // What is drafted on the way is no part of the text: the stores forget it.
        let ends: Vec<(u64, usize)> =
            chains.iter().map(|chain| (chain.sequence, chain.position + 1)).collect();
        while !chains.is_empty() {
            let rows: Vec<Row> = chains
                .iter()
                .map(|chain| Row { sequence: chain.sequence, token: chain.token, position: chain.position })
                .collect();
            let hidden: Vec<f32> = chains.iter().flat_map(|chain| chain.hidden.iter().copied()).collect();
            let (logits, own) = self.forward(reference, states, &rows, &hidden, true)?;
            for (row, chain) in chains.iter_mut().enumerate() {
                let (token, p) = likeliest(logits.row(row));
                let (Some(draft), Some(ask)) = (drafts.get_mut(chain.ask), asks.get(chain.ask)) else {
                    continue;
                };
                let is_likely = p >= p_min;
                if is_likely {
                    draft.push(token);
                }
                (chain.token, chain.position) = (token, chain.position + 1);
                chain.hidden = own.row(row).to_vec();
                if !is_likely || draft.len() >= ask.n_max {
                    chain.hidden.clear();
                }
            }
            chains.retain(|chain| !chain.hidden.is_empty());
        }
        for (sequence, n) in ends {
            states.cut_stores(sequence, n)?;
        }
        Ok(drafts)
    }

    /// Runs the drafter over what the target has seen since, and returns the row that stands for the text's last token.
    fn catch_up<W: Weights>(
        &self,
        reference: &Reference<W>,
        states: &mut States,
        ask_index: usize,
        ask: &DraftAsk<'_>,
        max_rows: usize,
    ) -> Result<Option<Chain>, ReferenceError> {
        let (sequence, length) = (ask.sequence.0, states.length(ask.sequence.0)?);
        let Some(&last) = ask.text.last().filter(|_| ask.text.len() == length + 1 && ask.n_max > 0) else {
            return Ok(None);
        };
        // A token that was drafted upon and then replaced.
        states.cut_stores(sequence, length)?;
        let mut at = states.tokens(sequence, self.store)?;
        while at < length {
            let end = length.min(at + max_rows.max(1));
            let texts = (at..end).zip(ask.text.iter().skip(at));
            let rows: Vec<Row> = texts.map(|(position, &token)| Row { sequence, token, position }).collect();
            let hidden: Vec<f32> =
                (at..end).flat_map(|position| self.before(ask.sequence, position)).collect();
            self.forward(reference, states, &rows, &hidden, false)?;
            at = end;
        }
        let hidden = self.before(ask.sequence, length);
        Ok(Some(Chain { ask: ask_index, sequence, position: length, token: last, hidden }))
    }

    /// The target's row before a position; zeros where there is none any more, which makes guesses worse and nothing wrong.
    fn before(&self, sequence: SequenceId, position: usize) -> Vec<f32> {
        let kept = self.kept.get(&sequence);
        let row = kept.and_then(|kept| {
            let at = position.checked_sub(1)?.checked_sub(kept.from)? * self.width;
            kept.rows.get(at..at + self.width)
        });
        row.map_or_else(|| vec![0.0; self.width], <[f32]>::to_vec)
    }

    fn forward<W: Weights>(
        &self,
        reference: &Reference<W>,
        states: &mut States,
        rows: &[Row],
        hidden: &[f32],
        wants: bool,
    ) -> Result<(Table<f32>, Table<f32>), ReferenceError> {
        let given = [(self.name.as_str(), hidden)];
        let wants = vec![wants; rows.len()];
        let step = Step {
            graph: Some(self.graph),
            rows,
            logits: Some(&wants),
            hidden: Some(&wants),
            target_hidden: &given,
            ..Step::default()
        };
        let mut outputs = reference.forward(&step, states, None)?;
        let mut take = |kind| {
            let place = outputs
                .iter()
                .position(|o| o.kind == kind && (kind == OutputKind::Logits || o.name == self.name));
            place.map(|place| outputs.swap_remove(place).table)
        };
        match (take(OutputKind::Logits), take(OutputKind::Hidden)) {
            (Some(logits), Some(own)) => Ok((logits, own)),
            _ => Err(ReferenceError::Step("the drafter gives no logits or no rows".into())),
        }
    }

    /// Rows that no draft will ask for go.
    pub fn trim(&mut self, sequence: SequenceId) {
        if let Some(kept) = self.kept.get_mut(&sequence) {
            kept.keep_last(LEAST_KEPT, self.width);
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

/// The likeliest token and its probability.
fn likeliest(logits: &[f32]) -> (u32, f32) {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, &logit) in (0..).zip(logits) {
        if logit > best.1 {
            best = (token, logit);
        }
    }
    let sum: f32 = logits.iter().map(|logit| (logit - best.1).exp()).sum();
    (best.0, 1.0 / sum)
}
