//! A few activation rows times 32-value blocks, one weight row after the other.
//!
//! The tiles read sixteen weight rows side by side and turn them by ninety degrees. For a large matrix and few activation rows that turning
//! costs more than the memory; here a weight row is read front to back, as the hardware prefetcher likes it, and the eight block
//! sums of a group end in the eight lanes of one register. Integers in between, so the bits are the tiles' bits.

use super::drive::Job;
use super::float::join;
use crate::output::OutTile;
use bloomery_formats::WeightType;
use std::arch::x86_64::*;

/// Up to how many activation rows this is the faster way.
pub(crate) const MOST_ROWS: usize = 4;
const GROUP: usize = 256;
const BLOCK: usize = 32;

/// A type whose blocks are an f16 scale and signed values.
pub(crate) trait SignedBlock {
    const TYPE: WeightType;
    /// The 32 values of a block.
    ///
    /// # Safety
    /// The machine has AVX2.
    unsafe fn values(block: &[u8]) -> __m256i;
}

pub(crate) struct Q8_0;
impl SignedBlock for Q8_0 {
    const TYPE: WeightType = WeightType::Q8_0;
    #[inline(always)]
    unsafe fn values(block: &[u8]) -> __m256i {
        let bytes = &block[2..34];
        // SAFETY: 32 bytes are readable; the caller has AVX2.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }
}

pub(crate) struct Q5_0;
impl SignedBlock for Q5_0 {
    const TYPE: WeightType = WeightType::Q5_0;
    #[inline(always)]
    unsafe fn values(block: &[u8]) -> __m256i {
        let top = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
        let bytes = &block[6..22];
        // SAFETY: 16 bytes are readable; the caller has AVX2.
        unsafe {
            let nibbles = _mm_loadu_si128(bytes.as_ptr().cast());
            let both = _mm256_set_m128i(_mm_srli_epi16::<4>(nibbles), nibbles);
            let low = _mm256_and_si256(both, _mm256_set1_epi8(15));
            // Byte i of `top` in each of the eight bytes that its bits belong to; a value without its fifth bit is 16 less.
            let order = _mm256_set_epi64x(
                0x0303_0303_0303_0303,
                0x0202_0202_0202_0202,
                0x0101_0101_0101_0101,
                0x0000_0000_0000_0000,
            );
            let bits = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            let top = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(top as i32), order), bits);
            let missing = _mm256_cmpeq_epi8(top, _mm256_setzero_si256());
            _mm256_or_si256(low, _mm256_and_si256(missing, _mm256_set1_epi8(-16)))
        }
    }
}

/// Eight sums of four products each: `weights` any bytes, `quants` at least -127.
///
/// # Safety
/// The machine has AVX2, and with `VNNI` AVX-512 VL and VNNI.
#[inline(always)]
unsafe fn dot4<const VNNI: bool>(weights: __m256i, quants: __m256i) -> __m256i {
    // SAFETY: register arithmetic of what the caller has.
    unsafe {
        // |w| is at most 128, so two products stay below 32768.
        let (weights, quants) = (_mm256_abs_epi8(weights), _mm256_sign_epi8(quants, weights));
        if VNNI {
            _mm256_dpbusd_epi32(_mm256_setzero_si256(), weights, quants)
        } else {
            _mm256_madd_epi16(_mm256_maddubs_epi16(weights, quants), _mm256_set1_epi16(1))
        }
    }
}

/// The lane sums of eight registers, in the order of the registers.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn lane_sums(d: [__m256i; 8]) -> __m256i {
    // SAFETY: register arithmetic of AVX2.
    unsafe {
        let first = _mm256_hadd_epi32(_mm256_hadd_epi32(d[0], d[1]), _mm256_hadd_epi32(d[2], d[3]));
        let last = _mm256_hadd_epi32(_mm256_hadd_epi32(d[4], d[5]), _mm256_hadd_epi32(d[6], d[7]));
        _mm256_add_epi32(
            _mm256_permute2x128_si256::<0x20>(first, last),
            _mm256_permute2x128_si256::<0x31>(first, last),
        )
    }
}

/// The group value of `blocks` blocks (fewer than eight only in the last group of a row) for each of `N` activation rows.
///
/// # Safety
/// As for [`product`].
#[inline(always)]
unsafe fn group<D: SignedBlock, const N: usize, const VNNI: bool>(
    blocks: &[u8],
    quants: &[&[i8]; N],
    scales: &[&[f32]; N],
    start: usize,
) -> [f32; N] {
    let bytes = D::TYPE.block_bytes();
    let count = blocks.len() / bytes;
    // SAFETY: register arithmetic of what the caller has; loads go through checked slices.
    unsafe {
        let mut weights = [_mm256_setzero_si256(); 8];
        let mut d = [0u16; 8];
        // Missing blocks are zeros with a scale of zero.
        for ((block, weights), d) in blocks.chunks_exact(bytes).zip(&mut weights).zip(&mut d) {
            *weights = D::values(block);
            *d = u16::from_le_bytes([block[0], block[1]]);
        }
        let d = _mm256_cvtph_ps(_mm_loadu_si128(d.as_ptr().cast()));
        let mut values = [0.0; N];
        for ((value, quants), scales) in values.iter_mut().zip(quants).zip(scales) {
            let quants = &quants[start..start + GROUP];
            let mut dots = [_mm256_setzero_si256(); 8];
            for (block, dot) in dots.iter_mut().enumerate().take(count) {
                let quants = _mm256_loadu_si256(quants[block * BLOCK..(block + 1) * BLOCK].as_ptr().cast());
                *dot = dot4::<VNNI>(weights[block], quants);
            }
            let scales = _mm256_loadu_ps(scales[start / BLOCK..start / BLOCK + 8].as_ptr());
            // The expression of `formats::join::block_term`.
            let terms = _mm256_mul_ps(_mm256_mul_ps(d, _mm256_cvtepi32_ps(lane_sums(dots))), scales);
            *value = join(terms);
        }
        values
    }
}

/// Every weight row times the `N` activation rows from `index` on.
///
/// # Safety
/// As for [`product`].
#[inline(always)]
unsafe fn rows<D: SignedBlock, const N: usize, const VNNI: bool>(
    job: &Job<'_>,
    index: usize,
    out: &mut OutTile<'_>,
) {
    let a = job.activations;
    let strides = a.strides();
    let quants: [&[i8]; N] =
        std::array::from_fn(|n| &a.qs[job.activation_rows.get(index + n) * strides.qs..][..strides.qs]);
    let scales: [&[f32]; N] = std::array::from_fn(|n| {
        &a.scales[job.activation_rows.get(index + n) * strides.scales..][..strides.scales]
    });
    let bytes = D::TYPE.block_bytes() * GROUP / BLOCK;
    for (column, n) in job.weight_rows.clone().enumerate() {
        let row = job.weights.row(n);
        let mut sums = [0.0f32; N];
        let whole = row.chunks_exact(bytes);
        let (rest, groups) = (whole.remainder(), whole.len());
        // SAFETY: as for this function.
        unsafe {
            for (number, blocks) in whole.enumerate() {
                // The exact length lets the compiler unroll the blocks.
                let values = group::<D, N, VNNI>(&blocks[..bytes], &quants, &scales, number * GROUP);
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
            if !rest.is_empty() {
                let values = group::<D, N, VNNI>(rest, &quants, &scales, groups * GROUP);
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
        }
        for (a, sum) in sums.into_iter().enumerate() {
            out.row_mut(index + a)[column] = sum;
        }
    }
}

/// The product for at most [`MOST_ROWS`] activation rows.
///
/// # Safety
/// The machine has AVX2, FMA and F16C, and with `VNNI` AVX-512 VL and VNNI.
#[inline(always)]
pub(crate) unsafe fn product<D: SignedBlock, const VNNI: bool>(job: &Job<'_>, out: &mut OutTile<'_>) {
    // SAFETY: as for this function.
    unsafe {
        match job.activation_rows.len() {
            1 => rows::<D, 1, VNNI>(job, 0, out),
            2 => rows::<D, 2, VNNI>(job, 0, out),
            3 => rows::<D, 3, VNNI>(job, 0, out),
            4 => rows::<D, 4, VNNI>(job, 0, out),
            count => unreachable!("{count} activation rows go through tiles"),
        }
    }
}
