//! Gated activations: `act(gate) * up`, the same bits in every vector width.

use crate::simd::{Kind, Simd};
use bloomery_formats::{gelu_erf, gelu_tanh, sigmoid, silu};

/// The function that gates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// x / (1 + e^-x).
    Silu,
    /// GELU, tanh approximation.
    GeluTanh,
    /// GELU by the error function.
    GeluErf,
    /// 1 / (1 + e^-x).
    Sigmoid,
    /// max(x, 0).
    Relu,
}

/// `out[i] = function(gate[i]) * up[i]`; `out` may not be longer than the operands (panics).
pub fn gated(simd: Simd, function: Gate, gate: &[f32], up: &[f32], out: &mut [f32]) {
    let (gate, up) = (&gate[..out.len()], &up[..out.len()]);
    match simd.kind() {
        Kind::Scalar => run(function, gate, up, out),
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => {
            #[target_feature(enable = "avx2,fma")]
            fn compiled(function: Gate, gate: &[f32], up: &[f32], out: &mut [f32]) {
                run(function, gate, up, out);
            }
            // SAFETY: a `Simd` of this kind exists only where these features were detected.
            unsafe { compiled(function, gate, up, out) }
        }
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Vnni => {
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            fn compiled(function: Gate, gate: &[f32], up: &[f32], out: &mut [f32]) {
                run(function, gate, up, out);
            }
            // SAFETY: a `Simd` of this kind exists only where these features were detected.
            unsafe { compiled(function, gate, up, out) }
        }
    }
}

#[inline(always)]
fn run(function: Gate, gate: &[f32], up: &[f32], out: &mut [f32]) {
    #[inline(always)]
    fn each(gate: &[f32], up: &[f32], out: &mut [f32], function: impl Fn(f32) -> f32) {
        for ((value, gate), up) in out.iter_mut().zip(gate).zip(up) {
            *value = function(*gate) * up;
        }
    }
    match function {
        Gate::Silu => each(gate, up, out, silu),
        Gate::GeluTanh => each(gate, up, out, gelu_tanh),
        Gate::GeluErf => each(gate, up, out, gelu_erf),
        Gate::Sigmoid => each(gate, up, out, sigmoid),
        Gate::Relu => each(gate, up, out, |x| if x > 0.0 { x } else { 0.0 }),
    }
}
