//! A few activation rows times 256-value groups, one weight row after the other; see [`by_row`](super::by_row) for why.
//!
//! All products of a group meet in eight integer lanes before anything is rounded, so the bits are the tiles' bits.

use super::by_row::MOST_ROWS;
use super::drive::Job;
use crate::output::OutTile;
use bloomery_formats::WeightType;
use bloomery_formats::group_formats::{Group, GroupFormat};
use bloomery_formats::join::{group_value, group_value_with_min};
use std::arch::x86_64::*;
use std::marker::PhantomData;

const GROUP: usize = 256;

/// A group, ready to be multiplied.
pub(crate) struct Decoded {
    /// 32 weights each.
    q: [__m256i; 8],
    /// Their scales as i16: the first sixteen's in the low half, the others' in the high half.
    scale: [__m256i; 8],
    /// What multiplies the activations' sums per sixteen: minima, or the correction for an offset that made the weights unsigned.
    pair: __m256i,
    d: f32,
    dmin: f32,
}

/// A 256-value type.
pub(crate) trait RowGroup {
    const TYPE: WeightType;
    /// Whether `pair` holds minima.
    const HAS_MIN: bool;
    /// Whether weights are signed (-127 to 127); else 0 to 128.
    const SIGNED: bool;
    /// Decodes a block.
    ///
    /// # Safety
    /// The machine has AVX2 and F16C.
    unsafe fn decode(block: &[u8]) -> Decoded;
}

/// 32 bytes from `at` on.
///
/// # Safety
/// The machine has AVX.
#[inline(always)]
unsafe fn load(bytes: &[u8], at: usize) -> __m256i {
    let bytes = &bytes[at..at + 32];
    // SAFETY: 32 bytes are readable.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Two f16 numbers.
///
/// # Safety
/// The machine has F16C.
#[inline(always)]
unsafe fn halves(first: [u8; 2], second: [u8; 2]) -> (f32, f32) {
    let both = u32::from(u16::from_le_bytes(first)) | u32::from(u16::from_le_bytes(second)) << 16;
    // SAFETY: register arithmetic of F16C, which the caller has.
    unsafe {
        let wide = _mm_cvtph_ps(_mm_cvtsi32_si128(both as i32));
        (_mm_cvtss_f32(wide), _mm_cvtss_f32(_mm_movehdup_ps(wide)))
    }
}

/// The scales of Q4_K and Q5_K for each 32 weights, and their minima for each sixteen.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn six_bits(packed: &[u8]) -> ([__m256i; 8], __m256i) {
    let word = |at: usize| u32::from_le_bytes([packed[at], packed[at + 1], packed[at + 2], packed[at + 3]]);
    let (low, high, mixed) = (word(0), word(4), word(8));
    let (six, four, two) = (0x3f3f_3f3f, 0x0f0f_0f0f, 0x3030_3030);
    let scales = [low & six, (mixed & four) | ((low >> 2) & two)];
    let minima = [high & six, ((mixed >> 4) & four) | ((high >> 2) & two)];
    // SAFETY: register arithmetic of AVX2, which the caller has.
    unsafe {
        let widened = |[a, b]: [u32; 2]| _mm_cvtepu8_epi16(_mm_set_epi32(0, 0, b as i32, a as i32));
        let scales = _mm256_broadcastsi128_si256(widened(scales));
        let minima = widened(minima);
        let pair = _mm256_set_m128i(_mm_unpackhi_epi16(minima, minima), _mm_unpacklo_epi16(minima, minima));
        let at = |j: i16| _mm256_shuffle_epi8(scales, _mm256_set1_epi16((2 * j) | (2 * j + 1) << 8));
        ([at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)], pair)
    }
}

pub(crate) struct Q4K;
impl RowGroup for Q4K {
    const TYPE: WeightType = WeightType::Q4_K;
    const HAS_MIN: bool = true;
    const SIGNED: bool = false;
    #[inline(always)]
    unsafe fn decode(block: &[u8]) -> Decoded {
        let block = &block[..144];
        // SAFETY: register arithmetic of what the caller has; loads go through checked slices.
        unsafe {
            let four = _mm256_set1_epi8(15);
            let mut q = [_mm256_setzero_si256(); 8];
            for i in 0..4 {
                let both = load(block, 16 + 32 * i);
                q[2 * i] = _mm256_and_si256(both, four);
                q[2 * i + 1] = _mm256_and_si256(_mm256_srli_epi16::<4>(both), four);
            }
            let (scale, pair) = six_bits(&block[4..16]);
            let (d, dmin) = halves([block[0], block[1]], [block[2], block[3]]);
            Decoded { q, scale, pair, d, dmin }
        }
    }
}

pub(crate) struct Q5K;
impl RowGroup for Q5K {
    const TYPE: WeightType = WeightType::Q5_K;
    const HAS_MIN: bool = true;
    const SIGNED: bool = false;
    #[inline(always)]
    unsafe fn decode(block: &[u8]) -> Decoded {
        let block = &block[..176];
        // SAFETY: register arithmetic of what the caller has; loads go through checked slices.
        unsafe {
            let (four, fifth) = (_mm256_set1_epi8(15), _mm256_set1_epi8(16));
            let mut top = load(block, 16);
            let mut q = [_mm256_setzero_si256(); 8];
            for i in 0..4 {
                let both = load(block, 48 + 32 * i);
                // Bit 2 i of every byte now lies at bit 0, its neighbour at bit 1.
                let low = _mm256_and_si256(_mm256_slli_epi16::<4>(top), fifth);
                let high = _mm256_and_si256(_mm256_slli_epi16::<3>(top), fifth);
                q[2 * i] = _mm256_or_si256(_mm256_and_si256(both, four), low);
                q[2 * i + 1] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16::<4>(both), four), high);
                top = _mm256_srli_epi16::<2>(top);
            }
            let (scale, pair) = six_bits(&block[4..16]);
            let (d, dmin) = halves([block[0], block[1]], [block[2], block[3]]);
            Decoded { q, scale, pair, d, dmin }
        }
    }
}

pub(crate) struct Q6K;
impl RowGroup for Q6K {
    const TYPE: WeightType = WeightType::Q6_K;
    const HAS_MIN: bool = false;
    const SIGNED: bool = false;
    #[inline(always)]
    unsafe fn decode(block: &[u8]) -> Decoded {
        let block = &block[..210];
        // SAFETY: register arithmetic of what the caller has; loads go through checked slices.
        unsafe {
            let (four, top_two) = (_mm256_set1_epi8(15), _mm256_set1_epi8(0x30));
            let mut q = [_mm256_setzero_si256(); 8];
            for half in 0..2 {
                let (first, second) = (load(block, 64 * half), load(block, 64 * half + 32));
                let top = load(block, 128 + 32 * half);
                let parts = [
                    (first, _mm256_slli_epi16::<4>(top)),
                    (second, _mm256_slli_epi16::<2>(top)),
                    (_mm256_srli_epi16::<4>(first), top),
                    (_mm256_srli_epi16::<4>(second), _mm256_srli_epi16::<2>(top)),
                ];
                for (q, (low, top)) in q[4 * half..].iter_mut().zip(parts) {
                    *q = _mm256_or_si256(_mm256_and_si256(low, four), _mm256_and_si256(top, top_two));
                }
            }
            let scales = &block[192..208];
            let bytes = _mm_loadu_si128(scales.as_ptr().cast());
            // Sixteen times the offset and the sign stay within i16.
            let pair = _mm256_mullo_epi16(_mm256_cvtepi8_epi16(bytes), _mm256_set1_epi16(-32));
            let both = _mm256_broadcastsi128_si256(bytes);
            let at = |j: i16| {
                // The byte goes to the high half of each i16, and comes down with its sign.
                let place = |byte: i16| _mm_set1_epi16(byte << 8 | 0x80);
                let order = _mm256_set_m128i(place(2 * j + 1), place(2 * j));
                _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(both, order))
            };
            let scale = [at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)];
            let (d, _) = halves([block[208], block[209]], [0, 0]);
            Decoded { q, scale, pair, d, dmin: 0.0 }
        }
    }
}

/// Types whose unpacking is a table's or a chain's: through the common form of the formats crate.
pub(crate) struct Unpacked<F>(PhantomData<F>);
impl<F: GroupFormat> RowGroup for Unpacked<F> {
    const TYPE: WeightType = F::TYPE;
    const HAS_MIN: bool = F::HAS_MIN;
    const SIGNED: bool = true;
    #[inline(always)]
    unsafe fn decode(block: &[u8]) -> Decoded {
        let mut group = Group::ZERO;
        F::unpack(block, &mut group);
        // SAFETY: register arithmetic of AVX2, which the caller has; the arrays have 256 bytes and sixteen i16.
        unsafe {
            let mut q = [_mm256_setzero_si256(); 8];
            let mut scale = q;
            for j in 0..8 {
                q[j] = _mm256_loadu_si256(group.q[32 * j..32 * j + 32].as_ptr().cast());
                scale[j] = _mm256_set_m128i(
                    _mm_set1_epi16(group.scale[2 * j + 1]),
                    _mm_set1_epi16(group.scale[2 * j]),
                );
            }
            let pair = if F::HAS_MIN {
                _mm256_loadu_si256(group.min.as_ptr().cast())
            } else {
                _mm256_setzero_si256()
            };
            Decoded { q, scale, pair, d: group.d, dmin: group.dmin }
        }
    }
}

/// The sum of eight lanes.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn lane_sum(lanes: __m256i) -> i32 {
    // SAFETY: register arithmetic of AVX2.
    unsafe {
        let four = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes));
        let two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
        _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<1>(two)))
    }
}

/// Every weight row times the `N` activation rows from the first on.
///
/// # Safety
/// The machine has AVX2, FMA and F16C.
#[inline(always)]
unsafe fn rows<D: RowGroup, const N: usize>(job: &Job<'_>, out: &mut OutTile<'_>) {
    let a = job.activations;
    let strides = a.strides();
    let activations: [(&[i8], &[i16], &[f32]); N] = std::array::from_fn(|n| {
        let row = job.activation_rows.get(n);
        (
            &a.qs[row * strides.qs..][..strides.qs],
            &a.sums[row * strides.sums..][..strides.sums],
            &a.scales[row * strides.scales..][..strides.scales],
        )
    });
    let bytes = D::TYPE.block_bytes();
    for (column, n) in job.weight_rows.clone().enumerate() {
        let mut sums = [0.0f32; N];
        for (g, block) in job.weights.row(n).chunks_exact(bytes).enumerate() {
            // SAFETY: register arithmetic of what the caller has; loads go through checked slices.
            unsafe {
                let weights = D::decode(block);
                for (sum, (qs, sums16, scales)) in sums.iter_mut().zip(&activations) {
                    let qs = &qs[g * GROUP..(g + 1) * GROUP];
                    let mut dots = _mm256_setzero_si256();
                    for j in 0..8 {
                        let mut q = _mm256_loadu_si256(qs[32 * j..32 * j + 32].as_ptr().cast());
                        let mut w = weights.q[j];
                        if D::SIGNED {
                            (w, q) = (_mm256_abs_epi8(w), _mm256_sign_epi8(q, w));
                        }
                        // Two products of at most 128 x 127 stay below 32768.
                        let pairs = _mm256_madd_epi16(_mm256_maddubs_epi16(w, q), weights.scale[j]);
                        dots = _mm256_add_epi32(dots, pairs);
                    }
                    let sums16 = &sums16[16 * g..16 * g + 16];
                    let pair = _mm256_madd_epi16(weights.pair, _mm256_loadu_si256(sums16.as_ptr().cast()));
                    *sum += if D::HAS_MIN {
                        let (isum, msum) = (lane_sum(dots), lane_sum(pair));
                        group_value_with_min(weights.d, isum, weights.dmin, msum, scales[g])
                    } else {
                        let isum = lane_sum(if D::SIGNED { dots } else { _mm256_add_epi32(dots, pair) });
                        group_value(weights.d, isum, scales[g])
                    };
                }
            }
        }
        for (a, sum) in sums.into_iter().enumerate() {
            out.row_mut(a)[column] = sum;
        }
    }
}

/// The product for at most [`MOST_ROWS`] activation rows.
///
/// # Safety
/// The machine has AVX2, FMA and F16C.
#[inline(always)]
pub(crate) unsafe fn product<D: RowGroup>(job: &Job<'_>, out: &mut OutTile<'_>) {
    const { assert!(MOST_ROWS == 4) };
    // SAFETY: as for this function.
    unsafe {
        match job.activation_rows.len() {
            1 => rows::<D, 1>(job, out),
            2 => rows::<D, 2>(job, out),
            3 => rows::<D, 3>(job, out),
            4 => rows::<D, 4>(job, out),
            count => unreachable!("{count} activation rows go through tiles"),
        }
    }
}
