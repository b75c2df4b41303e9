//! Operators with a rolling state.

use super::linear::dot;
use super::pointwise::{apply, sigmoid, softplus};
use bloomery_program::op::{Decay, Function, GatedDelta, HeadMap};

/// Causal depthwise convolution of one row: `out[c] = f(sum_k weight[c][k] * rows[k][c] + bias[c])`. `rows` holds the
/// row that each tap meets, the current one last; `weight` is `[width, taps]`.
pub fn causal_conv(
    rows: &[&[f32]],
    weight: &[f32],
    bias: Option<&[f32]>,
    function: Option<Function>,
    out: &mut [f32],
) {
    let taps = rows.len();
    for (c, out) in out.iter_mut().enumerate() {
        let mut sum = bias.map_or(0.0, |b| b[c]);
        for (k, row) in rows.iter().enumerate() {
            sum += weight[c * taps + k] * row[c];
        }
        *out = function.map_or(sum, |f| apply(f, sum));
    }
}

/// Operands and tensors of [`gated_delta`] for one row.
#[derive(Debug, Clone, Copy)]
pub struct DeltaRow<'a> {
    /// `[key_heads, key]`.
    pub q: &'a [f32],
    /// `[key_heads, key]`.
    pub k: &'a [f32],
    /// `[value_heads, value]`.
    pub v: &'a [f32],
    /// `[value_heads]` or `[value_heads, key]`: the bare projection.
    pub decay: &'a [f32],
    /// `[value_heads]`, between 0 and 1.
    pub beta: &'a [f32],
    /// `[value_heads]`, negative.
    pub a: &'a [f32],
    /// As `decay`.
    pub dt: &'a [f32],
}

/// One step of the gated delta rule (Yang et al. 2024; per channel: Kimi team 2025), recurrent form. For every value
/// head, with its state S `[key, value]`:
///
/// `S = exp(g) S; d = beta (v - S^T k); S = S + k d^T; out = S^T q`.
pub fn gated_delta(d: &GatedDelta, row: DeltaRow<'_>, state: &mut [f32], out: &mut [f32]) {
    let (key, value) = (d.key as usize, d.value as usize);
    let (key_heads, value_heads) = (d.key_heads as usize, d.value_heads as usize);
    for head in 0..value_heads {
        let state = &mut state[head * key * value..(head + 1) * key * value];
        let key_head = match d.head_map {
            HeadMap::Tiled => head % key_heads,
            HeadMap::Grouped => head / (value_heads / key_heads),
        };
        // 1. Query and key, normalised if asked for; the factor is the query's.
        let span = key_head * key..(key_head + 1) * key;
        let unit = |x: &[f32]| d.l2_eps.map_or(1.0, |eps| 1.0 / (dot(x, x) + eps).sqrt());
        let q_factor = unit(&row.q[span.clone()]) * d.scale;
        let k_factor = unit(&row.k[span.clone()]);
        let q: Vec<f32> = row.q[span.clone()].iter().map(|x| x * q_factor).collect();
        let k: Vec<f32> = row.k[span].iter().map(|x| x * k_factor).collect();
        // 2. Decay.
        let logarithm = |channel: usize| {
            let (i, a) = match d.decay {
                Decay::ScalarSoftplus {} => (head, row.a[head]),
                _ => (head * key + channel, row.a[head]),
            };
            let x = row.decay[i] + row.dt[i];
            match d.decay {
                Decay::ScalarSoftplus {} | Decay::ChannelSoftplus {} => a * softplus(x),
                Decay::ChannelSigmoid { lower_bound } => lower_bound * sigmoid(-a * x),
            }
        };
        for (channel, s) in state.chunks_exact_mut(value).enumerate() {
            let factor = logarithm(channel).exp();
            s.iter_mut().for_each(|s| *s *= factor);
        }
        // 3. What the state answers for k, and the correction.
        let mut delta = row.v[head * value..(head + 1) * value].to_vec();
        for (k, s) in k.iter().zip(state.chunks_exact(value)) {
            delta.iter_mut().zip(s).for_each(|(d, s)| *d -= k * s);
        }
        delta.iter_mut().for_each(|d| *d *= row.beta[head]);
        // 4. Learn it, then ask with q.
        let out = &mut out[head * value..(head + 1) * value];
        out.fill(0.0);
        for ((k, q), s) in k.iter().zip(&q).zip(state.chunks_exact_mut(value)) {
            for ((s, d), out) in s.iter_mut().zip(&delta).zip(out.iter_mut()) {
                *s += k * d;
                *out += q * *s;
            }
        }
    }
}
