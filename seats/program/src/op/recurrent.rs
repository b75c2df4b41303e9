//! Constants of the gated delta rule.

use crate::StateId;
use serde::{Deserialize, Serialize};

/// Constants of the gated delta rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatedDelta {
    /// Heads of q and k.
    pub key_heads: u32,
    /// Heads of v, decay (scalar kinds) and beta.
    pub value_heads: u32,
    /// Width of a key.
    pub key: u32,
    /// Width of a value.
    pub value: u32,
    /// How the decay comes about.
    pub decay: Decay,
    /// Factor on q.
    pub scale: f32,
    /// L2-normalise q and k per head with this epsilon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub l2_eps: Option<f32>,
    /// Which key head serves value head j.
    pub head_map: HeadMap,
    /// A `recurrent` state `[value_heads, key, value]`.
    pub state: StateId,
}

/// Logarithm g of the decay; tensors `a` `[value_heads]` (negative) and `dt`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Decay {
    /// `g = a * softplus(x + dt)`, one for a head.
    ScalarSoftplus {},
    /// `g = a * softplus(x + dt)`, one for a key channel; x and dt are `[value_heads*key]`.
    ChannelSoftplus {},
    /// `g = lower_bound * sigmoid(-a * (x + dt))`, one for a key channel.
    ChannelSigmoid {
        /// Negative: the strongest decay.
        lower_bound: f32,
    },
}

/// Which key head serves a value head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadMap {
    /// `j mod key_heads`.
    Tiled,
    /// `j / (value_heads / key_heads)`.
    Grouped,
}
