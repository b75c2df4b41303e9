//! The innermost products: one tile times a few activation rows, accumulated per weight row.

use super::lanes::Lanes;
use super::tile::{BlockDecode, BlockTile, GroupDecode, GroupTile};

/// One group of an activation row.
#[derive(Clone, Copy)]
pub(crate) struct GroupActivation<'a> {
    pub q: &'a [[i8; 4]; 64],
    /// Sums per 16, in pairs.
    pub sums: &'a [[i16; 2]; 8],
    /// Sums per 32, in pairs.
    pub sums32: &'a [[i16; 2]; 4],
    pub scale: f32,
}

/// Eight blocks of an activation row.
#[derive(Clone, Copy)]
pub(crate) struct BlockActivation<'a> {
    pub q: &'a [[i8; 4]; 64],
    /// Sums per 16, a pair per block.
    pub sums: &'a [[i16; 2]; 8],
    pub scale: &'a [f32; 8],
    pub scaled_sum: &'a [f32; 8],
}

/// Four quants in every lane.
#[inline(always)]
pub(crate) fn four<L: Lanes>(l: L, bytes: [i8; 4]) -> L::I {
    l.splat(u32::from_ne_bytes(bytes.map(|byte| byte as u8)))
}

/// A pair of sums in every lane.
#[inline(always)]
pub(crate) fn two<L: Lanes>(l: L, [first, second]: [i16; 2]) -> L::I {
    l.splat(first as u16 as u32 | (second as u16 as u32) << 16)
}

/// `rows[a] += group value` for `N` activation rows.
#[inline(always)]
pub(crate) fn groups<L: Lanes, D: GroupDecode, const N: usize>(
    l: L,
    tile: &GroupTile<L>,
    activations: &[GroupActivation<'_>; N],
    rows: &mut [L::F; N],
) {
    let mut pairs = [l.splat(0); N];
    for j in 0..if D::PER_32 { 4 } else { 8 } {
        for a in 0..N {
            let sums = if D::PER_32 { activations[a].sums32[j] } else { activations[a].sums[j] };
            pairs[a] = l.dot2(pairs[a], tile.pair[j], two(l, sums));
        }
    }
    let mut sums = if D::HAS_MIN { [l.splat(0); N] } else { pairs };
    let run = if D::PER_32 { 8 } else { 4 };
    for sub_block in 0..64 / run {
        let mut dots = [l.splat(0); N];
        for j in 0..run {
            let word = run * sub_block + j;
            let weights = tile.q[word];
            for a in 0..N {
                let bytes = four(l, activations[a].q[word]);
                dots[a] = if D::WIDE {
                    l.dot4_wide(dots[a], weights, bytes)
                } else {
                    l.dot4(dots[a], weights, bytes)
                };
            }
        }
        let scale = tile.scale[sub_block];
        for a in 0..N {
            sums[a] = l.add(sums[a], l.mul(dots[a], scale));
        }
    }
    for a in 0..N {
        // The expressions of `formats::join::group_value` and `group_value_with_min`.
        let product = l.fmul(tile.d, l.to_f32(sums[a]));
        let product = if D::HAS_MIN { l.fnma(tile.dmin, l.to_f32(pairs[a]), product) } else { product };
        rows[a] = l.fadd(rows[a], l.fmul(product, l.fsplat(activations[a].scale)));
    }
}

/// The term of block `block` for `N` activation rows.
#[inline(always)]
fn term<L: Lanes, D: BlockDecode, const N: usize>(
    l: L,
    tile: &BlockTile<L>,
    activations: &[BlockActivation<'_>; N],
    block: usize,
) -> [L::F; N] {
    let mut dots = [l.splat(0); N];
    let mut second = [l.splat(0); N];
    if D::OFFSET > 0 {
        let offset = -(D::OFFSET as i32) as u16 as u32;
        // One pair corrects the whole block, or its halves apart.
        let (low, high) = if D::SPLIT {
            (l.splat(offset), l.splat(offset << 16))
        } else {
            (l.splat(offset | offset << 16), l.splat(0))
        };
        for a in 0..N {
            let sums = two(l, activations[a].sums[block]);
            dots[a] = l.dot2(dots[a], low, sums);
            if D::SPLIT {
                second[a] = l.dot2(second[a], high, sums);
            }
        }
    }
    for j in 0..8 {
        let weights = tile.q[8 * block + j];
        for a in 0..N {
            let bytes = four(l, activations[a].q[8 * block + j]);
            let acc = if D::SPLIT && j >= 4 { &mut second[a] } else { &mut dots[a] };
            *acc = if D::OFFSET == 128 {
                l.dot4_wide(*acc, weights, bytes)
            } else {
                l.dot4(*acc, weights, bytes)
            };
        }
    }
    let mut terms = [l.fsplat(0.0); N];
    for a in 0..N {
        // The expressions of `formats::join::block_term`, `block_term_with_min` and `block_term_split`.
        let product = l.fmul(tile.d[block], l.to_f32(dots[a]));
        let product =
            if D::SPLIT { l.fma(tile.second[block], l.to_f32(second[a]), product) } else { product };
        let scaled = l.fmul(product, l.fsplat(activations[a].scale[block]));
        terms[a] = if D::HAS_MIN {
            l.fma(tile.second[block], l.fsplat(activations[a].scaled_sum[block]), scaled)
        } else {
            scaled
        };
    }
    terms
}

/// Sums element by element.
#[inline(always)]
fn join<L: Lanes, const N: usize>(l: L, mut x: [L::F; N], y: [L::F; N]) -> [L::F; N] {
    for a in 0..N {
        x[a] = l.fadd(x[a], y[a]);
    }
    x
}

/// `rows[a] += tree of the eight block terms` for `N` activation rows.
#[inline(always)]
pub(crate) fn blocks<L: Lanes, D: BlockDecode, const N: usize>(
    l: L,
    tile: &BlockTile<L>,
    activations: &[BlockActivation<'_>; N],
    rows: &mut [L::F; N],
) {
    // ((p0 + p4) + (p2 + p6)) + ((p1 + p5) + (p3 + p7))
    let mut even = term::<L, D, N>(l, tile, activations, 0);
    even = join(l, even, term::<L, D, N>(l, tile, activations, 4));
    let mut other = term::<L, D, N>(l, tile, activations, 2);
    other = join(l, other, term::<L, D, N>(l, tile, activations, 6));
    even = join(l, even, other);
    let mut odd = term::<L, D, N>(l, tile, activations, 1);
    odd = join(l, odd, term::<L, D, N>(l, tile, activations, 5));
    let mut other = term::<L, D, N>(l, tile, activations, 3);
    other = join(l, other, term::<L, D, N>(l, tile, activations, 7));
    odd = join(l, odd, other);
    *rows = join(l, *rows, join(l, even, odd));
}
