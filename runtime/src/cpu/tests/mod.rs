//! The backend against the naive executor on small random programs, and its own promises.

pub(crate) mod small;

pub(crate) mod against_reference;
mod plain;
pub(crate) mod sequences;
