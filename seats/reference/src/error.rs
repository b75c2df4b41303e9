//! What can go wrong while a checked program runs.

use bloomery_program::Fault;

/// Why a step or a state operation failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ReferenceError {
    /// The program does not pass the checker.
    #[error("the program does not check: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Program(Vec<Fault>),
    /// A tensor could not be read.
    #[error("tensor {tensor}: {what}")]
    Tensor {
        /// Name of the tensor.
        tensor: String,
        /// What is wrong.
        what: String,
    },
    /// A node cannot be computed.
    #[error("node {node}: {what}")]
    Node {
        /// Name of the node's first result.
        node: String,
        /// What is wrong.
        what: String,
    },
    /// No such sequence.
    #[error("sequence {0} does not exist")]
    UnknownSequence(u64),
    /// The sequence exists already.
    #[error("sequence {0} exists already")]
    SequenceTaken(u64),
    /// A row does not continue its sequence.
    #[error(
        "sequence {sequence}: a row stands at position {position}, state {state} continues at {expected}"
    )]
    Position {
        /// The sequence.
        sequence: u64,
        /// Position of the row.
        position: usize,
        /// Name of the state.
        state: String,
        /// Next position of the state.
        expected: usize,
    },
    /// The state cannot be cut back there.
    #[error("cannot go back to position {asked}: the nearest snapshot is at {nearest}")]
    NotResumable {
        /// Position asked for.
        asked: usize,
        /// Largest position at or before it that can be resumed at.
        nearest: usize,
    },
    /// Saved bytes that do not fit the program.
    #[error("the saved state is not usable: {0}")]
    BadState(String),
    /// The step as a whole is impossible.
    #[error("the step is malformed: {0}")]
    Step(String),
}

/// Result of this crate's operations.
pub type Result<T> = std::result::Result<T, ReferenceError>;
