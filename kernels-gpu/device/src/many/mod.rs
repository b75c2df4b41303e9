//! Kernels for steps of many rows (prompts, many streams), which are bound by arithmetic: int8 tensor cores, f16 ones for attention.

pub mod flash;
pub mod floats;
pub mod gemm;
pub mod sort;
pub mod tiles;
