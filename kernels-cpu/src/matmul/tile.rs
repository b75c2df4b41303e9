//! A tile: one group of 256 weights of as many rows as there are lanes, decoded for the multipliers.

use super::lanes::{Lanes, RowBytes};
use bloomery_formats::WeightType;

/// Memory for which every bit pattern is a value.
///
/// # Safety
/// Only vectors of integers and floats inside, no padding that is read, no drop.
pub(crate) unsafe trait Tile {}
// SAFETY: `Lanes::I` and `Lanes::F` are vectors of integers and floats.
unsafe impl<L: Lanes> Tile for GroupTile<L> {}
// SAFETY: as above.
unsafe impl<L: Lanes> Tile for BlockTile<L> {}

/// A group of a 256-value type. Dword i of `q` holds the unsigned bytes of values 4 i .. 4 i + 4.
#[repr(C, align(64))]
pub(crate) struct GroupTile<L: Lanes> {
    pub q: [L::I; 64],
    /// Integer scales: eight per 32 or sixteen per 16 values.
    pub scale: [L::I; 16],
    /// Pairs of i16 that multiply the activations' sums (per 32 or per 16, as the scales): the minima, or the correction for the
    /// offset that made the bytes unsigned (minus offset times scale).
    pub pair: [L::I; 8],
    pub d: L::F,
    pub dmin: L::F,
}

/// Eight blocks of a 32-value type, in the same order of bytes.
#[repr(C, align(64))]
pub(crate) struct BlockTile<L: Lanes> {
    pub q: [L::I; 64],
    pub d: [L::F; 8],
    /// Offsets, or the scales of the blocks' second halves.
    pub second: [L::F; 8],
}

/// Where the decoded parts of a 256-value group go. Every dword is handed over before the first scale.
pub(crate) trait GroupSink<L: Lanes> {
    /// Dword `index` (0..64) of unsigned bytes.
    fn word(&mut self, l: L, index: usize, value: L::I);
    /// The integer scale of a sub-block.
    fn scale(&mut self, l: L, index: usize, value: L::I);
    /// See [`GroupTile::pair`].
    fn pair(&mut self, l: L, index: usize, value: L::I);
    /// The f32 scales; the second is unused by types without minima.
    fn floats(&mut self, l: L, d: L::F, dmin: L::F);
}

/// Where the decoded parts of eight blocks go. A block's dwords are handed over before its scales.
pub(crate) trait BlockSink<L: Lanes> {
    /// Dword `index` (0..64) of unsigned bytes.
    fn word(&mut self, l: L, index: usize, value: L::I);
    /// A block's scale and its offset or second scale (unused by types that have neither).
    fn floats(&mut self, l: L, block: usize, d: L::F, second: L::F);
}

impl<L: Lanes> GroupSink<L> for GroupTile<L> {
    #[inline(always)]
    fn word(&mut self, _: L, index: usize, value: L::I) {
        self.q[index] = value;
    }
    #[inline(always)]
    fn scale(&mut self, _: L, index: usize, value: L::I) {
        self.scale[index] = value;
    }
    #[inline(always)]
    fn pair(&mut self, _: L, index: usize, value: L::I) {
        self.pair[index] = value;
    }
    #[inline(always)]
    fn floats(&mut self, _: L, d: L::F, dmin: L::F) {
        (self.d, self.dmin) = (d, dmin);
    }
}

impl<L: Lanes> BlockSink<L> for BlockTile<L> {
    #[inline(always)]
    fn word(&mut self, _: L, index: usize, value: L::I) {
        self.q[index] = value;
    }
    #[inline(always)]
    fn floats(&mut self, _: L, block: usize, d: L::F, second: L::F) {
        (self.d[block], self.second[block]) = (d, second);
    }
}

/// Repeats a block for constants, so that register arrays indexed by them stay in registers.
macro_rules! unroll {
    ($name:ident in [$($value:literal)*] $body:block) => {
        $({
            #[allow(non_upper_case_globals)]
            const $name: usize = $value;
            $body
        })*
    };
}
pub(crate) use unroll;

/// How a 256-value type becomes a tile.
pub(crate) trait GroupDecode {
    /// Whether scales belong to 32 values, not 16.
    const PER_32: bool;
    /// Whether `pair` holds minima.
    const HAS_MIN: bool;
    /// Whether unsigned bytes exceed 128.
    const WIDE: bool;
    /// Bytes of a block of `ty`.
    fn block_bytes(ty: WeightType) -> usize;
    /// `rows` holds one block of `ty` of every row.
    fn decode<L: Lanes>(l: L, ty: WeightType, rows: &RowBytes<'_>, sink: &mut impl GroupSink<L>);
}

/// How eight blocks of a 32-value type become a tile.
pub(crate) trait BlockDecode {
    const TYPE: WeightType;
    const HAS_MIN: bool = false;
    /// Whether the halves of a block have scales of their own.
    const SPLIT: bool = false;
    /// What made the bytes unsigned.
    const OFFSET: u8;
    /// `rows` holds the bytes of eight blocks of every row.
    fn decode<L: Lanes>(l: L, rows: &RowBytes<'_>, sink: &mut impl BlockSink<L>);
}
