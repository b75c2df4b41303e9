//! Row-wise jobs: each row of the result depends on the same row of the operands only.

use crate::activations::{ActivationChunk, Activations};
use crate::cpu::Cpu;
use crate::lanes::Lanes;
use crate::level::Kernel;
use crate::norm::{layer_norm_row, rms_norm_row};
use crate::pool::Pool;
use crate::split::Split;
use std::ops::Range;
use std::sync::Mutex;

/// Values below which a job is not worth waking a thread.
const INLINE: usize = 16 * 1024;

/// Most chunks of a row job that also quantises.
const SLOTS: usize = 64;

/// Splits `[rows, width]` into runs of rows and calls `work(rows, their part of out)`, on several threads when it is much.
///
/// # Panics
/// When `out` is shorter than `rows * width`.
pub fn for_rows(
    pool: &Pool,
    rows: usize,
    width: usize,
    out: &mut [f32],
    work: impl Fn(Range<usize>, &mut [f32]) + Sync,
) {
    assert!(rows * width <= out.len(), "{rows} rows of {width} in {}", out.len());
    if rows * width <= INLINE {
        work(0..rows, &mut out[..rows * width]);
        return;
    }
    let per_chunk = (INLINE / 2).div_ceil(width).max(1);
    let out = Split::new(out);
    pool.run(rows.div_ceil(per_chunk), |chunk, _| {
        let range = chunk * per_chunk..rows.min((chunk + 1) * per_chunk);
        // SAFETY: the ranges of different chunks are disjoint.
        let part = unsafe { out.part(range.start * width..range.end * width) };
        work(range, part);
    });
}

/// The same, where each row is also quantised right after it was made: into every one of `quantized`, whose shapes are set
/// and whose width is `width`.
fn for_rows_quantized(
    cpu: &Cpu,
    rows: usize,
    width: usize,
    out: &mut [f32],
    quantized: &mut [&mut Activations],
    work: impl Fn(Range<usize>, &mut [f32]) + Sync,
) {
    assert!(rows * width <= out.len() && quantized.len() <= 2, "{rows} rows of {width} in {}", out.len());
    assert!(quantized.iter().all(|q| q.rows() == rows && q.cols() == width), "activations of another shape");
    let chunks = if rows * width <= INLINE { 1 } else { SLOTS.min(rows) };
    let per_chunk = rows.div_ceil(chunks.max(1)).max(1);
    let slots: [Mutex<[Option<ActivationChunk<'_>>; 2]>; SLOTS] =
        std::array::from_fn(|_| Mutex::new([None, None]));
    for (kind, quantized) in quantized.iter_mut().enumerate() {
        for (slot, chunk) in slots.iter().zip(quantized.chunks(per_chunk)) {
            slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner)[kind] = Some(chunk);
        }
    }
    let out = Split::new(out);
    cpu.pool.run(rows.div_ceil(per_chunk), |chunk, _| {
        let range = chunk * per_chunk..rows.min((chunk + 1) * per_chunk);
        let mut slot = slots[chunk].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for row in range.clone() {
            // SAFETY: every row belongs to one chunk.
            let part = unsafe { out.part(row * width..(row + 1) * width) };
            work(row..row + 1, part);
            for target in slot.iter_mut().flatten() {
                target.quantize_row(cpu.level, row - range.start, part);
            }
        }
    });
}

/// Constants of an RMS norm.
#[derive(Debug, Clone, Copy)]
pub struct NormSpec<'a> {
    /// Repeated over the row; `None` for a norm without weights.
    pub weight: Option<&'a [f32]>,
    /// Values normalised together.
    pub group: usize,
    /// Added to the mean square.
    pub eps: f32,
}

/// `out = x / rms(x) * weight`, `[rows, width]`, quantised into `quantized` at once.
///
/// # Panics
/// When shapes disagree.
pub fn rms_norm(
    cpu: &Cpu,
    spec: NormSpec<'_>,
    rows: usize,
    width: usize,
    x: &[f32],
    out: &mut [f32],
    quantized: &mut [&mut Activations],
) {
    struct Rows<'a>(NormSpec<'a>, &'a [f32], &'a mut [f32]);
    impl Kernel for Rows<'_> {
        type Out = ();
        #[inline(always)]
        fn run<L: Lanes>(self, lanes: L) {
            rms_norm_row(lanes, self.1, self.0.weight, self.0.group, self.0.eps, self.2);
        }
    }
    assert!(spec.group > 0 && width.is_multiple_of(spec.group), "groups of {} in {width}", spec.group);
    assert!(spec.weight.is_none_or(|w| !w.is_empty() && w.len().is_multiple_of(spec.group)), "norm weights");
    let x = &x[..rows * width];
    let one = |range: Range<usize>, out: &mut [f32]| {
        for (row, out) in range.zip(out.chunks_exact_mut(width)) {
            cpu.level.run(Rows(spec, &x[row * width..(row + 1) * width], out));
        }
    };
    if quantized.is_empty() {
        for_rows(&cpu.pool, rows, width, out, one);
    } else {
        for_rows_quantized(cpu, rows, width, out, quantized, one);
    }
}

/// `out = (x - mean) / sqrt(variance + eps) * weight + bias`, `[rows, width]`; weight and bias repeat over the row.
///
/// # Panics
/// When shapes disagree.
pub fn layer_norm(
    cpu: &Cpu,
    spec: NormSpec<'_>,
    bias: Option<&[f32]>,
    rows: usize,
    width: usize,
    x: &[f32],
    out: &mut [f32],
) {
    struct Row<'a>(NormSpec<'a>, Option<&'a [f32]>, &'a [f32], &'a mut [f32]);
    impl Kernel for Row<'_> {
        type Out = ();
        #[inline(always)]
        fn run<L: Lanes>(self, lanes: L) {
            layer_norm_row(lanes, self.2, self.0.weight, self.1, self.0.group, self.0.eps, self.3);
        }
    }
    assert!(spec.group > 0 && width.is_multiple_of(spec.group), "groups of {} in {width}", spec.group);
    assert!(spec.weight.is_none_or(|w| !w.is_empty()) && bias.is_none_or(|b| !b.is_empty()), "norm weights");
    let x = &x[..rows * width];
    for_rows(&cpu.pool, rows, width, out, |range, out| {
        for (row, out) in range.zip(out.chunks_exact_mut(width)) {
            cpu.level.run(Row(spec, bias, &x[row * width..(row + 1) * width], out));
        }
    });
}

/// Quantises rows `[rows, width]`; the targets' shapes are set.
///
/// # Panics
/// When shapes disagree.
pub fn quantize(cpu: &Cpu, rows: usize, width: usize, x: &[f32], quantized: &mut [&mut Activations]) {
    let x = &x[..rows * width];
    for target in quantized {
        assert!(target.rows() == rows && target.cols() == width, "activations of another shape");
        quantize_rows(cpu, target, |row| &x[row * width..][..width]);
    }
}

/// Quantises `row(i)` into every row i of the target, whose shape is set.
pub(crate) fn quantize_rows<'x>(
    cpu: &Cpu,
    target: &mut Activations,
    row: impl Fn(usize) -> &'x [f32] + Sync,
) {
    let rows = target.rows();
    if rows * target.cols() <= INLINE {
        for mut chunk in target.chunks(rows.max(1)) {
            (0..rows).for_each(|i| chunk.quantize_row(cpu.level, i, row(i)));
        }
        return;
    }
    let per_chunk = rows.div_ceil(SLOTS);
    let slots: [Mutex<Option<ActivationChunk<'_>>>; SLOTS] = std::array::from_fn(|_| Mutex::new(None));
    for (slot, chunk) in slots.iter().zip(target.chunks(per_chunk)) {
        *slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(chunk);
    }
    cpu.pool.run(rows.div_ceil(per_chunk), |chunk, _| {
        let mut slot = slots[chunk].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(target) = slot.as_mut() {
            (0..target.rows()).for_each(|i| target.quantize_row(cpu.level, i, row(chunk * per_chunk + i)));
        }
    });
}
