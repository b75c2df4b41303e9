//! Operators on host memory with run-time SIMD dispatch.
//!
//! Every operator is a safe function over slices: it checks its lengths, splits its work into disjoint chunks for the
//! [`pool`], and gives the same bits on every instruction set, with any number of threads, and for a row alone or in a batch.
//! The crate knows no model, no file and no sequence; it refuses to allocate per call beyond its threads' scratch.

pub mod activations;
pub mod aligned;
pub mod attention;
mod balance;
pub mod conv;
pub mod cpu;
pub mod cross;
pub mod delta;
pub mod experts;
pub mod grouped;
pub mod history;
pub mod indexer;
pub mod kv;
mod lanes;
pub mod level;
pub mod linear;
pub mod matmul;
pub mod matrix;
pub mod ngram;
mod norm;
pub mod output;
pub mod plain;
pub mod pointwise;
pub mod pool;
pub mod pooled;
pub mod prepare;
pub mod rope;
pub mod route;
pub mod rows;
pub mod selection;
mod split;
pub mod streams;
pub mod topology;
