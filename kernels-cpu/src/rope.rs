//! Rotary position embedding: frequencies, tables for the rows of a step, rotation.
//!
//! Angles, cosines and sines are taken in f64 and rounded once, so long contexts lose nothing. A step computes one table for
//! each set of frequencies; every layer reads it.

/// Constants of a rotation.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSpec {
    /// Rotated values of a head.
    pub dims: usize,
    /// First rotated value of a head.
    pub offset: usize,
    /// Pairs `(i, i + dims/2)`; otherwise `(2i, 2i + 1)`.
    pub halves: bool,
    /// Rotate backwards.
    pub inverse: bool,
    /// Radians per token of each pair, `[dims/2]`.
    pub frequencies: Vec<f64>,
    /// Factor on cosine and sine.
    pub magnitude: f32,
    /// Tokens in a group: the angle is that of position `p + 1 - group`.
    pub group: usize,
}

/// YaRN's constants (Peng et al. 2023, section 3.2).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct YarnSpec {
    /// Context growth.
    pub factor: f64,
    /// Trained context.
    pub original_context: f64,
    /// Rotations over the trained context above which a pair is left alone.
    pub beta_fast: f64,
    /// Rotations below which a pair is fully interpolated.
    pub beta_slow: f64,
}

/// `theta^(-2i/dims) / linear_factor / factors[i]`, then YaRN's mix of that with its `factor`-th part.
pub fn frequencies(
    dims: usize,
    theta: f64,
    linear_factor: f64,
    factors: Option<&[f32]>,
    yarn: Option<YarnSpec>,
) -> Vec<f64> {
    let ramp = yarn.map(|y| {
        // The pair that turns `rotations` times over the trained context.
        let pair = |rotations: f64| {
            dims as f64 * (y.original_context / (rotations * 2.0 * std::f64::consts::PI)).ln()
                / (2.0 * theta.ln())
        };
        let low = pair(y.beta_fast).floor().max(0.0);
        let high = pair(y.beta_slow).ceil().min(dims as f64 - 1.0);
        (low, (high - low).max(0.001), y.factor)
    });
    (0..dims / 2)
        .map(|i| {
            let mut f = theta.powf(-2.0 * i as f64 / dims as f64) / linear_factor;
            if let Some(factor) = factors.and_then(|f| f.get(i)) {
                f /= f64::from(*factor);
            }
            match ramp {
                None => f,
                Some((low, span, factor)) => {
                    let interpolated = ((i as f64 - low) / span).clamp(0.0, 1.0);
                    f / factor * interpolated + f * (1.0 - interpolated)
                }
            }
        })
        .collect()
}

/// Cosines and sines for the rows of a step.
#[derive(Debug, Clone, Default)]
pub struct RopeTable {
    /// `[rows, dims/2]`.
    cosines: Vec<f32>,
    /// `[rows, dims/2]`, negated for an inverse rotation.
    sines: Vec<f32>,
    pairs: usize,
}

impl RopeTable {
    /// Fills the table for rows at these positions.
    pub fn fill(&mut self, spec: &RopeSpec, positions: impl Iterator<Item = usize>) {
        self.pairs = spec.frequencies.len();
        self.cosines.clear();
        self.sines.clear();
        let magnitude = f64::from(spec.magnitude);
        let sign = if spec.inverse { -magnitude } else { magnitude };
        for position in positions {
            let position = (position + 1).saturating_sub(spec.group.max(1)) as f64;
            for frequency in &spec.frequencies {
                let (sine, cosine) = (position * frequency).sin_cos();
                self.cosines.push((cosine * magnitude) as f32);
                self.sines.push((sine * sign) as f32);
            }
        }
    }

    /// The table as one array: `[rows, 2, pairs]`, a row's cosines before its sines.
    pub fn interleaved(&self) -> Vec<f32> {
        let rows = self.cosines.chunks(self.pairs.max(1)).zip(self.sines.chunks(self.pairs.max(1)));
        rows.flat_map(|(cosines, sines)| cosines.iter().chain(sines)).copied().collect()
    }

    fn row(&self, row: usize) -> (&[f32], &[f32]) {
        let at = row * self.pairs..(row + 1) * self.pairs;
        (&self.cosines[at.clone()], &self.sines[at])
    }
}

/// Rotates every head of one row in place.
#[inline(always)]
pub(crate) fn rotate_row(spec: &RopeSpec, table: &RopeTable, row: usize, head: usize, values: &mut [f32]) {
    let (cosines, sines) = table.row(row);
    for head in values.chunks_exact_mut(head) {
        rotate_head(spec, cosines, sines, head);
    }
}

#[inline(always)]
fn rotate_head(spec: &RopeSpec, cosines: &[f32], sines: &[f32], head: &mut [f32]) {
    let part = &mut head[spec.offset..spec.offset + spec.dims];
    if spec.halves {
        let (first, second) = part.split_at_mut(spec.dims / 2);
        for (((a, b), cosine), sine) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
            (*a, *b) = (*a * cosine - *b * sine, *a * sine + *b * cosine);
        }
    } else {
        for ((pair, cosine), sine) in part.as_chunks_mut::<2>().0.iter_mut().zip(cosines).zip(sines) {
            *pair = [pair[0] * cosine - pair[1] * sine, pair[0] * sine + pair[1] * cosine];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yarn_leaves_fast_pairs_and_interpolates_slow_ones() {
        let yarn = YarnSpec { factor: 4.0, original_context: 4096.0, beta_fast: 32.0, beta_slow: 1.0 };
        let plain = frequencies(64, 10_000.0, 1.0, None, None);
        let scaled = frequencies(64, 10_000.0, 1.0, None, Some(yarn));
        assert_eq!(plain[0], scaled[0]);
        assert!((plain[31] / 4.0 - scaled[31]).abs() < 1e-12);
        // floor(64 ln(4096 / 64 pi) / 2 ln 1e4) = 10, ceil(64 ln(4096 / 2 pi) / 2 ln 1e4) = 23: pair 12 is 2/13 through.
        let expected = plain[12] / 4.0 * (2.0 / 13.0) + plain[12] * (11.0 / 13.0);
        assert!((scaled[12] - expected).abs() < 1e-12);
    }

    #[test]
    fn rotation_by_hand() {
        let mut spec = RopeSpec {
            dims: 4,
            offset: 1,
            halves: true,
            inverse: false,
            frequencies: vec![1.0, 0.5],
            magnitude: 1.0,
            group: 1,
        };
        let mut table = RopeTable::default();
        table.fill(&spec, [2usize].into_iter());
        let start = [9.0f32, 1.0, 2.0, 3.0, 4.0, 8.0];
        let mut row = start;
        rotate_row(&spec, &table, 0, 6, &mut row);
        let (s2, c2) = 2f32.sin_cos();
        let (s1, c1) = 1f32.sin_cos();
        let expected = [9.0, c2 - 3.0 * s2, 2.0 * c1 - 4.0 * s1, s2 + 3.0 * c2, 2.0 * s1 + 4.0 * c1, 8.0];
        for (a, b) in row.iter().zip(expected) {
            assert!((a - b).abs() < 1e-6, "{row:?}");
        }
        spec.inverse = true;
        table.fill(&spec, [2usize].into_iter());
        rotate_row(&spec, &table, 0, 6, &mut row);
        for (a, b) in row.iter().zip(start) {
            assert!((a - b).abs() < 1e-6, "{row:?}");
        }
    }
}
