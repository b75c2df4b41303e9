//! Layouts that host and kernels share.

use crate::error::GpuError;
use crate::memory::Buffer;
use bloomery_formats::ActivationKind;

/// Tokens of a page of the key-value store.
pub const PAGE_TOKENS: u64 = 32;

/// Where the arrays of quantised rows lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantized {
    /// int8, or f32 for weights that are floats.
    pub quants: Buffer,
    /// f32.
    pub scales: Buffer,
    /// i16.
    pub sums: Buffer,
}

/// Bytes of the arrays of one row: quants, scales, sums.
#[must_use]
pub fn quantized_row(kind: ActivationKind, width: usize) -> [u64; 3] {
    let groups = width.div_ceil(256) as u64;
    match kind {
        ActivationKind::Q8K => [256 * groups, 4 * groups, 32 * groups],
        ActivationKind::Q8Block32 => [256 * groups, 32 * groups, 32 * groups],
        ActivationKind::F32 => [4 * width as u64, 0, 0],
    }
}

/// Bytes of `rows` quantised rows.
#[must_use]
pub fn quantized_bytes(kind: ActivationKind, width: usize, rows: usize) -> u64 {
    quantized_row(kind, width).iter().map(|bytes| (bytes * rows as u64).next_multiple_of(256)).sum()
}

/// The arrays of `rows` quantised rows in memory of [`quantized_bytes`].
///
/// # Errors
/// The memory is too small.
pub fn quantized(
    memory: Buffer,
    kind: ActivationKind,
    width: usize,
    rows: usize,
) -> Result<Quantized, GpuError> {
    let [quants, scales, sums] = quantized_row(kind, width).map(|bytes| bytes * rows as u64);
    let at_scales = quants.next_multiple_of(256);
    let at_sums = at_scales + scales.next_multiple_of(256);
    Ok(Quantized {
        quants: memory.part(0, quants)?,
        scales: memory.part(at_scales, scales)?,
        sums: memory.part(at_sums, sums)?,
    })
}

/// There is an attention kernel for heads of this size.
#[must_use]
pub fn has_head_size(key: usize, value: usize) -> bool {
    key <= 512 && value <= 512
}

/// There is a router kernel for this choice.
#[must_use]
pub fn has_router(experts: usize, used: usize) -> bool {
    experts <= 1024 && used <= 32
}
