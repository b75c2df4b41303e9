//! Decoding of the 32-value types, one row a lane, eight blocks at a time.

use super::lanes::{Lanes, RowBytes};
use super::tile::{BlockDecode, BlockSink, unroll};
use bloomery_formats::WeightType;
use bloomery_formats::tables::{FP4_VALUES, IQ4_VALUES};

/// A table of signed values made unsigned by an offset.
pub(crate) const fn shifted(table: &[i8; 16], offset: u8) -> [u8; 16] {
    let mut shifted = [0; 16];
    let mut i = 0;
    while i < 16 {
        shifted[i] = (table[i] as u8).wrapping_add(offset);
        i += 1;
    }
    shifted
}

/// All dwords of eight blocks; the last may start inside the previous one where the length is no multiple of 16.
#[inline(always)]
fn words<L: Lanes, const N: usize>(l: L, rows: &RowBytes<'_>) -> [L::I; N] {
    let mut words = [l.splat(0); N];
    unroll!(CHUNK in [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16] {
        if CHUNK < N / 4 {
            let columns = l.columns(rows.sixteen(16 * CHUNK));
            words[4 * CHUNK..][..4].copy_from_slice(&columns);
        }
    });
    let rest = N % 4;
    if rest > 0 {
        let last = l.columns(rows.sixteen(4 * N - 16));
        words[N - rest..].copy_from_slice(&last[4 - rest..]);
    }
    words
}

/// Sixteen bytes of nibbles: low halves are the first sixteen values, high halves the others.
#[inline(always)]
fn nibbles<L: Lanes>(l: L, words: [L::I; 4]) -> [L::I; 8] {
    let four = l.splat8(15);
    let mut q = [l.splat(0); 8];
    for (j, word) in words.into_iter().enumerate() {
        q[j] = l.and(word, four);
        q[4 + j] = l.and(l.shr(word, 4), four);
    }
    q
}

/// Adds the fifth bits: bit i of `top` belongs to value i.
#[inline(always)]
fn fifth_bits<L: Lanes>(l: L, top: L::I, mut q: [L::I; 8]) -> [L::I; 8] {
    let select = l.splat(0x8040_2010);
    let bit = l.splat8(16);
    let shifted = l.shl(top, 4);
    for (j, word) in q.iter_mut().enumerate() {
        // Four consecutive bits, in the high half of byte j / 2 of one of the two words.
        let source = if j % 2 == 0 { shifted } else { top };
        let bits = l.and(l.repeat(source, j as u8 / 2), select);
        *word = l.or(*word, l.min8(bits, bit));
    }
    q
}

/// Looks the values up.
#[inline(always)]
fn looked_up<L: Lanes>(l: L, table: &[u8; 16], mut q: [L::I; 8]) -> [L::I; 8] {
    for word in &mut q {
        *word = l.lookup(table, *word);
    }
    q
}

/// Hands a block over.
#[inline(always)]
fn put<L: Lanes>(l: L, block: usize, q: [L::I; 8], d: L::F, second: L::F, sink: &mut impl BlockSink<L>) {
    for (j, word) in q.into_iter().enumerate() {
        sink.word(l, 8 * block + j, word);
    }
    sink.floats(l, block, d, second);
}

/// Four dwords from `words[first]` on, `bits` into it.
#[inline(always)]
fn four<L: Lanes>(l: L, words: &[L::I], first: usize, bits: u32) -> [L::I; 4] {
    let mut four = [words[first], words[first + 1], words[first + 2], words[first + 3]];
    if bits > 0 {
        for (j, word) in four.iter_mut().enumerate() {
            *word = l.funnel(*word, words[first + j + 1], bits);
        }
    }
    four
}

/// Eighteen-byte blocks of an f16 and nibbles: (scale, nibbles) of block `block`.
#[inline(always)]
fn half_and_nibbles<L: Lanes>(l: L, words: &[L::I; 36], block: usize) -> (L::F, [L::I; 4]) {
    let first = 9 * (block / 2);
    if block.is_multiple_of(2) {
        (l.f16_low(words[first]), four(l, words, first, 16))
    } else {
        (l.f16_high(words[first + 4]), four(l, words, first + 5, 0))
    }
}

const IQ4: [u8; 16] = shifted(&IQ4_VALUES, 128);
const FP4: [u8; 16] = shifted(&FP4_VALUES, 16);

pub(crate) struct Q4_0;
impl BlockDecode for Q4_0 {
    const TYPE: WeightType = WeightType::Q4_0;
    const OFFSET: u8 = 8;
    #[inline(always)]
    fn decode<L: Lanes>(l: L, rows: &RowBytes<'_>, sink: &mut impl BlockSink<L>) {
        let none = l.fsplat(0.0);
        let words = words::<L, 36>(l, rows);
        unroll!(BLOCK in [0 1 2 3 4 5 6 7] {
            let (d, bytes) = half_and_nibbles(l, &words, BLOCK);
            put(l, BLOCK, nibbles(l, bytes), d, none, sink);
        });
    }
}

pub(crate) struct Iq4Nl;
impl BlockDecode for Iq4Nl {
    const TYPE: WeightType = WeightType::IQ4_NL;
    const OFFSET: u8 = 128;
    #[inline(always)]
    fn decode<L: Lanes>(l: L, rows: &RowBytes<'_>, sink: &mut impl BlockSink<L>) {
        let none = l.fsplat(0.0);
        let words = words::<L, 36>(l, rows);
        unroll!(BLOCK in [0 1 2 3 4 5 6 7] {
            let (d, bytes) = half_and_nibbles(l, &words, BLOCK);
            put(l, BLOCK, looked_up(l, &IQ4, nibbles(l, bytes)), d, none, sink);
        });
    }
}

pub(crate) struct Q4_1;
impl BlockDecode for Q4_1 {
    const TYPE: WeightType = WeightType::Q4_1;
    const HAS_MIN: bool = true;
    const OFFSET: u8 = 0;
    #[inline(always)]
    fn decode<L: Lanes>(l: L, rows: &RowBytes<'_>, sink: &mut impl BlockSink<L>) {
        let words = words::<L, 40>(l, rows);
        unroll!(BLOCK in [0 1 2 3 4 5 6 7] {
            let head = words[5 * BLOCK];
            let q = nibbles(l, four(l, &words, 5 * BLOCK + 1, 0));
            put(l, BLOCK, q, l.f16_low(head), l.f16_high(head), sink);
        });
    }
}

pub(crate) struct Q5_0;
impl BlockDecode for Q5_0 {
    const TYPE: WeightType = WeightType::Q5_0;
    const OFFSET: u8 = 16;
    #[inline(always)]
    fn decode<L: Lanes>(l: L, rows: &RowBytes<'_>, sink: &mut impl BlockSink<L>) {
        let none = l.fsplat(0.0);
        let words = words::<L, 44>(l, rows);
        unroll!(BLOCK in [0 1 2 3 4 5 6 7] {
            const FIRST: usize = 11 * (BLOCK / 2);
            let (d, top, bytes) = if BLOCK.is_multiple_of(2) {
                let top = l.funnel(words[FIRST], words[FIRST + 1], 16);
                (l.f16_low(words[FIRST]), top, four(l, &words, FIRST + 1, 16))
            } else {
                (l.f16_high(words[FIRST + 5]), words[FIRST + 6], four(l, &words, FIRST + 7, 0))
            };
            put(l, BLOCK, fifth_bits(l, top, nibbles(l, bytes)), d, none, sink);
        });
    }
}

pub(crate) struct Q5_1;
impl BlockDecode for Q5_1 {
    const TYPE: WeightType = WeightType::Q5_1;
    const HAS_MIN: bool = true;
    const OFFSET: u8 = 0;
    #[inline(always)]
    fn decode<L: Lanes>(l: L, rows: &RowBytes<'_>, sink: &mut impl BlockSink<L>) {
        let words = words::<L, 48>(l, rows);
        unroll!(BLOCK in [0 1 2 3 4 5 6 7] {
            let head = words[6 * BLOCK];
            let q = fifth_bits(l, words[6 * BLOCK + 1], nibbles(l, four(l, &words, 6 * BLOCK + 2, 0)));
            put(l, BLOCK, q, l.f16_low(head), l.f16_high(head), sink);
        });
    }
}

pub(crate) struct Q8_0;
impl BlockDecode for Q8_0 {
    const TYPE: WeightType = WeightType::Q8_0;
    const OFFSET: u8 = 128;
    #[inline(always)]
    fn decode<L: Lanes>(l: L, rows: &RowBytes<'_>, sink: &mut impl BlockSink<L>) {
        let none = l.fsplat(0.0);
        let words = words::<L, 68>(l, rows);
        unroll!(BLOCK in [0 1 2 3 4 5 6 7] {
            const FIRST: usize = 17 * (BLOCK / 2);
            let sign = l.splat8(0x80);
            let mut q = [sign; 8];
            let d = if BLOCK.is_multiple_of(2) {
                for (j, word) in q.iter_mut().enumerate() {
                    *word = l.xor(l.funnel(words[FIRST + j], words[FIRST + j + 1], 16), sign);
                }
                l.f16_low(words[FIRST])
            } else {
                for (j, word) in q.iter_mut().enumerate() {
                    *word = l.xor(words[FIRST + 9 + j], sign);
                }
                l.f16_high(words[FIRST + 8])
            };
            put(l, BLOCK, q, d, none, sink);
        });
    }
}

pub(crate) struct Mxfp4;
impl BlockDecode for Mxfp4 {
    const TYPE: WeightType = WeightType::MXFP4;
    const OFFSET: u8 = 16;
    #[inline(always)]
    fn decode<L: Lanes>(l: L, rows: &RowBytes<'_>, sink: &mut impl BlockSink<L>) {
        let none = l.fsplat(0.0);
        let words = words::<L, 34>(l, rows);
        unroll!(BLOCK in [0 1 2 3 4 5 6 7] {
            const PLACE: usize = BLOCK % 4;
            const FIRST: usize = 17 * (BLOCK / 4) + 4 * PLACE;
            let e = l.and(l.shr(words[FIRST], 8 * PLACE as u32), l.splat(0xff));
            // 2^(e - 128); the second form is the subnormal one of e = 0 and 1, elsewhere the smaller.
            let normal = l.shl(l.add(e, l.splat(u32::MAX)), 23);
            let subnormal = l.shl(l.add(e, l.splat(1)), 21);
            let d = l.bits(l.max(normal, subnormal));
            let bytes = four(l, &words, FIRST, 8 * PLACE as u32 + 8);
            put(l, BLOCK, looked_up(l, &FP4, nibbles(l, bytes)), d, none, sink);
        });
    }
}

/// Half of the value of an unsigned E4M3 byte; 0x7f counts as zero.
#[inline(always)]
fn e4m3<L: Lanes>(l: L, byte: L::I) -> L::F {
    // All ones where the byte is 0x7f.
    let no_number = l.sra(l.add(l.xor(byte, l.splat(0x7f)), l.splat(u32::MAX)), 31);
    let bits = l.shl(l.and(byte, l.splat(0x7f)), 20);
    let bits = l.and(bits, l.xor(no_number, l.splat(u32::MAX)));
    // Exponent and fraction now lie where f32 has them, subnormals too; the bias differs by 120, and half the value is asked for.
    l.fmul(l.bits(bits), l.fsplat(f32::from_bits((127 + 119) << 23)))
}

pub(crate) struct Nvfp4;
impl BlockDecode for Nvfp4 {
    const TYPE: WeightType = WeightType::NVFP4;
    const SPLIT: bool = true;
    const OFFSET: u8 = 16;
    #[inline(always)]
    fn decode<L: Lanes>(l: L, rows: &RowBytes<'_>, sink: &mut impl BlockSink<L>) {
        let words = words::<L, 36>(l, rows);
        unroll!(BLOCK in [0 1 2 3 4 5 6 7] {
            const HEAD: usize = 9 * (BLOCK / 2);
            const FIRST: usize = HEAD + 1 + 4 * (BLOCK % 2);
            let byte = l.splat(0xff);
            let first = e4m3(l, l.and(l.shr(words[HEAD], 16 * (BLOCK as u32 % 2)), byte));
            let second = e4m3(l, l.and(l.shr(words[HEAD], 16 * (BLOCK as u32 % 2) + 8), byte));
            // Eight bytes hold sixteen values: low halves first.
            let [a0, a1, b0, b1, a2, a3, b2, b3] = nibbles(l, four(l, &words, FIRST, 0));
            put(l, BLOCK, looked_up(l, &FP4, [a0, a1, a2, a3, b0, b1, b2, b3]), first, second, sink);
        });
    }
}
