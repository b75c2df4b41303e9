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

/// AVX-512 with VNNI.
pub(crate) struct Whole;

/// AVX2.
pub(crate) struct Halves;

/// Which scale (of sixteen or, `PER_32`, of eight) belongs to each pair of weights of a part.
const fn places(per_32: bool, part: usize) -> [i16; 32] {
    let mut places = [0; 32];
    let mut pair = 0;
    while pair < 32 {
        places[pair] = if per_32 { 2 * part + pair / 16 } else { 4 * part + pair / 8 } as i16;
        pair += 1;
    }
    places
}

static PLACES: [[[i16; 32]; 4]; 2] = [
    [places(false, 0), places(false, 1), places(false, 2), places(false, 3)],
    [places(true, 0), places(true, 1), places(true, 2), places(true, 3)],
];

impl Wide for Whole {
    type V = __m512i;
    #[inline(always)]
    unsafe fn join(low: __m256i, high: __m256i) -> __m512i {
        // SAFETY: register arithmetic of what the caller has.
        unsafe { _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high) }
    }
    #[inline(always)]
    unsafe fn load(quants: &[i8; 64]) -> __m512i {
        // SAFETY: 64 bytes are readable.
        unsafe { _mm512_loadu_si512(quants.as_ptr().cast()) }
    }
    #[inline(always)]
    unsafe fn move_signs(weights: __m512i, quants: __m512i) -> (__m512i, __m512i) {
        // SAFETY: register arithmetic of what the caller has.
        unsafe {
            let negative = _mm512_movepi8_mask(weights);
            let quants = _mm512_mask_sub_epi8(quants, negative, _mm512_setzero_si512(), quants);
            (_mm512_abs_epi8(weights), quants)
        }
    }
    #[inline(always)]
    unsafe fn accumulate(acc: __m512i, weights: __m512i, quants: __m512i, scales: __m512i) -> __m512i {
        // SAFETY: register arithmetic of what the caller has; two products of at most 128 x 127 stay below 32768.
        unsafe { _mm512_dpwssd_epi32(acc, _mm512_maddubs_epi16(weights, quants), scales) }
    }
    #[inline(always)]
    unsafe fn spread(scales: __m256i, per_32: bool, part: usize) -> __m512i {
        let places = &PLACES[usize::from(per_32)][part];
        // SAFETY: 64 bytes are readable; register arithmetic of what the caller has.
        unsafe {
            let places = _mm512_loadu_si512(places.as_ptr().cast());
            _mm512_permutexvar_epi16(places, _mm512_castsi256_si512(scales))
        }
    }
    #[inline(always)]
    unsafe fn halve(acc: __m512i) -> __m256i {
        // SAFETY: register arithmetic of what the caller has.
        unsafe { _mm256_add_epi32(_mm512_castsi512_si256(acc), _mm512_extracti64x4_epi64::<1>(acc)) }
    }
    #[inline(always)]
    unsafe fn zero() -> __m512i {
        // SAFETY: register arithmetic of what the caller has.
        unsafe { _mm512_setzero_si512() }
    }
}

impl Wide for Halves {
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
                _mm256_add_epi32(acc[half], _mm256_madd_epi16(pairs, scales[half]))
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
