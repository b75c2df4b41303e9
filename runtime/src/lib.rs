//! Opens a model, plans it and runs an engine over it: the part of bloomery that other programs can use as a library.

pub mod board;
pub mod request;
