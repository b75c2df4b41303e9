//! The backend against the naive executor on small random programs, and its own promises.

mod small;

mod against_reference;
mod sequences;
