//! Products of weight matrices with rows of activations.
//!
//! `out[i][n] = dot(weights[n], activations[i])`, each value the exact dot product of the formats crate: the same bits for one row or a hundred, at
//! every level, for any split of the weight rows between threads. Weights are read in the file's own layout; nothing is repacked ahead.

use crate::activations::Activations;
use crate::matrix::{MatmulError, Matrix, check_range};
use crate::output::OutTile;
use crate::simd::Simd;
use bloomery_formats::{ActivationRow, WeightType, bf16_to_f32, dot_blocks, dot_f32, dot_groups, f16_to_f32};
use bloomery_formats::{with_block_format, with_group_format};
use std::ops::Range;

/// Which rows of the activations are multiplied; output row i belongs to the i-th of them.
#[derive(Debug, Clone)]
pub enum Rows<'a> {
    /// Consecutive rows.
    Range(Range<usize>),
    /// Gathered rows, as of one expert.
    List(&'a [u32]),
}

impl Rows<'_> {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Rows::Range(range) => range.len(),
            Rows::List(list) => list.len(),
        }
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    #[inline(always)]
    pub(crate) fn get(&self, index: usize) -> usize {
        match self {
            Rows::Range(range) => range.start + index,
            Rows::List(list) => list[index] as usize,
        }
    }
}

/// Memory that one thread's products need; keep one per thread. At most about 1 MB.
#[derive(Default)]
pub struct Scratch {}

/// `out[i][n - weight_rows.start] = dot(weights[n], activations[activation_rows[i]])` for n in `weight_rows`.
///
/// `out` is `[activation_rows.len(), weight_rows.len()]`. Fastest when `weight_rows` starts at a multiple of 16.
pub fn matmul(
    simd: Simd,
    weights: &Matrix<'_>,
    weight_rows: Range<usize>,
    activations: &Activations,
    activation_rows: Rows<'_>,
    out: &mut OutTile<'_>,
    scratch: &mut Scratch,
) -> Result<(), MatmulError> {
    check(weights, &weight_rows, activations, &activation_rows, out)?;
    let _ = (simd, scratch);
    for index in 0..activation_rows.len() {
        let row = activations.row(activation_rows.get(index));
        for (value, n) in out.row_mut(index).iter_mut().zip(weight_rows.clone()) {
            *value = scalar_dot(weights.ty(), weights.row(n), row);
        }
    }
    Ok(())
}

fn check(
    weights: &Matrix<'_>,
    weight_rows: &Range<usize>,
    activations: &Activations,
    activation_rows: &Rows<'_>,
    out: &OutTile<'_>,
) -> Result<(), MatmulError> {
    if activations.kind() != weights.activation_kind() || activations.cols() != weights.cols() {
        return Err(MatmulError::Activations {
            ty: weights.ty(),
            cols: weights.cols(),
            expected: weights.activation_kind(),
            found: activations.kind(),
            width: activations.cols(),
        });
    }
    check_range("weight row", weight_rows, weights.rows())?;
    match activation_rows {
        Rows::Range(range) => check_range("activation row", range, activations.rows())?,
        Rows::List(list) => {
            if let Some(row) = list.iter().find(|row| **row as usize >= activations.rows()) {
                return Err(MatmulError::Range {
                    what: "activation row",
                    index: *row as usize,
                    len: activations.rows(),
                });
            }
        }
    }
    if out.rows() != activation_rows.len() || out.cols() != weight_rows.len() {
        return Err(MatmulError::Output {
            rows: activation_rows.len(),
            cols: weight_rows.len(),
            found_rows: out.rows(),
            found_cols: out.cols(),
        });
    }
    Ok(())
}

/// The definition, without checks that `check` made.
fn scalar_dot(ty: WeightType, weights: &[u8], row: ActivationRow<'_>) -> f32 {
    match row {
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
    }
}
