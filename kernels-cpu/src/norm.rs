//! RMS normalisation with a fixed reduction: 64 interleaved fma chains over a group, joined by one tree.

use crate::lanes::{Lanes, WIDTH};

/// `1 / sqrt(mean(x^2) + eps)` of a group.
#[inline(always)]
pub(crate) fn inverse_rms<L: Lanes>(lanes: L, x: &[f32], eps: f32) -> f32 {
    let zero = lanes.splat(0.0);
    let mut chains = [zero; 4];
    let (blocks, rest) = x.as_chunks::<{ 4 * WIDTH }>();
    for block in blocks {
        for (chain, v) in chains.iter_mut().zip(block.as_chunks::<WIDTH>().0) {
            let v = lanes.load(v);
            *chain = lanes.fma(v, v, *chain);
        }
    }
    for (chain, v) in chains.iter_mut().zip(rest.chunks(WIDTH)) {
        let v = lanes.load_some(v);
        *chain = lanes.fma(v, v, *chain);
    }
    let squares = lanes.sum(lanes.add(lanes.add(chains[0], chains[2]), lanes.add(chains[1], chains[3])));
    1.0 / (squares / x.len() as f32 + eps).sqrt()
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
