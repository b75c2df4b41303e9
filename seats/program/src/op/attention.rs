//! Constants of positions, attention and pools.

use super::defaults::{is_one, is_one_f, is_zero, one, one_f};
use crate::StateId;
use serde::{Deserialize, Serialize};

/// Constants of rotary position embedding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rope {
    /// Width of a head.
    pub head: u32,
    /// Rotated values of a head.
    pub dims: u32,
    /// First rotated value of a head.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub offset: u32,
    /// Base of the frequencies: `f_i = theta^(-2i/dims)`.
    pub theta: f32,
    /// Which values make a pair.
    pub pairing: Pairing,
    /// Rotate backwards.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inverse: bool,
    /// Positions are divided by this.
    #[serde(default = "one_f", skip_serializing_if = "is_one_f")]
    pub linear_factor: f32,
    /// YaRN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub yarn: Option<Yarn>,
    /// Sections of multi-axis positions; text uses one position for all, so they matter for images only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sections: Option<[u32; 4]>,
    /// Use the first position of the group of so many tokens that this row completes (`p + 1 - ratio`).
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub group: u32,
}

/// Pairs of rotary embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairing {
    /// `(i, i + dims/2)`, NeoX.
    Halves,
    /// `(2i, 2i + 1)`, "norm".
    Adjacent,
}

/// YaRN scaling (Peng et al. 2023).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Yarn {
    /// Context growth.
    pub factor: f32,
    /// Trained context.
    pub original_context: u32,
    /// Fast end.
    pub beta_fast: f32,
    /// Slow end.
    pub beta_slow: f32,
    /// Factor on cosine and sine.
    pub magnitude: f32,
}

/// Constants of attention over stores.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u32,
    /// Width of a key.
    pub key: u32,
    /// Width of a value.
    pub value: u32,
    /// Factor on the products.
    pub scale: f32,
    /// `softcap * tanh(s / softcap)` on the scaled products.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub softcap: Option<f32>,
    /// The rows of the step are one block (a block drafter's): they see each other whatever their order, and a window
    /// counts from the block's first row, which it does not include.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub block_bidirectional: bool,
    /// The stores; one softmax runs over their union.
    pub sources: Vec<Source>,
}

/// A store that attention reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// A `rows` state: parts key and value, or one part that is both.
    pub state: StateId,
    /// Only the last so many tokens, the query's own included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// Only rows of a selection: the next unused selection operand.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub selected: bool,
}

/// How a pool weights its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum PoolWeights {
    /// All alike.
    Mean {},
    /// Softmax over the members, per channel, of gate plus position bias.
    Softmax {
        /// x and gate are twice as wide: members of the group before use the first half, members of this group the second.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        overlap: bool,
    },
}
