//! The sampler chain: from a row of logits to one token, with llama-server's defaults and order.
//!
//! The crate knows numbers and token ids. It refuses to know text (sequence breakers come in through a callback),
//! models, and requests: a chain is made for one generation and is dropped with it.

#![forbid(unsafe_code)]

pub mod kind;
pub mod params;

pub use kind::{SamplerKind, UnknownSampler};
pub use params::{ParamError, RANDOM_SEED, SamplingParams};
