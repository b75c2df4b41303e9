//! The one crate a seat depends on. A seat knows an architecture and nothing else: it reads the header keys and the
//! tensor directory of a GGUF file and answers with a [`Program`], a declared graph of operators that the host checks,
//! plans and runs.
//!
//! A seat is a library with one function and one macro:
//!
//! ```
//! use bloomery_seat::prelude::*;
//!
//! fn declare(facts: &ModelFacts) -> Result<Program> {
//!     let width = facts.count("embedding_length")?;
//!     let mut program = ProgramBuilder::new("bigram", facts);
//!     let mut g = program.target();
//!     let tokens = g.tokens();
//!     let x = g.embed(tokens, "token_embd", width, 1.0)?;
//!     let x = g.named("result_norm").rms_norm(x, "output_norm", facts.float("attention.layer_norm_rms_epsilon")?)?;
//!     let logits = g.named("result_output").linear(x, "output", facts.n_vocab()?)?;
//!     g.logits(logits);
//!     g.finish();
//!     program.finish()
//! }
//!
//! bloomery_seat::export_seat! { name: "bigram", architectures: ["bigram"], declare: declare }
//! ```
//!
//! Shapes are inferred while the graph grows, so a tensor that does not fit fails here, by name, before any weight is
//! read. A seat is tested without a GPU and without a model: see [`conformance`], and the `reference` feature for numbers.
//!
//! What it refuses to do: load weights, know a device, or guess. A key that is missing, a tensor that has another shape
//! and a tensor that no node reads are errors.

pub mod builder;
pub mod conformance;
pub mod error;
pub mod export;
pub mod facts;
pub mod info;
pub mod layers;
pub mod names;
#[cfg(feature = "reference")]
pub mod numbers;
pub mod rope;

pub use bloomery_program as program;
pub use bloomery_program::{Fault, LANGUAGE, ModelFacts, Program, Summary, Version, check};
#[cfg(feature = "reference")]
pub use bloomery_reference as reference;
pub use bloomery_seat_abi as abi;
pub use builder::{CausalAttention, GraphBuilder, ProgramBuilder};
pub use error::{Error, Result};
pub use export::CpuCall;
pub use facts::{ReadFacts, facts_from_json};
pub use info::SeatInfo;

/// What a seat's source uses.
pub mod prelude {
    pub use crate::builder::{CausalAttention, GraphBuilder, ProgramBuilder};
    pub use crate::error::{Error, Result};
    pub use crate::export::CpuCall;
    pub use crate::facts::ReadFacts;
    pub use bloomery_program::graph::{ChatHints, OutputKind, Role};
    pub use bloomery_program::op::{
        Attention, Clamp, Decay, Function, GatedDelta, Groups, HeadMap, Pairing, PoolWeights, Reduction,
        Rope, Route, Score, Source, Yarn,
    };
    pub use bloomery_program::{
        ModelFacts, Op, Part, PartRole, Program, Rollback, Shape, StateId, StateKind, ValueId,
    };
}
