//! The loops around the tiles: which weights are decoded when, and for how many activation rows they are used.
//!
//! A tile is decoded once per pass over at most [`PASS`] activation rows. With one or a few rows (decode) one tile is alive at a time;
//! with many (prefill) several, so that each activation group that was brought near serves more weight rows.

use super::lanes::{Lanes, MAX_WIDTH, RowBytes};
use super::micro::{self, BlockActivation, GroupActivation};
use super::tile::{BlockDecode, BlockTile, GroupDecode, GroupTile};
use super::{Rows, Scratch};
use crate::activations::Activations;
use crate::matrix::Matrix;
use crate::output::OutTile;
use std::ops::Range;

/// Activation rows per pass: their group and sums stay in the second-level cache.
const PASS: usize = 256;
/// From how many activation rows on several tiles are decoded ahead.
const MANY: usize = 16;
/// How many then.
pub(crate) const TILES: usize = 4;

const GROUP: usize = 256;

/// A checked product: the ranges are inside, kinds and widths fit, the output has the shape.
pub(crate) struct Job<'a> {
    pub weights: &'a Matrix<'a>,
    pub weight_rows: Range<usize>,
    pub activations: &'a Activations,
    pub activation_rows: Rows<'a>,
}

impl<'a> Job<'a> {
    /// The rows of a tile that starts at weight row `first`; lanes beyond the last row repeat it.
    #[inline(always)]
    fn tile_rows(&self, first: usize) -> RowBytes<'a> {
        let last = self.weight_rows.end - 1;
        RowBytes::new(self.weights.row_bytes(), |lane| self.weights.row((first + lane).min(last)))
    }

    /// Asks for the part of the following tile that corresponds to bytes `part` of the rows of the tile at `first`.
    #[inline(always)]
    fn prefetch<L: Lanes>(&self, l: L, first: usize, part: Range<usize>) {
        let next = first + L::WIDTH;
        if next < self.weight_rows.end {
            let start = next * self.weights.row_bytes() + part.start * L::WIDTH;
            let end = start + part.len() * L::WIDTH;
            for offset in (start..end.min(self.weights.data().len())).step_by(64) {
                l.prefetch(self.weights.data().as_ptr().wrapping_add(offset));
            }
        }
    }

    #[inline(always)]
    fn group_activation(&self, index: usize, group: usize) -> GroupActivation<'a> {
        let row = self.activation_rows.get(index);
        let (a, strides) = (self.activations, self.activations.strides());
        GroupActivation {
            q: dwords(&a.qs, row * strides.qs + group * GROUP),
            sums: pairs(&a.sums, row * strides.sums + group * 16),
            sums32: pairs(&a.sums32, row * strides.sums32 + group * 8),
            scale: a.scales[row * strides.scales + group],
        }
    }

    #[inline(always)]
    fn block_activation(&self, index: usize, group: usize) -> BlockActivation<'a> {
        let row = self.activation_rows.get(index);
        let (a, strides) = (self.activations, self.activations.strides());
        let eight = |values: &'a [f32]| {
            let start = row * strides.scales + group * 8;
            values[start..start + 8].first_chunk::<8>().expect("eight values were taken")
        };
        BlockActivation {
            q: dwords(&a.qs, row * strides.qs + group * GROUP),
            sums: pairs(&a.sums, row * strides.sums + group * 16),
            scale: eight(&a.scales),
            scaled_sum: eight(&a.scaled_sums),
        }
    }

    /// Runs `decode` for every tile and group and `multiply` for every run of activation rows, and writes the sums out.
    #[inline(always)]
    fn run<L: Lanes, T>(
        &self,
        l: L,
        tiles: &mut [T],
        sums: &mut [f32],
        out: &mut OutTile<'_>,
        groups: usize,
        decode: impl Fn(&RowBytes<'_>, usize, usize, &mut T),
        multiply: impl Fn(&[T], &mut [f32], Range<usize>, usize),
    ) {
        let count = self.activation_rows.len();
        let block = L::WIDTH * if count >= MANY { TILES } else { 1 };
        for first in self.weight_rows.clone().step_by(block) {
            let rows = (self.weight_rows.end - first).min(block);
            let used = rows.div_ceil(L::WIDTH);
            let starts: [RowBytes<'_>; TILES] = std::array::from_fn(|tile| {
                self.tile_rows((first + tile * L::WIDTH).min(self.weight_rows.end - 1))
            });
            for pass in (0..count).step_by(PASS) {
                let pass = pass..count.min(pass + PASS);
                let sums = &mut sums[..used * pass.len() * L::WIDTH];
                sums.fill(0.0);
                for group in 0..groups {
                    for (tile, start) in tiles[..used].iter_mut().zip(&starts) {
                        decode(start, group, first, tile);
                    }
                    multiply(&tiles[..used], sums, pass.clone(), group);
                }
                for tile in 0..used {
                    let column = first - self.weight_rows.start + tile * L::WIDTH;
                    let valid = L::WIDTH.min(rows - tile * L::WIDTH);
                    for (index, row) in pass.clone().enumerate() {
                        let from = (tile * pass.len() + index) * L::WIDTH;
                        out.row_mut(row)[column..][..valid].copy_from_slice(&sums[from..][..valid]);
                    }
                }
            }
        }
        let _ = l;
    }
}

/// 256 quants as dwords.
#[inline(always)]
fn dwords(qs: &[i8], start: usize) -> &[[i8; 4]; 64] {
    qs[start..start + GROUP].as_chunks::<4>().0.first_chunk().expect("256 quants are 64 dwords")
}

/// Sums in pairs.
#[inline(always)]
fn pairs<const N: usize>(sums: &[i16], start: usize) -> &[[i16; 2]; N] {
    const NONE: &[i16] = &[0; 16];
    // Kinds without these sums have none stored, and no kernel of theirs reads them.
    let sums = sums.get(start..start + 2 * N).unwrap_or(NONE);
    sums.as_chunks::<2>().0.first_chunk().expect("2 N sums are N pairs")
}

/// Runs `step` with 8, 4, 2 and 1 rows at a time, as the registers allow.
macro_rules! in_runs {
    ($lanes:ty, $range:expr, $step:ident) => {
        let mut index = $range.start;
        while index < $range.end {
            let left = $range.end - index;
            if <$lanes>::MAX_ACTIVATIONS >= 8 && left >= 8 {
                $step!(8, index);
                index += 8;
            } else if left >= 4 {
                $step!(4, index);
                index += 4;
            } else if left >= 2 {
                $step!(2, index);
                index += 2;
            } else {
                $step!(1, index);
                index += 1;
            }
        }
    };
}

/// The product for a 256-value type.
#[inline(always)]
pub(crate) fn groups<L: Lanes, D: GroupDecode>(
    l: L,
    job: &Job<'_>,
    out: &mut OutTile<'_>,
    scratch: &mut Scratch,
) {
    let bytes = D::TYPE.block_bytes();
    let many = job.activation_rows.len() >= MANY;
    let (tiles, sums) = scratch.parts::<GroupTile<L>>(if many { TILES } else { 1 }, PASS * MAX_WIDTH * TILES);
    let decode = |rows: &RowBytes<'_>, group: usize, first: usize, tile: &mut GroupTile<L>| {
        if !many {
            job.prefetch(l, first, group * bytes..(group + 1) * bytes);
        }
        D::decode(l, &rows.part(group * bytes, bytes), tile);
    };
    let multiply = |tiles: &[GroupTile<L>], sums: &mut [f32], pass: Range<usize>, group: usize| {
        macro_rules! step {
            ($n:literal, $index:expr) => {
                let activations: [GroupActivation<'_>; $n] =
                    std::array::from_fn(|a| job.group_activation($index + a, group));
                for (number, tile) in tiles.iter().enumerate() {
                    let from = (number * pass.len() + $index - pass.start) * L::WIDTH;
                    let sums = &mut sums[from..][..$n * L::WIDTH];
                    let mut rows: [L::F; $n] = std::array::from_fn(|a| l.fload(&sums[a * L::WIDTH..]));
                    micro::groups::<L, D, $n>(l, tile, activations, &mut rows);
                    for (a, row) in rows.into_iter().enumerate() {
                        l.fstore(row, &mut sums[a * L::WIDTH..]);
                    }
                }
            };
        }
        in_runs!(L, pass, step);
    };
    job.run(l, tiles, sums, out, job.weights.cols() / GROUP, decode, multiply);
}

/// Most bytes that eight blocks of 32 take.
const MOST_BYTES: usize = 8 * 34;

#[repr(align(64))]
struct LastRows([[u8; MOST_BYTES]; MAX_WIDTH]);

/// The product for a 32-value type.
#[inline(always)]
pub(crate) fn blocks<L: Lanes, D: BlockDecode>(
    l: L,
    job: &Job<'_>,
    out: &mut OutTile<'_>,
    scratch: &mut Scratch,
) {
    let bytes = D::TYPE.block_bytes() * GROUP / D::TYPE.block_len();
    let many = job.activation_rows.len() >= MANY;
    let (tiles, sums) = scratch.parts::<BlockTile<L>>(if many { TILES } else { 1 }, PASS * MAX_WIDTH * TILES);
    let decode = |rows: &RowBytes<'_>, group: usize, first: usize, tile: &mut BlockTile<L>| {
        let end = rows.len().min((group + 1) * bytes);
        if !many {
            job.prefetch(l, first, group * bytes..end);
        }
        if end == (group + 1) * bytes {
            D::decode(l, &rows.part(group * bytes, bytes), tile);
        } else {
            // Missing blocks are zero bytes: their scales are zero, or multiply zero quants of zero scale.
            let mut last = LastRows([[0; MOST_BYTES]; MAX_WIDTH]);
            for (lane, target) in last.0.iter_mut().enumerate() {
                let source = &rows.row(lane)[group * bytes..];
                target[..source.len()].copy_from_slice(source);
            }
            D::decode(l, &RowBytes::new(bytes, |lane| &last.0[lane]), tile);
        }
    };
    let multiply = |tiles: &[BlockTile<L>], sums: &mut [f32], pass: Range<usize>, group: usize| {
        macro_rules! step {
            ($n:literal, $index:expr) => {
                let activations: [BlockActivation<'_>; $n] =
                    std::array::from_fn(|a| job.block_activation($index + a, group));
                for (number, tile) in tiles.iter().enumerate() {
                    let from = (number * pass.len() + $index - pass.start) * L::WIDTH;
                    let sums = &mut sums[from..][..$n * L::WIDTH];
                    let mut rows: [L::F; $n] = std::array::from_fn(|a| l.fload(&sums[a * L::WIDTH..]));
                    micro::blocks::<L, D, $n>(l, tile, activations, &mut rows);
                    for (a, row) in rows.into_iter().enumerate() {
                        l.fstore(row, &mut sums[a * L::WIDTH..]);
                    }
                }
            };
        }
        in_runs!(L, pass, step);
    };
    job.run(l, tiles, sums, out, job.weights.cols().div_ceil(GROUP), decode, multiply);
}
