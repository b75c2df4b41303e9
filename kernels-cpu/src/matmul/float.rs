//! F32, F16 and BF16 weights: eight fma chains per group of 256, which are the eight lanes of a register.

use super::drive::Job;
use crate::output::OutTile;
use std::arch::x86_64::*;

/// Weight rows whose chains run side by side.
const ROWS: usize = 4;
const GROUP: usize = 256;

/// A float format of weights.
pub(crate) trait FloatWeight {
    /// Bytes of a weight.
    const BYTES: usize;
    /// Eight weights.
    ///
    /// # Safety
    /// The machine has AVX2 and F16C.
    unsafe fn eight(bytes: &[u8]) -> __m256;
}

pub(crate) struct F32;
impl FloatWeight for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn eight(bytes: &[u8]) -> __m256 {
        let bytes = &bytes[..32];
        // SAFETY: 32 bytes are readable; the caller has AVX.
        unsafe { _mm256_loadu_ps(bytes.as_ptr().cast()) }
    }
}

pub(crate) struct F16;
impl FloatWeight for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn eight(bytes: &[u8]) -> __m256 {
        let bytes = &bytes[..16];
        // SAFETY: 16 bytes are readable; the caller has F16C.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(bytes.as_ptr().cast())) }
    }
}

pub(crate) struct Bf16;
impl FloatWeight for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn eight(bytes: &[u8]) -> __m256 {
        let bytes = &bytes[..16];
        // SAFETY: 16 bytes are readable; the caller has AVX2.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(bytes.as_ptr().cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
}

/// The fixed tree over the lanes.
///
/// # Safety
/// The machine has AVX.
#[inline(always)]
pub(crate) unsafe fn join(chains: __m256) -> f32 {
    // SAFETY: register arithmetic of AVX, which the caller has.
    unsafe {
        // [p0 + p4, p1 + p5, p2 + p6, p3 + p7]
        let four = _mm_add_ps(_mm256_castps256_ps128(chains), _mm256_extractf128_ps::<1>(chains));
        // [(p0 + p4) + (p2 + p6), (p1 + p5) + (p3 + p7)]
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

/// The product for float weights.
///
/// # Safety
/// The machine has AVX2, FMA and F16C.
#[inline(always)]
pub(crate) unsafe fn product<W: FloatWeight>(job: &Job<'_>, out: &mut OutTile<'_>) {
    let count = job.activation_rows.len();
    for first in job.weight_rows.clone().step_by(ROWS) {
        let mut index = 0;
        while index < count {
            // SAFETY: as for this function.
            unsafe {
                if count - index >= 2 {
                    few::<W, 2>(job, first, index, out);
                    index += 2;
                } else {
                    few::<W, 1>(job, first, index, out);
                    index += 1;
                }
            }
        }
    }
}

/// `ROWS` weight rows times `N` activation rows.
///
/// # Safety
/// The machine has AVX2, FMA and F16C.
#[inline(always)]
unsafe fn few<W: FloatWeight, const N: usize>(
    job: &Job<'_>,
    first: usize,
    index: usize,
    out: &mut OutTile<'_>,
) {
    let cols = job.weights.cols();
    let stride = job.activations.strides().values;
    let rows: [&[u8]; ROWS] =
        std::array::from_fn(|r| job.weights.row((first + r).min(job.weight_rows.end - 1)));
    let values: [&[f32]; N] = std::array::from_fn(|n| {
        &job.activations.values[job.activation_rows.get(index + n) * stride..][..stride]
    });
    let mut sums = [[0.0f32; N]; ROWS];
    for group in (0..cols).step_by(GROUP) {
        let end = cols.min(group + GROUP);
        // SAFETY: register arithmetic of AVX2, FMA and F16C, which the caller has; loads go through checked slices.
        unsafe {
            let mut chains = [[_mm256_setzero_ps(); N]; ROWS];
            let whole = group + (end - group) / 8 * 8;
            for i in (group..whole).step_by(8) {
                let x: [__m256; N] = std::array::from_fn(|n| _mm256_loadu_ps(values[n][i..i + 8].as_ptr()));
                for (chains, row) in chains.iter_mut().zip(&rows) {
                    let w = W::eight(&row[i * W::BYTES..(i + 8) * W::BYTES]);
                    for (chain, x) in chains.iter_mut().zip(&x) {
                        *chain = _mm256_fmadd_ps(w, *x, *chain);
                    }
                }
            }
            if whole < end {
                // Rows of activations are padded with zeros to sixteen values.
                let x: [__m256; N] =
                    std::array::from_fn(|n| _mm256_loadu_ps(values[n][whole..whole + 8].as_ptr()));
                for (chains, row) in chains.iter_mut().zip(&rows) {
                    let mut last = [0u8; 32];
                    last[..(end - whole) * W::BYTES].copy_from_slice(&row[whole * W::BYTES..end * W::BYTES]);
                    let w = W::eight(&last);
                    for (chain, x) in chains.iter_mut().zip(&x) {
                        *chain = _mm256_fmadd_ps(w, *x, *chain);
                    }
                }
            }
            for (sums, chains) in sums.iter_mut().zip(&chains) {
                for (sum, chain) in sums.iter_mut().zip(chains) {
                    *sum += join(*chain);
                }
            }
        }
    }
    let column = first - job.weight_rows.start;
    for n in 0..N {
        for (value, sums) in out.row_mut(index + n)[column..].iter_mut().zip(&sums) {
            *value = sums[n];
        }
    }
}
