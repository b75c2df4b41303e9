//! Functions of single values, compiled for the level so that they run in lanes.

use crate::cpu::Cpu;
use crate::lanes::Lanes;
use crate::level::Kernel;
use crate::rows::for_rows;
use bloomery_formats::math;

/// A function of one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU, tanh form.
    GeluTanh,
    /// GELU, exact (erf).
    GeluErf,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `ln(1 + exp(x))`.
    Softplus,
    /// `exp(x)`.
    Exp,
    /// `max(x, 0)`.
    Relu,
    /// `tanh(x)`.
    Tanh,
}

/// Limits of a gated unit: `gate = min(gate, gate_max)`, `up = clamp(up, -up_abs, up_abs)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateLimits {
    /// Upper limit of the gate.
    pub gate_max: f32,
    /// Limit of the up value's size.
    pub up_abs: f32,
}

macro_rules! with_function {
    ($function:expr, $f:ident => $body:expr) => {
        match $function {
            Function::Silu => {
                let $f = math::silu;
                $body
            }
            Function::GeluTanh => {
                let $f = math::gelu_tanh;
                $body
            }
            Function::GeluErf => {
                let $f = math::gelu_erf;
                $body
            }
            Function::Sigmoid => {
                let $f = math::sigmoid;
                $body
            }
            Function::Softplus => {
                let $f = math::softplus;
                $body
            }
            Function::Exp => {
                let $f = math::exp;
                $body
            }
            Function::Relu => {
                let $f = relu;
                $body
            }
            Function::Tanh => {
                let $f = math::tanh;
                $body
            }
        }
    };
}

/// NaN stays.
#[inline(always)]
fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

struct Unary<'a>(Function, &'a [f32], &'a mut [f32]);

impl Kernel for Unary<'_> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let Unary(function, x, out) = self;
        with_function!(function, f => for (out, x) in out.iter_mut().zip(x) {
            *out = f(*x);
        });
    }
}

/// `x = function(x)`, in place.
pub(crate) struct UnaryInPlace<'a>(pub Function, pub &'a mut [f32]);

impl Kernel for UnaryInPlace<'_> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        with_function!(self.0, f => for x in self.1.iter_mut() {
            *x = f(*x);
        });
    }
}

/// `gate = function(gate) * up`, in place.
pub(crate) struct GateInPlace<'a> {
    pub function: Function,
    pub limits: Option<GateLimits>,
    pub gate: &'a mut [f32],
    pub up: &'a [f32],
}

impl Kernel for GateInPlace<'_> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let pairs = self.gate.iter_mut().zip(self.up);
        match self.limits {
            None => with_function!(self.function, f => for (gate, up) in pairs {
                *gate = f(*gate) * up;
            }),
            Some(limits) => with_function!(self.function, f => for (gate, up) in pairs {
                // Comparisons keep a NaN.
                let g = if *gate > limits.gate_max { limits.gate_max } else { *gate };
                let u = if *up > limits.up_abs { limits.up_abs } else { *up };
                let u = if u < -limits.up_abs { -limits.up_abs } else { u };
                *gate = f(g) * u;
            }),
        }
    }
}

/// `out = function(x)` over `[rows, width]`.
pub fn unary(cpu: &Cpu, function: Function, rows: usize, width: usize, x: &[f32], out: &mut [f32]) {
    let x = &x[..rows * width];
    for_rows(&cpu.pool, rows, width, out, |range, out| {
        cpu.level.run(Unary(function, &x[range.start * width..range.end * width], out));
    });
}

/// `out = function(gate) * up` over `[rows, width]`.
#[allow(clippy::too_many_arguments, reason = "three operands and their shape")]
pub fn glu(
    cpu: &Cpu,
    function: Function,
    limits: Option<GateLimits>,
    rows: usize,
    width: usize,
    gate: &[f32],
    up: &[f32],
    out: &mut [f32],
) {
    let (gate, up) = (&gate[..rows * width], &up[..rows * width]);
    for_rows(&cpu.pool, rows, width, out, |range, out| {
        let range = range.start * width..range.end * width;
        out.copy_from_slice(&gate[range.clone()]);
        cpu.level.run(GateInPlace { function, limits, gate: out, up: &up[range] });
    });
}

/// `out = a + b` over `[rows, width]`; `b` may have one value a row.
pub fn add(pool: &crate::pool::Pool, rows: usize, width: usize, a: &[f32], b: &[f32], out: &mut [f32]) {
    binary(pool, rows, width, a, b, out, |a, b| a + b);
}

/// `out = a * b` over `[rows, width]`; `b` may have one value a row.
pub fn mul(pool: &crate::pool::Pool, rows: usize, width: usize, a: &[f32], b: &[f32], out: &mut [f32]) {
    binary(pool, rows, width, a, b, out, |a, b| a * b);
}

fn binary(
    pool: &crate::pool::Pool,
    rows: usize,
    width: usize,
    a: &[f32],
    b: &[f32],
    out: &mut [f32],
    f: impl Fn(f32, f32) -> f32 + Sync,
) {
    let b_width = if b.len() >= rows * width { width } else { 1 };
    let (a, b) = (&a[..rows * width], &b[..rows * b_width]);
    for_rows(pool, rows, width, out, |range, out| {
        for (row, out) in range.zip(out.chunks_exact_mut(width)) {
            let a = &a[row * width..(row + 1) * width];
            match b_width {
                1 => out.iter_mut().zip(a).for_each(|(o, a)| *o = f(*a, b[row])),
                _ => {
                    let b = &b[row * width..(row + 1) * width];
                    out.iter_mut().zip(a).zip(b).for_each(|((o, a), b)| *o = f(*a, *b));
                }
            }
        }
    });
}
