//! The declared program: what a seat says about an architecture, and what the host checks, plans and runs.
//!
//! A program is data: a graph of operators over named tensors and declared per-sequence state. It crosses the plugin
//! boundary once, as JSON, when a model is opened. This crate holds the types, the one place that infers shapes
//! ([`infer`]), the checker that trusts nothing a seat says ([`check`]) and the two dumps a person reads
//! ([`text`], [`dot`]). It refuses to know any architecture, any kernel and any device.
//!
//! Rules of the language (its version is [`LANGUAGE`]):
//! - new operators and new optional fields raise the minor version; a field's default means "as before";
//! - an operator's meaning never changes: a new meaning is a new operator;
//! - a writer emits the lowest minor that its program needs ([`Program::required_language`]), and leaves out fields
//!   that hold their default;
//! - a reader refuses unknown fields, unknown operators and higher versions by name.

#![forbid(unsafe_code)]

pub mod check;
pub mod dot;
pub mod facts;
pub mod graph;
pub mod infer;
pub mod op;
pub mod state;
pub mod text;
pub mod value;

pub use check::{Fault, Summary, check};
pub use facts::{Meta, ModelFacts, TensorFacts};
pub use graph::{
    ChatHints, Graph, Input, InputKind, Node, NodeOutput, Output, OutputKind, Program, Role, Version,
};
pub use op::Op;
pub use state::{Part, PartRole, Rollback, State, StateId, StateKind};
pub use value::{Shape, ValueId};

/// The version of the language that this crate reads.
pub const LANGUAGE: Version = Version { major: 1, minor: 0 };
