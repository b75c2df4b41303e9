//! Kernels for steps of few rows, which are bound by memory and by the number of launches.

pub mod attend;
pub mod experts;
pub mod linear;
pub mod merge;
pub mod route;
pub mod stage;
pub mod weights;
