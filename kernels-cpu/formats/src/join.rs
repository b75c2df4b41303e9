//! The f32 expressions that turn integer sums into values, each written once.
//!
//! Every kernel, whatever its vector width or order of integer additions, ends in these expressions; that is why they all agree
//! bit for bit. `fma` appears where, and only where, it is written here.
//!
//! A row's value is the left-to-right f32 sum of its group values, starting from +0; a group is 256 values, the last one may be shorter.

use crate::float::fma;

/// Values in a group.
pub const GROUP: usize = 256;
/// Values in a block of the 32-block types.
pub const BLOCK: usize = 32;

/// Group value of a K- or I-type without minima: `(d isum) da`.
///
/// `isum` = sum over sub-blocks of scale times the integer dot product; `d` the weights' f32 scale (any power of two of the format folded
/// in), `da` the activations' scale.
#[inline(always)]
pub fn group_value(d: f32, isum: i32, da: f32) -> f32 {
    (d * isum as f32) * da
}

/// Group value of a K-type with minima: `fma(-dmin, msum, d isum) da`.
///
/// `msum` = sum over sub-blocks of the integer minimum times the sum of the sub-block's activations.
#[inline(always)]
pub fn group_value_with_min(d: f32, isum: i32, dmin: f32, msum: i32, da: f32) -> f32 {
    fma(-dmin, msum as f32, d * isum as f32) * da
}

/// Term of a 32-block: `(d isum) da`.
#[inline(always)]
pub fn block_term(d: f32, isum: i32, da: f32) -> f32 {
    (d * isum as f32) * da
}

/// Term of a 32-block with an offset `m` on every weight: `fma(m, sa, (d isum) da)`, where `sa` is `da` times the block's activation sum.
#[inline(always)]
pub fn block_term_with_min(d: f32, isum: i32, da: f32, m: f32, sa: f32) -> f32 {
    fma(m, sa, (d * isum as f32) * da)
}

/// Term of 32 values whose halves have scales of their own (NVFP4): `fma(d1, isum1, d0 isum0) da`.
#[inline(always)]
pub fn block_term_split(d0: f32, isum0: i32, d1: f32, isum1: i32, da: f32) -> f32 {
    fma(d1, isum1 as f32, d0 * isum0 as f32) * da
}

/// The fixed tree over the eight terms (or chains) of a group; missing terms are +0.
#[inline(always)]
pub fn join_tree(p: &[f32; 8]) -> f32 {
    ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]))
}
