//! The sampler chain: from a row of logits to one token, with llama-server's defaults and order.
//!
//! The crate knows numbers and token ids. It refuses to know text (sequence breakers come in through a callback),
//! models, and requests: a [`Sampler`] is made for one generation and is dropped with it.
//!
//! ```
//! use bloomery_sampler::{Sampler, SamplingParams};
//!
//! let params = SamplingParams { temperature: 0.0, ..Default::default() };
//! let mut sampler = Sampler::new(params, 3, &mut |_| Vec::new())?;
//! sampler.accept(2); // the prompt
//! assert_eq!(sampler.sample(&[0.1, 2.0, 0.3])?, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod adaptive;
mod candidates;
mod chain;
mod dry;
pub mod kind;
mod mirostat;
pub mod params;
mod penalties;
mod probs;
mod random;
mod temperature;
mod truncate;

pub use candidates::Candidate;
pub use chain::{SampleError, Sampler};
pub use kind::{SamplerKind, UnknownSampler};
pub use params::{ParamError, RANDOM_SEED, SamplingParams};
pub use probs::{RowProbs, row_probs};
