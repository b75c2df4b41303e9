//! Norms over groups of a row. A weight that is shorter than the row repeats.

use super::pointwise::apply;
use bloomery_program::op::Function;

/// `x / sqrt(mean(x^2) + eps) * weight` over groups of `group` values (Zhang and Sennrich 2019).
pub fn rms_norm(x: &[f32], weight: Option<&[f32]>, group: usize, eps: f32, out: &mut [f32]) {
    for (x, out) in x.chunks_exact(group).zip(out.chunks_exact_mut(group)) {
        let mean_square = x.iter().map(|v| v * v).sum::<f32>() / group as f32;
        let factor = 1.0 / (mean_square + eps).sqrt();
        for (out, v) in out.iter_mut().zip(x) {
            *out = v * factor;
        }
    }
    multiply(out, weight);
}

/// `(x - mean) / sqrt(variance + eps) * weight + bias` over groups of `group` values (Ba et al. 2016).
pub fn layer_norm(
    x: &[f32],
    weight: Option<&[f32]>,
    bias: Option<&[f32]>,
    group: usize,
    eps: f32,
    out: &mut [f32],
) {
    for (x, out) in x.chunks_exact(group).zip(out.chunks_exact_mut(group)) {
        let mean = x.iter().sum::<f32>() / group as f32;
        let variance = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f32>() / group as f32;
        let factor = 1.0 / (variance + eps).sqrt();
        for (out, v) in out.iter_mut().zip(x) {
            *out = (v - mean) * factor;
        }
    }
    multiply(out, weight);
    if let Some(bias) = bias {
        for (out, b) in out.iter_mut().zip(bias.iter().cycle()) {
            *out += b;
        }
    }
}

/// `x / sqrt(sum(x^2) + eps)` over groups of `group` values.
pub fn l2_norm(x: &[f32], group: usize, eps: f32, out: &mut [f32]) {
    for (x, out) in x.chunks_exact(group).zip(out.chunks_exact_mut(group)) {
        let factor = 1.0 / (x.iter().map(|v| v * v).sum::<f32>() + eps).sqrt();
        for (out, v) in out.iter_mut().zip(x) {
            *out = v * factor;
        }
    }
}

/// `rms_norm(x) * weight * function(gate)`.
pub fn gated_rms_norm(
    x: &[f32],
    gate: &[f32],
    weight: Option<&[f32]>,
    group: usize,
    eps: f32,
    function: Function,
    out: &mut [f32],
) {
    rms_norm(x, weight, group, eps, out);
    for (out, g) in out.iter_mut().zip(gate) {
        *out *= apply(function, *g);
    }
}

fn multiply(out: &mut [f32], weight: Option<&[f32]>) {
    if let Some(weight) = weight {
        for (out, w) in out.iter_mut().zip(weight.iter().cycle()) {
            *out *= w;
        }
    }
}
