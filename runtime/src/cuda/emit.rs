//! From lowered steps to launches, for a number of rows.
//!
//! A step is one of two kinds. [`Phase::Few`] rows (generation, drafts) are bound by memory: `few` reads every weight once for all rows.
//! [`Phase::Many`] rows (prompts) are bound by arithmetic: `many`. What either does not have falls back to the launches of the
//! operators themselves, which take any number of rows one by one: `linear`, `attention`, `experts`, `rows`.

mod attention;
mod experts;
mod few;
mod flash;
mod floats;
mod linear;
mod many;
mod rows;
mod work;

pub(crate) use work::{partial_bytes_per_token, work_bytes};

use super::input::StepInput;
use super::joins::Joins;
use super::memory::CardBuffers;
use super::rotations::Rotations;
use super::weights::CardWeights;
use crate::cpu::step::{Changed, Lowered, Slot, Step, Vector, Work};
use crate::cpu::weights::{TensorRef, WeightSource};
use bloomery_formats::ActivationKind;
use bloomery_kernels_gpu::layout::Quantized;
use bloomery_kernels_gpu::{Argument, Buffer, Command, GpuError, Launch, Machine};
use few::attention::Rows;
use rows::RowJob;

/// Steps of at most so many rows are bound by memory. Projections take eight rows at a time. More are faster on tensor cores although an
/// expert gets two rows or three: measured at 16 and 32 rows.
pub(crate) const FEW_ROWS: usize = 16;

/// How many rows a step has, for the choice of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// At most [`FEW_ROWS`].
    Few,
    /// More.
    Many,
}

impl Phase {
    fn of(rows: usize) -> Phase {
        if rows <= FEW_ROWS { Phase::Few } else { Phase::Many }
    }
}

/// What a command is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label {
    /// Operators as people name them.
    pub operator: &'static str,
    /// The lowered step.
    pub step: u32,
    /// Bytes of weights and of the store that it reads.
    pub bytes: u64,
}

/// Commands of a step, each with what it is for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Emitted {
    pub commands: Vec<Command>,
    pub labels: Vec<Label>,
}

/// Emits the launches of all steps.
pub(crate) struct Emitter<'a> {
    pub machine: &'a mut dyn Machine,
    pub lowered: &'a Lowered,
    pub weights: &'a CardWeights,
    pub rotations: &'a Rotations,
    pub buffers: &'a CardBuffers,
    pub source: &'a dyn WeightSource,
    pub joins: &'a Joins,
    pub input: StepInput,
    pub table_pages: usize,
    pub max_tokens: usize,
    /// Sequences that a step may hold.
    pub sequences: usize,
    pub rows: usize,
    /// Rows that want results.
    pub wanted: usize,
    /// Those that are computed behind the tail.
    pub tail: usize,
    pub out: Emitted,
}

type Result<T> = std::result::Result<T, GpuError>;

impl Emitter<'_> {
    /// The steps of a range; those without rows emit nothing.
    pub fn steps(&mut self, range: std::ops::Range<usize>) -> Result<()> {
        let lowered = self.lowered;
        let mut index = range.start;
        while let Some(step) = lowered.steps.get(index).filter(|_| index < range.end) {
            let gather = matches!(step.work, Work::Gather { .. });
            let rows = if index < lowered.tail && !gather { self.rows } else { self.tail };
            let join = self.joins.at(index).filter(|join| index + join.steps <= range.end);
            let taken = match join {
                Some(join) if rows > 0 && Phase::of(rows) == Phase::Few => self.joined(index, join, rows)?,
                _ => 0,
            };
            if taken > 0 {
                index += taken;
                continue;
            }
            if rows > 0 {
                self.step(index as u32, step, rows)?;
            }
            index += 1;
        }
        Ok(())
    }

    fn step(&mut self, index: u32, step: &Step, rows: usize) -> Result<()> {
        let b = self.buffers;
        let values = |slot: Slot, width: usize| b.rows_of(slot, rows, width);
        let phase = Phase::of(rows);
        match &step.work {
            Work::Embed { weight, scale, out } => {
                let table = self.weights.matrix(*weight)?;
                let (ty, row_bytes) = self.row(*weight)?;
                let arguments = vec![
                    table.into(),
                    row_bytes.into(),
                    (weight.rows as u32).into(),
                    (weight.cols as u32).into(),
                    (*scale).into(),
                    self.input.tokens.into(),
                    values(*out, weight.cols)?.into(),
                ];
                let grid = [weight.cols.div_ceil(256) as u32, rows as u32, 1];
                let label =
                    Label { operator: "embed", step: index, bytes: u64::from(row_bytes) * rows as u64 };
                self.launch(&format!("embed_{ty}"), grid, 32, SCRATCH, arguments, label)
            }
            Work::Norm { x, width, norm, out, quantized } => {
                let quantized = self.targets(quantized)?;
                let job = RowJob {
                    norm: Some(*norm),
                    width: *width,
                    out: Some(values(*out, *width)?),
                    quantized,
                    ..RowJob::default()
                };
                self.row_job("norm and quantise", index, values(*x, *width)?, rows, job)
            }
            Work::Quantize { x, out } => {
                let quantized = self.targets(std::slice::from_ref(out))?;
                let width = b.quantized(*out)?.2;
                self.row_job(
                    "quantise",
                    index,
                    values(*x, width)?,
                    rows,
                    RowJob { width, quantized, ..RowJob::default() },
                )
            }
            Work::Project { x, items } => match phase {
                Phase::Few => self.few_project(index, rows, *x, items),
                Phase::Many => self.many_project(index, rows, *x, items),
            },
            Work::GateUp { .. } => match phase {
                Phase::Few => self.few_gate_up(index, rows, &step.work),
                Phase::Many => self.many_gate_up(index, rows, &step.work),
            },
            Work::Prepare { changed, appended } => self.prepare(index, rows, changed, appended),
            Work::Rotate { x, width, head, rope } => {
                let changed = Changed { slot: *x, width: *width, head: *head, norm: None, rope: Some(*rope) };
                self.prepare(index, rows, &[changed], &[])
            }
            Work::Attend { q, out, of } => match phase {
                _ if self.has_flash(of) => self.prompt_attend(index, rows, *q, *out, of),
                Phase::Few => self.few_attend(index, Rows::all(rows), (*q, *out), of, true, &[]),
                Phase::Many => self.attend(index, rows, *q, *out, of),
            },
            Work::Route { logits, of, ids, weights } => {
                let arguments = vec![
                    values(*logits, of.experts)?.into(),
                    self.vector(of.bias).into(),
                    (of.experts as u32).into(),
                    (of.used as u32).into(),
                    (of.score as u32).into(),
                    u32::from(of.normalize).into(),
                    of.sum_floor.into(),
                    of.scale.into(),
                    values(*ids, of.used)?.into(),
                    values(*weights, of.used)?.into(),
                    b.report.into(),
                    index.into(),
                ];
                let shared = 8 * (of.experts + of.used) as u32;
                let label = Label { operator: "route", step: index, bytes: 0 };
                self.launch("route_experts", [rows as u32, 1, 1], 32, shared, arguments, label)
            }
            Work::Experts { .. } => match phase {
                Phase::Few => self.experts(index, rows, &step.work),
                Phase::Many => self.many_experts(index, rows, &step.work),
            },
            other => self.plain(index, rows, other),
        }
    }

    /// Name of a matrix's type as entries carry it, and bytes of a row.
    fn row(&self, matrix: TensorRef) -> Result<(String, u32)> {
        let ty = self.source.shape(matrix.tensor).0;
        let bytes = ty.row_bytes(matrix.cols).and_then(|bytes| u32::try_from(bytes).ok());
        let none = || GpuError::NoKernel(format!("a {ty} row of {} values", matrix.cols));
        Ok((ty.name().to_lowercase(), bytes.ok_or_else(none)?))
    }

    fn vector(&self, vector: Option<Vector>) -> Option<Buffer> {
        vector.map(|v| self.weights.vector(v))
    }

    fn targets(&self, slots: &[Slot]) -> Result<Vec<(Quantized, ActivationKind)>> {
        slots
            .iter()
            .map(|slot| self.buffers.quantized(*slot).map(|(arrays, kind, _)| (arrays, kind)))
            .collect()
    }

    fn launch(
        &mut self,
        name: &str,
        grid: [u32; 3],
        threads: u32,
        shared: u32,
        arguments: Vec<Argument>,
        label: Label,
    ) -> Result<()> {
        let kernel = self.machine.kernel(name)?;
        // A launch may begin early where it stands behind another one and waits for it itself.
        let overlaps = waits(name) && matches!(self.out.commands.last(), Some(Command::Launch(_)));
        let launch = Launch { kernel, grid, threads, shared, arguments, overlaps };
        self.out.commands.push(Command::Launch(launch));
        self.out.labels.push(label);
        Ok(())
    }
}

/// Kernels that wait themselves for what earlier launches write.
fn waits(name: &str) -> bool {
    const WAITING: [&str; 12] = [
        "attend_few_",
        "combine_ranks",
        "down_few_",
        "embed_",
        "gate_up_few_",
        "gemv_",
        "heads_prepare",
        "linear_few_",
        "merge_few",
        "pointwise_any",
        "route_experts",
        "row_quantize",
    ];
    WAITING.iter().any(|prefix| name.starts_with(prefix))
}

/// Shared memory of a warp that unpacks groups, bytes.
const SCRATCH: u32 = 32 * 384 + 64;
