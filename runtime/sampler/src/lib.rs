//! The sampler chain: from a row of logits to one token, with llama-server's defaults and order.

#![forbid(unsafe_code)]

/// Settings of the chain; the defaults are llama-server's.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SamplingParams {}
