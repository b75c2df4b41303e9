//! Operators beyond the plain transformer's, by idea. Each file declares its steps, lowers nodes to them and runs them.

pub(crate) mod decision;
pub(crate) mod lookup;
pub(crate) mod plain;
pub(crate) mod recurrent;
pub(crate) mod sparse;
pub(crate) mod streams;

use super::CpuError;

/// A fault that a checked program cannot have.
fn broken(what: impl std::fmt::Display) -> CpuError {
    CpuError::Program(what.to_string())
}
