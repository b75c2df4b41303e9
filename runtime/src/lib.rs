//! Opens a model, plans it and runs an engine over it: the part of bloomery that other programs can use as a library.

#![forbid(unsafe_code)]

pub mod board;
pub mod executor;
pub mod request;
