//! The lanes of AVX-512 (one register) and AVX2 with FMA and F16C (two registers).

use super::{Lanes, WIDTH};
use core::arch::x86_64::*;

/// Runs an intrinsic: the token `self` proves that the features exist.
macro_rules! proven {
    ($body:expr) => {
        // SAFETY: `self` is made only inside a function compiled for these features, which `Level` calls only where they
        // were detected; loads and stores go through references to arrays of the full width.
        unsafe { $body }
    };
}

/// One 512-bit register.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// The token. Calling it needs the features, which is the proof.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub(crate) fn detected() -> Self {
        Avx512(())
    }
}

impl Lanes for Avx512 {
    type V = __m512;
    const MANY_REGISTERS: bool = true;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        proven!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn load(self, from: &[f32; WIDTH]) -> Self::V {
        proven!(_mm512_loadu_ps(from.as_ptr()))
    }
    #[inline(always)]
    fn store(self, v: Self::V, to: &mut [f32; WIDTH]) {
        proven!(_mm512_storeu_ps(to.as_mut_ptr(), v));
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; WIDTH]) -> Self::V {
        proven!(_mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())))
    }
    #[inline(always)]
    fn store_f16(self, v: Self::V, to: &mut [u16; WIDTH]) {
        proven!(_mm256_storeu_si256(
            to.as_mut_ptr().cast(),
            _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v)
        ));
    }
    #[inline(always)]
    fn load_i8(self, from: &[i8; WIDTH]) -> Self::V {
        proven!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.as_ptr().cast()))))
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        proven!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        proven!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        proven!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        proven!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        proven!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn keep(self, v: Self::V, from: usize, to: usize, fill: f32) -> Self::V {
        let mask = (((1u32 << to.min(WIDTH)) - 1) & !((1u32 << from.min(WIDTH)) - 1)) as u16;
        proven!(_mm512_mask_mov_ps(_mm512_set1_ps(fill), mask, v))
    }
}

/// Two 256-bit registers: lanes 0..8 and 8..16.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The token. Calling it needs the features, which is the proof.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn detected() -> Self {
        Avx2(())
    }
}

impl Lanes for Avx2 {
    type V = [__m256; 2];
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        proven!([_mm256_set1_ps(x), _mm256_set1_ps(x)])
    }
    #[inline(always)]
    fn load(self, from: &[f32; WIDTH]) -> Self::V {
        proven!([_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))])
    }
    #[inline(always)]
    fn store(self, v: Self::V, to: &mut [f32; WIDTH]) {
        proven!({
            _mm256_storeu_ps(to.as_mut_ptr(), v[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), v[1]);
        });
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; WIDTH]) -> Self::V {
        proven!([
            _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().add(8).cast())),
        ])
    }
    #[inline(always)]
    fn store_f16(self, v: Self::V, to: &mut [u16; WIDTH]) {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;
        proven!({
            _mm_storeu_si128(to.as_mut_ptr().cast(), _mm256_cvtps_ph::<NEAREST>(v[0]));
            _mm_storeu_si128(to.as_mut_ptr().add(8).cast(), _mm256_cvtps_ph::<NEAREST>(v[1]));
        });
    }
    #[inline(always)]
    fn load_i8(self, from: &[i8; WIDTH]) -> Self::V {
        proven!({
            let bytes = _mm_loadu_si128(from.as_ptr().cast());
            [
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes))),
            ]
        })
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        proven!([_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        proven!([_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        proven!([_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        proven!([_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])])
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        proven!([_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn keep(self, v: Self::V, from: usize, to: usize, fill: f32) -> Self::V {
        proven!({
            let low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let high = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
            let (from, to) = (from.min(WIDTH) as i32, to.min(WIDTH) as i32);
            let before = _mm256_set1_epi32(from);
            let end = _mm256_set1_epi32(to);
            let fill = _mm256_set1_ps(fill);
            let pick = |lane: __m256i, v: __m256| {
                // from <= lane < to
                let kept =
                    _mm256_andnot_si256(_mm256_cmpgt_epi32(before, lane), _mm256_cmpgt_epi32(end, lane));
                _mm256_blendv_ps(fill, v, _mm256_castsi256_ps(kept))
            };
            [pick(low, v[0]), pick(high, v[1])]
        })
    }
}
