//! The few float primitives that every backend must agree on: fused multiply-add and rounding to the nearest even integer.

/// `a * b + c` with one rounding.
#[cfg(all(feature = "std", not(target_arch = "nvptx64")))]
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    f32::mul_add(a, b, c)
}

/// `a * b + c` with one rounding.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    let result: f32;
    // SAFETY: one arithmetic instruction on registers.
    unsafe {
        core::arch::asm!("fma.rn.f32 {}, {}, {}, {};", out(reg32) result, in(reg32) a, in(reg32) b, in(reg32) c,
            options(pure, nomem, nostack));
    }
    result
}

/// `a * b + c` with one rounding.
#[cfg(all(not(feature = "std"), not(target_arch = "nvptx64")))]
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    soft_fma(a, b, c)
}

/// The fused multiply-add from f64 arithmetic, for targets that have no instruction for it.
///
/// The product of two f32 is exact in f64. Their sum with `c` is rounded to odd in f64 (53 bits), and a value rounded to odd at
/// 53 bits rounds to f32 (24 bits, also when subnormal) as the exact value would.
pub fn soft_fma(a: f32, b: f32, c: f32) -> f32 {
    let product = a as f64 * b as f64;
    let addend = c as f64;
    let sum = product + addend;
    // Knuth's two-sum gives the exact rounding error of `sum`.
    let addend_part = sum - product;
    let error = (product - (sum - addend_part)) + (addend - addend_part);
    if error == 0.0 || !error.is_finite() || sum.to_bits() & 1 == 1 {
        return sum as f32;
    }
    // The last bit is even and the sum is inexact: step towards the error to make it odd.
    let away_from_zero = (error > 0.0) == (sum > 0.0);
    let bits = if away_from_zero { sum.to_bits() + 1 } else { sum.to_bits() - 1 };
    f64::from_bits(bits) as f32
}

/// 1.5 * 2^23: adding it leaves an integer in the low bits, rounded to the nearest even.
pub(crate) const ROUND: f32 = 12_582_912.0;

/// The nearest integer, ties to even, for |value| <= 2^22.
#[inline(always)]
pub fn round_even(value: f32) -> i32 {
    ((value + ROUND).to_bits() as i32) - (ROUND.to_bits() as i32)
}
