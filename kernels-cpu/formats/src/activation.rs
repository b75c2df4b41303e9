//! Quantisation of activations to int8, as ggml defines it for its Q8_K and Q8_0/Q8_1 forms.
//!
//! The loops are written so that a compiler can vectorise them; kernels call these very functions from code compiled for wider units.
//!
//! Where ggml leaves a case to the machine, this source decides: a group (block) that holds an infinity or a NaN has scale NaN and zero
//! quants, so that every product with it is NaN; a group (block) whose largest magnitude is below 2^-119 counts as zero.

use crate::float::round_even;
use crate::half::{f16_to_f32, f32_to_f16};
use crate::join::{BLOCK, GROUP};

const INFINITY_BITS: u32 = 0x7f80_0000;
/// Bits of 2^-119: 127 divided by it is still finite.
const TINY_BITS: u32 = (127 - 119) << 23;

/// Quantises 256 values: `scale = 1 / (-127 / max)` where `max` is the first value of largest magnitude, with its sign; quants are
/// rounded to nearest even. `sums[j]` is the sum of the 16 quants from 16 j. Returns the scale.
#[inline(always)]
pub fn quantize_group(values: &[f32; GROUP], quants: &mut [i8; GROUP], sums: &mut [i16; GROUP / 16]) -> f32 {
    let mut largest = 0u32;
    for value in values {
        largest = largest.max(value.to_bits() & 0x7fff_ffff);
    }
    if !(TINY_BITS..INFINITY_BITS).contains(&largest) {
        quants.fill(0);
        sums.fill(0);
        return if largest >= INFINITY_BITS { f32::NAN } else { 0.0 };
    }
    // The first index of that magnitude, as a minimum over all indices: no early exit, so that it runs in lanes.
    let mut first = u32::MAX;
    for (index, value) in values.iter().enumerate() {
        let candidate = if value.to_bits() & 0x7fff_ffff == largest { index as u32 } else { u32::MAX };
        first = first.min(candidate);
    }
    let inverse = -127.0 / values[first as usize & (GROUP - 1)];
    for (quant, value) in quants.iter_mut().zip(values) {
        *quant = round_even(inverse * value) as i8;
    }
    for (sum, run) in sums.iter_mut().zip(quants.as_chunks::<16>().0) {
        *sum = run.iter().map(|&quant| quant as i16).sum();
    }
    1.0 / inverse
}

/// Quantises 32 values: `scale = f16(max |x| / 127)`, quants are `x (127 / max |x|)` rounded to nearest even.
/// `sums` are those of the two halves. Returns the scale, already widened from f16.
#[inline(always)]
pub fn quantize_block(values: &[f32; BLOCK], quants: &mut [i8; BLOCK], sums: &mut [i16; 2]) -> f32 {
    let mut largest = 0u32;
    for value in values {
        largest = largest.max(value.to_bits() & 0x7fff_ffff);
    }
    if !(TINY_BITS..INFINITY_BITS).contains(&largest) {
        quants.fill(0);
        sums.fill(0);
        return if largest >= INFINITY_BITS { f32::NAN } else { 0.0 };
    }
    let largest = f32::from_bits(largest);
    let inverse = 127.0 / largest;
    for (quant, value) in quants.iter_mut().zip(values) {
        *quant = round_even(inverse * value) as i8;
    }
    for (sum, run) in sums.iter_mut().zip(quants.as_chunks::<16>().0) {
        *sum = run.iter().map(|&quant| quant as i16).sum();
    }
    f16_to_f32(f32_to_f16(largest / 127.0))
}

/// The scale times the sum of a block's quants: what an offset on every weight of the block is multiplied by.
#[inline(always)]
pub fn scaled_sum(scale: f32, sums: &[i16; 2]) -> f32 {
    scale * (sums[0] as i32 + sums[1] as i32) as f32
}
