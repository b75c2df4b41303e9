//! The 32-value block types, and NVFP4 (64 values, a scale per 16), eight blocks at a time in one common form.

use crate::WeightType;
use crate::half::{e8m0_half_to_f32, f16_at, u32_at, ue4m3_half_to_f32};
use crate::join::{BLOCK, GROUP};
use crate::tables::{FP4_VALUES, IQ4_VALUES};

/// Up to eight blocks of 32 weights: `w[i] = d[i / 32] q[i] + m[i / 32]`; of NVFP4 the second half of each 32 has scale `d_second`.
#[derive(Debug, Clone, PartialEq)]
#[repr(C, align(64))]
pub struct Blocks {
    /// Integer weights.
    pub q: [i8; GROUP],
    /// Scales.
    pub d: [f32; 8],
    /// Scales of the second halves (only NVFP4).
    pub d_second: [f32; 8],
    /// Offsets (only types with minima).
    pub m: [f32; 8],
}

impl Blocks {
    /// All zero.
    pub const ZERO: Blocks = Blocks { q: [0; GROUP], d: [0.0; 8], d_second: [0.0; 8], m: [0.0; 8] };
}

/// A type whose scales belong to 32 (or 16) values and whose activations are quantised per 32.
pub trait BlockFormat {
    /// Which type.
    const TYPE: WeightType;
    /// Whether blocks have an offset.
    const HAS_MIN: bool = false;
    /// Whether the halves of 32 values have scales of their own.
    const SPLIT: bool = false;
    /// `q + OFFSET` fits 0..=255.
    const OFFSET: u8;
    /// Unpacks the 32 values that start at block-of-32 number `index` of `row` into place `slot` (0..8) of `out`.
    fn unpack(row: &[u8], index: usize, slot: usize, out: &mut Blocks);
}

/// Runs `$body` with `$format` standing for the [`BlockFormat`] of `$ty`; `$otherwise` for types that are none.
#[macro_export]
macro_rules! with_block_format {
    ($ty:expr, $format:ident => $body:expr, _ => $otherwise:expr) => {
        $crate::with_block_format!(@emit $ty, $format, $body, $otherwise;
            Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 IQ4_NL MXFP4 NVFP4)
    };
    (@emit $ty:expr, $format:ident, $body:expr, $otherwise:expr; $($name:ident)*) => {
        match $ty {
            $($crate::WeightType::$name => {
                type $format = $crate::block_formats::$name;
                $body
            })*
            _ => $otherwise,
        }
    };
}

#[inline(always)]
fn nibbles(bytes: &[u8], offset: i8, out: &mut [i8]) {
    let (low, high) = out.split_at_mut(bytes.len());
    for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
        *low = (byte & 15) as i8 - offset;
        *high = (byte >> 4) as i8 - offset;
    }
}

#[inline(always)]
fn five_bits(bytes: &[u8], top: u32, offset: i8, out: &mut [i8]) {
    for l in 0..16 {
        out[l] = ((bytes[l] & 15) | (((top >> l) & 1) << 4) as u8) as i8 - offset;
        out[l + 16] = ((bytes[l] >> 4) | (((top >> (l + 16)) & 1) << 4) as u8) as i8 - offset;
    }
}

#[inline(always)]
fn looked_up(table: &[i8; 16], bytes: &[u8], out: &mut [i8]) {
    let (low, high) = out.split_at_mut(bytes.len());
    for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
        *low = table[(byte & 15) as usize];
        *high = table[(byte >> 4) as usize];
    }
}

macro_rules! block_format {
    ($(#[$doc:meta])* $name:ident, offset $offset:literal, $(min $min:literal,)?
        |$block:ident, $values:ident, $slot:ident, $out:ident| $body:block) => {
        $(#[$doc])*
        #[allow(non_camel_case_types)]
        pub struct $name;
        impl BlockFormat for $name {
            const TYPE: WeightType = WeightType::$name;
            $(const HAS_MIN: bool = $min;)?
            const OFFSET: u8 = $offset;
            #[inline(always)]
            fn unpack(row: &[u8], index: usize, $slot: usize, $out: &mut Blocks) {
                const BYTES: usize = WeightType::$name.block_bytes();
                let $block = &row[index * BYTES..][..BYTES];
                let $values = &mut $out.q[BLOCK * $slot..][..BLOCK];
                $body
            }
        }
    };
}

block_format! {
    /// 4-bit weights around 8.
    Q4_0, offset 8, |block, values, slot, out| {
        nibbles(&block[2..], 8, values);
        out.d[slot] = f16_at(block, 0);
    }
}
block_format! {
    /// 4-bit weights with an offset.
    Q4_1, offset 0, min true, |block, values, slot, out| {
        nibbles(&block[4..], 0, values);
        out.d[slot] = f16_at(block, 0);
        out.m[slot] = f16_at(block, 2);
    }
}
block_format! {
    /// 5-bit weights around 16.
    Q5_0, offset 16, |block, values, slot, out| {
        five_bits(&block[6..], u32_at(block, 2), 16, values);
        out.d[slot] = f16_at(block, 0);
    }
}
block_format! {
    /// 5-bit weights with an offset.
    Q5_1, offset 0, min true, |block, values, slot, out| {
        five_bits(&block[8..], u32_at(block, 4), 0, values);
        out.d[slot] = f16_at(block, 0);
        out.m[slot] = f16_at(block, 2);
    }
}
block_format! {
    /// 8-bit weights.
    Q8_0, offset 128, |block, values, slot, out| {
        for (value, byte) in values.iter_mut().zip(&block[2..]) {
            *value = *byte as i8;
        }
        out.d[slot] = f16_at(block, 0);
    }
}
block_format! {
    /// Sixteen non-linear values.
    IQ4_NL, offset 128, |block, values, slot, out| {
        looked_up(&IQ4_VALUES, &block[2..], values);
        out.d[slot] = f16_at(block, 0);
    }
}
block_format! {
    /// E2M1 values with a power-of-two scale.
    MXFP4, offset 16, |block, values, slot, out| {
        looked_up(&FP4_VALUES, &block[1..], values);
        out.d[slot] = e8m0_half_to_f32(block[0]);
    }
}

/// E2M1 values with an E4M3 scale per 16; a stored block holds 64.
#[allow(non_camel_case_types)]
pub struct NVFP4;
impl BlockFormat for NVFP4 {
    const TYPE: WeightType = WeightType::NVFP4;
    const SPLIT: bool = true;
    const OFFSET: u8 = 16;
    #[inline(always)]
    fn unpack(row: &[u8], index: usize, slot: usize, out: &mut Blocks) {
        const BYTES: usize = WeightType::NVFP4.block_bytes();
        let block = &row[(index / 2) * BYTES..][..BYTES];
        let half = index % 2;
        let bytes = &block[4 + 16 * half..][..16];
        let (first, second) = out.q[BLOCK * slot..][..BLOCK].split_at_mut(16);
        looked_up(&FP4_VALUES, &bytes[..8], first);
        looked_up(&FP4_VALUES, &bytes[8..], second);
        out.d[slot] = ue4m3_half_to_f32(block[2 * half]);
        out.d_second[slot] = ue4m3_half_to_f32(block[2 * half + 1]);
    }
}
