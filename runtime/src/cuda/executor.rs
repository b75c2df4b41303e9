//! The executor: admits a step, tells the card, replays the recording for its size, and reads what came of it.

mod measure;
mod prepared;
mod step;

pub(crate) use prepared::Prepared;
pub(super) use step::apart;

use super::input::InputBlock;
use super::joins::Joins;
use super::memory::{CardBuffers, Sizes};
use super::pages::CardPages;
use super::rotations::Rotations;
use super::weights::CardWeights;
use super::{CudaError, CudaOptions};
use crate::cpu::admit::Admitted;
use crate::cpu::sequences::{Keeps, Pages, Sequences};
use crate::cpu::step::Lowered;
use crate::cpu::weights::WeightSource;
use crate::executor::{
    Capacity, Executor, ExecutorShape, Rollback, Row, SequenceError, SequenceId, StepError, StepOutput,
};
use crate::model::LoadProgress;
use bloomery_kernels_cpu::kv::PAGE_TOKENS;
use bloomery_kernels_gpu::{Card, CardOptions, Command, GpuError, Machine, RecordingId};
use bloomery_program::Program;
use std::collections::HashMap;
use std::sync::Arc;

/// Runs the target graph of a program on one card.
pub struct CudaExecutor {
    machine: Box<dyn Machine>,
    source: Arc<dyn WeightSource>,
    lowered: Lowered,
    joins: Joins,
    weights: CardWeights,
    rotations: Rotations,
    buffers: CardBuffers,
    input: InputBlock,
    sequences: Sequences<CardPages>,
    shape: ExecutorShape,
    /// Rows of the embedding table.
    tokens: usize,
    /// Recorded steps by rows and rows that want results.
    recordings: HashMap<(usize, usize), RecordingId>,
    max_recorded: usize,
    /// Recorded launches overlap; nobody has timed it yet.
    overlap: Option<bool>,
    admitted: Admitted,
    hidden: Vec<f32>,
    /// Logits of a step whose rows were not all in pinned memory in order.
    gathered: Vec<f32>,
    /// What a kernel of the last step reported.
    fault: Option<StepError>,
    max_tail: usize,
    lost: bool,
}

impl CudaExecutor {
    /// A program on a card, without a plan: what does not fit fails while it is allocated, by name.
    ///
    /// # Errors
    /// See [`CudaError`].
    pub fn open(
        program: &Program,
        source: Arc<dyn WeightSource>,
        card: &CardOptions,
        options: &CudaOptions,
    ) -> Result<CudaExecutor, CudaError> {
        Self::on_machine(program, source, Box::new(Card::open(card)?), options)
    }

    /// The same on any machine for launches.
    ///
    /// # Errors
    /// See [`CudaError`].
    pub fn on_machine(
        program: &Program,
        source: Arc<dyn WeightSource>,
        machine: Box<dyn Machine>,
        options: &CudaOptions,
    ) -> Result<CudaExecutor, CudaError> {
        CudaExecutor::new(Prepared::new(program, &*source, options)?, source, machine, options, &mut |_| {})
    }

    /// Takes the memory, uploads the weights and is ready to run. A plan has found before that it all fits.
    pub(crate) fn new(
        prepared: Prepared,
        source: Arc<dyn WeightSource>,
        mut machine: Box<dyn Machine>,
        options: &CudaOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<CudaExecutor, CudaError> {
        let Prepared { lowered, weights, sizes, fingerprint, specs, .. } = prepared;
        // The context was settled after the program was lowered: what depends on it is counted again.
        let mut sizes = sizes;
        sizes.work_bytes = Sizes::new(&lowered, &specs, options)?.work_bytes;
        let store = machine.allocate(
            "key-value store",
            sizes.store_bytes(options.store_tokens),
            "--ctx-size, --cache-type-k and --cache-type-v make it smaller",
        )?;
        let buffers = CardBuffers::new(&mut *machine, &sizes, store)?;
        let table_pages = options.max_tokens.div_ceil(PAGE_TOKENS);
        let bytes = InputBlock::bytes(options.max_rows, options.max_sequences, table_pages);
        let block = machine.allocate("step input", bytes, "--ctx-size and --parallel make it smaller")?;
        let input =
            InputBlock::new(machine.pin(bytes)?, block, options.max_rows, options.max_sequences, table_pages);
        let rotations = Rotations::new(&mut *machine, &lowered, options.max_tokens)?;
        let weights = CardWeights::load(&mut *machine, &weights, &lowered, &*source, progress)?;
        let n_vocab = lowered.logits.map_or(0, |(_, width)| width);
        let tokens = lowered.steps.iter().find_map(|s| match &s.work {
            crate::cpu::step::Work::Embed { weight, .. } => Some(weight.rows),
            _ => None,
        });
        let shape = ExecutorShape {
            n_vocab,
            n_hidden: lowered.hidden.map_or(0, |(_, width)| width),
            max_rows: options.max_rows,
            max_tokens: options.max_tokens,
            rollback: Rollback::Truncate,
            state_fingerprint: fingerprint,
        };
        tracing::info!("computing on {}", machine.describe());
        let pages = CardPages::new(store, sizes.page_bytes);
        Ok(CudaExecutor {
            machine,
            source,
            joins: Joins::new(&lowered),
            lowered,
            weights,
            rotations,
            buffers,
            input,
            sequences: Sequences::new(pages, options.max_tokens, fingerprint, Keeps::default()),
            shape,
            tokens: tokens.unwrap_or(n_vocab).min(n_vocab),
            recordings: HashMap::new(),
            max_recorded: options.max_recorded,
            overlap: None,
            admitted: Admitted::default(),
            hidden: Vec::new(),
            gathered: Vec::new(),
            fault: None,
            max_tail: options.max_tail.min(options.max_rows).max(1),
            lost: false,
        })
    }
}

impl Executor for CudaExecutor {
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
        self.input.forget(sequence);
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, SequenceError> {
        Ok(self.sequences.get(sequence)?.len)
    }

    fn resumable(&self, sequence: SequenceId, n: usize) -> Result<usize, SequenceError> {
        Ok(n.min(self.sequences.get(sequence)?.len))
    }

    fn truncate(&mut self, sequence: SequenceId, n: usize) -> Result<(), SequenceError> {
        self.sequences.truncate(sequence, n)
    }

    fn copy_prefix(&mut self, source: SequenceId, target: SequenceId, n: usize) -> Result<(), SequenceError> {
        self.sequences.copy_prefix(source, target, n)
    }

    fn checkpoint(&mut self, sequence: SequenceId) -> Result<(), SequenceError> {
        self.sequences.get(sequence).map(|_| ())
    }

    fn save(&self, sequence: SequenceId) -> Result<Vec<u8>, SequenceError> {
        self.sequences.save(sequence, |store, page, _, tokens, out| {
            let start = out.len();
            out.resize(start + store.page_bytes(), 0);
            let from = store.page(page).map_err(|error| error.to_string())?;
            self.machine.read(from, &mut out[start..]).map_err(|error| error.to_string())?;
            self.buffers.clear_from(tokens, &mut out[start..]);
            Ok(())
        })
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<SequenceId, SequenceError> {
        let machine = &mut self.machine;
        self.sequences.restore(bytes, |store, page, bytes| {
            let to = store.page(page).map_err(|error| error.to_string())?;
            machine.write(to, bytes).map_err(|error| error.to_string())
        })
    }

    fn run(&mut self, rows: &[Row]) -> Result<StepOutput<'_>, StepError> {
        self.step(rows)
    }

    fn reset(&mut self) -> Result<(), StepError> {
        let failed = |error: GpuError| StepError::Executor(error.to_string());
        self.machine.wait().map_err(failed)?;
        self.machine.run(&[Command::Clear(self.buffers.report)]).map_err(failed)?;
        self.fault = None;
        self.sequences.clear();
        self.input.forget_all();
        self.lost = false;
        Ok(())
    }
}
