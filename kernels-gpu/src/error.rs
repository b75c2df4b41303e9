//! What can go wrong between this process and a card.

use crate::memory::megabytes;

/// Why the card cannot be used, or stopped being usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// libcuda is not installed.
    #[error(
        "there is no NVIDIA driver on this machine: libcuda.so.1 was not found; --backend cpu runs without one"
    )]
    NoDriver,
    /// The driver does not start.
    #[error("the NVIDIA driver does not start ({code}: {text}); --backend cpu runs without it")]
    DriverFault {
        /// The driver's name for it.
        code: String,
        /// The driver's explanation.
        text: String,
    },
    /// The driver is older than CUDA 12.0.
    #[error(
        "the NVIDIA driver knows CUDA {major}.{minor} only; version R525 or newer (CUDA 12.0) is needed; --backend cpu runs with any"
    )]
    OldDriver {
        /// CUDA version that it knows.
        major: i32,
        /// CUDA version that it knows.
        minor: i32,
    },
    /// No card at all.
    #[error("the NVIDIA driver sees no card; --backend cpu runs without one")]
    NoCard,
    /// A name that no card has.
    #[error("there is no card {asked}; there are: {there}")]
    NoSuchCard {
        /// What was asked for.
        asked: String,
        /// The cards, by index and name.
        there: String,
    },
    /// The card is older than compute capability 8.0.
    #[error(
        "{name} has compute capability {major}.{minor}; 8.0 (Ampere) or newer is needed; --backend cpu runs with any"
    )]
    OldCard {
        /// Its name.
        name: String,
        /// Its compute capability.
        major: i32,
        /// Its compute capability.
        minor: i32,
    },
    /// A buffer found no room.
    #[error("the card has no room for {buffer}: {} are needed, {} are free; {advice}", megabytes(*.bytes), megabytes(*.free))]
    OutOfMemory {
        /// The buffer.
        buffer: String,
        /// Its size.
        bytes: u64,
        /// What was free.
        free: u64,
        /// The flag that helps.
        advice: &'static str,
    },
    /// A kernel of this program is not in the module.
    #[error("the embedded kernels lack {0}; this build is not whole")]
    NoKernel(String),
    /// An access outside a buffer. A bug of the host side.
    #[error("{what}: bytes {from}..{to} of a buffer of {bytes}")]
    Range {
        /// What was done.
        what: &'static str,
        /// Start.
        from: u64,
        /// End.
        to: u64,
        /// The buffer's length.
        bytes: u64,
    },
    /// The card is gone, or its memory is poisoned: this process can use it no more.
    #[error("the card was lost in {call} ({code}: {text}); the server must be started again")]
    Lost {
        /// The driver's function.
        call: &'static str,
        /// The driver's name for it.
        code: String,
        /// The driver's explanation.
        text: String,
    },
    /// Anything else that the driver says.
    #[error("{call}: {code}: {text}")]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// The driver's name for it.
        code: String,
        /// The driver's explanation.
        text: String,
    },
}

impl GpuError {
    /// Nothing that follows on this card can succeed.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, GpuError::Lost { .. })
    }
}
