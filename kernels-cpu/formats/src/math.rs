//! Scalar functions with fixed arithmetic: the same bits on every machine and in every SIMD form.
//!
//! Nothing here calls a mathematical library. Each function is straight-line code (selects, no loops), so a compiler may run it in
//! vector lanes; it may not change the result, because every operation is one correctly rounded IEEE operation.
//! Errors are relative, measured against f64 over the whole range.

// Published coefficients are kept as published.
#![allow(clippy::excessive_precision)]

use crate::float::{ROUND, fma, round_even};

/// e^x. Error below 1.5 units in the last place; overflows to infinity above 88.72, reaches zero below -104.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = core::f32::consts::LOG2_E;
    // ln 2 in two parts; the first has so few bits that its product with the exponent is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Comparisons, not min/max: a NaN must stay.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let scaled = x * LOG2_E;
    let n = (scaled + ROUND) - ROUND;
    let r = fma(n, -LN2_HIGH, x);
    let r = fma(n, -LN2_LOW, r);
    let mut p = 1.0 / 5040.0;
    p = fma(p, r, 1.0 / 720.0);
    p = fma(p, r, 1.0 / 120.0);
    p = fma(p, r, 1.0 / 24.0);
    p = fma(p, r, 1.0 / 6.0);
    p = fma(p, r, 0.5);
    p = fma(p, r, 1.0);
    p = fma(p, r, 1.0);
    // 2^n in two factors, so that results near both ends of the range keep their value.
    let n = round_even(scaled);
    let half = n >> 1;
    let rest = n.wrapping_sub(half);
    p * power_of_two(half) * power_of_two(rest)
}

/// 2^n for -126 <= n <= 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// x / (1 + e^-x).
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// The tanh approximation of GELU, 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), written as x times a sigmoid.
#[inline(always)]
pub fn gelu_tanh(x: f32) -> f32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    let inner = SQRT_2_OVER_PI * x * fma(0.044_715 * x, x, 1.0);
    x / (1.0 + exp(-2.0 * inner))
}

/// GELU by the error function, x times the normal distribution function.
#[inline(always)]
pub fn gelu_erf(x: f32) -> f32 {
    let tail = 0.5 * erfc_positive(x.abs() * core::f32::consts::FRAC_1_SQRT_2);
    let phi = if x < 0.0 { tail } else { 1.0 - tail };
    x * phi
}

/// The error function. Error below 3e-7 absolute.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let value = 1.0 - erfc_positive(x.abs());
    if x < 0.0 { -value } else { value }
}

/// The complementary error function of x >= 0: t exp(-x^2 + P(t)), t = 1 / (1 + x / 2), Chebyshev-fitted P
/// (Numerical Recipes, section 6.2; fractional error 1.2e-7).
#[inline(always)]
fn erfc_positive(x: f32) -> f32 {
    let t = 1.0 / fma(0.5, x, 1.0);
    let mut p = 0.170_872_77;
    p = fma(p, t, -0.822_152_23);
    p = fma(p, t, 1.488_515_87);
    p = fma(p, t, -1.135_203_98);
    p = fma(p, t, 0.278_868_07);
    p = fma(p, t, -0.186_288_06);
    p = fma(p, t, 0.096_784_18);
    p = fma(p, t, 0.374_091_96);
    p = fma(p, t, 1.000_023_68);
    p = fma(p, t, -1.265_512_23);
    t * exp(fma(-x, x, p))
}

/// Hyperbolic tangent. Error below 3e-7 relative.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let y = x.abs();
    // Near zero the exponential form would cancel; the odd series is exact enough up to 0.4.
    let s = y * y;
    let mut p = 21_844.0 / 6_081_075.0;
    p = fma(p, s, -1_382.0 / 155_925.0);
    p = fma(p, s, 62.0 / 2_835.0);
    p = fma(p, s, -17.0 / 315.0);
    p = fma(p, s, 2.0 / 15.0);
    p = fma(p, s, -1.0 / 3.0);
    let small = fma(y * s, p, y);
    let t = exp(-2.0 * y);
    let large = (1.0 - t) / (1.0 + t);
    let value = if y < 0.4 { small } else { large };
    if x < 0.0 { -value } else { value }
}

/// ln(1 + e^x), without the loss of small values that the literal form has.
#[inline(always)]
pub fn softplus(x: f32) -> f32 {
    let positive = if x > 0.0 { x } else { 0.0 };
    let value = positive + log1p_unit(exp(-x.abs()));
    // A NaN would be lost in the first select.
    if x.is_nan() { x } else { value }
}

/// ln(1 + u) for 0 <= u <= 1, as 2 artanh(u / (2 + u)).
#[inline(always)]
fn log1p_unit(u: f32) -> f32 {
    let s = u / (2.0 + u);
    let z = s * s;
    let mut p = 1.0 / 17.0;
    p = fma(p, z, 1.0 / 15.0);
    p = fma(p, z, 1.0 / 13.0);
    p = fma(p, z, 1.0 / 11.0);
    p = fma(p, z, 1.0 / 9.0);
    p = fma(p, z, 1.0 / 7.0);
    p = fma(p, z, 1.0 / 5.0);
    p = fma(p, z, 1.0 / 3.0);
    let double = 2.0 * s;
    fma(double * z, p, double)
}
