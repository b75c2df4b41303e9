//! The quantisation of 32-blocks in AVX-512 registers: a compiler does not find it in the shared source, whose bits it gives.

use std::arch::x86_64::*;

/// Quantises 32 values; see [`bloomery_formats::quantize_block`]. Returns the scale.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) fn quantize_block(values: &[f32; 32], quants: &mut [i8; 32], sums: &mut [i16; 2]) -> f32 {
    // SAFETY: both halves of the array are sixteen readable values.
    let (low, high) = unsafe { (_mm512_loadu_ps(values.as_ptr()), _mm512_loadu_ps(values.as_ptr().add(16))) };
    let magnitude = _mm512_set1_epi32(0x7fff_ffff);
    let bits = _mm512_max_epi32(
        _mm512_and_si512(_mm512_castps_si512(low), magnitude),
        _mm512_and_si512(_mm512_castps_si512(high), magnitude),
    );
    let largest = f32::from_bits(_mm512_reduce_max_epi32(bits) as u32);
    // Zero, tiny, infinite and NaN blocks take the definition's own path; so does nothing else.
    if !(largest >= f32::from_bits((127 - 119) << 23) && largest < f32::INFINITY) {
        return bloomery_formats::quantize_block(values, quants, sums);
    }
    let inverse = _mm512_set1_ps(127.0 / largest);
    // The conversion rounds to nearest even, as the definition does.
    let low = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(inverse, low)));
    let high = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(inverse, high)));
    let both = _mm256_set_m128i(high, low);
    // SAFETY: the target is 32 bytes.
    unsafe { _mm256_storeu_si256(quants.as_mut_ptr().cast(), both) };
    // Four sums of four per half, then two, then one.
    let fours = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), both);
    let twos = _mm256_add_epi32(fours, _mm256_shuffle_epi32::<0b1110>(fours));
    let ones = _mm256_add_epi32(twos, _mm256_shuffle_epi32::<0b01>(twos));
    *sums = [_mm256_extract_epi32::<0>(ones) as i16, _mm256_extract_epi32::<4>(ones) as i16];
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm_set_ss(largest / 127.0))))
}
