//! Weights as f32, equal bit for bit to ggml's definition of each type.

use crate::block_formats::{BlockFormat, Blocks};
use crate::group_formats::{Group, GroupFormat};
use crate::half::{bf16_to_f32, f16_to_f32};
use crate::join::{BLOCK, GROUP};
use crate::{WeightType, with_block_format, with_group_format};

/// Why a row could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowError {
    /// The row's width is no whole number of the type's blocks.
    Width {
        /// The type.
        ty: WeightType,
        /// Values asked for.
        values: usize,
    },
    /// There are fewer or more bytes than the width needs.
    Length {
        /// The type.
        ty: WeightType,
        /// Bytes that the width needs.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// The type does not multiply (integers, f64), or the activations are of another kind than the type needs.
    Kind {
        /// The type.
        ty: WeightType,
    },
}

impl core::fmt::Display for RowError {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            RowError::Width { ty, values } => {
                write!(
                    formatter,
                    "a row of {values} values is no whole number of {ty} blocks of {}",
                    ty.block_len()
                )
            }
            RowError::Length { ty, expected, found } => {
                write!(formatter, "a {ty} row needs {expected} bytes, not {found}")
            }
            RowError::Kind { ty } => write!(formatter, "{ty} does not multiply activations of this kind"),
        }
    }
}

impl core::error::Error for RowError {}

/// Checks that `bytes` is exactly a row of `values` values.
pub(crate) fn check_row(ty: WeightType, bytes: &[u8], values: usize) -> Result<(), RowError> {
    let expected = ty.row_bytes(values).ok_or(RowError::Width { ty, values })?;
    if bytes.len() != expected {
        return Err(RowError::Length { ty, expected, found: bytes.len() });
    }
    Ok(())
}

/// Writes the row's values; `out` decides how many there are. Integers and f64 are converted to the nearest f32.
pub fn dequantize_row(ty: WeightType, bytes: &[u8], out: &mut [f32]) -> Result<(), RowError> {
    check_row(ty, bytes, out.len())?;
    with_group_format!(ty, F => groups::<F>(bytes, out), _ =>
        with_block_format!(ty, F => blocks::<F>(bytes, out), _ => plain(ty, bytes, out)));
    Ok(())
}

fn groups<F: GroupFormat>(bytes: &[u8], out: &mut [f32]) {
    let mut group = Group::ZERO;
    for (block, values) in bytes.chunks_exact(F::TYPE.block_bytes()).zip(out.chunks_exact_mut(GROUP)) {
        F::unpack(block, &mut group);
        for (j, (values, quants)) in values.chunks_exact_mut(16).zip(group.q.chunks_exact(16)).enumerate() {
            let scale = group.d * group.scale[j] as f32;
            let min = group.dmin * group.min[j] as f32;
            for (value, quant) in values.iter_mut().zip(quants) {
                let product = scale * *quant as f32;
                *value = if F::HAS_MIN { product - min } else { product };
            }
        }
    }
}

fn blocks<F: BlockFormat>(bytes: &[u8], out: &mut [f32]) {
    let mut unpacked = Blocks::ZERO;
    for (index, values) in out.chunks_exact_mut(BLOCK).enumerate() {
        F::unpack(bytes, index, 0, &mut unpacked);
        for (l, (value, quant)) in values.iter_mut().zip(&unpacked.q).enumerate() {
            let scale = if F::SPLIT && l >= 16 { unpacked.d_second[0] } else { unpacked.d[0] };
            let product = *quant as f32 * scale;
            *value = if F::HAS_MIN { product + unpacked.m[0] } else { product };
        }
    }
}

fn plain(ty: WeightType, bytes: &[u8], out: &mut [f32]) {
    fn each<const N: usize>(bytes: &[u8], out: &mut [f32], convert: impl Fn([u8; N]) -> f32) {
        for (value, chunk) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
            *value = convert(*chunk);
        }
    }
    match ty {
        WeightType::F32 => each(bytes, out, f32::from_le_bytes),
        WeightType::F16 => each(bytes, out, |b| f16_to_f32(u16::from_le_bytes(b))),
        WeightType::BF16 => each(bytes, out, |b| bf16_to_f32(u16::from_le_bytes(b))),
        WeightType::F64 => each(bytes, out, |b| f64::from_le_bytes(b) as f32),
        WeightType::I8 => each(bytes, out, |b| i8::from_le_bytes(b) as f32),
        WeightType::I16 => each(bytes, out, |b| i16::from_le_bytes(b) as f32),
        WeightType::I32 => each(bytes, out, |b| i32::from_le_bytes(b) as f32),
        WeightType::I64 => each(bytes, out, |b| i64::from_le_bytes(b) as f32),
        _ => unreachable!("block types are handled by the caller"),
    }
}
