//! Eight lanes on AVX2 with FMA and F16C.

use super::lanes::{Lanes, Sixteen};
use std::arch::x86_64::*;

/// Proof that AVX2, FMA and F16C exist.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The proof.
    ///
    /// # Safety
    /// The machine has AVX2, FMA and F16C.
    #[inline(always)]
    pub unsafe fn detected() -> Self {
        Avx2(())
    }
}

/// An intrinsic, which needs nothing but its instruction set.
macro_rules! op {
    ($value:expr) => {
        // SAFETY: a value of `Avx2` exists only where its instruction sets do; the operands are registers.
        unsafe { $value }
    };
}

impl Lanes for Avx2 {
    type I = __m256i;
    type F = __m256;
    const WIDTH: usize = 8;
    const MAX_ACTIVATIONS: usize = 4;

    #[inline(always)]
    fn columns(self, bytes: Sixteen<'_>) -> [__m256i; 4] {
        // SAFETY: `Sixteen` vouches for sixteen readable bytes behind every pointer; the instruction sets exist.
        unsafe {
            macro_rules! at {
                ($row:expr) => {
                    _mm_loadu_si128(bytes.pointer($row).cast())
                };
            }
            macro_rules! two {
                ($row:expr) => {
                    _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(at!($row)), at!($row + 4))
                };
            }
            // Eight rows take half of what sixteen would.
            _mm_prefetch::<_MM_HINT_T2>(bytes.ahead(0).cast());
            _mm_prefetch::<_MM_HINT_T2>(bytes.ahead(1).cast());
            let (a, b, c, d) = (two!(0), two!(1), two!(2), two!(3));
            let (ab_low, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let (cd_low, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
            [
                _mm256_unpacklo_epi64(ab_low, cd_low),
                _mm256_unpackhi_epi64(ab_low, cd_low),
                _mm256_unpacklo_epi64(ab_high, cd_high),
                _mm256_unpackhi_epi64(ab_high, cd_high),
            ]
        }
    }

    #[inline(always)]
    fn splat(self, x: u32) -> __m256i {
        op!(_mm256_set1_epi32(x as i32))
    }
    #[inline(always)]
    fn and(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_and_si256(a, b))
    }
    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_or_si256(a, b))
    }
    #[inline(always)]
    fn xor(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_xor_si256(a, b))
    }
    #[inline(always)]
    fn shl(self, a: __m256i, n: u32) -> __m256i {
        op!(_mm256_sllv_epi32(a, _mm256_set1_epi32(n as i32)))
    }
    #[inline(always)]
    fn shr(self, a: __m256i, n: u32) -> __m256i {
        op!(_mm256_srlv_epi32(a, _mm256_set1_epi32(n as i32)))
    }
    #[inline(always)]
    fn sra(self, a: __m256i, n: u32) -> __m256i {
        op!(_mm256_srav_epi32(a, _mm256_set1_epi32(n as i32)))
    }
    #[inline(always)]
    fn add(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_add_epi32(a, b))
    }
    #[inline(always)]
    fn sub16(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_sub_epi16(a, b))
    }
    #[inline(always)]
    fn mul16(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_mullo_epi16(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_mullo_epi32(a, b))
    }
    #[inline(always)]
    fn max(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_max_epi32(a, b))
    }
    #[inline(always)]
    fn min8(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_min_epu8(a, b))
    }
    #[inline(always)]
    fn repeat(self, a: __m256i, k: u8) -> __m256i {
        let order: [u8; 16] = std::array::from_fn(|i| 4 * (i as u8 / 4) + k);
        op!(_mm256_shuffle_epi8(a, _mm256_broadcastsi128_si256(_mm_loadu_si128(order.as_ptr().cast()))))
    }
    #[inline(always)]
    fn pair01(self, a: __m256i) -> __m256i {
        let order = [0u8, 0x80, 1, 0x80, 4, 0x80, 5, 0x80, 8, 0x80, 9, 0x80, 12, 0x80, 13, 0x80];
        op!(_mm256_shuffle_epi8(a, _mm256_broadcastsi128_si256(_mm_loadu_si128(order.as_ptr().cast()))))
    }
    #[inline(always)]
    fn pair23(self, a: __m256i) -> __m256i {
        let order = [2u8, 0x80, 3, 0x80, 6, 0x80, 7, 0x80, 10, 0x80, 11, 0x80, 14, 0x80, 15, 0x80];
        op!(_mm256_shuffle_epi8(a, _mm256_broadcastsi128_si256(_mm_loadu_si128(order.as_ptr().cast()))))
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], index: __m256i) -> __m256i {
        op!(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())), index))
    }
    #[inline(always)]
    fn dot4(self, acc: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
        // Two products of at most 128 * 127 fit an i16.
        op!(_mm256_add_epi32(
            acc,
            _mm256_madd_epi16(_mm256_maddubs_epi16(unsigned, signed), _mm256_set1_epi16(1))
        ))
    }
    #[inline(always)]
    fn dot4_wide(self, acc: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
        // The top bit apart from the rest: each part's pair of products fits an i16.
        let low = self.and(unsigned, self.splat(0x7f7f_7f7f));
        let top = self.and(unsigned, self.splat(0x8080_8080));
        self.dot4(self.dot4(acc, low, signed), top, signed)
    }
    #[inline(always)]
    fn dot2(self, acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_add_epi32(acc, _mm256_madd_epi16(a, b)))
    }

    #[inline(always)]
    fn to_f32(self, a: __m256i) -> __m256 {
        op!(_mm256_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn bits(self, a: __m256i) -> __m256 {
        op!(_mm256_castsi256_ps(a))
    }
    #[inline(always)]
    fn f16_low(self, a: __m256i) -> __m256 {
        let low = self.and(a, self.splat(0xffff));
        op!({
            let packed = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(low, low));
            _mm256_cvtph_ps(_mm256_castsi256_si128(packed))
        })
    }
    #[inline(always)]
    fn fsplat(self, x: f32) -> __m256 {
        op!(_mm256_set1_ps(x))
    }
    #[inline(always)]
    fn fadd(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn fmul(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        op!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn fnma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        op!(_mm256_fnmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn fload(self, from: &[f32]) -> __m256 {
        let from = &from[..8];
        op!(_mm256_loadu_ps(from.as_ptr()))
    }
    #[inline(always)]
    fn fstore(self, v: __m256, to: &mut [f32]) {
        let to = &mut to[..8];
        op!(_mm256_storeu_ps(to.as_mut_ptr(), v))
    }
}
