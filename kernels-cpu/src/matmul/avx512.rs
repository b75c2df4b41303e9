//! Sixteen lanes on AVX-512 with VNNI.

use super::lanes::{Lanes, Sixteen};
use std::arch::x86_64::*;

/// Proof that AVX-512 (F, BW, DQ, VL) and VNNI exist.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// The proof.
    ///
    /// # Safety
    /// The machine has AVX-512 F, BW, DQ, VL and VNNI.
    #[inline(always)]
    pub unsafe fn detected() -> Self {
        Avx512(())
    }
}

/// An intrinsic, which needs nothing but its instruction set.
macro_rules! op {
    ($value:expr) => {
        // SAFETY: a value of `Avx512` exists only where its instruction sets do; the operands are registers.
        unsafe { $value }
    };
}

impl Lanes for Avx512 {
    type I = __m512i;
    type F = __m512;
    const WIDTH: usize = 16;
    const MAX_ACTIVATIONS: usize = 8;

    #[inline(always)]
    fn columns(self, bytes: Sixteen<'_>) -> [__m512i; 4] {
        // SAFETY: `Sixteen` vouches for sixteen readable bytes behind every pointer; the instruction sets exist.
        unsafe {
            macro_rules! at {
                ($row:expr) => {
                    _mm_loadu_si128(bytes.pointer($row).cast())
                };
            }
            macro_rules! four {
                ($row:expr) => {{
                    let v = _mm512_castsi128_si512(at!($row));
                    let v = _mm512_inserti32x4::<1>(v, at!($row + 4));
                    let v = _mm512_inserti32x4::<2>(v, at!($row + 8));
                    _mm512_inserti32x4::<3>(v, at!($row + 12))
                }};
            }
            // Into the outer caches only: these requests are spread over the decoding, each well ahead of its use.
            _mm_prefetch::<_MM_HINT_T2>(bytes.ahead(0).cast());
            _mm_prefetch::<_MM_HINT_T2>(bytes.ahead(1).cast());
            _mm_prefetch::<_MM_HINT_T2>(bytes.ahead(2).cast());
            _mm_prefetch::<_MM_HINT_T2>(bytes.ahead(3).cast());
            let (a, b, c, d) = (four!(0), four!(1), four!(2), four!(3));
            let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            [
                _mm512_unpacklo_epi64(ab_low, cd_low),
                _mm512_unpackhi_epi64(ab_low, cd_low),
                _mm512_unpacklo_epi64(ab_high, cd_high),
                _mm512_unpackhi_epi64(ab_high, cd_high),
            ]
        }
    }

    #[inline(always)]
    fn splat(self, x: u32) -> __m512i {
        op!(_mm512_set1_epi32(x as i32))
    }
    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_xor_si512(a, b))
    }
    #[inline(always)]
    fn shl(self, a: __m512i, n: u32) -> __m512i {
        op!(_mm512_sllv_epi32(a, _mm512_set1_epi32(n as i32)))
    }
    #[inline(always)]
    fn shr(self, a: __m512i, n: u32) -> __m512i {
        op!(_mm512_srlv_epi32(a, _mm512_set1_epi32(n as i32)))
    }
    #[inline(always)]
    fn sra(self, a: __m512i, n: u32) -> __m512i {
        op!(_mm512_srav_epi32(a, _mm512_set1_epi32(n as i32)))
    }
    #[inline(always)]
    fn add(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn sub16(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_sub_epi16(a, b))
    }
    #[inline(always)]
    fn mul16(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_mullo_epi16(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_mullo_epi32(a, b))
    }
    #[inline(always)]
    fn max(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_max_epi32(a, b))
    }
    #[inline(always)]
    fn min8(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_min_epu8(a, b))
    }
    #[inline(always)]
    fn repeat(self, a: __m512i, k: u8) -> __m512i {
        let order: [u8; 16] = std::array::from_fn(|i| 4 * (i as u8 / 4) + k);
        op!(_mm512_shuffle_epi8(a, _mm512_broadcast_i32x4(_mm_loadu_si128(order.as_ptr().cast()))))
    }
    #[inline(always)]
    fn pair01(self, a: __m512i) -> __m512i {
        let order = [0u8, 0x80, 1, 0x80, 4, 0x80, 5, 0x80, 8, 0x80, 9, 0x80, 12, 0x80, 13, 0x80];
        op!(_mm512_shuffle_epi8(a, _mm512_broadcast_i32x4(_mm_loadu_si128(order.as_ptr().cast()))))
    }
    #[inline(always)]
    fn pair23(self, a: __m512i) -> __m512i {
        let order = [2u8, 0x80, 3, 0x80, 6, 0x80, 7, 0x80, 10, 0x80, 11, 0x80, 14, 0x80, 15, 0x80];
        op!(_mm512_shuffle_epi8(a, _mm512_broadcast_i32x4(_mm_loadu_si128(order.as_ptr().cast()))))
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], index: __m512i) -> __m512i {
        op!(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), index))
    }
    #[inline(always)]
    fn dot4(self, acc: __m512i, unsigned: __m512i, signed: __m512i) -> __m512i {
        op!(_mm512_dpbusd_epi32(acc, unsigned, signed))
    }
    #[inline(always)]
    fn dot4_wide(self, acc: __m512i, unsigned: __m512i, signed: __m512i) -> __m512i {
        op!(_mm512_dpbusd_epi32(acc, unsigned, signed))
    }
    #[inline(always)]
    fn dot2(self, acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_dpwssd_epi32(acc, a, b))
    }

    #[inline(always)]
    fn to_f32(self, a: __m512i) -> __m512 {
        op!(_mm512_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn bits(self, a: __m512i) -> __m512 {
        op!(_mm512_castsi512_ps(a))
    }
    #[inline(always)]
    fn f16_low(self, a: __m512i) -> __m512 {
        op!(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)))
    }
    #[inline(always)]
    fn fsplat(self, x: f32) -> __m512 {
        op!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn fadd(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn fmul(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        op!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn fnma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        op!(_mm512_fnmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn fload(self, from: &[f32]) -> __m512 {
        let from = &from[..16];
        op!(_mm512_loadu_ps(from.as_ptr()))
    }
    #[inline(always)]
    fn fstore(self, v: __m512, to: &mut [f32]) {
        let to = &mut to[..16];
        op!(_mm512_storeu_ps(to.as_mut_ptr(), v))
    }
}
