//! The 256-value block types (K-, I- and ternary quantisation) in one common form.

// A block is addressed by the formulas of its layout; iterator chains would hide them.
#![allow(clippy::needless_range_loop)]

use crate::WeightType;
use crate::half::{f16_at, f16_to_f32, u16_at, u32_at};
use crate::join::GROUP;
use crate::tables::{IQ1_GRID, IQ2_S_GRID, IQ2_XS_GRID, IQ2_XXS_GRID, IQ3_S_GRID, IQ3_XXS_GRID, IQ4_VALUES};

/// A block of 256 weights: `w[i] = (d scale[i / 16]) q[i] - dmin min[i / 16]`.
#[derive(Debug, Clone, PartialEq)]
#[repr(C, align(64))]
pub struct Group {
    /// Integer weights.
    pub q: [i8; GROUP],
    /// Integer scales of the sixteen sub-blocks.
    pub scale: [i16; GROUP / 16],
    /// Integer minima of the sub-blocks; zero for types without.
    pub min: [i16; GROUP / 16],
    /// Scale of the block, powers of two of the format folded in.
    pub d: f32,
    /// Scale of the minima.
    pub dmin: f32,
}

impl Group {
    /// All zero.
    pub const ZERO: Group = Group { q: [0; GROUP], scale: [0; 16], min: [0; 16], d: 0.0, dmin: 0.0 };
}

/// A type whose blocks hold 256 weights.
pub trait GroupFormat {
    /// Which type.
    const TYPE: WeightType;
    /// Whether blocks have minima.
    const HAS_MIN: bool = false;
    /// `q + OFFSET` fits 0..=255: what kernels add that multiply unsigned by signed bytes.
    const OFFSET: u8;
    /// Unpacks one block; `block` has `TYPE.block_bytes()` bytes.
    fn unpack(block: &[u8], out: &mut Group);
}

/// Runs `$body` with `$format` standing for the [`GroupFormat`] of `$ty`; `$otherwise` for types that are none.
#[macro_export]
macro_rules! with_group_format {
    ($ty:expr, $format:ident => $body:expr, _ => $otherwise:expr) => {
        $crate::with_group_format!(@emit $ty, $format, $body, $otherwise;
            Q2_K Q3_K Q4_K Q5_K Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_XS TQ1_0 TQ2_0)
    };
    (@emit $ty:expr, $format:ident, $body:expr, $otherwise:expr; $($name:ident)*) => {
        match $ty {
            $($crate::WeightType::$name => {
                type $format = $crate::group_formats::$name;
                $body
            })*
            _ => $otherwise,
        }
    };
}

/// The eight 6-bit scales and eight 6-bit minima that Q4_K and Q5_K pack into twelve bytes.
#[inline(always)]
fn six_bit_scales(bytes: &[u8], out: &mut Group) {
    for j in 0..4 {
        let (low, high, mixed) = (bytes[j], bytes[j + 4], bytes[j + 8]);
        let scales = [low & 63, (mixed & 15) | ((low >> 6) << 4)];
        let minima = [high & 63, (mixed >> 4) | ((high >> 6) << 4)];
        for half in 0..2 {
            let sub_block = 2 * (j + 4 * half);
            out.scale[sub_block] = scales[half] as i16;
            out.scale[sub_block + 1] = scales[half] as i16;
            out.min[sub_block] = minima[half] as i16;
            out.min[sub_block + 1] = minima[half] as i16;
        }
    }
}

/// For each byte of signs, 0xff in every byte whose bit is set.
static SIGN_MASKS: [u64; 256] = {
    let mut masks = [0u64; 256];
    let mut signs = 0;
    while signs < 256 {
        let mut bit = 0;
        while bit < 8 {
            if signs >> bit & 1 == 1 {
                masks[signs] |= 0xff << (8 * bit);
            }
            bit += 1;
        }
        signs += 1;
    }
    masks
};

/// The same for seven stored signs, to which an eighth is added that makes their number even.
static EVEN_SIGN_MASKS: [u64; 128] = {
    let mut masks = [0u64; 128];
    let mut signs = 0;
    while signs < 128 {
        masks[signs] = SIGN_MASKS[signs | ((signs.count_ones() as usize & 1) << 7)];
        signs += 1;
    }
    masks
};

const ONES: u64 = 0x0101_0101_0101_0101;

/// Eight magnitudes, one a byte, negated where the mask's byte is 0xff. No magnitude is zero, so that negated bytes do not carry.
#[inline(always)]
fn put_signed(magnitudes: u64, mask: u64, out: &mut [i8]) {
    let values = (magnitudes ^ mask).wrapping_add(mask & ONES);
    out.copy_from_slice(&values.to_le_bytes().map(|byte| byte as i8));
}

/// Two entries of four magnitudes as one of eight.
#[inline(always)]
fn two_points(first: u32, second: u32) -> u64 {
    first as u64 | (second as u64) << 32
}

/// 2-bit weights with 4-bit scales and minima per 16.
#[allow(non_camel_case_types)]
pub struct Q2_K;
impl GroupFormat for Q2_K {
    const TYPE: WeightType = WeightType::Q2_K;
    const HAS_MIN: bool = true;
    const OFFSET: u8 = 0;
    #[inline(always)]
    fn unpack(block: &[u8], out: &mut Group) {
        for j in 0..16 {
            out.scale[j] = (block[j] & 15) as i16;
            out.min[j] = (block[j] >> 4) as i16;
        }
        for half in 0..2 {
            let bytes = &block[16 + 32 * half..][..32];
            for part in 0..4 {
                let values = &mut out.q[128 * half + 32 * part..][..32];
                for (value, byte) in values.iter_mut().zip(bytes) {
                    *value = ((byte >> (2 * part)) & 3) as i8;
                }
            }
        }
        out.d = f16_at(block, 80);
        out.dmin = f16_at(block, 82);
    }
}

/// 3-bit weights with 6-bit signed scales per 16.
#[allow(non_camel_case_types)]
pub struct Q3_K;
impl GroupFormat for Q3_K {
    const TYPE: WeightType = WeightType::Q3_K;
    const OFFSET: u8 = 4;
    #[inline(always)]
    fn unpack(block: &[u8], out: &mut Group) {
        let high = &block[..32];
        let scales = &block[96..108];
        for j in 0..16 {
            let low = (scales[j % 8] >> (4 * (j / 8))) & 15;
            let top = (scales[8 + j % 4] >> (2 * (j / 4))) & 3;
            out.scale[j] = (low | (top << 4)) as i16 - 32;
        }
        for half in 0..2 {
            let bytes = &block[32 + 32 * half..][..32];
            for part in 0..4 {
                let values = &mut out.q[128 * half + 32 * part..][..32];
                for ((value, byte), mask) in values.iter_mut().zip(bytes).zip(high) {
                    let top = (mask >> (4 * half + part)) & 1;
                    *value = (((byte >> (2 * part)) & 3) | (top << 2)) as i8 - 4;
                }
            }
        }
        out.d = f16_at(block, 108);
    }
}

/// 4-bit weights with 6-bit scales and minima per 32.
#[allow(non_camel_case_types)]
pub struct Q4_K;
impl GroupFormat for Q4_K {
    const TYPE: WeightType = WeightType::Q4_K;
    const HAS_MIN: bool = true;
    const OFFSET: u8 = 0;
    #[inline(always)]
    fn unpack(block: &[u8], out: &mut Group) {
        out.d = f16_at(block, 0);
        out.dmin = f16_at(block, 2);
        six_bit_scales(&block[4..16], out);
        for part in 0..4 {
            let bytes = &block[16 + 32 * part..][..32];
            let (low, high) = out.q[64 * part..][..64].split_at_mut(32);
            for l in 0..32 {
                low[l] = (bytes[l] & 15) as i8;
                high[l] = (bytes[l] >> 4) as i8;
            }
        }
    }
}

/// 5-bit weights with 6-bit scales and minima per 32.
#[allow(non_camel_case_types)]
pub struct Q5_K;
impl GroupFormat for Q5_K {
    const TYPE: WeightType = WeightType::Q5_K;
    const HAS_MIN: bool = true;
    const OFFSET: u8 = 0;
    #[inline(always)]
    fn unpack(block: &[u8], out: &mut Group) {
        out.d = f16_at(block, 0);
        out.dmin = f16_at(block, 2);
        six_bit_scales(&block[4..16], out);
        let top = &block[16..48];
        for part in 0..4 {
            let bytes = &block[48 + 32 * part..][..32];
            let (low, high) = out.q[64 * part..][..64].split_at_mut(32);
            for l in 0..32 {
                let bits = top[l] >> (2 * part);
                low[l] = ((bytes[l] & 15) | ((bits & 1) << 4)) as i8;
                high[l] = ((bytes[l] >> 4) | ((bits & 2) << 3)) as i8;
            }
        }
    }
}

/// 6-bit weights with 8-bit signed scales per 16.
#[allow(non_camel_case_types)]
pub struct Q6_K;
impl GroupFormat for Q6_K {
    const TYPE: WeightType = WeightType::Q6_K;
    const OFFSET: u8 = 32;
    #[inline(always)]
    fn unpack(block: &[u8], out: &mut Group) {
        for half in 0..2 {
            let low = &block[64 * half..][..64];
            let high = &block[128 + 32 * half..][..32];
            for part in 0..4 {
                let values = &mut out.q[128 * half + 32 * part..][..32];
                let nibbles = &low[32 * (part % 2)..][..32];
                for l in 0..32 {
                    let nibble = (nibbles[l] >> (4 * (part / 2))) & 15;
                    let top = (high[l] >> (2 * part)) & 3;
                    values[l] = (nibble | (top << 4)) as i8 - 32;
                }
            }
        }
        for j in 0..16 {
            out.scale[j] = block[192 + j] as i8 as i16;
        }
        out.d = f16_at(block, 208);
    }
}

/// Lattice of 256 points of eight magnitudes, seven sign bits, 4-bit scales per 32.
#[allow(non_camel_case_types)]
pub struct IQ2_XXS;
impl GroupFormat for IQ2_XXS {
    const TYPE: WeightType = WeightType::IQ2_XXS;
    const OFFSET: u8 = 64;
    #[inline(always)]
    fn unpack(block: &[u8], out: &mut Group) {
        out.d = f16_at(block, 0) * 0.125;
        for j in 0..8 {
            let indices = &block[2 + 8 * j..][..4];
            let word = u32_at(block, 6 + 8 * j);
            out.scale[2 * j] = (2 * (word >> 28) + 1) as i16;
            out.scale[2 * j + 1] = out.scale[2 * j];
            for l in 0..4 {
                let point = IQ2_XXS_GRID[indices[l] as usize];
                put_signed(
                    point,
                    EVEN_SIGN_MASKS[(word >> (7 * l)) as usize & 127],
                    &mut out.q[32 * j + 8 * l..][..8],
                );
            }
        }
    }
}

/// Lattice of 512 points of eight magnitudes, seven sign bits, 4-bit scales per 16.
#[allow(non_camel_case_types)]
pub struct IQ2_XS;
impl GroupFormat for IQ2_XS {
    const TYPE: WeightType = WeightType::IQ2_XS;
    const OFFSET: u8 = 64;
    #[inline(always)]
    fn unpack(block: &[u8], out: &mut Group) {
        out.d = f16_at(block, 0) * 0.125;
        for j in 0..8 {
            let scales = block[66 + j];
            out.scale[2 * j] = 2 * (scales & 15) as i16 + 1;
            out.scale[2 * j + 1] = 2 * (scales >> 4) as i16 + 1;
            for l in 0..4 {
                let word = u16_at(block, 2 + 8 * j + 2 * l);
                let point = IQ2_XS_GRID[(word & 511) as usize];
                put_signed(point, EVEN_SIGN_MASKS[(word >> 9) as usize], &mut out.q[32 * j + 8 * l..][..8]);
            }
        }
    }
}

/// Lattice of 1024 points of eight magnitudes, eight sign bits, 4-bit scales per 16.
#[allow(non_camel_case_types)]
pub struct IQ2_S;
impl GroupFormat for IQ2_S {
    const TYPE: WeightType = WeightType::IQ2_S;
    const OFFSET: u8 = 64;
    #[inline(always)]
    fn unpack(block: &[u8], out: &mut Group) {
        out.d = f16_at(block, 0) * 0.125;
        let (indices, signs, high, scales) = (&block[2..34], &block[34..66], &block[66..74], &block[74..82]);
        for j in 0..8 {
            out.scale[2 * j] = 2 * (scales[j] & 15) as i16 + 1;
            out.scale[2 * j + 1] = 2 * (scales[j] >> 4) as i16 + 1;
            for l in 0..4 {
                let index = indices[4 * j + l] as usize | (((high[j] >> (2 * l)) & 3) as usize) << 8;
                let point = IQ2_S_GRID[index];
                put_signed(point, SIGN_MASKS[signs[4 * j + l] as usize], &mut out.q[32 * j + 8 * l..][..8]);
            }
        }
    }
}

/// Lattice of 256 points of four magnitudes, seven sign bits per eight, 4-bit scales per 32.
#[allow(non_camel_case_types)]
pub struct IQ3_XXS;
impl GroupFormat for IQ3_XXS {
    const TYPE: WeightType = WeightType::IQ3_XXS;
    const OFFSET: u8 = 64;
    #[inline(always)]
    fn unpack(block: &[u8], out: &mut Group) {
        out.d = f16_at(block, 0) * 0.25;
        for j in 0..8 {
            let indices = &block[2 + 8 * j..][..8];
            let word = u32_at(block, 66 + 4 * j);
            out.scale[2 * j] = (2 * (word >> 28) + 1) as i16;
            out.scale[2 * j + 1] = out.scale[2 * j];
            for l in 0..4 {
                let signs = EVEN_SIGN_MASKS[(word >> (7 * l)) as usize & 127];
                let point = two_points(
                    IQ3_XXS_GRID[indices[2 * l] as usize],
                    IQ3_XXS_GRID[indices[2 * l + 1] as usize],
                );
                put_signed(point, signs, &mut out.q[32 * j + 8 * l..][..8]);
            }
        }
    }
}

/// Lattice of 512 points of four magnitudes, eight sign bits per eight, 4-bit scales per 32.
#[allow(non_camel_case_types)]
pub struct IQ3_S;
impl GroupFormat for IQ3_S {
    const TYPE: WeightType = WeightType::IQ3_S;
    const OFFSET: u8 = 64;
    #[inline(always)]
    fn unpack(block: &[u8], out: &mut Group) {
        out.d = f16_at(block, 0);
        let (indices, high, signs, scales) =
            (&block[2..66], &block[66..74], &block[74..106], &block[106..110]);
        for j in 0..8 {
            let scale = (scales[j / 2] >> (4 * (j % 2))) & 15;
            out.scale[2 * j] = 2 * scale as i16 + 1;
            out.scale[2 * j + 1] = out.scale[2 * j];
            for l in 0..4 {
                let bits = high[j] >> (2 * l);
                let first = indices[8 * j + 2 * l] as usize | ((bits & 1) as usize) << 8;
                let second = indices[8 * j + 2 * l + 1] as usize | ((bits & 2) as usize) << 7;
                let point = two_points(IQ3_S_GRID[first], IQ3_S_GRID[second]);
                put_signed(point, SIGN_MASKS[signs[4 * j + l] as usize], &mut out.q[32 * j + 8 * l..][..8]);
            }
        }
    }
}

/// Eight times a lattice point of {-1, 0, 1}, shifted by an eighth: the shift becomes the integer 1.
#[inline(always)]
fn put_ternary(index: usize, negative_shift: bool, out: &mut [i8]) {
    // -1, 0, 1 become -8, 0, 8. With the top bit flipped, adding or subtracting one carries into no other byte.
    let eightfold = (IQ1_GRID[index] << 3) & (0xf8 * ONES);
    let flipped = eightfold ^ (0x80 * ONES);
    let shifted = if negative_shift { flipped.wrapping_sub(ONES) } else { flipped.wrapping_add(ONES) };
    let values = shifted ^ (0x80 * ONES);
    out.copy_from_slice(&values.to_le_bytes().map(|byte| byte as i8));
}

/// Lattice of 2048 points of eight ternary values, shifted by an eighth; 3-bit scales per 32.
#[allow(non_camel_case_types)]
pub struct IQ1_S;
impl GroupFormat for IQ1_S {
    const TYPE: WeightType = WeightType::IQ1_S;
    const OFFSET: u8 = 16;
    #[inline(always)]
    fn unpack(block: &[u8], out: &mut Group) {
        out.d = f16_at(block, 0) * 0.125;
        for j in 0..8 {
            let word = u16_at(block, 34 + 2 * j);
            out.scale[2 * j] = 2 * ((word >> 12) & 7) as i16 + 1;
            out.scale[2 * j + 1] = out.scale[2 * j];
            for l in 0..4 {
                let index = block[2 + 4 * j + l] as usize | (((word >> (3 * l)) & 7) as usize) << 8;
                put_ternary(index, word & 0x8000 != 0, &mut out.q[32 * j + 8 * l..][..8]);
            }
        }
    }
}

/// As IQ1_S with a shift per eight values and 3-bit scales per 16; the f16 scale is spread over the top bits of the scales.
#[allow(non_camel_case_types)]
pub struct IQ1_M;
impl GroupFormat for IQ1_M {
    const TYPE: WeightType = WeightType::IQ1_M;
    const OFFSET: u8 = 16;
    #[inline(always)]
    fn unpack(block: &[u8], out: &mut Group) {
        let words = [u16_at(block, 48), u16_at(block, 50), u16_at(block, 52), u16_at(block, 54)];
        let d =
            (words[0] >> 12) | ((words[1] >> 12) << 4) | ((words[2] >> 12) << 8) | ((words[3] >> 12) << 12);
        out.d = f16_to_f32(d) * 0.125;
        for j in 0..16 {
            out.scale[j] = 2 * ((words[j / 4] >> (3 * (j % 4))) & 7) as i16 + 1;
        }
        for l in 0..32 {
            let bits = block[32 + l / 2] >> (4 * (l % 2));
            let index = block[l] as usize | ((bits & 7) as usize) << 8;
            put_ternary(index, bits & 8 != 0, &mut out.q[8 * l..][..8]);
        }
    }
}

/// Sixteen non-linear values with 6-bit signed scales per 32.
#[allow(non_camel_case_types)]
pub struct IQ4_XS;
impl GroupFormat for IQ4_XS {
    const TYPE: WeightType = WeightType::IQ4_XS;
    const OFFSET: u8 = 128;
    #[inline(always)]
    fn unpack(block: &[u8], out: &mut Group) {
        out.d = f16_at(block, 0);
        let high = u16_at(block, 2);
        for j in 0..8 {
            let low = (block[4 + j / 2] >> (4 * (j % 2))) & 15;
            out.scale[2 * j] = (low as u16 | (((high >> (2 * j)) & 3) << 4)) as i16 - 32;
            out.scale[2 * j + 1] = out.scale[2 * j];
            for l in 0..16 {
                let byte = block[8 + 16 * j + l];
                out.q[32 * j + l] = IQ4_VALUES[(byte & 15) as usize];
                out.q[32 * j + 16 + l] = IQ4_VALUES[(byte >> 4) as usize];
            }
        }
    }
}

/// The ternary digit `n` of a byte that holds five of them as a fraction of 256.
#[inline(always)]
fn ternary_digit(byte: u8, n: usize) -> i8 {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let shifted = byte.wrapping_mul(POWERS[n]);
    ((shifted as u16 * 3) >> 8) as i8 - 1
}

/// Ternary weights, five to a byte.
#[allow(non_camel_case_types)]
pub struct TQ1_0;
impl GroupFormat for TQ1_0 {
    const TYPE: WeightType = WeightType::TQ1_0;
    const OFFSET: u8 = 1;
    #[inline(always)]
    fn unpack(block: &[u8], out: &mut Group) {
        out.d = f16_at(block, 52);
        out.scale.fill(1);
        for n in 0..5 {
            for m in 0..32 {
                out.q[32 * n + m] = ternary_digit(block[m], n);
            }
            for m in 0..16 {
                out.q[160 + 16 * n + m] = ternary_digit(block[32 + m], n);
            }
        }
        for n in 0..4 {
            for m in 0..4 {
                out.q[240 + 4 * n + m] = ternary_digit(block[48 + m], n);
            }
        }
    }
}

/// Ternary weights, two bits each.
#[allow(non_camel_case_types)]
pub struct TQ2_0;
impl GroupFormat for TQ2_0 {
    const TYPE: WeightType = WeightType::TQ2_0;
    const OFFSET: u8 = 1;
    #[inline(always)]
    fn unpack(block: &[u8], out: &mut Group) {
        out.d = f16_at(block, 64);
        out.scale.fill(1);
        for half in 0..2 {
            for part in 0..4 {
                for m in 0..32 {
                    out.q[128 * half + 32 * part + m] = ((block[32 * half + m] >> (2 * part)) & 3) as i8 - 1;
                }
            }
        }
    }
}
