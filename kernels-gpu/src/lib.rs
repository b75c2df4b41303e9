//! The card: driver layer, embedded kernels, and work for them as data.
//!
//! The crate knows cards, memory and launches. It refuses to know programs (the runtime lowers them) and never panics for want of a
//! driver: a machine without one is told what is missing, in one line.

mod card;
mod driver;
mod error;
mod launch;
pub mod layout;
mod machine;
mod memory;
mod module;
mod ptx;
#[cfg(feature = "simulated")]
mod simulated;
mod upload;

pub use card::{Card, CardOptions};
pub use driver::{CardInfo, cards, choose};
pub use error::GpuError;
pub use launch::{Argument, Command, KernelId, Launch, PinnedId, RecordingId};
pub use machine::{LoadError, LoadItem, LoadSource, Machine};
pub use memory::{Allocation, Buffer};
#[cfg(feature = "simulated")]
pub use simulated::SimulatedGrid;
