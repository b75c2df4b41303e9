//! 64 weights or quants at a time, on AVX-512 or as two halves on AVX2.

use std::arch::x86_64::*;

/// A vector of 64 bytes.
///
/// # Safety
/// Of every function: the machine has the implementing type's instruction set.
pub(crate) trait Wide {
    type V: Copy;
    /// Two halves as one.
    unsafe fn join(low: __m256i, high: __m256i) -> Self::V;
    /// 64 quants.
    unsafe fn load(quants: &[i8; 64]) -> Self::V;
    /// The weights' magnitudes, and the quants with the weights' signs put on them.
    unsafe fn move_signs(weights: Self::V, quants: Self::V) -> (Self::V, Self::V);
    /// `acc` plus the products times their scales, four to a lane; weights 0 to 128, quants at least -127.
    unsafe fn accumulate(acc: Self::V, weights: Self::V, quants: Self::V, scales: Self::V) -> Self::V;
    /// From sixteen i16: the scales of the 64 weights from `64 * part` on, one for each pair of weights; from the low eight if `per_32`.
    unsafe fn spread(scales: __m256i, per_32: bool, part: usize) -> Self::V;
    /// The two halves' lanes added.
    unsafe fn halve(acc: Self::V) -> __m256i;
    /// All zero.
    unsafe fn zero() -> Self::V;
}

/// AVX2, and with `VNNI` AVX-512 VL and VNNI. (512-bit registers were measured too: what joins the halves costs more than is won.)
pub(crate) struct Halves<const VNNI: bool>;

impl<const VNNI: bool> Wide for Halves<VNNI> {
    type V = [__m256i; 2];
    #[inline(always)]
    unsafe fn join(low: __m256i, high: __m256i) -> [__m256i; 2] {
        [low, high]
    }
    #[inline(always)]
    unsafe fn load(quants: &[i8; 64]) -> [__m256i; 2] {
        // SAFETY: two times 32 bytes are readable.
        unsafe {
            [_mm256_loadu_si256(quants.as_ptr().cast()), _mm256_loadu_si256(quants[32..].as_ptr().cast())]
        }
    }
    #[inline(always)]
    unsafe fn move_signs(weights: [__m256i; 2], quants: [__m256i; 2]) -> ([__m256i; 2], [__m256i; 2]) {
        // SAFETY: register arithmetic of what the caller has.
        unsafe {
            (
                [_mm256_abs_epi8(weights[0]), _mm256_abs_epi8(weights[1])],
                [_mm256_sign_epi8(quants[0], weights[0]), _mm256_sign_epi8(quants[1], weights[1])],
            )
        }
    }
    #[inline(always)]
    unsafe fn accumulate(
        acc: [__m256i; 2],
        weights: [__m256i; 2],
        quants: [__m256i; 2],
        scales: [__m256i; 2],
    ) -> [__m256i; 2] {
        // SAFETY: register arithmetic of what the caller has; two products of at most 128 x 127 stay below 32768.
        unsafe {
            let sum = |half: usize| {
                let pairs = _mm256_maddubs_epi16(weights[half], quants[half]);
                if VNNI {
                    _mm256_dpwssd_epi32(acc[half], pairs, scales[half])
                } else {
                    _mm256_add_epi32(acc[half], _mm256_madd_epi16(pairs, scales[half]))
                }
            };
            [sum(0), sum(1)]
        }
    }
    #[inline(always)]
    unsafe fn spread(scales: __m256i, per_32: bool, part: usize) -> [__m256i; 2] {
        // SAFETY: register arithmetic of what the caller has.
        unsafe {
            // The half that holds the scales, in both lanes.
            let both = if per_32 || part < 2 {
                _mm256_permute2x128_si256::<0x00>(scales, scales)
            } else {
                _mm256_permute2x128_si256::<0x11>(scales, scales)
            };
            let spread = |half: usize| {
                let place = |lane: usize| {
                    let scale =
                        if per_32 { 2 * part + half } else { (4 * part + 2 * half + lane) % 8 } as i16;
                    _mm_set1_epi16((2 * scale) | ((2 * scale + 1) << 8))
                };
                _mm256_shuffle_epi8(both, _mm256_set_m128i(place(1), place(0)))
            };
            [spread(0), spread(1)]
        }
    }
    #[inline(always)]
    unsafe fn halve(acc: [__m256i; 2]) -> __m256i {
        // SAFETY: register arithmetic of what the caller has.
        unsafe { _mm256_add_epi32(acc[0], acc[1]) }
    }
    #[inline(always)]
    unsafe fn zero() -> [__m256i; 2] {
        // SAFETY: register arithmetic of what the caller has.
        unsafe { [_mm256_setzero_si256(); 2] }
    }
}
