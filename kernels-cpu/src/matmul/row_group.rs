//! One 256-value group of a weight row in registers, for the products that read rows front to back.

use super::unpack::unpack;
use super::wide::Wide;
use bloomery_formats::WeightType;
use bloomery_formats::group_formats::Group;
use std::arch::x86_64::*;

/// Groups of a row that are finished together, at most.
pub(crate) const MOST_GROUPS: usize = 4;

/// A group's integers, ready to be multiplied.
pub(crate) struct Decoded<W: Wide> {
    /// 64 weights each.
    pub(crate) q: [W::V; 4],
    /// Sixteen i16 scales, or eight in the low half.
    pub(crate) scale: __m256i,
    /// What multiplies the activations' sums per sixteen: minima, or the correction for an offset that made the weights unsigned.
    pub(crate) pair: __m256i,
}

/// A 256-value type, or several that share a form.
pub(crate) trait RowGroup {
    /// Whether `pair` holds minima.
    const HAS_MIN: bool;
    /// Whether weights are signed (-127 to 127); else 0 to 63.
    const SIGNED: bool;
    /// Whether scales belong to 32 values, not sixteen.
    const PER_32: bool;
    /// What the f32 scales of a block are made of.
    type Floats: Copy + Default;
    /// Bytes of a block of `ty`.
    fn block_bytes(ty: WeightType) -> usize;
    /// Decodes a block of `ty`.
    ///
    /// # Safety
    /// The machine has AVX2, FMA, F16C and the instruction set of `W`.
    unsafe fn decode<W: Wide>(ty: WeightType, block: &[u8]) -> (Decoded<W>, Self::Floats);
    /// The scales of four blocks, and those of their minima.
    ///
    /// # Safety
    /// The machine has AVX2 and F16C.
    unsafe fn floats(blocks: [Self::Floats; MOST_GROUPS]) -> (__m128, __m128);
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

/// The low halves of four words as f16 numbers, and the high halves.
///
/// # Safety
/// The machine has AVX2 and F16C.
#[inline(always)]
unsafe fn halves(words: [u32; MOST_GROUPS]) -> (__m128, __m128) {
    // SAFETY: register arithmetic of what the caller has; sixteen bytes are readable.
    unsafe {
        let words = _mm_loadu_si128(words.as_ptr().cast());
        let order = _mm_set_epi8(15, 14, 11, 10, 7, 6, 3, 2, 13, 12, 9, 8, 5, 4, 1, 0);
        let wide = _mm256_cvtph_ps(_mm_shuffle_epi8(words, order));
        (_mm256_castps256_ps128(wide), _mm256_extractf128_ps::<1>(wide))
    }
}

/// The eight scales of Q4_K and Q5_K, and their minima for each sixteen weights. `block` starts with two f16 and the packed twelve bytes.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn six_bits(block: &[u8]) -> (__m256i, __m256i) {
    let bytes = &block[4..20];
    // SAFETY: register arithmetic of AVX2, which the caller has; sixteen bytes are readable.
    unsafe {
        // [first scales, first minima, rest of both, -]
        let packed = _mm_loadu_si128(bytes.as_ptr().cast());
        let first = _mm_and_si128(packed, _mm_set1_epi8(0x3f));
        let mixed = _mm_srlv_epi32(_mm_shuffle_epi32::<0b10_10_10_10>(packed), _mm_set_epi32(0, 0, 4, 0));
        let top = _mm_and_si128(_mm_srli_epi32::<2>(packed), _mm_set1_epi8(0x30));
        let second = _mm_or_si128(_mm_and_si128(mixed, _mm_set1_epi8(0x0f)), top);
        let both = _mm256_cvtepu8_epi16(_mm_unpacklo_epi32(first, second));
        // Minima lie in the high half; each belongs to two sixteens.
        let minima = _mm256_permute4x64_epi64::<0b11_11_10_10>(both);
        let order = _mm256_set_m128i(
            _mm_set_epi8(7, 6, 7, 6, 5, 4, 5, 4, 3, 2, 3, 2, 1, 0, 1, 0),
            _mm_set_epi8(7, 6, 7, 6, 5, 4, 5, 4, 3, 2, 3, 2, 1, 0, 1, 0),
        );
        (both, _mm256_shuffle_epi8(minima, order))
    }
}

pub(crate) struct Q4K;
impl RowGroup for Q4K {
    const HAS_MIN: bool = true;
    const SIGNED: bool = false;
    const PER_32: bool = true;
    type Floats = u32;
    #[inline(always)]
    fn block_bytes(_: WeightType) -> usize {
        const { WeightType::Q4_K.block_bytes() }
    }
    #[inline(always)]
    unsafe fn decode<W: Wide>(_: WeightType, block: &[u8]) -> (Decoded<W>, u32) {
        let block = &block[..144];
        // SAFETY: register arithmetic of what the caller has; loads go through checked slices.
        unsafe {
            let four = _mm256_set1_epi8(15);
            let mut q = [W::zero(); 4];
            for (i, q) in q.iter_mut().enumerate() {
                let both = load(block, 16 + 32 * i);
                let high = _mm256_and_si256(_mm256_srli_epi16::<4>(both), four);
                *q = W::join(_mm256_and_si256(both, four), high);
            }
            let (scale, pair) = six_bits(block);
            (Decoded { q, scale, pair }, u32::from_le_bytes([block[0], block[1], block[2], block[3]]))
        }
    }
    #[inline(always)]
    unsafe fn floats(blocks: [u32; MOST_GROUPS]) -> (__m128, __m128) {
        // SAFETY: as for this function.
        unsafe { halves(blocks) }
    }
}

pub(crate) struct Q5K;
impl RowGroup for Q5K {
    const HAS_MIN: bool = true;
    const SIGNED: bool = false;
    const PER_32: bool = true;
    type Floats = u32;
    #[inline(always)]
    fn block_bytes(_: WeightType) -> usize {
        const { WeightType::Q5_K.block_bytes() }
    }
    #[inline(always)]
    unsafe fn decode<W: Wide>(_: WeightType, block: &[u8]) -> (Decoded<W>, u32) {
        let block = &block[..176];
        // SAFETY: register arithmetic of what the caller has; loads go through checked slices.
        unsafe {
            let (four, fifth) = (_mm256_set1_epi8(15), _mm256_set1_epi8(16));
            let mut top = load(block, 16);
            let mut q = [W::zero(); 4];
            for (i, q) in q.iter_mut().enumerate() {
                let both = load(block, 48 + 32 * i);
                // Bit 2 i of every byte now lies at bit 0, its neighbour at bit 1.
                let low = _mm256_and_si256(_mm256_slli_epi16::<4>(top), fifth);
                let high = _mm256_and_si256(_mm256_slli_epi16::<3>(top), fifth);
                let low = _mm256_or_si256(_mm256_and_si256(both, four), low);
                let high = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16::<4>(both), four), high);
                *q = W::join(low, high);
                top = _mm256_srli_epi16::<2>(top);
            }
            let (scale, pair) = six_bits(block);
            (Decoded { q, scale, pair }, u32::from_le_bytes([block[0], block[1], block[2], block[3]]))
        }
    }
    #[inline(always)]
    unsafe fn floats(blocks: [u32; MOST_GROUPS]) -> (__m128, __m128) {
        // SAFETY: as for this function.
        unsafe { halves(blocks) }
    }
}

pub(crate) struct Q6K;
impl RowGroup for Q6K {
    const HAS_MIN: bool = false;
    const SIGNED: bool = false;
    const PER_32: bool = false;
    type Floats = u32;
    #[inline(always)]
    fn block_bytes(_: WeightType) -> usize {
        const { WeightType::Q6_K.block_bytes() }
    }
    #[inline(always)]
    unsafe fn decode<W: Wide>(_: WeightType, block: &[u8]) -> (Decoded<W>, u32) {
        let block = &block[..210];
        // SAFETY: register arithmetic of what the caller has; loads go through checked slices.
        unsafe {
            let (four, top_two) = (_mm256_set1_epi8(15), _mm256_set1_epi8(0x30));
            let put = |low: __m256i, top: __m256i| {
                _mm256_or_si256(_mm256_and_si256(low, four), _mm256_and_si256(top, top_two))
            };
            let mut q = [W::zero(); 4];
            for half in 0..2 {
                let (first, second) = (load(block, 64 * half), load(block, 64 * half + 32));
                let top = load(block, 128 + 32 * half);
                q[2 * half] = W::join(
                    put(first, _mm256_slli_epi16::<4>(top)),
                    put(second, _mm256_slli_epi16::<2>(top)),
                );
                q[2 * half + 1] = W::join(
                    put(_mm256_srli_epi16::<4>(first), top),
                    put(_mm256_srli_epi16::<4>(second), _mm256_srli_epi16::<2>(top)),
                );
            }
            let scales = &block[192..208];
            let scale = _mm256_cvtepi8_epi16(_mm_loadu_si128(scales.as_ptr().cast()));
            // The offset times any scale stays within i16.
            let pair = _mm256_mullo_epi16(scale, _mm256_set1_epi16(-32));
            (Decoded { q, scale, pair }, u32::from(u16::from_le_bytes([block[208], block[209]])))
        }
    }
    #[inline(always)]
    unsafe fn floats(blocks: [u32; MOST_GROUPS]) -> (__m128, __m128) {
        // SAFETY: as for this function.
        unsafe { halves(blocks) }
    }
}

/// Types whose unpacking is a table's or a chain's.
pub(crate) struct Unpacked;
impl RowGroup for Unpacked {
    const HAS_MIN: bool = false;
    const SIGNED: bool = true;
    const PER_32: bool = false;
    type Floats = f32;
    #[inline(always)]
    fn block_bytes(ty: WeightType) -> usize {
        ty.block_bytes()
    }
    #[inline(always)]
    unsafe fn decode<W: Wide>(ty: WeightType, block: &[u8]) -> (Decoded<W>, f32) {
        let mut group = Group::ZERO;
        // SAFETY: what the caller has; register arithmetic; the arrays have 64 bytes and sixteen i16.
        unsafe {
            unpack(ty, block, &mut group);
            let mut q = [W::zero(); 4];
            for (q, quants) in q.iter_mut().zip(group.q.as_chunks().0) {
                *q = W::load(quants);
            }
            let scale = _mm256_loadu_si256(group.scale.as_ptr().cast());
            (Decoded { q, scale, pair: _mm256_setzero_si256() }, group.d)
        }
    }
    #[inline(always)]
    unsafe fn floats([a, b, c, d]: [f32; MOST_GROUPS]) -> (__m128, __m128) {
        // SAFETY: register arithmetic of what the caller has.
        unsafe { (_mm_setr_ps(a, b, c, d), _mm_setzero_ps()) }
    }
}
