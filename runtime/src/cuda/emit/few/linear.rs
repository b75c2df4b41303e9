//! Projections of few rows: up to three matrices in one launch, normed and quantised on the way where that is cheaper than a launch
//! more.

use super::super::{Emitter, Label, Result};
use crate::cpu::step::{NormOf, Vector};
use crate::cpu::weights::TensorRef;
use bloomery_formats::{ActivationKind, WeightType};
use bloomery_kernels_gpu::layout::{self, Quantized};
use bloomery_kernels_gpu::{Argument, Buffer};
use std::ops::Range;

/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// Warps of a block.
const WARPS: usize = 8;
/// Most shared memory of a block, so that every card has it.
pub(super) const MOST_SHARED: usize = 96 << 10;
/// Matrices of a launch.
pub(super) const MOST_MATRICES: usize = 3;
/// Rows of floats of a launch; more go one by one, in the operator's own launch.
const FLOAT_ROWS: usize = 2;
/// Rows that every block norms for itself; more are normed once, in a launch of their own.
pub(super) const NORMED_ROWS: usize = 2;

/// A matrix with its bias, and where the products go.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub weight: TensorRef,
    pub bias: Option<Vector>,
    pub out: Buffer,
}

/// Rows that are normed and quantised in the same launch, and the forms of them that others read.
pub(super) struct Normed {
    pub x: Buffer,
    pub norm: NormOf,
    pub out: Option<Buffer>,
    pub forms: Vec<(Quantized, ActivationKind)>,
}

/// Where rows of activations come from.
pub(super) enum Source {
    Ready(Quantized),
    Normed(Normed),
}

/// The number of a weight type among those of its activations, for types that these kernels read.
pub(super) fn direct(ty: WeightType) -> Option<u32> {
    Some(match ty {
        WeightType::Q4_K | WeightType::Q8_0 | WeightType::F32 => 0,
        WeightType::Q5_K | WeightType::F16 => 1,
        WeightType::Q6_K | WeightType::BF16 => 2,
        _ => return None,
    })
}

/// Bytes of a row of activations in shared memory.
pub(super) fn row_bytes(kind: ActivationKind, cols: usize) -> usize {
    let groups = cols.div_ceil(256);
    match kind {
        ActivationKind::Q8K => (292 * groups).next_multiple_of(16),
        ActivationKind::Q8Block32 => 320 * groups,
        ActivationKind::F32 => (4 * cols).next_multiple_of(16),
    }
}

/// Rows of weights for each of about `blocks` blocks: whole turns of its warps.
pub(super) fn per_block(rows: usize, blocks: usize) -> usize {
    let per = rows.div_ceil(blocks.max(1)).max(1);
    if per > WARPS { per.next_multiple_of(WARPS) } else { per }
}

/// Rows that an instance of the kernel multiplies at once; of more rows, those of one launch.
fn instance(kind: ActivationKind, rows: usize) -> usize {
    let most = if kind == ActivationKind::F32 { FLOAT_ROWS } else { 8 };
    rows.max(1).next_power_of_two().min(most)
}

/// The arrays of some of `rows` quantised rows.
fn part(arrays: Quantized, kind: ActivationKind, cols: usize, rows: &Range<usize>) -> Result<Quantized> {
    let [quants, scales, sums] = layout::quantized_row(kind, cols);
    let of = |buffer: Buffer, bytes: u64| buffer.part(bytes * rows.start as u64, bytes * rows.len() as u64);
    Ok(Quantized {
        quants: of(arrays.quants, quants)?,
        scales: of(arrays.scales, scales)?,
        sums: of(arrays.sums, sums)?,
    })
}

impl Emitter<'_> {
    /// There is a kernel for these matrices and this number of rows.
    pub(super) fn has_few_linear(
        &self,
        kind: ActivationKind,
        rows: usize,
        normed: bool,
        weights: &[TensorRef],
    ) -> bool {
        let Some(cols) = weights.first().map(|weight| weight.cols) else { return false };
        let n = instance(kind, rows);
        let own = |weight: &TensorRef| {
            let ty = self.source.shape(weight.tensor).0;
            weight.cols == cols && direct(ty).is_some() && ty.activation_kind() == Some(kind)
        };
        weights.len() <= MOST_MATRICES
            && (rows <= n || !normed && kind != ActivationKind::F32)
            && weights.iter().all(own)
            && few_linear_shared(kind, n, cols, normed) <= MOST_SHARED
    }

    /// The launches; [`has_few_linear`](Self::has_few_linear) said that there is a kernel. The residual belongs to the first matrix.
    pub(super) fn few_linear(
        &mut self,
        operator: &'static str,
        index: u32,
        rows: usize,
        (source, kind): (&Source, ActivationKind),
        residual: Option<Buffer>,
        targets: &[Target],
    ) -> Result<()> {
        let n = instance(kind, rows);
        let Source::Ready(arrays) = source else {
            return self.few_linear_at_once(operator, index, rows, (source, kind), residual, targets);
        };
        for first in (0..rows).step_by(n) {
            let some = first..rows.min(first + n);
            let of = |buffer: Buffer, width: usize| {
                buffer.part(4 * (first * width) as u64, 4 * (some.len() * width) as u64)
            };
            let now = targets
                .iter()
                .map(|target| Ok(Target { out: of(target.out, target.weight.rows)?, ..*target }));
            let now = now.collect::<Result<Vec<_>>>()?;
            let cols = targets.first().map_or(0, |target| target.weight.cols);
            let width = targets.first().map_or(0, |target| target.weight.rows);
            let residual = residual.map(|residual| of(residual, width)).transpose()?;
            let source = Source::Ready(part(*arrays, kind, cols, &some)?);
            self.few_linear_at_once(operator, index, some.len(), (&source, kind), residual, &now)?;
        }
        Ok(())
    }

    fn few_linear_at_once(
        &mut self,
        operator: &'static str,
        index: u32,
        rows: usize,
        (source, kind): (&Source, ActivationKind),
        residual: Option<Buffer>,
        targets: &[Target],
    ) -> Result<()> {
        let cols = targets.first().map_or(0, |target| target.weight.cols);
        let n = instance(kind, rows);
        let normed = matches!(source, Source::Normed(_));
        let mut arguments: Vec<Argument> = vec![
            if normed { NORM } else { READY }.into(),
            Argument::U32(rows as u32),
            Argument::U32(cols as u32),
        ];
        let (x, norm, out) = match source {
            Source::Ready(_) => (None, None, None),
            Source::Normed(normed) => (Some(normed.x), Some(normed.norm), normed.out),
        };
        let head: [Argument; 4] = [
            x.into(),
            self.vector(norm.and_then(|norm| norm.weight)).into(),
            norm.map_or(0.0, |norm| norm.eps).into(),
            out.into(),
        ];
        arguments.extend(head);
        let form = |wanted: ActivationKind| match source {
            Source::Ready(arrays) => (kind == wanted).then_some(*arrays),
            Source::Normed(normed) => {
                normed.forms.iter().find(|(_, kind)| *kind == wanted).map(|(arrays, _)| *arrays)
            }
        };
        arguments.push(form(ActivationKind::F32).map(|arrays| arrays.quants).into());
        for arrays in [form(ActivationKind::Q8K), form(ActivationKind::Q8Block32)] {
            arguments.push(arrays.map(|a| a.quants).into());
            arguments.push(arrays.map(|a| a.scales).into());
            arguments.push(arrays.map(|a| a.sums).into());
        }
        let tail: [Argument; 3] = [self.buffers.report.into(), index.into(), residual.into()];
        arguments.extend(tail);

        let processors = self.machine.processors() as usize;
        let total: usize = targets.iter().map(|target| target.weight.rows).sum();
        // Long matrices keep more warps busy; short ones repeat less of the work before the products.
        let blocks = processors * if total > 256 * processors { 4 } else { 2 };
        let per = if total <= blocks { 1 } else { per_block(total, blocks) };
        let (mut grid, mut bytes) = (0, 0);
        for i in 0..MOST_MATRICES {
            let Some(target) = targets.get(i) else {
                arguments.push(Buffer::NONE.into());
                arguments.extend([Argument::U32(0); 4]);
                arguments.extend([Argument::from(Buffer::NONE); 2]);
                continue;
            };
            let ty = self.source.shape(target.weight.tensor).0;
            let (_, row_bytes) = self.row(target.weight)?;
            let blocks = target.weight.rows.div_ceil(per);
            grid += blocks as u32;
            bytes += u64::from(row_bytes) * target.weight.rows as u64;
            arguments.extend([
                self.weights.matrix(target.weight)?.into(),
                direct(ty).unwrap_or(0).into(),
                row_bytes.into(),
                Argument::U32(target.weight.rows as u32),
                Argument::U32(blocks as u32),
                self.vector(target.bias).into(),
                target.out.into(),
            ]);
        }
        let shared = few_linear_shared(kind, n, cols, normed) as u32;
        let label = Label { operator, step: index, bytes };
        self.launch(
            &format!("linear_few_{}_{n}", letter(kind)),
            [grid, 1, 1],
            THREADS,
            shared,
            arguments,
            label,
        )
    }
}

const READY: u32 = 0;
const NORM: u32 = 2;

/// Shared memory of a launch: the rows, and for those that are normed the values of one (floats have them in their place) and the
/// norm's weights.
fn few_linear_shared(kind: ActivationKind, instance: usize, cols: usize, normed: bool) -> usize {
    let row = 4 * cols.next_multiple_of(256);
    let more = match (normed, kind) {
        (false, _) => 0,
        (true, ActivationKind::F32) => row,
        (true, _) => 2 * row,
    };
    instance * row_bytes(kind, cols) + more
}

/// The kind of activations in a kernel's name.
pub(super) fn letter(kind: ActivationKind) -> char {
    match kind {
        ActivationKind::Q8K => 'k',
        ActivationKind::Q8Block32 => 'b',
        ActivationKind::F32 => 'f',
    }
}
