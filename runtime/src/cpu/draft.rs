//! The program's next-token block on this backend: a second list of steps beside the target's, with pages of its own.

use super::admit::Admitted;
use super::execute::{Batch, Buffers, Held, Machine};
use super::executor::page_parts;
use super::fixed::FixedLayout;
use super::lower::{LowerFor, lower};
use super::plan::plan;
use super::sequences::{Keeps, Sequences};
use super::step::Lowered;
use super::weights::WeightSource;
use super::{CpuError, CpuOptions};
use crate::executor::{DraftAsk, ExecutorShape, Row, SequenceError, SequenceId, StepError};
use crate::next_token::{Block, BlockOf, BlockRow, Drafter, Hear};
use bloomery_kernels_cpu::cpu::Cpu;
use bloomery_kernels_cpu::kv::{PAGE_TOKENS, PageLayout, PageStore, Run};
use bloomery_program::Program;
use std::collections::HashMap;

/// Tokens that a draft may reach beyond the target's: what is drafted is taken back at once.
const BEYOND: usize = 256;

/// The block with its state, and the target's rows that it has yet to read.
pub(super) struct CpuDrafter {
    block: Lowering,
    following: Drafter,
}

struct Lowering {
    lowered: Lowered,
    buffers: Buffers,
    sequences: Sequences<PageStore>,
    /// The block's own sequence of each of the target's.
    own: HashMap<SequenceId, SequenceId>,
    shape: ExecutorShape,
    admitted: Admitted,
}

/// The block within a call, beside what it borrows from the executor.
struct Running<'a> {
    cpu: &'a Cpu,
    source: &'a dyn WeightSource,
    target: &'a Sequences<PageStore>,
    block: &'a mut Lowering,
}

impl CpuDrafter {
    /// Lowers the block. `None` where its states are not all its own or are not stores.
    ///
    /// # Errors
    /// Kernels are missing, or tensors are not as the program needs them.
    pub fn new(
        program: &Program,
        of: &BlockOf,
        source: &dyn WeightSource,
        options: &CpuOptions,
    ) -> Result<Option<CpuDrafter>, CpuError> {
        let (Some(graph), Some(target)) = (program.graphs.get(of.graph), program.target()) else {
            return Ok(None);
        };
        let of_target: Vec<_> = target.nodes.iter().flat_map(|node| node.op.states()).collect();
        let shared = graph.nodes.iter().flat_map(|node| node.op.states()).any(|s| of_target.contains(&s));
        let fixed = FixedLayout::new(program, graph, options.cache_key, options.cache_value);
        if shared || fixed.values > 0 {
            return Ok(None);
        }
        let (specs, parts) = page_parts(program, graph, options.cache_key, options.cache_value);
        let (max_tokens, fuse) = (options.max_tokens + BEYOND, options.fuse);
        let to = LowerFor { parts: &parts, fixed: &fixed, max_tokens, fuse, every_row: None };
        let mut lowered = lower(program, graph, source, &to)?;
        let memory = plan(&mut lowered);
        let buffers = Buffers::new(&memory, &lowered, source)?;
        let (Some(_), Some(_), Some((_, n_vocab))) = (lowered.given, lowered.hidden, lowered.logits) else {
            return Ok(None);
        };
        let pages = (options.store_tokens + BEYOND).div_ceil(PAGE_TOKENS);
        let store = PageStore::new(PageLayout::new(&specs)?, pages);
        let keeps = Keeps { values: 0, text: fixed.text };
        let sequences = Sequences::new(store, max_tokens, 0, keeps);
        let shape = ExecutorShape {
            n_vocab,
            n_hidden: of.width,
            max_rows: options.max_rows,
            max_tokens,
            rollback: sequences.rollback(),
            state_fingerprint: 0,
        };
        let (own, admitted) = (HashMap::new(), Admitted::default());
        let block = Lowering { lowered, buffers, sequences, own, shape, admitted };
        Ok(Some(CpuDrafter { block, following: Drafter::new(of.width) }))
    }

    /// The target has run rows of a sequence from a position on; their hidden rows are `[rows, width]`.
    pub fn follow(&mut self, sequence: SequenceId, position: usize, rows: &[f32]) {
        self.following.follow(sequence, position, rows);
    }

    /// The target has gone back to its first `n` tokens.
    pub fn cut(&mut self, sequence: SequenceId, n: usize) {
        self.following.cut(sequence, n);
        self.block.cut(sequence, n);
    }

    /// `target` is a copy of the first `n` tokens of `source`.
    pub fn copy(&mut self, source: SequenceId, target: SequenceId, n: usize) {
        self.following.copy(source, target, n);
        let block = &mut self.block;
        block.forget(target);
        let Some(from) = block.own.get(&source).copied() else { return };
        let n = block.sequences.get(from).map_or(0, |sequence| sequence.len.min(n));
        let copy = block.sequences.create();
        match block.sequences.copy_prefix(from, copy, n) {
            Ok(()) => drop(block.own.insert(target, copy)),
            // It then starts from nothing.
            Err(_) => block.sequences.remove(copy),
        }
    }

    pub fn forget(&mut self, sequence: SequenceId) {
        self.following.forget(sequence);
        self.block.forget(sequence);
    }

    pub fn clear(&mut self) {
        self.following.clear();
        self.block.clear();
    }

    /// As [`crate::executor::Executor::draft`].
    pub fn draft(
        &mut self,
        cpu: &Cpu,
        source: &dyn WeightSource,
        target: &Sequences<PageStore>,
        asks: &[DraftAsk<'_>],
        p_min: f32,
    ) -> Result<Vec<Vec<u32>>, SequenceError> {
        let max_rows = self.block.shape.max_rows;
        let mut running = Running { cpu, source, target, block: &mut self.block };
        match self.following.draft(&mut running, asks, p_min, max_rows) {
            // The block shares fewer pages than the target: then all begin again.
            Err(SequenceError::NoRoom { .. }) => {
                self.block.clear();
                Ok(vec![Vec::new(); asks.len()])
            }
            drafts => drafts,
        }
    }
}

impl Lowering {
    fn cut(&mut self, sequence: SequenceId, n: usize) {
        let Some(own) = self.own.get(&sequence).copied() else { return };
        let longer = self.sequences.get(own).is_ok_and(|s| s.len > n);
        if longer && self.sequences.truncate(own, n).is_err() {
            self.forget(sequence);
        }
    }

    fn forget(&mut self, sequence: SequenceId) {
        if let Some(own) = self.own.remove(&sequence) {
            self.sequences.remove(own);
        }
    }

    fn clear(&mut self) {
        self.own.clear();
        self.sequences.clear();
    }
}

impl Block for Running<'_> {
    type Error = SequenceError;

    fn length(&self, sequence: SequenceId) -> Result<usize, SequenceError> {
        Ok(self.target.get(sequence)?.len)
    }

    fn written(&mut self, sequence: SequenceId) -> Result<usize, SequenceError> {
        let block = &mut *self.block;
        let own = *block.own.entry(sequence).or_insert_with(|| block.sequences.create());
        Ok(block.sequences.get(own)?.len)
    }

    fn cut(&mut self, sequence: SequenceId, n: usize) -> Result<(), SequenceError> {
        self.block.cut(sequence, n);
        Ok(())
    }

    fn forward(
        &mut self,
        rows: &[BlockRow],
        hidden: &[f32],
        hear: Option<Hear<'_>>,
    ) -> Result<(), SequenceError> {
        let failed = |what: String| SequenceError::Failed(format!("the drafter: {what}"));
        let Lowering { lowered, buffers, sequences, own, shape, admitted } = &mut *self.block;
        let wants = hear.is_some();
        let row = |r: &BlockRow| {
            let sequence = *own.get(&r.sequence)?;
            let (token, position) = (r.token, r.position);
            Some(Row { token, position, sequence, wants_logits: wants, wants_hidden: wants })
        };
        let own_rows: Vec<Row> = rows.iter().filter_map(row).collect();
        admitted.admit(&own_rows, sequences, shape, shape.n_vocab).map_err(|error| match error {
            StepError::Sequence { error, .. } => error,
            other => failed(other.to_string()),
        })?;
        let (store, all) = sequences.split();
        let of_groups = || admitted.groups.iter().filter_map(|g| Some((g, all.get(&g.sequence)?)));
        let before: Vec<&[u32]> = of_groups().map(|(_, s)| &s.text[..]).collect();
        let run = |(g, s): (&super::admit::Group, _)| {
            let s: &super::sequences::Sequence<_> = s;
            Run { first_row: g.first_row, rows: g.rows, position: g.position, pages: &s.pages }
        };
        let runs: Vec<Run<'_>> = of_groups().map(run).collect();
        for (rope, table) in lowered.ropes.iter().zip(&mut buffers.tables) {
            match rope.tail {
                false => table.fill(&rope.spec, admitted.positions.iter().copied()),
                true => table.fill(&rope.spec, admitted.tail.iter().map(|row| admitted.positions[*row])),
            }
        }
        if let Some((slot, width)) = lowered.given {
            // Rows of a sequence stand side by side, so that the step has them in this order too.
            let mut given = buffers.open(slot, rows.len());
            if hidden.len() != rows.len() * width {
                return Err(failed(format!("{} values for {} rows of {width}", hidden.len(), rows.len())));
            }
            given[..hidden.len()].copy_from_slice(hidden);
            buffers.rows[slot.0] = given;
        }
        let machine = Machine { cpu: self.cpu, source: self.source, lowered };
        let batch = Batch { tokens: &admitted.tokens, runs: &runs, before: &before, tail: &admitted.tail };
        let blocks = runs.iter().map(|_| &mut [][..]).collect();
        let mut held = Held { store, blocks };
        machine.run(buffers, &mut held, &batch, None).map_err(|error| failed(error.to_string()))?;
        drop((before, runs));
        admitted.advance(sequences);
        if let (Some(hear), Some((logits, n_vocab)), Some((own, width))) =
            (hear, lowered.logits, lowered.hidden)
        {
            let logits = buffers.rows[logits.0].chunks_exact(n_vocab.max(1));
            let own = buffers.rows[own.0].chunks_exact(width.max(1));
            for (row, (logits, own)) in logits.zip(own).take(rows.len()).enumerate() {
                hear(row, logits, own);
            }
        }
        Ok(())
    }
}
