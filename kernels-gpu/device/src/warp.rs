//! What a warp does together.

use crate::dev::{shfl, shfl_xor};

#[inline(always)]
pub fn xor_f32(v: f32, mask: u32) -> f32 {
    f32::from_bits(shfl_xor(v.to_bits(), mask))
}
#[inline(always)]
pub fn get_f32(v: f32, lane: u32) -> f32 {
    f32::from_bits(shfl(v.to_bits(), lane))
}
/// Integer sum over groups of `n` lanes.
#[inline(always)]
pub fn sum_i32<const N: u32>(mut v: i32) -> i32 {
    let mut mask = N / 2;
    while mask > 0 {
        v = v.wrapping_add(shfl_xor(v as u32, mask) as i32);
        mask /= 2;
    }
    v
}
/// The tree `((16), 8, 4, 2, 1)` over lanes: the order of every sum of the CPU backend's lanes.
#[inline(always)]
pub fn tree_sum(mut v: f32) -> f32 {
    let mut mask = 16;
    while mask > 0 {
        v += xor_f32(v, mask);
        mask /= 2;
    }
    v
}
#[inline(always)]
pub fn max_f32(mut v: f32) -> f32 {
    let mut mask = 16;
    while mask > 0 {
        let other = xor_f32(v, mask);
        v = if other > v { other } else { v };
        mask /= 2;
    }
    v
}
#[inline(always)]
pub fn max_u32(mut v: u32) -> u32 {
    let mut mask = 16;
    while mask > 0 {
        let other = shfl_xor(v, mask);
        v = if other > v { other } else { v };
        mask /= 2;
    }
    v
}
#[inline(always)]
pub fn min_u32(mut v: u32) -> u32 {
    let mut mask = 16;
    while mask > 0 {
        let other = shfl_xor(v, mask);
        v = if other < v { other } else { v };
        mask /= 2;
    }
    v
}
/// Division that cannot panic.
#[inline(always)]
pub fn div(a: u32, b: u32) -> u32 {
    if b == 0 { 0 } else { a / b }
}
