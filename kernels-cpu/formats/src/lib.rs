//! Block layouts of ggml's weight types and their exact integer arithmetic.
//!
//! One source for the CPU kernels, the device crate and the tests: a block's layout, what its values are, how activations
//! become int8, and the one f32 expression that joins the integer sums of a group. It is `no_std`, takes plain slices, calls no
//! mathematical library and knows nothing about threads, SIMD levels, models or files.
#![no_std]
#![forbid(unsafe_code)]

mod weight_type;

pub use weight_type::{ActivationKind, WeightType};
