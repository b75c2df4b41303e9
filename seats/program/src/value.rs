//! Values: what flows between nodes.

use serde::{Deserialize, Serialize};

/// Number of a value within its graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ValueId(pub u32);

/// Shape of a value. The leading dimension, rows = tokens of the batch, is never written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Shape {
    /// The token ids of the batch, with their positions and sequences.
    Tokens {},
    /// `[rows, width]` f32.
    Rows {
        /// Values in a row.
        width: u32,
    },
    /// `[rows, streams, width]` f32.
    Streams {
        /// Residual streams.
        streams: u32,
        /// Values in one stream of a row.
        width: u32,
    },
    /// `[rows, width]` integers (expert numbers).
    Index {
        /// Integers in a row.
        width: u32,
    },
    /// One f32 for every visible row of a store, a ragged row for each token.
    Scores {
        /// Index of the store in the program's states.
        state: u32,
    },
    /// Chosen rows of a store, sorted by position, a ragged row for each token.
    Selection {
        /// Tokens that one selected row stands for; 1 after expansion to tokens.
        every: u32,
    },
    /// Token ranges of the questions and options of a decision request.
    Spans {},
}

impl Shape {
    /// f32 values (or integers) in one row, `None` for ragged kinds.
    pub fn row_len(&self) -> Option<u64> {
        match *self {
            Shape::Rows { width } | Shape::Index { width } => Some(u64::from(width)),
            Shape::Streams { streams, width } => Some(u64::from(streams) * u64::from(width)),
            _ => None,
        }
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Shape::Tokens {} => write!(f, "[tokens]"),
            Shape::Rows { width } => write!(f, "[rows, {width}]"),
            Shape::Streams { streams, width } => write!(f, "[rows, {streams}, {width}]"),
            Shape::Index { width } => write!(f, "[rows, {width}] integers"),
            Shape::Scores { state } => write!(f, "[rows, rows of state {state}]"),
            Shape::Selection { every } => write!(f, "selection of rows (every {every})"),
            Shape::Spans {} => write!(f, "[spans]"),
        }
    }
}
