//! The dot product of a weight row with an activation row: the scalar definition that every kernel equals bit for bit.

use crate::block_formats::{BlockFormat, Blocks};
use crate::dequantize::{RowError, check_row};
use crate::float::fma;
use crate::group_formats::{Group, GroupFormat};
use crate::half::{bf16_to_f32, f16_to_f32};
use crate::join::{
    BLOCK, GROUP, block_term, block_term_split, block_term_with_min, group_value, group_value_with_min,
    join_tree,
};
use crate::{ActivationKind, WeightType, with_block_format, with_group_format};

/// One row of activations. `qs` has the row's width; `sums[j]` is the sum of the 16 quants from 16 j.
#[derive(Debug, Clone, Copy)]
pub enum ActivationRow<'a> {
    /// One scale per 256 values.
    Q8K {
        /// Quants.
        qs: &'a [i8],
        /// Scales per 256.
        scales: &'a [f32],
        /// Sums per 16.
        sums: &'a [i16],
    },
    /// One scale per 32 values.
    Q8Block32 {
        /// Quants.
        qs: &'a [i8],
        /// Scales per 32.
        scales: &'a [f32],
        /// Sums per 16.
        sums: &'a [i16],
    },
    /// Values as they are.
    F32(&'a [f32]),
}

impl ActivationRow<'_> {
    /// Values in the row.
    pub fn width(&self) -> usize {
        match self {
            ActivationRow::Q8K { qs, .. } | ActivationRow::Q8Block32 { qs, .. } => qs.len(),
            ActivationRow::F32(values) => values.len(),
        }
    }

    /// How the row is quantised.
    pub fn kind(&self) -> ActivationKind {
        match self {
            ActivationRow::Q8K { .. } => ActivationKind::Q8K,
            ActivationRow::Q8Block32 { .. } => ActivationKind::Q8Block32,
            ActivationRow::F32(_) => ActivationKind::F32,
        }
    }
}

/// The dot product of a weight row (its bytes as in the file) with an activation row of the kind that the type needs.
pub fn dot(ty: WeightType, weights: &[u8], activation: ActivationRow<'_>) -> Result<f32, RowError> {
    check_row(ty, weights, activation.width())?;
    if ty.activation_kind() != Some(activation.kind()) {
        return Err(RowError::Kind { ty });
    }
    Ok(match activation {
        ActivationRow::Q8K { qs, scales, sums } => {
            with_group_format!(ty, F => dot_groups::<F>(weights, qs, scales, sums), _ => unreachable!("kind was checked"))
        }
        ActivationRow::Q8Block32 { qs, scales, sums } => {
            with_block_format!(ty, F => dot_blocks::<F>(weights, qs, scales, sums), _ => unreachable!("kind was checked"))
        }
        ActivationRow::F32(values) => match ty {
            WeightType::F32 => dot_f32::<4>(weights, values, f32::from_le_bytes),
            WeightType::F16 => dot_f32::<2>(weights, values, |bytes| f16_to_f32(u16::from_le_bytes(bytes))),
            _ => dot_f32::<2>(weights, values, |bytes| bf16_to_f32(u16::from_le_bytes(bytes))),
        },
    })
}

/// Row of a K-, I- or ternary type: `scales` per 256, `sums` per 16 values.
#[inline(always)]
pub fn dot_groups<F: GroupFormat>(weights: &[u8], qs: &[i8], scales: &[f32], sums: &[i16]) -> f32 {
    let mut group = Group::ZERO;
    let mut row = 0.0f32;
    let blocks = weights.chunks_exact(F::TYPE.block_bytes());
    for ((block, qs), (da, sums)) in
        blocks.zip(qs.chunks_exact(GROUP)).zip(scales.iter().zip(sums.chunks_exact(16)))
    {
        F::unpack(block, &mut group);
        let (mut isum, mut msum) = (0i32, 0i32);
        for j in 0..16 {
            let mut part = 0i32;
            for (quant, activation) in group.q[16 * j..][..16].iter().zip(&qs[16 * j..][..16]) {
                part += *quant as i32 * *activation as i32;
            }
            isum += group.scale[j] as i32 * part;
            msum += group.min[j] as i32 * sums[j] as i32;
        }
        row += if F::HAS_MIN {
            group_value_with_min(group.d, isum, group.dmin, msum, *da)
        } else {
            group_value(group.d, isum, *da)
        };
    }
    row
}

/// Row of a 32-block type: `scales` per 32, `sums` per 16 values.
#[inline(always)]
pub fn dot_blocks<F: BlockFormat>(weights: &[u8], qs: &[i8], scales: &[f32], sums: &[i16]) -> f32 {
    let mut unpacked = Blocks::ZERO;
    let mut row = 0.0f32;
    for first in (0..qs.len() / BLOCK).step_by(8) {
        let mut terms = [0.0f32; 8];
        for (slot, term) in terms.iter_mut().enumerate().take(qs.len() / BLOCK - first) {
            let index = first + slot;
            F::unpack(weights, index, 0, &mut unpacked);
            let activations = &qs[BLOCK * index..][..BLOCK];
            let mut halves = [0i32; 2];
            for (l, (quant, activation)) in unpacked.q.iter().zip(activations).enumerate() {
                halves[l / 16] += *quant as i32 * *activation as i32;
            }
            let (d, da) = (unpacked.d[0], scales[index]);
            *term = if F::SPLIT {
                block_term_split(d, halves[0], unpacked.d_second[0], halves[1], da)
            } else if F::HAS_MIN {
                let sa = da * (sums[2 * index] as i32 + sums[2 * index + 1] as i32) as f32;
                block_term_with_min(d, halves[0] + halves[1], da, unpacked.m[0], sa)
            } else {
                block_term(d, halves[0] + halves[1], da)
            };
        }
        row += join_tree(&terms);
    }
    row
}

/// Row of float weights: within each group of 256, value i goes to fma chain i mod 8, from +0, in ascending order; a chain's missing
/// last value counts as zero times zero. The chains are joined by the tree.
#[inline(always)]
pub fn dot_f32<const N: usize>(weights: &[u8], values: &[f32], convert: impl Fn([u8; N]) -> f32) -> f32 {
    let mut row = 0.0f32;
    let weights = weights.as_chunks::<N>().0;
    for (weights, values) in weights.chunks(GROUP).zip(values.chunks(GROUP)) {
        let mut chains = [0.0f32; 8];
        for (weights, values) in weights.chunks(8).zip(values.chunks(8)) {
            for (lane, chain) in chains.iter_mut().enumerate() {
                *chain = match (weights.get(lane), values.get(lane)) {
                    (Some(weight), Some(value)) => fma(convert(*weight), *value, *chain),
                    _ => fma(0.0, 0.0, *chain),
                };
            }
        }
        row += join_tree(&chains);
    }
    row
}
