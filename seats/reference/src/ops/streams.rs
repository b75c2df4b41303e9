//! Residual streams: hyper-connections (Zhu et al. 2024), their Sinkhorn-normalised form and the gated low-rank form.

use super::linear::dot;
use super::norm::rms_norm;
use super::pointwise::sigmoid;

/// `sum_j pre[j] * h[j]`, or the mean of the streams without `pre`.
pub fn collapse(h: &[f32], pre: Option<&[f32]>, width: usize, out: &mut [f32]) {
    let streams = h.len() / width;
    out.fill(0.0);
    for (j, h) in h.chunks_exact(width).enumerate() {
        let factor = pre.map_or(1.0 / streams as f32, |p| p[j]);
        out.iter_mut().zip(h).for_each(|(out, h)| *out += factor * h);
    }
}

/// `out[d] = post[d] * y + sum_s comb[s][d] * h[s]`; without `comb` each stream keeps itself: `post[d] * y + h[d]`.
pub fn combine(h: &[f32], y: &[f32], post: &[f32], comb: Option<&[f32]>, out: &mut [f32]) {
    let (width, streams) = (y.len(), post.len());
    for (d, out) in out.chunks_exact_mut(width).enumerate() {
        for (i, out) in out.iter_mut().enumerate() {
            let kept = match comb {
                None => h[d * width + i],
                Some(comb) => (0..streams).map(|s| comb[s * streams + d] * h[s * width + i]).sum(),
            };
            *out = post[d] * y[i] + kept;
        }
    }
}

/// `out[j] = gate[j] * value`.
pub fn scale(value: &[f32], gate: &[f32], out: &mut [f32]) {
    for (out, gate) in out.chunks_exact_mut(value.len()).zip(gate) {
        out.iter_mut().zip(value).for_each(|(out, v)| *out = gate * v);
    }
}

/// Hyper-connection coefficients from the projection `m = fn . rms(flat h)`, `[(2 + streams) * streams]`.
///
/// `pre = sigmoid(m s0 + b) + eps`, `post = 2 sigmoid(m s1 + b)`, `comb[source][target]` from the rest: softmax over
/// targets, `+ eps`, then columns and rows divided by their sums in turn, `iterations` rounds in all.
#[allow(clippy::too_many_arguments)]
pub fn hyper_mix(
    m: &[f32],
    scale: &[f32],
    base: &[f32],
    iterations: usize,
    eps: f32,
    pre: &mut [f32],
    post: &mut [f32],
    comb: &mut [f32],
) {
    let n = pre.len();
    for j in 0..n {
        pre[j] = sigmoid(m[j] * scale[0] + base[j]) + eps;
        post[j] = 2.0 * sigmoid(m[n + j] * scale[1] + base[n + j]);
    }
    for (i, c) in comb.iter_mut().enumerate() {
        *c = m[2 * n + i] * scale[2] + base[2 * n + i];
    }
    // Round 1: softmax of every source row, then columns.
    for row in comb.chunks_exact_mut(n) {
        super::plain::softmax(row);
        row.iter_mut().for_each(|c| *c += eps);
    }
    divide_columns(comb, n, eps);
    for _ in 1..iterations {
        for row in comb.chunks_exact_mut(n) {
            let sum = row.iter().sum::<f32>() + eps;
            row.iter_mut().for_each(|c| *c /= sum);
        }
        divide_columns(comb, n, eps);
    }
}

fn divide_columns(comb: &mut [f32], n: usize, eps: f32) {
    for target in 0..n {
        let sum = (0..n).map(|source| comb[source * n + target]).sum::<f32>() + eps;
        (0..n).for_each(|source| comb[source * n + target] /= sum);
    }
}

/// Collapse weights of the head from `m = fn . rms(flat h)`, `[streams]`: `sigmoid(m s + b) + eps`.
pub fn hyper_head(m: &[f32], scale: f32, base: &[f32], eps: f32, pre: &mut [f32]) {
    for (pre, (m, b)) in pre.iter_mut().zip(m.iter().zip(base)) {
        *pre = sigmoid(m * scale + b) + eps;
    }
}

/// The mean over streams of `n_j * sigmoid(up_j)`: the end of the low-rank mix, `n` and `up` `[streams, width]`.
pub fn low_rank_mixed(n: &[f32], up: &[f32], out: &mut [f32]) {
    let streams = n.len() / out.len();
    out.fill(0.0);
    for (n, up) in n.chunks_exact(out.len()).zip(up.chunks_exact(out.len())) {
        for (out, (n, up)) in out.iter_mut().zip(n.iter().zip(up)) {
            *out += n * sigmoid(*up) / streams as f32;
        }
    }
}

/// Gates of an n-gram memory, one for a stream: with `d = rms(h) q . rms(key) k / sqrt(width)`, the gate is
/// `sigmoid(sign(d) sqrt(max(|d|, 1e-6)))`.
pub fn memory_gate(
    h: &[f32],
    key: &[f32],
    query_norm: &[f32],
    key_norm: &[f32],
    width: usize,
    eps: f32,
    gate: &mut [f32],
) {
    let (mut q, mut k) = (vec![0.0; h.len()], vec![0.0; h.len()]);
    rms_norm(h, Some(query_norm), width, eps, &mut q);
    rms_norm(key, Some(key_norm), width, eps, &mut k);
    for ((q, k), gate) in q.chunks_exact(width).zip(k.chunks_exact(width)).zip(gate) {
        let d = dot(q, k) / (width as f32).sqrt();
        *gate = sigmoid(d.abs().max(1e-6).sqrt().copysign(d));
    }
}
