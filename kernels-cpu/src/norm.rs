//! RMS normalisation with a fixed reduction: 64 interleaved fma chains over a group, joined by one tree.

use crate::lanes::{Lanes, WIDTH};

/// Sum of the squares of the group's deviations from `center`; missing lanes count as no deviation.
#[inline(always)]
pub(crate) fn squares<L: Lanes>(lanes: L, x: &[f32], center: f32) -> f32 {
    let middle = lanes.splat(center);
    let mut chains = [lanes.splat(0.0); 4];
    let (blocks, rest) = x.as_chunks::<{ 4 * WIDTH }>();
    for block in blocks {
        for (chain, v) in chains.iter_mut().zip(block.as_chunks::<WIDTH>().0) {
            let v = lanes.sub(lanes.load(v), middle);
            *chain = lanes.fma(v, v, *chain);
        }
    }
    for (chain, v) in chains.iter_mut().zip(rest.chunks(WIDTH)) {
        let v = lanes.keep(lanes.sub(lanes.load_some(v), middle), 0, v.len(), 0.0);
        *chain = lanes.fma(v, v, *chain);
    }
    lanes.sum(lanes.add(lanes.add(chains[0], chains[2]), lanes.add(chains[1], chains[3])))
}

/// `1 / sqrt(mean(x^2) + eps)` of a group.
#[inline(always)]
pub(crate) fn inverse_rms<L: Lanes>(lanes: L, x: &[f32], eps: f32) -> f32 {
    1.0 / (squares(lanes, x, 0.0) / x.len() as f32 + eps).sqrt()
}

/// Normalises one row, group by group: `out = (x - mean) / sqrt(variance + eps) * weight + bias`; both repeat over the row.
#[inline(always)]
pub(crate) fn layer_norm_row<L: Lanes>(
    lanes: L,
    x: &[f32],
    weight: Option<&[f32]>,
    bias: Option<&[f32]>,
    group: usize,
    eps: f32,
    out: &mut [f32],
) {
    for (g, (x, out)) in x.chunks(group).zip(out.chunks_mut(group)).enumerate() {
        let mut sum = lanes.splat(0.0);
        for v in x.chunks(WIDTH) {
            sum = lanes.add(sum, lanes.load_some(v));
        }
        let mean = lanes.sum(sum) / x.len() as f32;
        let inverse = 1.0 / (squares(lanes, x, mean) / x.len() as f32 + eps).sqrt();
        for (i, (out, x)) in out.iter_mut().zip(x).enumerate() {
            let at = g * group + i;
            let y = (x - mean) * inverse;
            let y = weight.map_or(y, |w| y * w[at % w.len()]);
            *out = bias.map_or(y, |b| y + b[at % b.len()]);
        }
    }
}

/// Normalises one row, group by group: `out = x / rms * weight`; the weight repeats over the row. `x` and `out` have one length.
#[inline(always)]
pub(crate) fn rms_norm_row<L: Lanes>(
    lanes: L,
    x: &[f32],
    weight: Option<&[f32]>,
    group: usize,
    eps: f32,
    out: &mut [f32],
) {
    for (g, (x, out)) in x.chunks(group).zip(out.chunks_mut(group)).enumerate() {
        let inverse = inverse_rms(lanes, x, eps);
        match weight.filter(|w| !w.is_empty()) {
            None => out.iter_mut().zip(x).for_each(|(o, x)| *o = x * inverse),
            Some(w) => {
                let start = g * group % w.len();
                let w = &w[start..(start + group).min(w.len())];
                for ((o, x), w) in out.iter_mut().zip(x).zip(w) {
                    *o = (x * inverse) * w;
                }
            }
        }
    }
}

/// The same, in place.
#[inline(always)]
pub(crate) fn rms_norm_in_place<L: Lanes>(lanes: L, x: &mut [f32], weight: Option<&[f32]>, eps: f32) {
    let inverse = inverse_rms(lanes, x, eps);
    match weight {
        None => x.iter_mut().for_each(|x| *x *= inverse),
        Some(w) => x.iter_mut().zip(w).for_each(|(x, w)| *x = (*x * inverse) * w),
    }
}
