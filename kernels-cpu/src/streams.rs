//! Residual streams: hyper-connections (Zhu et al. 2024) with Sinkhorn-normalised weights, and the gate of an n-gram memory.
//!
//! Rows of streams are `[streams, width]`. Sums over streams are fma chains in the streams' order; coefficients are computed value by
//! value in one order.

use crate::cpu::Cpu;
use crate::lanes::{Lanes, WIDTH};
use crate::level::Kernel;
use crate::norm::inverse_rms;
use crate::pool::Pool;
use crate::rows::for_rows;
use crate::split::Split;
use bloomery_formats::math;

/// `x` in every stream: `[rows, width]` to `[rows, streams, width]`.
pub fn spread(pool: &Pool, streams: usize, rows: usize, width: usize, x: &[f32], out: &mut [f32]) {
    let x = &x[..rows * width];
    for_rows(pool, rows, streams * width, out, |range, out| {
        for (row, out) in range.zip(out.chunks_exact_mut(streams * width)) {
            out.chunks_exact_mut(width)
                .for_each(|out| out.copy_from_slice(&x[row * width..(row + 1) * width]));
        }
    });
}

/// `sum_j pre[j] * h[j]`, or the mean of the streams without `pre` (`[rows, streams]`).
pub fn collapse(
    cpu: &Cpu,
    streams: usize,
    rows: usize,
    width: usize,
    h: &[f32],
    pre: Option<&[f32]>,
    out: &mut [f32],
) {
    struct Row<'a>(&'a [f32], Option<&'a [f32]>, f32, &'a mut [f32]);
    impl Kernel for Row<'_> {
        type Out = ();
        #[inline(always)]
        fn run<L: Lanes>(self, lanes: L) {
            let Row(h, pre, mean, out) = self;
            let width = out.len();
            for (c, out) in out.chunks_mut(WIDTH).enumerate() {
                let at = c * WIDTH..c * WIDTH + out.len();
                let mut sum = lanes.splat(0.0);
                for (j, h) in h.chunks_exact(width).enumerate() {
                    let factor = lanes.splat(pre.map_or(mean, |p| p[j]));
                    sum = lanes.fma(factor, lanes.load_some(&h[at.clone()]), sum);
                }
                lanes.store_some(sum, out);
            }
        }
    }
    let (h, pre) = (&h[..rows * streams * width], pre.map(|p| &p[..rows * streams]));
    let mean = 1.0 / streams as f32;
    for_rows(&cpu.pool, rows, width, out, |range, out| {
        for (row, out) in range.zip(out.chunks_exact_mut(width)) {
            let pre = pre.map(|p| &p[row * streams..(row + 1) * streams]);
            cpu.level.run(Row(&h[row * streams * width..(row + 1) * streams * width], pre, mean, out));
        }
    });
}

/// `out[d] = post[d]*y + sum_s comb[s][d]*h[s]`, or `post[d]*y + h[d]` without `comb` (`[rows, streams, streams]`, targets fastest).
#[allow(clippy::too_many_arguments, reason = "four operands and their shape")]
pub fn combine(
    cpu: &Cpu,
    streams: usize,
    rows: usize,
    width: usize,
    h: &[f32],
    y: &[f32],
    post: &[f32],
    comb: Option<&[f32]>,
    out: &mut [f32],
) {
    struct Row<'a>(&'a [f32], &'a [f32], &'a [f32], Option<&'a [f32]>, &'a mut [f32]);
    impl Kernel for Row<'_> {
        type Out = ();
        #[inline(always)]
        fn run<L: Lanes>(self, lanes: L) {
            let Row(h, y, post, comb, out) = self;
            let (width, streams) = (y.len(), post.len());
            for (d, out) in out.chunks_exact_mut(width).enumerate() {
                for (c, out) in out.chunks_mut(WIDTH).enumerate() {
                    let at = c * WIDTH..c * WIDTH + out.len();
                    let y = lanes.mul(lanes.splat(post[d]), lanes.load_some(&y[at.clone()]));
                    let sum = match comb {
                        None => lanes.add(y, lanes.load_some(&h[d * width..][at])),
                        Some(comb) => {
                            let mut sum = y;
                            for (s, h) in h.chunks_exact(width).enumerate() {
                                let factor = lanes.splat(comb[s * streams + d]);
                                sum = lanes.fma(factor, lanes.load_some(&h[at.clone()]), sum);
                            }
                            sum
                        }
                    };
                    lanes.store_some(sum, out);
                }
            }
        }
    }
    let (all, pairs) = (streams * width, streams * streams);
    let (h, y, post) = (&h[..rows * all], &y[..rows * width], &post[..rows * streams]);
    let comb = comb.map(|c| &c[..rows * pairs]);
    for_rows(&cpu.pool, rows, all, out, |range, out| {
        for (row, out) in range.zip(out.chunks_exact_mut(all)) {
            let comb = comb.map(|c| &c[row * pairs..(row + 1) * pairs]);
            let (h, y) = (&h[row * all..(row + 1) * all], &y[row * width..(row + 1) * width]);
            cpu.level.run(Row(h, y, &post[row * streams..(row + 1) * streams], comb, out));
        }
    });
}

/// `out[j] = gate[j] * value`: `[rows, width]` and `[rows, streams]` to `[rows, streams, width]`.
pub fn scale(
    pool: &Pool,
    streams: usize,
    rows: usize,
    width: usize,
    value: &[f32],
    gate: &[f32],
    out: &mut [f32],
) {
    let (value, gate) = (&value[..rows * width], &gate[..rows * streams]);
    for_rows(pool, rows, streams * width, out, |range, out| {
        for (row, out) in range.zip(out.chunks_exact_mut(streams * width)) {
            let value = &value[row * width..(row + 1) * width];
            for (out, gate) in out.chunks_exact_mut(width).zip(&gate[row * streams..]) {
                out.iter_mut().zip(value).for_each(|(o, v)| *o = gate * v);
            }
        }
    });
}

/// Constants of hyper-connection coefficients.
#[derive(Debug, Clone, Copy)]
pub struct HyperSpec<'a> {
    /// Streams.
    pub streams: usize,
    /// `[3]`.
    pub scale: &'a [f32],
    /// `[(2 + streams) * streams]`.
    pub base: &'a [f32],
    /// Sinkhorn rounds, the softmax round included.
    pub iterations: usize,
    /// Added in the normalisations and to `pre`.
    pub eps: f32,
}

/// Coefficients from the projections `m` `[rows, (2 + streams) * streams]`: `pre` and `post` `[rows, streams]`, `comb` `[rows, streams, streams]`.
///
/// # Panics
/// When lengths disagree.
pub fn hyper_mix(
    cpu: &Cpu,
    spec: &HyperSpec<'_>,
    rows: usize,
    m: &[f32],
    pre: &mut [f32],
    post: &mut [f32],
    comb: &mut [f32],
) {
    struct Row<'a>(&'a HyperSpec<'a>, &'a [f32], &'a mut [f32], &'a mut [f32], &'a mut [f32]);
    impl Kernel for Row<'_> {
        type Out = ();
        #[inline(always)]
        fn run<L: Lanes>(self, _: L) {
            let Row(spec, m, pre, post, comb) = self;
            let n = spec.streams;
            let (scale, base) = (spec.scale, spec.base);
            for j in 0..n {
                pre[j] = math::sigmoid(m[j] * scale[0] + base[j]) + spec.eps;
                post[j] = 2.0 * math::sigmoid(m[n + j] * scale[1] + base[n + j]);
            }
            for (i, c) in comb.iter_mut().enumerate() {
                *c = m[2 * n + i] * scale[2] + base[2 * n + i];
            }
            // A constant width is what lets the rounds stay in registers.
            match n {
                4 => sinkhorn(comb, 4, spec.iterations, spec.eps),
                n => sinkhorn(comb, n, spec.iterations, spec.eps),
            }
        }
    }
    let n = spec.streams;
    let (coefficients, pairs) = ((2 + n) * n, n * n);
    assert!(spec.scale.len() == 3 && spec.base.len() == coefficients && n > 0, "{n} streams");
    let fits = m.len() >= rows * coefficients && pre.len() >= rows * n;
    assert!(fits && post.len() >= rows * n && comb.len() >= rows * pairs, "{rows} rows of coefficients");
    let (pre, post, comb) = (Split::new(pre), Split::new(post), Split::new(comb));
    const ROWS: usize = 8;
    cpu.pool.run(rows.div_ceil(ROWS), |chunk, _| {
        for row in chunk * ROWS..rows.min((chunk + 1) * ROWS) {
            // SAFETY: every row belongs to one chunk.
            let (pre, post) =
                unsafe { (pre.part(row * n..(row + 1) * n), post.part(row * n..(row + 1) * n)) };
            // SAFETY: as above.
            let comb = unsafe { comb.part(row * pairs..(row + 1) * pairs) };
            cpu.level.run(Row(spec, &m[row * coefficients..(row + 1) * coefficients], pre, post, comb));
        }
    });
}

/// Softmax of every source's row, then columns and rows divided by their sums in turn.
#[inline(always)]
fn sinkhorn(comb: &mut [f32], n: usize, iterations: usize, eps: f32) {
    let comb = &mut comb[..n * n];
    for row in comb.chunks_exact_mut(n) {
        let most = row.iter().fold(f32::NEG_INFINITY, |m, v| if *v > m { *v } else { m });
        row.iter_mut().for_each(|v| *v = math::exp(*v - most));
        let sum: f32 = row.iter().sum();
        row.iter_mut().for_each(|v| *v = *v / sum + eps);
    }
    columns(comb, n, eps);
    for _ in 1..iterations {
        for row in comb.chunks_exact_mut(n) {
            let sum = row.iter().sum::<f32>() + eps;
            row.iter_mut().for_each(|v| *v /= sum);
        }
        columns(comb, n, eps);
    }
}

#[inline(always)]
fn columns(comb: &mut [f32], n: usize, eps: f32) {
    for target in 0..n {
        let sum = (0..n).map(|source| comb[source * n + target]).sum::<f32>() + eps;
        (0..n).for_each(|source| comb[source * n + target] /= sum);
    }
}

/// Collapse weights of a head from the projections `m` `[rows, streams]`: `sigmoid(m s + b) + eps`.
pub fn hyper_head(cpu: &Cpu, scale: f32, base: &[f32], eps: f32, rows: usize, m: &[f32], pre: &mut [f32]) {
    let n = base.len();
    let m = &m[..rows * n];
    for_rows(&cpu.pool, rows, n, pre, |range, pre| {
        for (row, pre) in range.zip(pre.chunks_exact_mut(n)) {
            for ((pre, m), b) in pre.iter_mut().zip(&m[row * n..]).zip(base) {
                *pre = math::sigmoid(m * scale + b) + eps;
            }
        }
    });
}

/// The end of a low-rank mix: `(1/streams) sum_j x[j] * sigmoid(up[j])`, of rows `[rows, streams, width]`.
pub fn low_rank_mixed(
    cpu: &Cpu,
    streams: usize,
    rows: usize,
    width: usize,
    x: &[f32],
    up: &[f32],
    out: &mut [f32],
) {
    struct Row<'a>(&'a [f32], &'a [f32], f32, &'a mut [f32]);
    impl Kernel for Row<'_> {
        type Out = ();
        #[inline(always)]
        fn run<L: Lanes>(self, _: L) {
            let Row(x, up, mean, out) = self;
            let width = out.len();
            out.fill(0.0);
            for (x, up) in x.chunks_exact(width).zip(up.chunks_exact(width)) {
                for ((out, x), up) in out.iter_mut().zip(x).zip(up) {
                    *out += x * math::sigmoid(*up);
                }
            }
            out.iter_mut().for_each(|out| *out *= mean);
        }
    }
    let all = streams * width;
    let (x, up) = (&x[..rows * all], &up[..rows * all]);
    for_rows(&cpu.pool, rows, width, out, |range, out| {
        for (row, out) in range.zip(out.chunks_exact_mut(width)) {
            let span = row * all..(row + 1) * all;
            cpu.level.run(Row(&x[span.clone()], &up[span], 1.0 / streams as f32, out));
        }
    });
}

/// Norms of an n-gram memory's gate.
#[derive(Debug, Clone, Copy)]
pub struct MemoryGateSpec<'a> {
    /// Streams.
    pub streams: usize,
    /// Values of a stream.
    pub width: usize,
    /// `[streams, width]`.
    pub query_norm: &'a [f32],
    /// `[streams, width]`.
    pub key_norm: &'a [f32],
    /// Added to the mean squares.
    pub eps: f32,
}

/// Gates `[rows, streams]` of a memory: with `d = (rms(h) * query_norm) . (rms(key) * key_norm) / sqrt(width)` of each stream,
/// `sigmoid(sign(d) * sqrt(max(|d|, 1e-6)))`.
///
/// # Panics
/// When lengths disagree.
pub fn memory_gate(
    cpu: &Cpu,
    spec: &MemoryGateSpec<'_>,
    rows: usize,
    h: &[f32],
    key: &[f32],
    gate: &mut [f32],
) {
    struct Stream<'a>(&'a [f32], &'a [f32], &'a [f32], &'a [f32], f32);
    impl Kernel for Stream<'_> {
        type Out = f32;
        #[inline(always)]
        fn run<L: Lanes>(self, lanes: L) -> f32 {
            let Stream(h, key, query_norm, key_norm, eps) = self;
            let (q, k) = (inverse_rms(lanes, h, eps), inverse_rms(lanes, key, eps));
            let (q, k) = (lanes.splat(q), lanes.splat(k));
            let mut chains = [lanes.splat(0.0); 4];
            for c in 0..h.len().div_ceil(WIDTH) {
                let at = c * WIDTH..h.len().min((c + 1) * WIDTH);
                let load = |v: &[f32]| lanes.load_some(&v[at.clone()]);
                let query = lanes.mul(lanes.mul(load(h), q), load(query_norm));
                let key = lanes.mul(lanes.mul(load(key), k), load(key_norm));
                chains[c % 4] = lanes.fma(query, key, chains[c % 4]);
            }
            let dot = lanes.sum(lanes.add(lanes.add(chains[0], chains[2]), lanes.add(chains[1], chains[3])));
            let d = dot / (h.len() as f32).sqrt();
            let size = if d.abs() > 1e-6 { d.abs() } else { 1e-6 };
            math::sigmoid(size.sqrt().copysign(d))
        }
    }
    let (n, width, all) = (spec.streams, spec.width, spec.streams * spec.width);
    assert!(spec.query_norm.len() == all && spec.key_norm.len() == all, "norms of {n} streams of {width}");
    assert!(
        h.len() >= rows * all && key.len() >= rows * all && gate.len() >= rows * n,
        "{rows} rows of memory"
    );
    let gate = Split::new(gate);
    cpu.pool.run(rows, |row, _| {
        // SAFETY: every row is one chunk.
        let gate = unsafe { gate.part(row * n..(row + 1) * n) };
        for (j, gate) in gate.iter_mut().enumerate() {
            let (at, norms) = (row * all + j * width, j * width..(j + 1) * width);
            let (h, key) = (&h[at..at + width], &key[at..at + width]);
            *gate = cpu.level.run(Stream(
                h,
                key,
                &spec.query_norm[norms.clone()],
                &spec.key_norm[norms],
                spec.eps,
            ));
        }
    });
}
