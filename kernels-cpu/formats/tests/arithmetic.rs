//! Conversions, the software fused multiply-add, the scalar functions and the quantisation's edge cases.

use bloomery_formats::float::{round_even, soft_fma};
use bloomery_formats::*;

fn random_bits(state: &mut u64) -> u32 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 16) as u32
}

#[test]
fn every_half_survives_a_round_trip_and_means_what_it_should() {
    for bits in 0..=u16::MAX {
        let value = f16_to_f32(bits);
        let (exponent, fraction) = ((bits >> 10) & 31, (bits & 1023) as f64);
        let sign = if bits & 0x8000 != 0 { -1.0 } else { 1.0 };
        if exponent == 31 && fraction != 0.0 {
            assert!(value.is_nan() && f16_to_f32(f32_to_f16(value)).is_nan());
            continue;
        }
        let expected = match exponent {
            31 => f64::INFINITY,
            0 => fraction * 2f64.powi(-24),
            _ => (1.0 + fraction / 1024.0) * 2f64.powi(exponent as i32 - 15),
        };
        assert_eq!(value as f64, sign * expected);
        assert_eq!(f32_to_f16(value), bits);
    }
}

#[test]
fn f32_to_half_rounds_to_the_nearest_even() {
    let mut state = 1;
    for _ in 0..200_000 {
        let value = f32::from_bits(random_bits(&mut state));
        if value.is_nan() {
            continue;
        }
        let half = f32_to_f16(value);
        let rounded = f16_to_f32(half);
        if value.abs() >= 65520.0 {
            assert!(rounded.is_infinite());
            continue;
        }
        let distance = |bits: u16| (f16_to_f32(bits) as f64 - value as f64).abs();
        for neighbour in [half.wrapping_add(1), half.wrapping_sub(1)] {
            if f16_to_f32(neighbour).is_finite() && (neighbour ^ half) & 0x8000 == 0 {
                let (near, far) = (distance(half), distance(neighbour));
                assert!(near < far || (near == far && half & 1 == 0), "{value:e} -> {half:#x}");
            }
        }
    }
    // Subnormals, where random bits seldom fall.
    for step in 0..4096u32 {
        let value = step as f32 * 2f32.powi(-26);
        let expected = (step as f64 / 4.0).round_ties_even() as u16;
        assert_eq!(f32_to_f16(value), expected);
    }
}

#[test]
fn the_software_fma_equals_the_hardware_one() {
    let mut state = 42;
    let mut value = |wide: bool| {
        let bits = random_bits(&mut state);
        // Narrow exponents make cancellation and ties frequent.
        f32::from_bits(if wide { bits } else { (bits & 0x83ff_f000) | 0x3c00_0000 })
    };
    for round in 0..2_000_000 {
        let wide = round % 2 == 0;
        let (a, b, c) = (value(wide), value(wide), value(wide));
        let (hard, soft) = (a.mul_add(b, c), soft_fma(a, b, c));
        assert!(hard.to_bits() == soft.to_bits() || (hard.is_nan() && soft.is_nan()), "{a:e} {b:e} {c:e}");
    }
}

fn worst(from: f32, to: f32, function: fn(f32) -> f32, exact: fn(f64) -> f64) -> f64 {
    (0..400_000)
        .map(|i| from + (to - from) * (i as f32 / 400_000.0))
        .map(|x| ((function(x) as f64 - exact(x as f64)) / exact(x as f64).abs().max(1e-37)).abs())
        .fold(0.0, f64::max)
}

#[test]
fn scalar_functions_are_accurate() {
    let gelu = |x: f64| {
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
        0.5 * x * (1.0 + inner.tanh())
    };
    let worst_exp = worst(-87.0, 88.7, exp, f64::exp);
    assert!(worst_exp < 1.3e-7, "exp {worst_exp:e}");
    assert!(worst(-80.0, 80.0, sigmoid, |x| 1.0 / (1.0 + (-x).exp())) < 3e-7);
    assert!(worst(-80.0, 80.0, silu, |x| x / (1.0 + (-x).exp())) < 3e-7);
    assert!(worst(-80.0, 80.0, softplus, |x| x.exp().ln_1p()) < 4e-7);
    assert!(worst(-20.0, 20.0, tanh, f64::tanh) < 4e-7);
    assert!(worst(-3.0, 10.0, gelu_tanh, gelu) < 3e-6);
    // erf at a few published values.
    for (x, y) in [
        (0.0, 0.0),
        (0.5, 0.520_499_877_8),
        (1.0, 0.842_700_792_9),
        (2.0, 0.995_322_265_0),
        (-1.5, -0.966_105_146_5),
    ] {
        assert!((erf(x) as f64 - y).abs() < 3e-7, "erf({x})");
    }
    assert!((gelu_erf(1.0) as f64 - 0.841_344_746_1).abs() < 3e-7);
    assert!((gelu_erf(-2.0) as f64 + 0.045_500_263_9).abs() < 1e-7);
}

#[test]
fn scalar_functions_keep_their_limits() {
    assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    assert_eq!(exp(f32::INFINITY), f32::INFINITY);
    assert_eq!(exp(0.0), 1.0);
    assert_eq!(silu(-1000.0), 0.0);
    assert_eq!(silu(1000.0), 1000.0);
    assert_eq!(softplus(1000.0), 1000.0);
    assert_eq!(tanh(50.0), 1.0);
    assert_eq!(tanh(-50.0), -1.0);
    for function in [exp, sigmoid, silu, gelu_tanh, gelu_erf, softplus, tanh, erf] {
        assert!(function(f32::NAN).is_nan());
    }
}

#[test]
fn rounding_takes_ties_to_even() {
    for (x, n) in
        [(0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, -2), (126.5, 126), (127.49, 127), (-126.501, -127)]
    {
        assert_eq!(round_even(x), n, "{x}");
    }
}

#[test]
fn quantisation_follows_the_definition() {
    // Largest magnitude 2 with both signs: the first one decides the sign of the scale.
    let mut values = [0.25f32; 256];
    values[7] = -2.0;
    values[9] = 2.0;
    let (mut quants, mut sums) = ([1i8; 256], [1i16; 16]);
    let scale = quantize_group(&values, &mut quants, &mut sums);
    assert_eq!((quants[7], quants[9], scale), (-127, 127, 1.0 / (127.0 / 2.0)));
    assert_eq!(quants[0], 16);
    assert_eq!(sums[1], 16 * 16);
    assert_eq!(sums[0], 14 * 16);

    let (mut quants, mut sums) = ([1i8; 32], [1i16; 2]);
    let mut values = [0.5f32; 32];
    values[31] = 1.0;
    let scale = quantize_block(&values, &mut quants, &mut sums);
    assert_eq!((quants[31], quants[0], scale), (127, 64, f16_to_f32(f32_to_f16(1.0 / 127.0))));
    assert_eq!(sums, [16 * 64, 15 * 64 + 127]);
}

#[test]
fn quantisation_of_values_that_are_no_numbers_is_no_number() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut values = [1.0f32; 256];
        values[200] = bad;
        let (mut quants, mut sums) = ([1i8; 256], [1i16; 16]);
        assert!(quantize_group(&values, &mut quants, &mut sums).is_nan());
        assert!(quants.iter().all(|q| *q == 0) && sums.iter().all(|s| *s == 0));
        let block: &[f32; 32] = values[192..224].try_into().unwrap();
        let (mut quants, mut sums) = ([1i8; 32], [1i16; 2]);
        assert!(quantize_block(block, &mut quants, &mut sums).is_nan());
        assert_eq!((quants, sums), ([0; 32], [0; 2]));
    }
    for tiny in [0.0, -0.0, 1e-40, 2f32.powi(-120)] {
        let (mut quants, mut sums) = ([1i8; 256], [1i16; 16]);
        assert_eq!(quantize_group(&[tiny; 256], &mut quants, &mut sums), 0.0);
        assert!(quants.iter().all(|q| *q == 0) && sums.iter().all(|s| *s == 0));
    }
}
