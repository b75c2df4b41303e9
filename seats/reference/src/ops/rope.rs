//! Rotary position embedding (Su et al. 2021), with YaRN (Peng et al. 2023).

use bloomery_program::op::{Pairing, Rope};

/// Angle per position for every pair: `theta^(-2i/dims)`, divided by the linear factor and the pair's own factor, and
/// blended by YaRN.
pub fn frequencies(rope: &Rope, freq_factors: Option<&[f32]>) -> Vec<f64> {
    let dims = f64::from(rope.dims);
    let theta = f64::from(rope.theta);
    let pairs = (rope.dims / 2) as usize;
    (0..pairs)
        .map(|i| {
            let own = freq_factors.map_or(1.0, |f| f64::from(f[i]));
            let base = theta.powf(-2.0 * i as f64 / dims) / own;
            let interpolated = base / f64::from(rope.linear_factor);
            let Some(yarn) = rope.yarn else { return interpolated };
            // The pair that turns `beta` times over the trained context.
            let pair_of = |beta: f32| {
                let turns = f64::from(yarn.original_context) / (f64::from(beta) * 2.0 * std::f64::consts::PI);
                dims * turns.ln() / (2.0 * theta.ln())
            };
            let low = pair_of(yarn.beta_fast).floor().max(0.0);
            let high = pair_of(yarn.beta_slow).ceil().min(dims - 1.0);
            // 0 for fast pairs, which stay as they are; 1 for slow pairs, which are stretched over the new context.
            let ramp = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            interpolated / f64::from(yarn.factor) * ramp + interpolated * (1.0 - ramp)
        })
        .collect()
}

/// Rotates `dims` values of every head of a row at a position.
pub fn rope(x: &[f32], rope: &Rope, frequencies: &[f64], position: usize, out: &mut [f32]) {
    let (head, offset, pairs) = (rope.head as usize, rope.offset as usize, (rope.dims / 2) as usize);
    // A row that completes a group of tokens takes the group's first position.
    let position = (position + 1).saturating_sub(rope.group as usize) as f64;
    let magnitude = rope.yarn.map_or(1.0, |y| f64::from(y.magnitude));
    out.copy_from_slice(x);
    for (i, frequency) in frequencies.iter().enumerate() {
        let angle = frequency * position;
        let cos = (angle.cos() * magnitude) as f32;
        let sin = (angle.sin() * magnitude) as f32;
        let sin = if rope.inverse { -sin } else { sin };
        let (a, b) = match rope.pairing {
            Pairing::Halves => (offset + i, offset + i + pairs),
            Pairing::Adjacent => (offset + 2 * i, offset + 2 * i + 1),
        };
        for (x, out) in x.chunks_exact(head).zip(out.chunks_exact_mut(head)) {
            out[a] = x[a] * cos - x[b] * sin;
            out[b] = x[a] * sin + x[b] * cos;
        }
    }
}
