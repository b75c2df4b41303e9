//! Conversions between f32 and the small float formats that appear in blocks. All exact or round-to-nearest-even, in integer arithmetic.

/// The f32 that an IEEE half's bits mean.
#[inline(always)]
pub const fn f16_to_f32(bits: u16) -> f32 {
    let sign = ((bits as u32) & 0x8000) << 16;
    let magnitude = ((bits as u32) & 0x7fff) << 13;
    let exponent = magnitude & 0x0f80_0000;
    if exponent == 0x0f80_0000 {
        // Infinity and NaN keep the top exponent.
        return f32::from_bits(sign | (magnitude + 0x7000_0000));
    }
    if exponent == 0 {
        // Zero and subnormals: the fraction counts steps of 2^-24; the subtraction normalises exactly.
        let value = f32::from_bits(magnitude + 0x3880_0000) - f32::from_bits(0x3880_0000);
        return f32::from_bits(sign | value.to_bits());
    }
    f32::from_bits(sign | (magnitude + 0x3800_0000))
}

/// The half nearest to `value`, ties to even; too large becomes infinity, NaN stays a quiet NaN.
#[inline(always)]
pub const fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00 | ((magnitude >> 13) & 0x3ff) as u16;
    }
    if magnitude >= 0x477f_f000 {
        return sign | 0x7c00;
    }
    if magnitude < 0x3880_0000 {
        // Below the smallest normal half: adding 0.5 leaves the fraction in steps of 2^-24, rounded by the addition itself.
        let shifted = f32::from_bits(magnitude) + 0.5;
        return sign | (shifted.to_bits() - 0x3f00_0000) as u16;
    }
    let odd = (magnitude >> 13) & 1;
    sign | ((magnitude - 0x3800_0000 + 0x0fff + odd) >> 13) as u16
}

/// The f32 that a bfloat16's bits mean.
#[inline(always)]
pub const fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// The bfloat16 nearest to `value`, ties to even; NaN stays a quiet NaN.
#[inline(always)]
pub const fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        return ((bits >> 16) | 0x40) as u16;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// Half of the power of two that an E8M0 byte means (MXFP4 nibbles are stored as twice their value).
#[inline(always)]
pub const fn e8m0_half_to_f32(byte: u8) -> f32 {
    if byte < 2 { f32::from_bits(0x0020_0000 << byte) } else { f32::from_bits((byte as u32 - 1) << 23) }
}

/// Half of the value of an unsigned E4M3 byte (NVFP4 nibbles are stored as twice their value); 0x7f, its NaN, counts as zero in ggml.
#[inline(always)]
pub const fn ue4m3_half_to_f32(byte: u8) -> f32 {
    if byte == 0 || byte == 0x7f {
        return 0.0;
    }
    let exponent = ((byte >> 3) & 15) as u32;
    let fraction = (byte & 7) as u32;
    if exponent == 0 {
        // 2^-10 times the fraction.
        return fraction as f32 * f32::from_bits((127 - 10) << 23);
    }
    f32::from_bits(((exponent + 127 - 8) << 23) | (fraction << 20))
}

/// The little-endian u16 at `offset`.
#[inline(always)]
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes([bytes[offset], bytes[offset + 1]])
}

/// The little-endian u32 at `offset`.
#[inline(always)]
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes([bytes[offset], bytes[offset + 1], bytes[offset + 2], bytes[offset + 3]])
}

/// The half at `offset`, widened.
#[inline(always)]
pub(crate) fn f16_at(bytes: &[u8], offset: usize) -> f32 {
    f16_to_f32(u16_at(bytes, offset))
}
