//! The CUDA backend: the lowered program as launches on one card.
//!
//! It promises what the CPU backend promises, and the same tokens: a row's result does not depend on the rows beside it, on how a
//! prompt was cut into steps, or on whether launches were replayed from a recording. A model that does not fit the card is refused by
//! its plan, before a byte is uploaded.

mod emit;
mod executor;
mod input;
mod joins;
mod kernel_set;
mod memory;
mod pack;
mod pages;
mod profile;
mod rotations;
mod weights;

#[cfg(test)]
mod tests;

pub use crate::cpu::{CacheType, MissingKernel};
pub use bloomery_kernels_gpu::{CardInfo, GpuError, cards};
pub use executor::CudaExecutor;
pub(crate) use executor::Prepared;
pub use profile::Profile;

use crate::cpu::CpuError;
use bloomery_kernels_gpu::LoadError;

/// Choices for a CUDA executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaOptions {
    /// Most rows of one step (`n_ubatch`).
    pub max_rows: usize,
    /// Most rows of a step whose results are computed at once; more are computed in turns.
    pub max_tail: usize,
    /// Most sequences of one step.
    pub max_sequences: usize,
    /// Most tokens of one sequence.
    pub max_tokens: usize,
    /// Tokens that the store holds for all sequences together.
    pub store_tokens: usize,
    /// Storage of keys.
    pub cache_key: CacheType,
    /// Storage of values.
    pub cache_value: CacheType,
    /// Steps of at most so many rows are recorded once and replayed.
    pub max_recorded: usize,
}

impl Default for CudaOptions {
    fn default() -> Self {
        CudaOptions {
            max_rows: 512,
            max_tail: 64,
            max_sequences: 8,
            max_tokens: 4096,
            store_tokens: 4096,
            cache_key: CacheType::F16,
            cache_value: CacheType::F16,
            max_recorded: 64,
        }
    }
}

/// Why a program cannot run on the card.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// Kernels are missing.
    #[error("the cuda backend lacks {}; --backend cpu runs this model", list(missing))]
    Missing {
        /// Every missing triple.
        missing: Vec<MissingKernel>,
    },
    /// The program cannot be lowered.
    #[error(transparent)]
    Lowering(#[from] CpuError),
    /// The card.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The weights.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The program is not consistent. A checked program never is so.
    #[error("the program cannot be lowered: {0}")]
    Program(String),
    /// A limit that cannot work.
    #[error("{option} is {value}, it must be at least 1")]
    Option {
        /// Which.
        option: &'static str,
        /// Its value.
        value: usize,
    },
}

fn list(missing: &[MissingKernel]) -> String {
    missing.iter().map(MissingKernel::to_string).collect::<Vec<_>>().join("; ")
}

/// What a program takes of a card.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Needs {
    pub weights: u64,
    pub store_per_token: f64,
    pub tables_per_token: f64,
    pub scratch: u64,
    pub graphs: u64,
}
