//! What the host asks of an operator: its name, the states it touches, whether rows mix.

use super::Op;
use crate::StateId;

impl Op {
    /// The operator's name, as in the wire form and in `docs/operators.md`.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::NgramEmbed { .. } => "ngram_embed",
            Op::RmsNorm { .. } => "rms_norm",
            Op::LayerNorm { .. } => "layer_norm",
            Op::L2Norm { .. } => "l2_norm",
            Op::GatedRmsNorm { .. } => "gated_rms_norm",
            Op::Linear {} => "linear",
            Op::GroupedLinear { .. } => "grouped_linear",
            Op::Add {} => "add",
            Op::Mul {} => "mul",
            Op::Scale { .. } => "scale",
            Op::Affine {} => "affine",
            Op::Unary { .. } => "unary",
            Op::Glu { .. } => "glu",
            Op::Concat {} => "concat",
            Op::Slice { .. } => "slice",
            Op::Rope(_) => "rope",
            Op::Append { .. } => "append",
            Op::Attention(_) => "attention",
            Op::Pool { .. } => "pool",
            Op::IndexScore { .. } => "index_score",
            Op::TopRows { .. } => "top_rows",
            Op::CandidateBlocks { .. } => "candidate_blocks",
            Op::CausalConv { .. } => "causal_conv",
            Op::GatedDelta(_) => "gated_delta",
            Op::StreamSpread { .. } => "stream_spread",
            Op::StreamCollapse {} => "stream_collapse",
            Op::StreamCombine {} => "stream_combine",
            Op::StreamScale {} => "stream_scale",
            Op::HyperMix { .. } => "hyper_mix",
            Op::HyperHead { .. } => "hyper_head",
            Op::LowRankMix { .. } => "low_rank_mix",
            Op::MemoryGate { .. } => "memory_gate",
            Op::Route(_) => "route",
            Op::Experts { .. } => "experts",
            Op::MarkovChain { .. } => "markov_chain",
            Op::DecisionHead { .. } => "decision_head",
            Op::MatMul { .. } => "mat_mul",
            Op::Softmax { .. } => "softmax",
            Op::Reduce { .. } => "reduce",
            Op::TopK { .. } => "top_k",
            Op::Gather { .. } => "gather",
            Op::Reshape { .. } => "reshape",
            Op::Transpose {} => "transpose",
            Op::Custom { .. } => "custom",
        }
    }

    /// The minor version of the language that brought the operator.
    pub fn since_minor(&self) -> u16 {
        0
    }

    /// Whether a row of the result depends on the same row of the operands only: no state, no other row.
    /// The host computes such nodes for just those rows that are asked for.
    pub fn is_row_local(&self) -> bool {
        !matches!(
            self,
            Op::NgramEmbed { .. }
                | Op::Append { .. }
                | Op::Attention(_)
                | Op::Pool { .. }
                | Op::IndexScore { .. }
                | Op::CausalConv { .. }
                | Op::GatedDelta(_)
                | Op::MarkovChain { .. }
                | Op::DecisionHead { .. }
                | Op::Custom { .. }
        )
    }

    /// The state that the operator moves on. `tokens` states are moved on by the host, for all readers at once.
    pub fn writes(&self) -> Option<StateId> {
        match self {
            Op::Append { state } | Op::Pool { state, .. } | Op::CausalConv { state, .. } => Some(*state),
            Op::GatedDelta(delta) => Some(delta.state),
            _ => None,
        }
    }

    /// The stores that the operator reads and another node appends to.
    pub fn reads(&self) -> Vec<StateId> {
        match self {
            Op::IndexScore { state, .. } => vec![*state],
            Op::Attention(attention) => attention.sources.iter().map(|s| s.state).collect(),
            _ => vec![],
        }
    }

    /// The states that the operator reads or writes.
    pub fn states(&self) -> Vec<StateId> {
        match self {
            Op::NgramEmbed { state, .. }
            | Op::Append { state }
            | Op::Pool { state, .. }
            | Op::IndexScore { state, .. }
            | Op::CausalConv { state, .. } => vec![*state],
            Op::GatedDelta(d) => vec![d.state],
            Op::Attention(a) => a.sources.iter().map(|s| s.state).collect(),
            _ => vec![],
        }
    }
}
