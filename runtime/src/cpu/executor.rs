//! The executor: admits a step, runs it, keeps the sequences.

use super::admit::Admitted;
use super::draft::CpuDrafter;
use super::execute::{Batch, Buffers, Held, Machine, Show};
use super::fixed::{FixedLayout, rings};
use super::lower::{LowerFor, StoreParts, is_dense, lower};
use super::plan::plan;
use super::sequences::{Block, Keeps, Sequences};
use super::step::Lowered;
use super::weights::WeightSource;
use super::{CacheType, CpuError, CpuOptions};
use crate::executor::{
    Capacity, Decision, DraftAsk, Executor, ExecutorShape, Question, Row, SequenceError, SequenceId,
    StepError, StepOutput, check_questions,
};
use crate::next_token::BlockOf;
use bloomery_kernels_cpu::cpu::Cpu;
use bloomery_kernels_cpu::kv::{Order, PAGE_TOKENS, PageLayout, PageStore, PartIndex, PartSpec, Run};
use bloomery_program::{Graph, Op, PartRole, Program, StateKind};
use std::sync::Arc;

/// Most values of a sequence's states of fixed size: no machine holds a terabyte for each.
const MOST_FIXED: usize = 1 << 38;

/// Runs the target graph of a program on this machine's cores.
pub struct CpuExecutor {
    cpu: Cpu,
    source: Arc<dyn WeightSource>,
    lowered: Lowered,
    buffers: Buffers,
    sequences: Sequences<PageStore>,
    shape: ExecutorShape,
    /// Rows of the embedding table: tokens at or above it cannot be run.
    tokens: usize,
    work: Work,
    drafter: Option<CpuDrafter>,
    lost: bool,
}

/// Memory of a step, kept for the next one.
#[derive(Default)]
struct Work {
    admitted: Admitted,
    logits: Vec<f32>,
    hidden: Vec<f32>,
}

impl CpuExecutor {
    /// Lowers the target graph of a checked program over its weights. Touches no weight but norms and biases.
    ///
    /// # Errors
    /// [`CpuError::Missing`] names everything that the backend lacks; the others say what is wrong with file or options.
    pub fn new(
        program: &Program,
        source: Arc<dyn WeightSource>,
        options: &CpuOptions,
    ) -> Result<CpuExecutor, CpuError> {
        for (option, value) in [
            ("--ubatch-size", options.max_rows),
            ("--ctx-size", options.max_tokens.min(options.store_tokens)),
            ("--threads", options.threads.unwrap_or(1)),
        ] {
            if value == 0 {
                return Err(CpuError::Option { option, value });
            }
        }
        let graph = program.target().ok_or_else(|| CpuError::Program("there is no target graph".into()))?;
        let (specs, parts) = page_parts(program, graph, options.cache_key, options.cache_value);
        let fixed = FixedLayout::new(program, graph, options.cache_key, options.cache_value);
        if fixed.values > MOST_FIXED {
            let what = format!("its states of fixed size hold {} values for each sequence", fixed.values);
            return Err(CpuError::Program(what));
        }
        let (max_tokens, fuse) = (options.max_tokens, options.fuse);
        let block = BlockOf::find(program).filter(|_| options.draft);
        let drafter = block.as_ref().map(|of| CpuDrafter::new(program, of, &*source, options));
        // A model runs without its block too.
        let drafter = drafter.and_then(|drafter| {
            drafter.unwrap_or_else(|error| {
                tracing::warn!("the model's next-token block is not used: {error}");
                None
            })
        });
        let every_row = block.as_ref().filter(|_| drafter.is_some()).map(|of| of.name.as_str());
        let to = LowerFor { parts: &parts, fixed: &fixed, max_tokens, fuse, every_row };
        let mut lowered = lower(program, graph, &*source, &to)?;
        let memory = plan(&mut lowered);
        let buffers = Buffers::new(&memory, &lowered, &*source)?;
        let layout = PageLayout::new(&specs)?;
        let fingerprint = fingerprint(program, &*source, options.cache_key, options.cache_value, "");
        let tokens = lowered.steps.iter().find_map(|s| match &s.work {
            super::step::Work::Embed { weight, .. } => Some(weight.rows),
            _ => None,
        });
        let n_vocab = lowered.logits.map_or(tokens.unwrap_or(0), |(_, width)| width);
        let store = PageStore::new(layout, options.store_tokens.div_ceil(PAGE_TOKENS));
        let keeps = Keeps { values: fixed.values, text: fixed.text };
        let sequences = Sequences::new(store, options.max_tokens, fingerprint, keeps);
        let shape = ExecutorShape {
            n_vocab,
            n_hidden: lowered.hidden.map_or(0, |(_, width)| width),
            max_rows: options.max_rows,
            max_tokens: options.max_tokens,
            rollback: sequences.rollback(),
            state_fingerprint: fingerprint,
        };
        let cpu = Cpu::new(options.threads);
        tracing::debug!(
            threads = cpu.pool.threads(),
            level = cpu.level.name(),
            steps = lowered.steps.len(),
            buffers = memory.rows.len(),
            "lowered for the cpu"
        );
        Ok(CpuExecutor {
            cpu,
            source,
            lowered,
            buffers,
            sequences,
            shape,
            tokens: tokens.unwrap_or(n_vocab).min(n_vocab),
            work: Work::default(),
            drafter,
            lost: false,
        })
    }

    /// Threads that a step runs on.
    pub fn threads(&self) -> usize {
        self.cpu.pool.threads()
    }

    /// Bytes of one page of the key-value store.
    pub fn page_bytes(&self) -> usize {
        self.sequences.store.layout().page_bytes()
    }

    /// As [`Executor::run`], and shows every named result as `(name, values [rows, width], width)`: all rows up to the last
    /// stateful node, then the rows that want results. Only an executor without fusion has named results.
    ///
    /// # Errors
    /// As [`Executor::run`].
    pub fn run_traced(
        &mut self,
        rows: &[Row],
        show: &mut dyn FnMut(&str, &[f32], usize),
    ) -> Result<StepOutput<'_>, StepError> {
        self.step(rows, Some(show))
    }

    fn step(&mut self, rows: &[Row], show: Option<Show<'_>>) -> Result<StepOutput<'_>, StepError> {
        if self.lost {
            return Err(StepError::Executor("it failed before and was not reset".into()));
        }
        let work = &mut self.work.admitted;
        work.admit(rows, &mut self.sequences, &self.shape, self.tokens)?;
        // From here on a failure or a panic leaves the state half moved.
        self.lost = true;
        let mut blocks: Vec<Block> =
            work.groups.iter().map(|g| self.sequences.take_block(g.sequence)).collect();
        let (store, sequences) = self.sequences.split();
        let before: Vec<&[u32]> =
            work.groups.iter().filter_map(|g| Some(&sequences.get(&g.sequence)?.text[..])).collect();
        let runs: Vec<Run<'_>> = work
            .groups
            .iter()
            .filter_map(|g| {
                let pages = &sequences.get(&g.sequence)?.pages;
                Some(Run { first_row: g.first_row, rows: g.rows, position: g.position, pages })
            })
            .collect();
        for (rope, table) in self.lowered.ropes.iter().zip(&mut self.buffers.tables) {
            match rope.tail {
                false => table.fill(&rope.spec, work.positions.iter().copied()),
                true => table.fill(&rope.spec, work.tail.iter().map(|row| work.positions[*row])),
            }
        }
        let machine = Machine { cpu: &self.cpu, source: &*self.source, lowered: &self.lowered };
        let batch = Batch { tokens: &work.tokens, runs: &runs, before: &before, tail: &work.tail };
        let written = blocks.iter_mut().map(|block| &mut Arc::make_mut(block)[..]).collect();
        let mut held = Held { store, blocks: written };
        machine
            .run(&mut self.buffers, &mut held, &batch, show)
            .map_err(|error| StepError::Executor(error.to_string()))?;
        for (group, block) in work.groups.iter().zip(blocks) {
            self.sequences.put_block(group.sequence, block);
        }
        work.advance(&mut self.sequences);
        if let (Some(drafter), Some((slot, width))) = (&mut self.drafter, self.lowered.every_row) {
            let hidden = &self.buffers.rows[slot.0];
            for group in &work.groups {
                let rows = group.first_row * width..(group.first_row + group.rows) * width;
                drafter.follow(group.sequence, group.position, &hidden[rows]);
            }
        }
        self.lost = false;
        self.output(rows)
    }

    /// Picks the rows that were asked for. Tail rows stand in the order of the caller's rows.
    fn output(&mut self, rows: &[Row]) -> Result<StepOutput<'_>, StepError> {
        let hidden_known = self.shape.n_hidden > 0;
        let wanted = |r: &&Row| r.wants_logits || (r.wants_hidden && hidden_known);
        let tail = || rows.iter().filter(wanted);
        let all_logits = tail().all(|r| r.wants_logits);
        let count = tail().count();
        let work = &mut self.work;
        let logits: &[f32] = match self.lowered.logits {
            Some((slot, width)) if count > 0 => {
                let from = &self.buffers.rows[slot.0][..count * width];
                if all_logits {
                    from
                } else {
                    work.logits.clear();
                    for (row, values) in tail().zip(from.chunks_exact(width)) {
                        if row.wants_logits {
                            work.logits.extend_from_slice(values);
                        }
                    }
                    &work.logits
                }
            }
            _ => &[],
        };
        work.hidden.clear();
        if let (Some((slot, width)), true) = (self.lowered.hidden, count > 0) {
            let from = &self.buffers.rows[slot.0][..count * width];
            for (row, values) in tail().zip(from.chunks_exact(width)) {
                if row.wants_hidden {
                    work.hidden.extend_from_slice(values);
                }
            }
        }
        Ok(StepOutput { logits, hidden: &work.hidden })
    }
}

impl Executor for CpuExecutor {
    fn shape(&self) -> &ExecutorShape {
        &self.shape
    }

    fn capacity(&self) -> Capacity {
        let store = &self.sequences.store;
        Capacity {
            page_tokens: PAGE_TOKENS,
            pages_total: store.pages_total(),
            pages_free: store.pages_free(),
        }
    }

    fn pages_to_grow(&self, sequence: SequenceId, n_tokens: usize) -> Result<usize, SequenceError> {
        self.sequences.pages_to_grow(sequence, n_tokens)
    }

    fn create(&mut self) -> Result<SequenceId, SequenceError> {
        Ok(self.sequences.create())
    }

    fn drop_sequence(&mut self, sequence: SequenceId) {
        self.sequences.remove(sequence);
        self.drafter.iter_mut().for_each(|drafter| drafter.forget(sequence));
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, SequenceError> {
        Ok(self.sequences.get(sequence)?.len)
    }

    fn resumable(&self, sequence: SequenceId, n: usize) -> Result<usize, SequenceError> {
        self.sequences.resumable(sequence, n)
    }

    fn truncate(&mut self, sequence: SequenceId, n: usize) -> Result<(), SequenceError> {
        self.sequences.truncate(sequence, n)?;
        self.drafter.iter_mut().for_each(|drafter| drafter.cut(sequence, n));
        Ok(())
    }

    fn copy_prefix(&mut self, source: SequenceId, target: SequenceId, n: usize) -> Result<(), SequenceError> {
        self.sequences.copy_prefix(source, target, n)?;
        self.drafter.iter_mut().for_each(|drafter| drafter.copy(source, target, n));
        Ok(())
    }

    fn checkpoint(&mut self, sequence: SequenceId) -> Result<(), SequenceError> {
        self.sequences.checkpoint(sequence)
    }

    fn mark(&mut self, sequence: SequenceId) -> Result<(), SequenceError> {
        self.sequences.mark(sequence)
    }

    fn take_back(&mut self, sequence: SequenceId, n: usize) -> Result<usize, SequenceError> {
        let n = self.sequences.take_back(sequence, n)?;
        self.drafter.iter_mut().for_each(|drafter| drafter.cut(sequence, n));
        Ok(n)
    }

    fn save(&self, sequence: SequenceId) -> Result<Vec<u8>, SequenceError> {
        self.sequences.save(sequence, |store, page, number, tokens, out| {
            store.export(page, number, tokens, out);
            Ok(())
        })
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<SequenceId, SequenceError> {
        self.sequences.restore(bytes, |store, page, bytes| match store.import(page, bytes) {
            true => Ok(()),
            false => Err("a page of another size".into()),
        })
    }

    fn run(&mut self, rows: &[Row]) -> Result<StepOutput<'_>, StepError> {
        self.step(rows, None)
    }

    fn drafts(&self) -> bool {
        self.drafter.is_some()
    }

    fn draft(&mut self, asks: &[DraftAsk<'_>], p_min: f32) -> Result<Vec<Vec<u32>>, SequenceError> {
        let Some(drafter) = &mut self.drafter else { return Ok(vec![Vec::new(); asks.len()]) };
        drafter.draft(&self.cpu, &*self.source, &self.sequences, asks, p_min)
    }

    fn decides(&self) -> bool {
        self.lowered.decision.is_some()
    }

    fn decide(&mut self, tokens: &[u32], questions: &[Question]) -> Result<Decision, StepError> {
        let Some((slot, width)) = self.lowered.decision.as_ref().map(|d| d.hidden) else {
            return Err(StepError::Malformed("this model takes no decision requests".into()));
        };
        check_questions(questions, tokens.len())?;
        let sequence = self.sequences.create();
        let mut hidden = Vec::with_capacity(tokens.len() * width);
        let mut ran = Ok(());
        for (i, part) in tokens.chunks(self.shape.max_rows).enumerate() {
            let first = i * self.shape.max_rows;
            let row = |(i, token): (usize, &u32)| Row {
                token: *token,
                position: first + i,
                sequence,
                wants_logits: false,
                wants_hidden: false,
            };
            let rows: Vec<Row> = part.iter().enumerate().map(row).collect();
            ran = self.step(&rows, None).map(|_| ());
            if ran.is_err() {
                break;
            }
            hidden.extend_from_slice(&self.buffers.rows[slot.0][..part.len() * width]);
        }
        self.drop_sequence(sequence);
        ran?;
        let machine = Machine { cpu: &self.cpu, source: &*self.source, lowered: &self.lowered };
        let Some(of) = &self.lowered.decision else {
            return Err(StepError::Malformed("this model takes no decision requests".into()));
        };
        let started = std::time::Instant::now();
        // The head touches no sequence: what fails here loses nothing.
        let logits = machine
            .decide(of, &hidden, tokens, questions)
            .map_err(|e| StepError::Malformed(e.to_string()))?;
        Ok(Decision { logits, head: started.elapsed() })
    }

    fn reset(&mut self) -> Result<(), StepError> {
        self.sequences.clear();
        self.drafter.iter_mut().for_each(CpuDrafter::clear);
        self.lost = false;
        Ok(())
    }
}

/// The page parts of all stores that the graph uses, and which of them belong to which state.
pub(crate) fn page_parts(
    program: &Program,
    graph: &Graph,
    cache_key: CacheType,
    cache_value: CacheType,
) -> (Vec<PartSpec>, Vec<Option<StoreParts>>) {
    let mut specs = Vec::new();
    let rings = rings(program, graph);
    let parts = program.states.iter().enumerate().map(|(index, state)| {
        let used = graph.nodes.iter().any(|n| n.op.states().iter().any(|s| s.0 as usize == index));
        let StateKind::Rows { parts, every, .. } = &state.kind else { return None };
        if !used || rings[index] || !matches!(parts.len(), 1 | 2) {
            return None;
        }
        // Keys lie by channel where the paged kernel reads them; rows that are gathered lie whole.
        let paged = parts.len() == 2
            && *every == 1
            && graph.nodes.iter().any(|n| match &n.op {
                Op::Attention(a) => is_dense(a) && a.sources.iter().any(|s| s.state.0 as usize == index),
                _ => false,
            });
        let first = PartIndex(specs.len());
        for (i, part) in parts.iter().enumerate() {
            let cache = match part.role {
                PartRole::Key => cache_key,
                PartRole::Value => cache_value,
                PartRole::Exact => CacheType::F32,
            };
            let order = if paged && i == 0 { Order::ByChannel } else { Order::ByToken };
            specs.push(PartSpec { width: part.width as usize, cache, order, every: *every as usize });
        }
        Some(StoreParts { keys: first, values: PartIndex(specs.len() - 1), every: *every as usize })
    });
    let parts = parts.collect();
    (specs, parts)
}

/// A stable number for program, weight types, cache types and the layout of pages (FNV-1a).
pub(crate) fn fingerprint(
    program: &Program,
    source: &dyn WeightSource,
    cache_key: CacheType,
    cache_value: CacheType,
    layout: &str,
) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut feed = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    };
    feed(&serde_json::to_vec(program).unwrap_or_default());
    feed(layout.as_bytes());
    feed(cache_key.name().as_bytes());
    feed(cache_value.name().as_bytes());
    for graph in &program.graphs {
        for name in graph.nodes.iter().flat_map(|n| n.tensors.values()) {
            if let Some(tensor) = source.find(name) {
                feed(source.shape(tensor).0.name().as_bytes());
            }
        }
    }
    hash
}
