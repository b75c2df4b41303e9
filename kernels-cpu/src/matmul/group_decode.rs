//! Decoding of the 256-value types, one row a lane.

use super::lanes::{Lanes, MAX_WIDTH, RowBytes};
use super::tile::{GroupDecode, GroupSink, unroll};
use super::unpack::unpack;
use bloomery_formats::group_formats::Group;
use bloomery_formats::{WeightType, tables::IQ4_VALUES};

/// Four bytes as the integer scales from `first` on.
#[inline(always)]
fn four_scales<L: Lanes>(l: L, bytes: L::I, first: usize, bias: i32, sink: &mut impl GroupSink<L>) {
    let byte = l.splat(0xff);
    let unbiased =
        [l.and(bytes, byte), l.and(l.shr(bytes, 8), byte), l.and(l.shr(bytes, 16), byte), l.shr(bytes, 24)];
    for (i, scale) in unbiased.into_iter().enumerate() {
        sink.scale(l, first + i, if bias == 0 { scale } else { l.add(scale, l.splat(-bias as u32)) });
    }
}

/// The scales and minima of Q4_K and Q5_K from the three dwords that pack them.
#[inline(always)]
fn six_bit_scales<L: Lanes>(l: L, [low, high, mixed]: [L::I; 3], sink: &mut impl GroupSink<L>) {
    let (six, four, two) = (l.splat8(0x3f), l.splat8(0x0f), l.splat8(0x30));
    four_scales(l, l.and(low, six), 0, 0, sink);
    four_scales(l, l.or(l.and(mixed, four), l.and(l.shr(low, 2), two)), 4, 0, sink);
    let first = l.and(high, six);
    let second = l.or(l.and(l.shr(mixed, 4), four), l.and(l.shr(high, 2), two));
    sink.pair(l, 0, l.pair01(first));
    sink.pair(l, 1, l.pair23(first));
    sink.pair(l, 2, l.pair01(second));
    sink.pair(l, 3, l.pair23(second));
}

/// `(bits of x at from) moved to bit to`, masked per byte.
#[inline(always)]
fn move_bits<L: Lanes>(l: L, x: L::I, from: u32, to: u32, mask: L::I) -> L::I {
    let moved = if to >= from { l.shl(x, to - from) } else { l.shr(x, from - to) };
    l.and(moved, mask)
}

/// Pairs of minus `offset` times (scale minus `bias`).
#[inline(always)]
fn corrections<L: Lanes>(l: L, scales: L::I, bias: i16, offset: i16) -> L::I {
    l.mul16(l.sub16(scales, l.splat16(bias)), l.splat16(-offset))
}

pub(crate) struct Q4K;
impl GroupDecode for Q4K {
    const PER_32: bool = true;
    const HAS_MIN: bool = true;
    const WIDE: bool = false;
    #[inline(always)]
    fn block_bytes(_: WeightType) -> usize {
        const { WeightType::Q4_K.block_bytes() }
    }
    #[inline(always)]
    fn decode<L: Lanes>(l: L, _: WeightType, rows: &RowBytes<'_>, sink: &mut impl GroupSink<L>) {
        let four = l.splat8(15);
        let [dd, s0, s1, s2] = l.columns(rows.sixteen(0));
        unroll!(CHUNK in [0 1 2 3 4 5 6 7] {
            let columns = l.columns(rows.sixteen(16 + 16 * CHUNK));
            let first = 16 * (CHUNK / 2) + 4 * (CHUNK % 2);
            for (j, column) in columns.into_iter().enumerate() {
                sink.word(l, first + j, l.and(column, four));
                sink.word(l, first + 8 + j, l.and(l.shr(column, 4), four));
            }
        });
        six_bit_scales(l, [s0, s1, s2], sink);
        sink.floats(l, l.f16_low(dd), l.f16_high(dd));
    }
}

pub(crate) struct Q5K;
impl GroupDecode for Q5K {
    const PER_32: bool = true;
    const HAS_MIN: bool = true;
    const WIDE: bool = false;
    #[inline(always)]
    fn block_bytes(_: WeightType) -> usize {
        const { WeightType::Q5_K.block_bytes() }
    }
    #[inline(always)]
    fn decode<L: Lanes>(l: L, _: WeightType, rows: &RowBytes<'_>, sink: &mut impl GroupSink<L>) {
        let (four, fifth) = (l.splat8(15), l.splat8(16));
        let [dd, s0, s1, s2] = l.columns(rows.sixteen(0));
        let top = [l.columns(rows.sixteen(16)), l.columns(rows.sixteen(32))];
        unroll!(CHUNK in [0 1 2 3 4 5 6 7] {
            const PART: u32 = CHUNK as u32 / 2;
            let columns = l.columns(rows.sixteen(48 + 16 * CHUNK));
            let first = 16 * (CHUNK / 2) + 4 * (CHUNK % 2);
            for j in 0..4 {
                let low = move_bits(l, top[CHUNK % 2][j], 2 * PART, 4, fifth);
                let high = move_bits(l, top[CHUNK % 2][j], 2 * PART + 1, 4, fifth);
                sink.word(l, first + j, l.or(l.and(columns[j], four), low));
                sink.word(l, first + 8 + j, l.or(l.and(l.shr(columns[j], 4), four), high));
            }
        });
        six_bit_scales(l, [s0, s1, s2], sink);
        sink.floats(l, l.f16_low(dd), l.f16_high(dd));
    }
}

pub(crate) struct Q6K;
impl GroupDecode for Q6K {
    const PER_32: bool = false;
    const HAS_MIN: bool = false;
    const WIDE: bool = false;
    #[inline(always)]
    fn block_bytes(_: WeightType) -> usize {
        const { WeightType::Q6_K.block_bytes() }
    }
    #[inline(always)]
    fn decode<L: Lanes>(l: L, _: WeightType, rows: &RowBytes<'_>, sink: &mut impl GroupSink<L>) {
        let (four, two) = (l.splat8(15), l.splat8(0x30));
        unroll!(QUARTERS in [0 1 2 3] {
            const HALF: usize = QUARTERS / 2;
            const QUARTER: usize = QUARTERS % 2;
            let top = l.columns(rows.sixteen(128 + 32 * HALF + 16 * QUARTER));
            unroll!(PART in [0 1] {
                let nibbles = l.columns(rows.sixteen(64 * HALF + 32 * PART + 16 * QUARTER));
                let first = 32 * HALF + 8 * PART + 4 * QUARTER;
                for j in 0..4 {
                    let low = move_bits(l, top[j], 2 * PART as u32, 4, two);
                    let high = move_bits(l, top[j], 2 * PART as u32 + 4, 4, two);
                    sink.word(l, first + j, l.or(l.and(nibbles[j], four), low));
                    sink.word(l, first + 16 + j, l.or(l.and(l.shr(nibbles[j], 4), four), high));
                }
            });
        });
        let scales = l.columns(rows.sixteen(192));
        for (word, bytes) in scales.into_iter().enumerate() {
            for i in 0..4 {
                sink.scale(l, 4 * word + i, l.sra(l.shl(bytes, 24 - 8 * i as u32), 24));
            }
            let shifted = l.xor(bytes, l.splat8(0x80));
            sink.pair(l, 2 * word, corrections(l, l.pair01(shifted), 128, 32));
            sink.pair(l, 2 * word + 1, corrections(l, l.pair23(shifted), 128, 32));
        }
        sink.floats(l, l.f16_high(l.columns(rows.sixteen(194))[3]), l.fsplat(0.0));
    }
}

pub(crate) struct Q3K;
impl GroupDecode for Q3K {
    const PER_32: bool = false;
    const HAS_MIN: bool = false;
    const WIDE: bool = false;
    #[inline(always)]
    fn block_bytes(_: WeightType) -> usize {
        const { WeightType::Q3_K.block_bytes() }
    }
    #[inline(always)]
    fn decode<L: Lanes>(l: L, _: WeightType, rows: &RowBytes<'_>, sink: &mut impl GroupSink<L>) {
        let (two, third) = (l.splat8(3), l.splat8(4));
        unroll!(QUARTER in [0 1] {
            let top = l.columns(rows.sixteen(16 * QUARTER));
            unroll!(HALF in [0 1] {
                let bits = l.columns(rows.sixteen(32 + 32 * HALF + 16 * QUARTER));
                unroll!(PART in [0 1 2 3] {
                    let first = 32 * HALF + 8 * PART + 4 * QUARTER;
                    for j in 0..4 {
                        let low = l.and(l.shr(bits[j], 2 * PART as u32), two);
                        let high = move_bits(l, top[j], (4 * HALF + PART) as u32, 2, third);
                        sink.word(l, first + j, l.or(low, high));
                    }
                });
            });
        });
        let [t0, t1, t2, t3] = l.columns(rows.sixteen(94));
        let (s0, s1, s2) = (l.funnel(t0, t1, 16), l.funnel(t1, t2, 16), l.funnel(t2, t3, 16));
        let four = l.splat8(15);
        let top = l.splat8(0x30);
        let words = [
            l.or(l.and(s0, four), move_bits(l, s2, 0, 4, top)),
            l.or(l.and(s1, four), move_bits(l, s2, 2, 4, top)),
            l.or(l.and(l.shr(s0, 4), four), move_bits(l, s2, 4, 4, top)),
            l.or(l.and(l.shr(s1, 4), four), move_bits(l, s2, 6, 4, top)),
        ];
        for (word, bytes) in words.into_iter().enumerate() {
            four_scales(l, bytes, 4 * word, 32, sink);
            sink.pair(l, 2 * word, corrections(l, l.pair01(bytes), 32, 4));
            sink.pair(l, 2 * word + 1, corrections(l, l.pair23(bytes), 32, 4));
        }
        sink.floats(l, l.f16_high(t3), l.fsplat(0.0));
    }
}

pub(crate) struct Q2K;
impl GroupDecode for Q2K {
    const PER_32: bool = false;
    const HAS_MIN: bool = true;
    const WIDE: bool = false;
    #[inline(always)]
    fn block_bytes(_: WeightType) -> usize {
        const { WeightType::Q2_K.block_bytes() }
    }
    #[inline(always)]
    fn decode<L: Lanes>(l: L, _: WeightType, rows: &RowBytes<'_>, sink: &mut impl GroupSink<L>) {
        let (two, four) = (l.splat8(3), l.splat8(15));
        unroll!(QUARTERS in [0 1 2 3] {
            const HALF: usize = QUARTERS / 2;
            const QUARTER: usize = QUARTERS % 2;
            let bits = l.columns(rows.sixteen(16 + 32 * HALF + 16 * QUARTER));
            unroll!(PART in [0 1 2 3] {
                for (j, bits) in bits.iter().enumerate() {
                    let word = l.and(l.shr(*bits, 2 * PART as u32), two);
                    sink.word(l, 32 * HALF + 8 * PART + 4 * QUARTER + j, word);
                }
            });
        });
        for (word, bytes) in l.columns(rows.sixteen(0)).into_iter().enumerate() {
            four_scales(l, l.and(bytes, four), 4 * word, 0, sink);
            let minima = l.and(l.shr(bytes, 4), four);
            sink.pair(l, 2 * word, l.pair01(minima));
            sink.pair(l, 2 * word + 1, l.pair23(minima));
        }
        let dd = l.columns(rows.sixteen(68))[3];
        sink.floats(l, l.f16_low(dd), l.f16_high(dd));
    }
}

pub(crate) struct Iq4Xs;
impl GroupDecode for Iq4Xs {
    const PER_32: bool = true;
    const HAS_MIN: bool = false;
    const WIDE: bool = true;
    #[inline(always)]
    fn block_bytes(_: WeightType) -> usize {
        const { WeightType::IQ4_XS.block_bytes() }
    }
    #[inline(always)]
    fn decode<L: Lanes>(l: L, _: WeightType, rows: &RowBytes<'_>, sink: &mut impl GroupSink<L>) {
        const TABLE: [u8; 16] = super::block_decode::shifted(&IQ4_VALUES, 128);
        let four = l.splat8(15);
        unroll!(BLOCK in [0 1 2 3 4 5 6 7] {
            let columns = l.columns(rows.sixteen(8 + 16 * BLOCK));
            for (j, column) in columns.into_iter().enumerate() {
                sink.word(l, 8 * BLOCK + j, l.lookup(&TABLE, l.and(column, four)));
                sink.word(l, 8 * BLOCK + 4 + j, l.lookup(&TABLE, l.and(l.shr(column, 4), four)));
            }
        });
        let [head, low, ..] = l.columns(rows.sixteen(0));
        for pair in 0..4 {
            let mut scales = [l.splat(0); 2];
            for (i, scale) in scales.iter_mut().enumerate() {
                let j = 2 * pair + i as u32;
                let nibble = l.and(l.shr(low, 4 * j), l.splat(15));
                let top = l.and(l.shr(head, 16 + 2 * j), l.splat(3));
                *scale = l.add(l.or(nibble, l.shl(top, 4)), l.splat(-32i32 as u32));
                sink.scale(l, j as usize, *scale);
            }
            let both = l.or(l.and(scales[0], l.splat(0xffff)), l.shl(scales[1], 16));
            sink.pair(l, pair as usize, l.mul16(both, l.splat16(-128)));
        }
        sink.floats(l, l.f16_low(head), l.fsplat(0.0));
    }
}

/// Any type without minima, through the row-wise form of the formats crate: rows are unpacked one by one, then turned into lanes.
pub(crate) struct RowWise;

impl GroupDecode for RowWise {
    const PER_32: bool = false;
    const HAS_MIN: bool = false;
    const WIDE: bool = true;
    #[inline(always)]
    fn block_bytes(ty: WeightType) -> usize {
        ty.block_bytes()
    }
    #[inline(always)]
    fn decode<L: Lanes>(l: L, ty: WeightType, rows: &RowBytes<'_>, sink: &mut impl GroupSink<L>) {
        let mut groups = [Group::ZERO; MAX_WIDTH];
        for (lane, group) in groups.iter_mut().enumerate().take(L::WIDTH) {
            // SAFETY: every `Lanes` of this machine family is proof of AVX2, FMA and F16C.
            unsafe { unpack(ty, rows.row(lane), group) };
        }
        let groups = RowBytes::of_groups(&groups, rows);
        let sign = l.splat8(0x80);
        unroll!(CHUNK in [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] {
            for (j, column) in l.columns(groups.sixteen(16 * CHUNK)).into_iter().enumerate() {
                sink.word(l, 4 * CHUNK + j, l.xor(column, sign));
            }
        });
        unroll!(CHUNK in [0 1] {
            for (j, scales) in l.columns(groups.sixteen(256 + 16 * CHUNK)).into_iter().enumerate() {
                let pair = 4 * CHUNK + j;
                sink.scale(l, 2 * pair, l.sra(l.shl(scales, 16), 16));
                sink.scale(l, 2 * pair + 1, l.sra(scales, 16));
                sink.pair(l, pair, l.mul16(scales, l.splat16(-128)));
            }
        });
        let d = l.columns(groups.sixteen(312))[2];
        sink.floats(l, l.bits(d), l.fsplat(0.0));
    }
}
