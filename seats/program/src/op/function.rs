//! Functions of one value, limits and reductions.

use serde::{Deserialize, Serialize};

/// A function of one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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

/// Limits of a gated unit, applied before the activation: `gate = min(gate, gate_max)`, `up = clamp(up, -up_abs, up_abs)`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clamp {
    /// Upper limit of the gate.
    pub gate_max: f32,
    /// Limit of the up value's size.
    pub up_abs: f32,
}

/// A reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// Sum.
    Sum,
    /// Mean.
    Mean,
    /// Maximum.
    Max,
}
