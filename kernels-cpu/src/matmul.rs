//! Products of weight matrices with rows of activations.
//!
//! `out[i][n] = dot(weights[n], activations[i])`, each value the exact dot product of the formats crate: the same bits for one row or a hundred, at
//! every level, for any split of the weight rows between threads. Weights are read in the file's own layout; nothing is repacked ahead.

use crate::activations::Activations;
use crate::aligned::Aligned;
use crate::level::{Kind, Level};
use crate::matrix::{MatmulError, Matrix, check_range};
use crate::output::OutTile;
use bloomery_formats::{ActivationRow, WeightType, bf16_to_f32, dot_blocks, dot_f32, dot_groups, f16_to_f32};
use bloomery_formats::{with_block_format, with_group_format};
use drive::Job;
use std::ops::Range;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod block_decode;
#[cfg(target_arch = "x86_64")]
mod by_row;
#[cfg(target_arch = "x86_64")]
mod by_row_groups;
mod direct;
#[cfg(target_arch = "x86_64")]
mod dispatch;
mod drive;
#[cfg(target_arch = "x86_64")]
mod float;
#[cfg(target_arch = "x86_64")]
mod group_decode;
mod lanes;
mod micro;
mod row_group;
mod tile;
#[cfg(target_arch = "x86_64")]
mod unpack;
#[cfg(target_arch = "x86_64")]
mod wide;

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

/// Memory that one thread's products need; keep one per thread. At most about 100 kB.
#[derive(Default)]
pub struct Scratch {
    tiles: Aligned<u8>,
    sums: Aligned<f32>,
    spare: Aligned<u8>,
}

impl Scratch {
    /// Room for tiles, for partial sums and for incomplete groups; contents are whatever an earlier product left.
    #[inline(always)]
    fn parts<T: tile::Tile>(&mut self, tiles: usize, sums: usize) -> (&mut [T], &mut [f32], &mut [u8]) {
        if self.tiles.len() < tiles * size_of::<T>() {
            self.tiles.resize(tiles * size_of::<T>());
        }
        if self.sums.len() < sums {
            self.sums.resize(sums);
        }
        self.spare.resize(drive::SPARE_BYTES);
        const { assert!(align_of::<T>() <= 64) };
        // SAFETY: the bytes are initialised, aligned to 64 and enough for `tiles` tiles; any bit pattern is a tile.
        let tiles = unsafe { std::slice::from_raw_parts_mut(self.tiles.as_mut_ptr().cast::<T>(), tiles) };
        (tiles, &mut self.sums, &mut self.spare)
    }
}

/// `out[i][n - weight_rows.start] = dot(weights[n], activations[activation_rows[i]])` for n in `weight_rows`.
///
/// `out` is `[activation_rows.len(), weight_rows.len()]`. Fastest when `weight_rows` starts at a multiple of 16.
pub fn matmul(
    level: Level,
    weights: &Matrix<'_>,
    weight_rows: Range<usize>,
    activations: &Activations,
    activation_rows: Rows<'_>,
    out: &mut OutTile<'_>,
    scratch: &mut Scratch,
) -> Result<(), MatmulError> {
    check(weights, &weight_rows, activations, &activation_rows, out)?;
    if weight_rows.is_empty() || activation_rows.is_empty() {
        return Ok(());
    }
    let job = Job { weights, weight_rows, activations, activation_rows };
    match level.kind() {
        Kind::Scalar => define(&job, out),
        // SAFETY: a `Level` of this kind exists only where the instruction set was detected.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => unsafe { dispatch::avx2(&job, out, scratch) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => unsafe { dispatch::avx512_vnni(&job, out, scratch) },
    }
    Ok(())
}

/// The definition, value by value.
fn define(job: &Job<'_>, out: &mut OutTile<'_>) {
    for index in 0..job.activation_rows.len() {
        let row = job.activations.row(job.activation_rows.get(index));
        for (value, n) in out.row_mut(index).iter_mut().zip(job.weight_rows.clone()) {
            *value = scalar_dot(job.weights.ty(), job.weights.row(n), row);
        }
    }
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
