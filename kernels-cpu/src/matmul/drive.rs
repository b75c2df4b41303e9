//! The loops around the tiles: which weights are decoded when, and for how many activation rows they are used.
//!
//! A tile is decoded once per pass over at most [`PASS`] activation rows. With one or a few rows (decode) one tile is alive at a time;
//! with many (prefill) several, so that each activation group that was brought near serves more weight rows.

use super::direct::{DirectBlocks, DirectGroup};
use super::lanes::{Lanes, MAX_WIDTH, RowBytes};
use super::micro::{self, BlockActivation, GroupActivation};
use super::tile::{BlockDecode, BlockTile, GroupDecode, GroupTile};
use super::{Rows, Scratch};
use crate::activations::Activations;
use crate::matrix::Matrix;
use crate::output::OutTile;
use std::marker::PhantomData;
use std::ops::Range;

/// Activation rows per pass: their group and sums stay in the second-level cache.
const PASS: usize = 256;
/// From how many activation rows on several tiles are decoded ahead.
const MANY: usize = 16;
/// How many then.
pub(crate) const TILES: usize = 4;

/// Most bytes that 256 values of a row take.
const MOST_BYTES: usize = 8 * 34;
/// Room for the groups of a tile that are not all in the file.
pub(crate) const SPARE_BYTES: usize = MAX_WIDTH * MOST_BYTES;

const GROUP: usize = 256;

/// A checked product: the ranges are inside, kinds and widths fit, the output has the shape.
pub(crate) struct Job<'a> {
    pub weights: &'a Matrix<'a>,
    pub weight_rows: Range<usize>,
    pub activations: &'a Activations,
    pub activation_rows: Rows<'a>,
}

impl<'a> Job<'a> {
    /// Bytes `part` of the rows of the tile that starts at weight row `first`. Rows beyond the last, and bytes beyond a row's end, are
    /// zeros (`spare` holds them).
    #[inline(always)]
    fn tile_rows<'s>(
        &self,
        first: usize,
        width: usize,
        part: Range<usize>,
        spare: &'s mut [u8],
    ) -> RowBytes<'s>
    where
        'a: 's,
    {
        let row_bytes = self.weights.row_bytes();
        if first + MAX_WIDTH <= self.weight_rows.end && part.end <= row_bytes {
            let data = self.weights.data();
            // Tiles read sixteen rows side by side, which no hardware prefetcher follows: ask for the next tile, front to back.
            let next = (first + width) * row_bytes + part.start * width;
            let rows = RowBytes::new(&data[first * row_bytes + part.start..], row_bytes, part.len());
            // Not beyond the end: a request for memory that is not mapped costs a walk of the page tables.
            return if next < data.len() { rows.and_prefetch(data[next..].as_ptr(), width) } else { rows };
        }
        spare.fill(0);
        for (row, target) in (first..self.weight_rows.end).zip(spare.chunks_exact_mut(MOST_BYTES)) {
            let source = &self.weights.row(row)[part.start..part.end.min(row_bytes)];
            target[..source.len()].copy_from_slice(source);
        }
        RowBytes::new(spare, MOST_BYTES, part.len())
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
}

/// What differs between the families of types. All methods are inlined: only then are they compiled for the instruction set.
trait Family<L: Lanes> {
    type Tile: super::tile::Tile;
    /// Groups of a row of `cols` values, a shorter last one included.
    fn groups(cols: usize) -> usize;
    /// Decodes group `group` of the rows from `first` on.
    fn decode(l: L, job: &Job<'_>, first: usize, group: usize, tile: &mut Self::Tile, spare: &mut [u8]);
    /// The group values of the rows from `first` on for the activation row `index`.
    fn direct(l: L, job: &Job<'_>, first: usize, group: usize, index: usize, spare: &mut [u8]) -> L::F;
    /// Multiplies the tiles with `N` activation rows from `index` on; `sums` is `[tile][row of the pass][lane]`.
    fn multiply<const N: usize>(
        l: L,
        job: &Job<'_>,
        tiles: &[Self::Tile],
        sums: &mut [f32],
        pass: &Range<usize>,
        index: usize,
        group: usize,
    );
}

/// The loops: blocks of tiles, passes over activation rows, groups, tiles, runs of activation rows. `ONE` is whether a single activation
/// row ever comes this way; what it needs is not compiled otherwise.
#[inline(always)]
fn run<L: Lanes, F: Family<L>, const ONE: bool>(
    l: L,
    job: &Job<'_>,
    out: &mut OutTile<'_>,
    scratch: &mut Scratch,
) {
    let count = job.activation_rows.len();
    let most = if count >= MANY { TILES } else { 1 };
    let (tiles, sums, spare) = scratch.parts::<F::Tile>(most, count.min(PASS) * most * MAX_WIDTH);
    let groups = F::groups(job.weights.cols());
    let end = job.weight_rows.end;
    if ONE && count == 1 {
        for first in job.weight_rows.clone().step_by(L::WIDTH) {
            let mut row = l.fsplat(0.0);
            for group in 0..groups {
                row = l.fadd(row, F::direct(l, job, first, group, 0, spare));
            }
            let valid = L::WIDTH.min(end - first);
            l.fstore(row, sums);
            out.row_mut(0)[first - job.weight_rows.start..][..valid].copy_from_slice(&sums[..valid]);
        }
        return;
    }
    for first in job.weight_rows.clone().step_by(L::WIDTH * most) {
        let rows = (end - first).min(L::WIDTH * most);
        let used = rows.div_ceil(L::WIDTH);
        for pass in (0..count).step_by(PASS) {
            let pass = pass..count.min(pass + PASS);
            let sums = &mut sums[..used * pass.len() * L::WIDTH];
            sums.fill(0.0);
            for group in 0..groups {
                for (number, tile) in tiles[..used].iter_mut().enumerate() {
                    F::decode(l, job, first + number * L::WIDTH, group, tile, spare);
                }
                let tiles = &tiles[..used];
                let mut index = pass.start;
                while index < pass.end {
                    let left = pass.end - index;
                    if L::MAX_ACTIVATIONS >= 8 && left >= 8 {
                        F::multiply::<8>(l, job, tiles, sums, &pass, index, group);
                        index += 8;
                    } else if left >= 4 {
                        F::multiply::<4>(l, job, tiles, sums, &pass, index, group);
                        index += 4;
                    } else if left >= 2 {
                        F::multiply::<2>(l, job, tiles, sums, &pass, index, group);
                        index += 2;
                    } else {
                        F::multiply::<1>(l, job, tiles, sums, &pass, index, group);
                        index += 1;
                    }
                }
            }
            for tile in 0..used {
                let column = first - job.weight_rows.start + tile * L::WIDTH;
                let valid = L::WIDTH.min(rows - tile * L::WIDTH);
                for (index, row) in pass.clone().enumerate() {
                    let from = (tile * pass.len() + index) * L::WIDTH;
                    out.row_mut(row)[column..][..valid].copy_from_slice(&sums[from..][..valid]);
                }
            }
        }
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

/// Loads the sums of `N` rows.
#[inline(always)]
fn load_sums<L: Lanes, const N: usize>(l: L, sums: &[f32]) -> [L::F; N] {
    let mut rows = [l.fsplat(0.0); N];
    for (a, row) in rows.iter_mut().enumerate() {
        *row = l.fload(&sums[a * L::WIDTH..]);
    }
    rows
}

/// Stores the sums of `N` rows.
#[inline(always)]
fn store_sums<L: Lanes, const N: usize>(l: L, rows: [L::F; N], sums: &mut [f32]) {
    for (a, row) in rows.into_iter().enumerate() {
        l.fstore(row, &mut sums[a * L::WIDTH..]);
    }
}

/// The 256-value types.
struct Groups<D>(PhantomData<D>);

impl<L: Lanes, D: GroupDecode> Family<L> for Groups<D> {
    type Tile = GroupTile<L>;

    #[inline(always)]
    fn groups(cols: usize) -> usize {
        cols / GROUP
    }

    #[inline(always)]
    fn decode(l: L, job: &Job<'_>, first: usize, group: usize, tile: &mut GroupTile<L>, spare: &mut [u8]) {
        let ty = job.weights.ty();
        let bytes = D::block_bytes(ty);
        let part = group * bytes..(group + 1) * bytes;
        D::decode(l, ty, &job.tile_rows(first, L::WIDTH, part, spare), tile);
    }

    #[inline(always)]
    fn direct(l: L, job: &Job<'_>, first: usize, group: usize, index: usize, spare: &mut [u8]) -> L::F {
        let ty = job.weights.ty();
        let bytes = D::block_bytes(ty);
        let rows = job.tile_rows(first, L::WIDTH, group * bytes..(group + 1) * bytes, spare);
        let activation = job.group_activation(index, group);
        let mut sink = DirectGroup::<L, D>::new(l, &activation);
        D::decode(l, ty, &rows, &mut sink);
        sink.value
    }

    #[inline(always)]
    fn multiply<const N: usize>(
        l: L,
        job: &Job<'_>,
        tiles: &[GroupTile<L>],
        sums: &mut [f32],
        pass: &Range<usize>,
        index: usize,
        group: usize,
    ) {
        let activations: [GroupActivation<'_>; N] =
            std::array::from_fn(|a| job.group_activation(index + a, group));
        for (number, tile) in tiles.iter().enumerate() {
            let sums = &mut sums[(number * pass.len() + index - pass.start) * L::WIDTH..][..N * L::WIDTH];
            let mut rows = load_sums::<L, N>(l, sums);
            micro::groups::<L, D, N>(l, tile, &activations, &mut rows);
            store_sums::<L, N>(l, rows, sums);
        }
    }
}

/// The product for a 256-value type; `ONE` as in [`run`].
#[inline(always)]
pub(crate) fn groups<L: Lanes, D: GroupDecode, const ONE: bool>(
    l: L,
    job: &Job<'_>,
    out: &mut OutTile<'_>,
    scratch: &mut Scratch,
) {
    run::<L, Groups<D>, ONE>(l, job, out, scratch);
}

/// The 32-value types.
struct Blocks<D>(PhantomData<D>);

impl<L: Lanes, D: BlockDecode> Family<L> for Blocks<D> {
    type Tile = BlockTile<L>;

    #[inline(always)]
    fn groups(cols: usize) -> usize {
        cols.div_ceil(GROUP)
    }

    #[inline(always)]
    fn decode(l: L, job: &Job<'_>, first: usize, group: usize, tile: &mut BlockTile<L>, spare: &mut [u8]) {
        let bytes = D::TYPE.block_bytes() * GROUP / D::TYPE.block_len();
        // Missing blocks of the last group are zero bytes: their scales are zero, or multiply zero quants of zero scale.
        let part = group * bytes..(group + 1) * bytes;
        D::decode(l, &job.tile_rows(first, L::WIDTH, part, spare), tile);
    }

    #[inline(always)]
    fn direct(l: L, job: &Job<'_>, first: usize, group: usize, index: usize, spare: &mut [u8]) -> L::F {
        let bytes = D::TYPE.block_bytes() * GROUP / D::TYPE.block_len();
        let rows = job.tile_rows(first, L::WIDTH, group * bytes..(group + 1) * bytes, spare);
        let activation = job.block_activation(index, group);
        let mut sink = DirectBlocks::<L, D>::new(l, &activation);
        D::decode(l, &rows, &mut sink);
        sink.value(l)
    }

    #[inline(always)]
    fn multiply<const N: usize>(
        l: L,
        job: &Job<'_>,
        tiles: &[BlockTile<L>],
        sums: &mut [f32],
        pass: &Range<usize>,
        index: usize,
        group: usize,
    ) {
        let activations: [BlockActivation<'_>; N] =
            std::array::from_fn(|a| job.block_activation(index + a, group));
        for (number, tile) in tiles.iter().enumerate() {
            let sums = &mut sums[(number * pass.len() + index - pass.start) * L::WIDTH..][..N * L::WIDTH];
            let mut rows = load_sums::<L, N>(l, sums);
            micro::blocks::<L, D, N>(l, tile, &activations, &mut rows);
            store_sums::<L, N>(l, rows, sums);
        }
    }
}

/// The product for a 32-value type; `ONE` as in [`run`].
#[inline(always)]
pub(crate) fn blocks<L: Lanes, D: BlockDecode, const ONE: bool>(
    l: L,
    job: &Job<'_>,
    out: &mut OutTile<'_>,
    scratch: &mut Scratch,
) {
    run::<L, Blocks<D>, ONE>(l, job, out, scratch);
}
