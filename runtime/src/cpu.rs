//! The CPU backend: lowers a program into fused steps once, then runs rows of many sequences through them.
//!
//! It promises that a row's result does not depend on the rows beside it, on the number of threads, on how a prompt was cut
//! into steps, or on whether neighbours were fused. It refuses at load, naming every missing (operator, weight type, shape class)
//! triple at once; the reference backend runs what this one lacks.

pub(crate) mod admit;
mod draft;
mod execute;
pub(crate) mod executor;
pub(crate) mod fixed;
pub(crate) mod kernel_set;
pub(crate) mod lower;
pub(crate) mod operators;
pub(crate) mod pattern;
pub(crate) mod plan;
pub(crate) mod sequences;
pub(crate) mod step;
pub(crate) mod weights;

#[cfg(test)]
pub(crate) mod tests;

pub use bloomery_kernels_cpu::kv::CacheType;
pub use executor::CpuExecutor;
pub use kernel_set::{MissingKernel, missing_kernels};
pub use weights::{MemoryTensors, WeightSource};

/// Choices for a CPU executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads in all; `None` takes the physical cores that this process may use.
    pub threads: Option<usize>,
    /// Most rows of one step (`n_ubatch`).
    pub max_rows: usize,
    /// Most tokens of one sequence.
    pub max_tokens: usize,
    /// Tokens that the store holds for all sequences together.
    pub store_tokens: usize,
    /// Storage of keys.
    pub cache_key: CacheType,
    /// Storage of values.
    pub cache_value: CacheType,
    /// Join neighbouring operators. Without it every named result can be traced; the bits are the same.
    pub fuse: bool,
    /// Run the program's next-token block, where it has one that can be run.
    pub draft: bool,
}

impl Default for CpuOptions {
    /// One sequence of 4096 tokens in f16, steps of 512 rows, fused, without drafts.
    fn default() -> Self {
        CpuOptions {
            threads: None,
            max_rows: 512,
            max_tokens: 4096,
            store_tokens: 4096,
            cache_key: CacheType::F16,
            cache_value: CacheType::F16,
            fuse: true,
            draft: false,
        }
    }
}

/// Why a program cannot run on this backend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpuError {
    /// Kernels are missing.
    #[error("the cpu backend lacks {}; --backend reference runs this model, slowly", list(missing))]
    Missing {
        /// Every missing triple.
        missing: Vec<MissingKernel>,
    },
    /// A tensor is not as the program needs it.
    #[error("tensor {name}: {what}")]
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// The program is not consistent. A checked program never is so.
    #[error("the program cannot be lowered: {0}")]
    Program(String),
    /// The key-value store cannot be laid out.
    #[error(transparent)]
    Store(#[from] bloomery_kernels_cpu::kv::LayoutError),
    /// A limit that cannot work.
    #[error("{option} is {value}, it must be at least 1")]
    Option {
        /// Which.
        option: &'static str,
        /// Its value.
        value: usize,
    },
}

impl CpuError {
    pub(crate) fn missing(missing: Vec<MissingKernel>) -> CpuError {
        CpuError::Missing { missing }
    }
}

fn list(missing: &[MissingKernel]) -> String {
    missing.iter().map(MissingKernel::to_string).collect::<Vec<_>>().join("; ")
}
