//! Constants of the router.

use super::defaults::{is_one_f, is_zero_f, one_f};
use serde::{Deserialize, Serialize};

/// Constants of the router.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Experts.
    pub experts: u32,
    /// Experts of a row.
    pub used: u32,
    /// Logits to scores.
    pub score: Score,
    /// Choose among the best groups only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Groups>,
    /// Divide the weights by their sum.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub normalize: bool,
    /// The sum is at least this.
    #[serde(default, skip_serializing_if = "is_zero_f")]
    pub sum_floor: f32,
    /// Factor on the weights.
    #[serde(default = "one_f", skip_serializing_if = "is_one_f")]
    pub scale: f32,
}

/// Logits to scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Score {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid.
    Sigmoid,
    /// `sqrt(softplus(x))`.
    SqrtSoftplus,
    /// Choose by logit, then softmax over the chosen.
    SoftmaxChosen,
}

/// Expert groups: a group's score is the sum of its two best choice scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Groups {
    /// Groups.
    pub count: u32,
    /// Groups kept.
    pub used: u32,
}
