//! Block layouts of ggml's weight types and their exact integer arithmetic.
//!
//! One source for the CPU kernels, the device crate and the tests: a block's layout, what its values are, how activations
//! become int8, and the one f32 expression that joins the integer sums of a group. Whoever computes a dot product, on whatever
//! unit and in whatever order, ends in the expressions of [`join`], so placement never changes a bit of the result.
//!
//! It is `no_std`, takes plain slices, calls no mathematical library and knows nothing about threads, SIMD levels, models or files.
//! It refuses to guess: a row whose length does not fit its type is a typed error.
#![no_std]
#![cfg_attr(not(target_arch = "nvptx64"), forbid(unsafe_code))]
#![cfg_attr(target_arch = "nvptx64", feature(asm_experimental_arch))]

#[cfg(feature = "std")]
extern crate std;

pub mod activation;
pub mod block_formats;
mod dequantize;
mod dot;
pub mod float;
pub mod group_formats;
pub mod half;
pub mod join;
pub mod math;
pub mod tables;
mod weight_type;

pub use activation::{quantize_block, quantize_group, scaled_sum};
pub use dequantize::{RowError, dequantize_row};
pub use dot::{ActivationRow, dot, dot_blocks, dot_f32, dot_groups};
pub use half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
pub use math::{erf, exp, gelu_erf, gelu_tanh, sigmoid, silu, softplus, tanh};
pub use weight_type::{ActivationKind, WeightType};
