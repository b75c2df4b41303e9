//! Every operator of the program language, written as its definition reads, and an executor over a checked program.
//!
//! Why it exists: `docs/operators.md` says what an operator means, this crate says it again in code that can be run.
//! Fast kernels are tested against the functions in [`ops`], seats against [`Reference`], and a person who doubts an
//! answer can serve a model with it. It refuses to be fast: one thread, f32 throughout, no vector instructions by hand,
//! no dependency on any kernel, no format knowledge (weights arrive as f32 rows through [`Weights`]).
//!
//! - [`Reference`] runs one graph of a program over a step's rows: [`Reference::forward`].
//! - [`States`] keeps what the program declares for each sequence: append, cut back, snapshot, save and restore.
//! - [`ops`] holds the operators as functions of plain slices.

#![forbid(unsafe_code)]

pub mod ops;

mod error;
mod forward;
mod local;
mod need;
mod node;
mod save;
mod state;
mod stateful;
mod table;
mod weights;

pub use error::ReferenceError;
pub use forward::{NamedOutput, Reference, Row, Step, Trace};
pub use node::{CustomOperator, CustomRows};
pub use ops::decision::{Question, QuestionKind};
pub use state::{CacheType, States};
pub use table::{RowSet, Table, Value};
pub use weights::{MemoryWeights, Tensor, Weights};
