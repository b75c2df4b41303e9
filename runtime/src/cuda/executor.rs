//! The executor: admits a step, tells the card, replays the recording for its size, and reads what came of it.

use super::emit::{Emitted, Emitter};
use super::input::InputBlock;
use super::memory::{CardBuffers, Sizes};
use super::pages::CardPages;
use super::profile::{Profile, measure};
use super::rotations::Rotations;
use super::weights::{CardWeights, WeightPlan};
use super::{CudaError, CudaOptions, Needs};
use crate::cpu::admit::Admitted;
use crate::cpu::sequences::{Pages, Sequences};
use crate::cpu::step::{Lowered, Work};
use crate::cpu::weights::WeightSource;
use crate::executor::{
    Capacity, Executor, ExecutorShape, Rollback, Row, SequenceError, SequenceId, StepError, StepOutput,
};
use crate::model::LoadProgress;
use bloomery_kernels_cpu::kv::{PAGE_TOKENS, PartSpec};
use bloomery_kernels_gpu::{Card, CardOptions, Command, GpuError, Machine, RecordingId};
use bloomery_program::Program;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Runs the target graph of a program on one card.
pub struct CudaExecutor {
    machine: Box<dyn Machine>,
    source: Arc<dyn WeightSource>,
    lowered: Lowered,
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
    admitted: Admitted,
    hidden: Vec<f32>,
    /// Logits of a step whose rows were not all in pinned memory in order.
    gathered: Vec<f32>,
    /// What a kernel of the last step reported.
    fault: Option<StepError>,
    max_tail: usize,
    lost: bool,
}

/// What recorded steps take of the card, by experience.
const GRAPHS: u64 = 64 << 20;

/// A program that is lowered for the card but has taken none of its memory.
pub(crate) struct Prepared {
    pub lowered: Lowered,
    pub weights: WeightPlan,
    pub sizes: Sizes,
    pub fingerprint: u64,
    specs: Vec<PartSpec>,
}

impl Prepared {
    pub fn new(
        program: &Program,
        source: &dyn WeightSource,
        options: &CudaOptions,
    ) -> Result<Prepared, CudaError> {
        for (option, value) in [
            ("--ubatch-size", options.max_rows),
            ("--ctx-size", options.max_tokens.min(options.store_tokens)),
            ("--parallel", options.max_sequences),
        ] {
            if value == 0 {
                return Err(CudaError::Option { option, value });
            }
        }
        let graph = program.target().ok_or_else(|| CudaError::Program("there is no target graph".into()))?;
        let missing = super::kernel_set::missing_kernels(program, graph, source, options);
        if !missing.is_empty() {
            return Err(CudaError::Missing { missing });
        }
        let (specs, parts) =
            crate::cpu::executor::page_parts(program, graph, options.cache_key, options.cache_value);
        let lowered = crate::cpu::lower::lower(program, graph, source, &parts, true)?;
        let weights = WeightPlan::new(&lowered, source);
        let sizes = Sizes::new(&lowered, &specs, options)?;
        let fingerprint = crate::cpu::executor::fingerprint(
            program,
            source,
            options.cache_key,
            options.cache_value,
            "cuda",
        );
        Ok(Prepared { lowered, weights, sizes, fingerprint, specs })
    }

    /// What it takes of a card.
    pub fn needs(&self) -> Needs {
        Needs {
            weights: self.weights.bytes,
            store_per_token: self.sizes.page_bytes as f64 / PAGE_TOKENS as f64,
            // Rotations of every position, and a page's number in every sequence's table.
            tables_per_token: super::rotations::bytes_per_token(&self.lowered) as f64
                + super::emit::partial_bytes_per_token(&self.lowered)
                + 1.0,
            scratch: self.sizes.slot_bytes + self.sizes.work_bytes,
            graphs: GRAPHS,
        }
    }
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
            lowered,
            weights,
            rotations,
            buffers,
            input,
            sequences: Sequences::new(pages, options.max_tokens, fingerprint),
            shape,
            tokens: tokens.unwrap_or(n_vocab).min(n_vocab),
            recordings: HashMap::new(),
            max_recorded: options.max_recorded,
            admitted: Admitted::default(),
            hidden: Vec::new(),
            gathered: Vec::new(),
            fault: None,
            max_tail: options.max_tail.min(options.max_rows).max(1),
            lost: false,
        })
    }

    /// The launches of a range of steps for this size, with what each is for.
    fn emit(&mut self, rows: usize, tail: usize, range: Range<usize>) -> Result<Emitted, GpuError> {
        let mut emitter = Emitter {
            input: self.input.place(rows)?,
            machine: &mut *self.machine,
            lowered: &self.lowered,
            weights: &self.weights,
            rotations: &self.rotations,
            buffers: &self.buffers,
            source: &*self.source,
            max_tokens: self.shape.max_tokens,
            table_pages: self.input.table_pages(),
            rows,
            tail,
            out: Emitted::default(),
        };
        emitter.steps(range)?;
        Ok(emitter.out)
    }

    /// Everything of a step that does not change while its size stays: the copies up and down stand at its ends.
    fn commands(&mut self, rows: usize, tail: usize) -> Result<Vec<Command>, GpuError> {
        let mut commands = vec![self.input.upload(rows)?];
        commands.extend(self.emit(rows, tail, 0..self.lowered.steps.len())?.commands);
        commands.push(self.buffers.send_report());
        Ok(commands)
    }

    /// Gives the card everything but the fetching of results. Rows that want results beyond the first `max_tail` are left to
    /// further turns.
    fn give(&mut self) -> Result<(), GpuError> {
        let mut commands = Vec::new();
        self.sequences.store.take_copies(&mut commands)?;
        let (_, sequences) = self.sequences.split();
        let pages = |id| sequences.get(&id).map(|sequence| &sequence.pages[..]);
        self.input.fill(&mut *self.machine, &self.admitted, pages, &mut commands)?;
        self.machine.run(&commands)?;
        let (rows, tail) = (self.admitted.tokens.len(), self.admitted.tail.len().min(self.max_tail));
        if rows > self.max_recorded {
            let commands = self.commands(rows, tail)?;
            return self.machine.run(&commands);
        }
        let recording = match self.recordings.get(&(rows, tail)) {
            Some(known) => *known,
            None => {
                let commands = self.commands(rows, tail)?;
                let recording = self.machine.record(&commands)?;
                self.recordings.insert((rows, tail), recording);
                recording
            }
        };
        self.machine.replay(recording)
    }

    /// A further turn of the tail: rows `done ..` of those that want results. The steps before the tail stand.
    fn next_turn(&mut self, done: usize) -> Result<usize, GpuError> {
        let rows = self.admitted.tokens.len();
        let turn = (self.admitted.tail.len() - done).min(self.max_tail);
        self.input.turn(&mut *self.machine, &self.admitted, done, turn)?;
        let first = self.lowered.steps[..self.lowered.tail]
            .iter()
            .rposition(|step| !matches!(step.work, Work::Gather { .. }))
            .map_or(0, |last| last + 1);
        let mut commands = vec![self.input.upload(rows)?];
        commands.extend(self.emit(rows, turn, first..self.lowered.steps.len())?.commands);
        commands.push(self.buffers.send_report());
        self.machine.run(&commands)?;
        Ok(turn)
    }

    fn step(&mut self, rows: &[Row]) -> Result<StepOutput<'_>, StepError> {
        if self.lost {
            return Err(StepError::Executor("it failed before and was not reset".into()));
        }
        self.admitted.admit(rows, &mut self.sequences, &self.shape, self.tokens)?;
        if self.admitted.groups.len() > self.input.tables() {
            let (n, most) = (self.admitted.groups.len(), self.input.tables());
            return Err(StepError::Malformed(format!("{n} sequences in a step, at most {most} are taken")));
        }
        if rows.is_empty() {
            return Ok(StepOutput { logits: &[], hidden: &[] });
        }
        // From here on a failure leaves the state half moved.
        self.lost = true;
        self.compute(rows).map_err(|error| StepError::Executor(error.to_string()))?;
        if let Some(error) = self.fault.take() {
            // Nothing has advanced: the other sequences run again without this one.
            self.lost = false;
            return Err(error);
        }
        self.admitted.advance(&mut self.sequences);
        self.lost = false;
        let width = self.shape.n_vocab;
        let wanted = rows.iter().filter(|row| row.wants_logits).count();
        let logits = match (wanted, self.gathered.is_empty()) {
            (0, _) => &[],
            (_, false) => &self.gathered[..],
            (_, true) => {
                let failed = |error: GpuError| StepError::Executor(error.to_string());
                self.buffers.logits(&mut *self.machine, wanted, width).map_err(failed)?
            }
        };
        Ok(StepOutput { logits, hidden: &self.hidden })
    }

    /// Runs the admitted rows and waits for them. Logits of a step in one turn stay in pinned memory; others are gathered.
    fn compute(&mut self, rows: &[Row]) -> Result<(), GpuError> {
        let hidden_known = self.shape.n_hidden > 0;
        let wanted = |row: &&Row| row.wants_logits || (row.wants_hidden && hidden_known);
        let tail: Vec<(bool, bool)> =
            rows.iter().filter(wanted).map(|row| (row.wants_logits, row.wants_hidden)).collect();
        self.hidden.clear();
        self.gathered.clear();
        self.give()?;
        let mut turn = tail.len().min(self.max_tail);
        let mut done = 0;
        loop {
            let part = &tail[done..done + turn];
            let logits = part.iter().any(|(logits, _)| *logits);
            if let (true, Some((slot, width))) = (logits, self.lowered.logits) {
                let command = self.buffers.send_logits(slot, turn, width)?;
                self.machine.run(&[command])?;
            }
            self.machine.wait()?;
            self.look_for_faults()?;
            if let (Some((slot, width)), true) = (self.lowered.hidden, part.iter().any(|(_, hidden)| *hidden))
            {
                let mut all = vec![0f32; turn * width];
                let from = self.buffers.rows_of(slot, turn, width)?;
                self.machine.read(from, bytemuck::cast_slice_mut(&mut all))?;
                let wanted = part.iter().zip(all.chunks_exact(width)).filter(|((_, hidden), _)| *hidden);
                wanted.for_each(|(_, values)| self.hidden.extend_from_slice(values));
            }
            let whole = turn == tail.len() && part.iter().all(|(logits, _)| *logits);
            if logits && !whole {
                let width = self.shape.n_vocab;
                let all = self.buffers.logits(&mut *self.machine, turn, width)?;
                let wanted = part.iter().zip(all.chunks_exact(width)).filter(|((logits, _), _)| *logits);
                wanted.for_each(|(_, values)| self.gathered.extend_from_slice(values));
            }
            done += turn;
            if done >= tail.len() || self.fault.is_some() {
                return Ok(());
            }
            turn = self.next_turn(done)?;
        }
    }

    /// A kernel that met something impossible said so: the sequence of that row fails, with the name of the place.
    fn look_for_faults(&mut self) -> Result<(), GpuError> {
        let report = self.buffers.read_report(&mut *self.machine)?;
        if report[0] == 0 {
            return Ok(());
        }
        self.machine.run(&[Command::Clear(self.buffers.report)])?;
        let (code, step, row) = (report[0], report[1], report[2] as usize);
        let what = match code {
            1 => "a value that is no number",
            2 => "an index out of range",
            _ => "an overflow of a table",
        };
        let place = self.lowered.steps.get(step as usize).map_or("", |step| step.place());
        let group = self
            .admitted
            .groups
            .iter()
            .find(|group| (group.first_row..group.first_row + group.rows).contains(&row));
        let Some(group) = group.or(self.admitted.groups.first()) else { return Ok(()) };
        let error = SequenceError::Failed(format!("the card met {what} at step {step} {place} (row {row})"));
        tracing::error!(%error, "a kernel reported a fault");
        self.fault = Some(StepError::Sequence { sequence: group.sequence, error });
        Ok(())
    }

    /// Measures every operator of a decode step of one row at the present length of the first sequence; the states are of no use
    /// afterwards and are dropped.
    ///
    /// # Errors
    /// The card fails.
    pub fn profile(&mut self) -> Result<Profile, CudaError> {
        let failed = |error: &dyn std::fmt::Display| CudaError::Program(error.to_string());
        let sequence = self.create().map_err(|error| failed(&error))?;
        let depth = PROFILE_DEPTH.min(self.shape.max_tokens.saturating_sub(2));
        for position in (0..depth).step_by(self.shape.max_rows) {
            let end = depth.min(position + self.shape.max_rows);
            let rows: Vec<Row> =
                (position..end).map(|position| profile_row(position, sequence, self.tokens)).collect();
            self.run(&rows).map_err(|error| failed(&error))?;
        }
        let last = Row { wants_logits: true, ..profile_row(depth, sequence, self.tokens) };
        self.run(&[last]).map_err(|error| failed(&error))?;
        let emitted = self.emit(1, 1, 0..self.lowered.steps.len())?;
        let bandwidth = self.bandwidth()?;
        let profile = measure(&mut *self.machine, 1, &emitted, bandwidth)?;
        self.machine.run(&[Command::Clear(self.buffers.report)])?;
        self.drop_sequence(sequence);
        Ok(profile)
    }

    /// Bytes a second, read and written, of copies within the card.
    fn bandwidth(&mut self) -> Result<f64, GpuError> {
        let half = (self.buffers.store.bytes() / 2 / 256 * 256).min(1 << 30);
        let (from, to) = (self.buffers.store.part(0, half)?, self.buffers.store.part(half, half)?);
        let recording = self.machine.record(&[Command::Copy { from, to }])?;
        self.machine.time(recording, 1)?;
        let time = self.machine.time(recording, 8)?;
        Ok(16.0 * half as f64 / time.as_secs_f64().max(1e-9))
    }
}

/// Tokens in the context of a profiled step.
const PROFILE_DEPTH: usize = 512;

fn profile_row(position: usize, sequence: SequenceId, tokens: usize) -> Row {
    let token = (position * 7919 + 13) % tokens.max(1);
    Row { token: token as u32, position, sequence, wants_logits: false, wants_hidden: false }
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
        self.sequences.save(sequence, |store, page, tokens, out| {
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
