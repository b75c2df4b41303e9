//! Kernels for steps of many rows (prompts, many streams), which are bound by arithmetic: int8 tensor cores.

pub mod gemm;
pub mod sort;
pub mod tiles;
