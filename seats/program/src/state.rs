//! Per-sequence state: declared here, owned, sized, paged, saved and rolled back by the host.

use serde::{Deserialize, Serialize};

/// Index of a state in [`crate::Program::states`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StateId(pub u32);

/// One piece of a sequence's memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Name, `l3.kv` for example.
    pub name: String,
    /// What is kept.
    pub kind: StateKind,
    /// How the last n tokens are taken back.
    pub rollback: Rollback,
}

/// What a state keeps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum StateKind {
    /// Append-only rows, one for every `every` tokens: row g stands for tokens `g*every .. (g+1)*every`.
    Rows {
        /// The pieces of one row, keys before values.
        parts: Vec<Part>,
        /// Tokens that one row stands for.
        #[serde(default = "one", skip_serializing_if = "is_one")]
        every: u32,
        /// Only the last so many tokens are ever read, so older rows may be dropped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        window: Option<u32>,
    },
    /// The last `rows` rows of a value, f32, oldest first, zero before the sequence's start.
    Recent {
        /// Rows kept.
        rows: u32,
        /// Values in a row.
        width: u32,
    },
    /// A fixed f32 block, zero at the sequence's start.
    Recurrent {
        /// Dimensions, slowest first.
        dims: Vec<u32>,
    },
    /// The last `count` token ids.
    Tokens {
        /// Ids kept.
        count: u32,
    },
}

/// A piece of a stored row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Values in it.
    pub width: u32,
    /// Which cache type applies.
    pub role: PartRole,
}

/// Which of the user's cache types applies to a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartRole {
    /// `--cache-type-k`.
    Key,
    /// `--cache-type-v`.
    Value,
    /// Always f32.
    Exact,
}

/// How the host takes back tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rollback {
    /// Drop the rows of the tokens.
    Truncate,
    /// Put back a copy that was made before them.
    Snapshot,
    /// Run the earlier tokens again.
    Recompute,
}

impl StateKind {
    /// Values that one token adds, averaged over `every`; 0 for states of fixed size.
    pub fn values_per_token(&self) -> f64 {
        match self {
            StateKind::Rows { parts, every, .. } => {
                parts.iter().map(|p| f64::from(p.width)).sum::<f64>() / f64::from((*every).max(1))
            }
            _ => 0.0,
        }
    }

    /// Bytes of fixed size per sequence; 0 for rows.
    pub fn fixed_bytes(&self) -> u64 {
        match self {
            StateKind::Rows { .. } => 0,
            StateKind::Recent { rows, width } => 4 * u64::from(*rows) * u64::from(*width),
            StateKind::Recurrent { dims } => 4 * dims.iter().map(|d| u64::from(*d)).product::<u64>(),
            StateKind::Tokens { count } => 4 * u64::from(*count),
        }
    }
}

fn one() -> u32 {
    1
}

fn is_one(v: &u32) -> bool {
    *v == 1
}
