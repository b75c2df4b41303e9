//! The plain tier: small general operators, so that an unknown architecture runs. Every value is one chain in the order of its members.

use crate::cpu::Cpu;
use crate::lanes::{Lanes, WIDTH};
use crate::level::Kernel;
use crate::norm::squares;
use crate::pool::Pool;
use crate::rows::for_rows;
use bloomery_formats::math;

/// `x / sqrt(sum x^2 + eps)` over groups of `group` values, `[rows, width]`.
///
/// # Panics
/// When lengths disagree.
pub fn l2_norm(cpu: &Cpu, eps: f32, group: usize, rows: usize, width: usize, x: &[f32], out: &mut [f32]) {
    struct Group<'a>(f32, &'a [f32], &'a mut [f32]);
    impl Kernel for Group<'_> {
        type Out = ();
        #[inline(always)]
        fn run<L: Lanes>(self, lanes: L) {
            let factor = 1.0 / (squares(lanes, self.1, 0.0) + self.0).sqrt();
            self.2.iter_mut().zip(self.1).for_each(|(out, x)| *out = x * factor);
        }
    }
    groups_of(&cpu.pool, group, rows, width, x, out, |x, out| cpu.level.run(Group(eps, x, out)));
}

/// Softmax over groups of `group` values, `[rows, width]`.
///
/// # Panics
/// When lengths disagree.
pub fn softmax(cpu: &Cpu, group: usize, rows: usize, width: usize, x: &[f32], out: &mut [f32]) {
    struct Group<'a>(&'a [f32], &'a mut [f32]);
    impl Kernel for Group<'_> {
        type Out = ();
        #[inline(always)]
        fn run<L: Lanes>(self, _: L) {
            let Group(x, out) = self;
            let most = largest(x);
            out.iter_mut().zip(x).for_each(|(out, x)| *out = math::exp(*x - most));
            let sum: f32 = out.iter().sum();
            out.iter_mut().for_each(|v| *v /= sum);
        }
    }
    groups_of(&cpu.pool, group, rows, width, x, out, |x, out| cpu.level.run(Group(x, out)));
}

/// What a group is reduced to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// The sum.
    Sum,
    /// The mean.
    Mean,
    /// The largest.
    Max,
}

/// One value of every group of `group` values: `[rows, width]` to `[rows, width / group]`.
///
/// # Panics
/// When lengths disagree.
pub fn reduce(
    pool: &Pool,
    by: Reduction,
    group: usize,
    rows: usize,
    width: usize,
    x: &[f32],
    out: &mut [f32],
) {
    assert!(group > 0 && width.is_multiple_of(group), "groups of {group} in {width}");
    let (x, width) = (&x[..rows * width], width / group);
    for_rows(pool, rows, width, out, |range, out| {
        for (x, out) in x[range.start * width * group..].chunks_exact(group).zip(out) {
            *out = match by {
                Reduction::Sum => x.iter().sum(),
                Reduction::Mean => x.iter().sum::<f32>() / group as f32,
                Reduction::Max => largest(x),
            };
        }
    });
}

/// For each row `a [m, k] . b [n, k]^T`, giving `[m, n]`.
///
/// # Panics
/// When lengths disagree.
#[allow(clippy::too_many_arguments, reason = "two operands and their shapes")]
pub fn mat_mul(cpu: &Cpu, k: usize, rows: usize, m: usize, n: usize, a: &[f32], b: &[f32], out: &mut [f32]) {
    struct Row<'a>(usize, &'a [f32], &'a [f32], &'a mut [f32]);
    impl Kernel for Row<'_> {
        type Out = ();
        #[inline(always)]
        fn run<L: Lanes>(self, lanes: L) {
            let Row(k, a, b, out) = self;
            let n = b.len() / k;
            for (a, out) in a.chunks_exact(k).zip(out.chunks_exact_mut(n)) {
                for (b, out) in b.chunks_exact(k).zip(out) {
                    let mut chain = lanes.splat(0.0);
                    for (a, b) in a.chunks(WIDTH).zip(b.chunks(WIDTH)) {
                        chain = lanes.fma(lanes.load_some(a), lanes.load_some(b), chain);
                    }
                    *out = lanes.sum(chain);
                }
            }
        }
    }
    assert!(k > 0, "products of no values");
    let (a, b) = (&a[..rows * m * k], &b[..rows * n * k]);
    for_rows(&cpu.pool, rows, m * n, out, |range, out| {
        for (row, out) in range.zip(out.chunks_exact_mut(m * n)) {
            let (a, b) = (&a[row * m * k..(row + 1) * m * k], &b[row * n * k..(row + 1) * n * k]);
            cpu.level.run(Row(k, a, b, out));
        }
    });
}

/// `[rows, lines, columns]` to `[rows, columns, lines]`.
///
/// # Panics
/// When lengths disagree.
pub fn transpose(pool: &Pool, rows: usize, lines: usize, columns: usize, x: &[f32], out: &mut [f32]) {
    let width = lines * columns;
    let x = &x[..rows * width];
    for_rows(pool, rows, width, out, |range, out| {
        for (row, out) in range.zip(out.chunks_exact_mut(width)) {
            let x = &x[row * width..(row + 1) * width];
            for (column, out) in out.chunks_exact_mut(lines).enumerate() {
                out.iter_mut().zip(x.chunks_exact(columns)).for_each(|(out, line)| *out = line[column]);
            }
        }
    });
}

/// The `top_k` largest values of every row and their places, best first, equal ones (either zero too) by place.
///
/// # Panics
/// When lengths disagree.
pub fn top_k(top_k: usize, rows: usize, width: usize, x: &[f32], values: &mut [f32], places: &mut [u32]) {
    assert!(top_k > 0 && top_k <= width && x.len() >= rows * width, "the best {top_k} of {width}");
    let mut order: Vec<u32> = Vec::with_capacity(width);
    for row in 0..rows {
        let x = &x[row * width..(row + 1) * width];
        order.clear();
        order.extend(0..width as u32);
        let value = |i: u32| x[i as usize] + 0.0;
        order.sort_by(|a, b| value(*b).total_cmp(&value(*a)));
        let span = row * top_k..(row + 1) * top_k;
        places[span.clone()].copy_from_slice(&order[..top_k]);
        values[span].iter_mut().zip(&order).for_each(|(v, i)| *v = x[*i as usize]);
    }
}

/// A number that names no chunk of its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("chunk {number} of a row of {chunks} chunks")]
pub struct NoChunk {
    /// The number.
    pub number: u32,
    /// Chunks of the row.
    pub chunks: usize,
}

/// Chunks of `chunk` values of every row `[rows, width]` by number, `index` `[rows, picked]`.
///
/// # Errors
/// A number out of range.
///
/// # Panics
/// When lengths disagree.
pub fn gather(
    chunk: usize,
    rows: usize,
    width: usize,
    picked: usize,
    x: &[f32],
    index: &[u32],
    out: &mut [f32],
) -> Result<(), NoChunk> {
    let chunks = width / chunk;
    let out = &mut out[..rows * picked * chunk];
    for (i, (number, out)) in index[..rows * picked].iter().zip(out.chunks_exact_mut(chunk)).enumerate() {
        if *number as usize >= chunks {
            return Err(NoChunk { number: *number, chunks });
        }
        out.copy_from_slice(&x[i / picked * width + *number as usize * chunk..][..chunk]);
    }
    Ok(())
}

/// The largest value; a NaN is passed over.
#[inline(always)]
fn largest(x: &[f32]) -> f32 {
    x.iter().fold(f32::NEG_INFINITY, |m, v| if *v > m { *v } else { m })
}

/// Calls `work` with every group of values and its result.
fn groups_of(
    pool: &Pool,
    group: usize,
    rows: usize,
    width: usize,
    x: &[f32],
    out: &mut [f32],
    work: impl Fn(&[f32], &mut [f32]) + Sync,
) {
    assert!(group > 0 && width.is_multiple_of(group), "groups of {group} in {width}");
    let x = &x[..rows * width];
    for_rows(pool, rows, width, out, |range, out| {
        let x = &x[range.start * width..range.end * width];
        x.chunks_exact(group).zip(out.chunks_exact_mut(group)).for_each(|(x, out)| work(x, out));
    });
}
