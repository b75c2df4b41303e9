//! Operators that treat every value alike.

use bloomery_program::op::{Clamp, Function};

/// A function of one value.
pub fn apply(function: Function, x: f32) -> f32 {
    match function {
        Function::Silu => x * sigmoid(x),
        Function::GeluTanh => {
            // sqrt(2 / pi), the constant of Hendrycks and Gimpel's approximation.
            let inner = 0.797_884_6 * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Function::GeluErf => {
            (0.5 * f64::from(x) * (1.0 + erf(f64::from(x) / std::f64::consts::SQRT_2))) as f32
        }
        Function::Sigmoid => sigmoid(x),
        Function::Softplus => softplus(x),
        Function::Exp => x.exp(),
        Function::Relu => x.max(0.0),
        Function::Tanh => x.tanh(),
    }
}

/// `1 / (1 + exp(-x))`.
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `ln(1 + exp(x))`, without overflow.
pub fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// The error function, to about 1e-15: its Taylor series where that converges fast, a continued fraction beyond.
pub fn erf(x: f64) -> f64 {
    let size = x.abs();
    let value = if size < 2.5 {
        // erf(x) = 2/sqrt(pi) * sum (-1)^n x^(2n+1) / (n! (2n+1))
        let (mut term, mut sum) = (size, size);
        for n in 1..60 {
            term *= -size * size / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else {
        // erfc(x) = exp(-x^2)/sqrt(pi) * 1/(x + (1/2)/(x + (2/2)/(x + (3/2)/(x + ...))))
        let tail = (1..80).rev().fold(size, |below, n| size + 0.5 * f64::from(n) / below);
        1.0 - (-size * size).exp() / tail * std::f64::consts::FRAC_2_SQRT_PI / 2.0
    };
    value.copysign(x)
}

/// The activation of a gated unit: `act(min(gate, gate_max)) * clamp(up, -up_abs, up_abs)`.
pub fn gated(act: Function, clamp: Option<Clamp>, gate: f32, up: f32) -> f32 {
    match clamp {
        None => apply(act, gate) * up,
        Some(limit) => apply(act, gate.min(limit.gate_max)) * up.clamp(-limit.up_abs, limit.up_abs),
    }
}

/// `a + b` or `a * b`; a `b` of one value stands for all.
pub fn combine(a: &[f32], b: &[f32], with: impl Fn(f32, f32) -> f32, out: &mut [f32]) {
    for (out, (a, b)) in out.iter_mut().zip(a.iter().zip(b.iter().cycle())) {
        *out = with(*a, *b);
    }
}

/// `x * scale + bias`, each optional and repeated over the row.
pub fn affine(x: &[f32], scale: Option<&[f32]>, bias: Option<&[f32]>, out: &mut [f32]) {
    out.copy_from_slice(x);
    if let Some(scale) = scale {
        for (out, s) in out.iter_mut().zip(scale.iter().cycle()) {
            *out *= s;
        }
    }
    if let Some(bias) = bias {
        for (out, b) in out.iter_mut().zip(bias.iter().cycle()) {
            *out += b;
        }
    }
}

/// Values `start .. start + width` of every group of `group` values.
pub fn slice(x: &[f32], group: usize, start: usize, width: usize, out: &mut [f32]) {
    for (x, out) in x.chunks_exact(group).zip(out.chunks_exact_mut(width)) {
        out.copy_from_slice(&x[start..start + width]);
    }
}
