//! The operators and their constants. `docs/operators.md` defines each one; its naive form is in `bloomery-reference`.

use crate::StateId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An operator with its constants. Operand order and tensor roles stand in each variant's first lines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    // ---- tokens
    /// `(tokens) -> rows`; tensor `weight` `[width, n_vocab]`. A row of the table times `scale`.
    Embed {
        /// Factor.
        #[serde(default = "one_f", skip_serializing_if = "is_one_f")]
        scale: f32,
    },
    /// `(tokens) -> rows`; tensor `weight` `[width, table rows]`. Rows of hashed n-grams, orders 2..=`max_ngram`, joined.
    NgramEmbed {
        /// Longest n-gram.
        max_ngram: u32,
        /// Hash heads of each order.
        heads: u32,
        /// Hash multipliers, `max_ngram` of them.
        multipliers: Vec<u64>,
        /// Modulus of each (order, head).
        moduli: Vec<u64>,
        /// First table row of each (order, head).
        offsets: Vec<u64>,
        /// Id that stands for a missing predecessor (after the map).
        fill: u64,
        /// Ids (before the map) that cut the history: a predecessor with one of them and everything older becomes `fill`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        cut: Vec<u32>,
        /// Full metadata key of an array that maps token ids to hash ids.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token_map: Option<String>,
        /// A `tokens` state with at least `max_ngram - 1` ids.
        state: StateId,
    },
    // ---- norm
    /// `(x) -> x`; tensor `weight` optional. `x / sqrt(mean(x^2) + eps) * weight` over groups of `group` values.
    RmsNorm {
        /// Added to the mean square.
        eps: f32,
        /// Values normalised together.
        group: u32,
    },
    /// `(x) -> x`; tensors `weight`, `bias` optional. `(x - mean) / sqrt(variance + eps) * weight + bias` over groups.
    LayerNorm {
        /// Added to the variance.
        eps: f32,
        /// Values normalised together.
        group: u32,
    },
    /// `(x) -> x`. `x / sqrt(sum(x^2) + eps)` over groups.
    L2Norm {
        /// Added to the sum of squares.
        eps: f32,
        /// Values normalised together.
        group: u32,
    },
    /// `(x, gate) -> x`; tensor `weight` optional. `rms_norm(x) * weight * function(gate)`.
    GatedRmsNorm {
        /// Added to the mean square.
        eps: f32,
        /// Values normalised together.
        group: u32,
        /// `silu` or `sigmoid`.
        function: Function,
    },
    // ---- linear
    /// `(x) -> rows`; tensors `weight` `[in, out]` (or `[in]`, one value out), `bias` `[out]` optional.
    Linear {},
    /// `(x) -> rows`; tensor `weight` `[in, out, groups]` or `[in, groups*out]`. Block-diagonal: group g of x through
    /// matrix g. With heads as groups it is the per-head projection of absorbed latent attention.
    GroupedLinear {
        /// Blocks.
        groups: u32,
    },
    // ---- point-wise
    /// `(a, b) -> a + b`; b may have width 1.
    Add {},
    /// `(a, b) -> a * b`; b may have width 1.
    Mul {},
    /// `(x) -> x * by + plus`.
    Scale {
        /// Factor.
        by: f32,
        /// Term.
        #[serde(default, skip_serializing_if = "is_zero_f")]
        plus: f32,
    },
    /// `(x) -> x * scale + bias`; tensors `scale`, `bias`, each optional, repeated over the row.
    Affine {},
    /// `(x) -> function(x)`.
    Unary {
        /// Which.
        function: Function,
    },
    /// `(gate, up) -> act(gate) * up`, with optional clamps.
    Glu {
        /// Applied to the gate.
        act: Function,
        /// Limits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        clamp: Option<Clamp>,
    },
    /// `(a, b, ...) -> rows` side by side.
    Concat {},
    /// `(x) -> rows`: values `start .. start+width` of every group of `group` values.
    Slice {
        /// Period; the row's width when there is one slice a row.
        group: u32,
        /// First value.
        start: u32,
        /// Values taken.
        width: u32,
    },
    // ---- position
    /// `(x) -> x`; tensor `freq_factors` `[dims/2]` optional. Rotary position embedding of every head.
    Rope(Rope),
    // ---- attention
    /// `(part, ...) ->`: append one row, or the rows that complete a group, to a `rows` state.
    Append {
        /// The store.
        state: StateId,
    },
    /// `(q, selection...) -> rows [heads*value]`; tensor `sinks` `[heads]` optional.
    Attention(Attention),
    // ---- sparse selection
    /// `(x, gate?) -> rows`; tensor `position_bias` `[width, ratio]` optional. One pooled row for each group of `ratio`
    /// tokens, valid in the row that completes the group (other rows are zero).
    Pool {
        /// Tokens in a group.
        ratio: u32,
        /// How members are weighted.
        weights: PoolWeights,
        /// A `recent` state of at least `ratio - 1` rows, wide enough for x and gate.
        state: StateId,
    },
    /// `(q, weights?) -> scores`: `sum_h weights[h] * relu(q_h . key)` for every visible row of the store.
    IndexScore {
        /// Index heads.
        heads: u32,
        /// Width of a key.
        key: u32,
        /// The store of index keys.
        state: StateId,
    },
    /// `(scores, within?) -> selection`: the `top_k` best rows, ties to the lower position, sorted by position.
    TopRows {
        /// Rows kept.
        top_k: u32,
        /// Give token positions: a row that stands for `every` tokens becomes those tokens.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        expand: bool,
        /// After expansion add the tokens after the last complete group.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        tail: bool,
    },
    /// `(scores) -> selection`: rows of the `keep` best blocks of `block` rows by maximum score; the newest block is always kept.
    CandidateBlocks {
        /// Rows in a block.
        block: u32,
        /// Blocks kept.
        keep: u32,
    },
    // ---- recurrent
    /// `(x) -> x`; tensors `weight` `[taps, width]`, `bias` optional. Causal depthwise convolution, then `function`.
    CausalConv {
        /// Taps; the last one meets the current row.
        taps: u32,
        /// Rows between taps.
        #[serde(default = "one", skip_serializing_if = "is_one")]
        dilation: u32,
        /// Applied to the sum.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        function: Option<Function>,
        /// A `recent` state of `(taps - 1) * dilation` rows.
        state: StateId,
    },
    /// `(q, k, v, decay, beta) -> rows [value_heads*value]`; tensors `a` and `dt`, see [`Decay`]. Beta comes ready (after
    /// its sigmoid), the decay as the bare projection.
    GatedDelta(GatedDelta),
    // ---- residual streams
    /// `(x) -> streams`: x in every stream.
    StreamSpread {
        /// Streams.
        streams: u32,
    },
    /// `(h, pre?) -> rows`: `sum_j pre[j] * h[j]`, or the mean of the streams without `pre`.
    StreamCollapse {},
    /// `(h, y, post, comb?) -> streams`: `post[d]*y + sum_s comb[s][d]*h[s]`, or `post[d]*y + h[d]` without `comb`.
    StreamCombine {},
    /// `(value, gate) -> streams`: `gate[j] * value`.
    StreamScale {},
    /// `(h) -> pre, post, comb`; tensors `fn` `[streams*width, (2+streams)*streams]`, `scale` `[3]`, `base`. Hyper-connection
    /// coefficients with Sinkhorn-normalised `comb`. Whose `pre` collapses h, this one's or the last one's, is the graph's choice.
    HyperMix {
        /// Sinkhorn rounds, the softmax round included.
        iterations: u32,
        /// Added in the normalisations and to `pre`.
        eps: f32,
        /// Added to the mean square of the flattened streams.
        norm_eps: f32,
    },
    /// `(h) -> pre`; tensors `fn` `[streams*width, streams]`, `scale` `[1]`, `base` `[streams]`. The head's collapse weights.
    HyperHead {
        /// Added to `pre`.
        eps: f32,
        /// Added to the mean square of the flattened streams.
        norm_eps: f32,
    },
    /// `(h) -> mixed, post?`; tensors `norm` `[streams*width]`, `down`, `up`, `inject` optional (then there are two results).
    /// With n = the streams normalised each and times `norm`: `mixed = mean_j n_j * sigmoid(up . silu(down . n / streams))_j`,
    /// `post = 2 * sigmoid(inject . n / streams)`, which [`Op::StreamCombine`] takes.
    LowRankMix {
        /// Added to the mean square of each stream.
        eps: f32,
    },
    /// `(h, key) -> gate [rows, streams]`; tensors `query_norm`, `key_norm`. The gate of an n-gram memory.
    MemoryGate {
        /// Added to the mean squares.
        eps: f32,
    },
    // ---- experts
    /// `(logits, tokens?) -> ids, weights`; tensors `bias` `[experts]` optional, `table` `[used, n_vocab]` optional (hash
    /// routing: ids by token id).
    Route(Route),
    /// `(x, ids, weights) -> rows`; tensors `gate`, `up`, `down`, or `gate_up`, `down`; optional `gate_bias`, `up_bias`, `down_bias`.
    Experts {
        /// Experts.
        experts: u32,
        /// Experts of a row.
        used: u32,
        /// Applied to the gate.
        act: Function,
        /// Limits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        clamp: Option<Clamp>,
    },
    // ---- head
    /// `(logits, hidden, tokens) -> logits, confidence`; tensors `w1`, `w2` `[rank, n_vocab]`, `confidence` `[width+rank, 1]`.
    /// Left to right over the rows of a draft block: the previous row's choice shifts the next row's logits.
    MarkovChain {
        /// Width of the token vectors.
        rank: u32,
    },
    /// `(hidden, tokens, spans) -> rows`: joint decision head, one row per option of the request. A tensor's role is its
    /// name in the file without a leading `decision.`; `output.weight` is the table of lexical vectors.
    DecisionHead {
        /// Attention heads.
        heads: u32,
        /// Routing blocks.
        routing_blocks: u32,
        /// Decoder blocks.
        decoder_blocks: u32,
        /// LayerNorm epsilon.
        eps: f32,
    },
    // ---- plain tier: lets an unknown architecture run, slowly
    /// `(a, b) -> rows [m*n]`: for each row `a [m, k] . b [n, k]^T`.
    MatMul {
        /// Shared dimension.
        k: u32,
    },
    /// `(x) -> x`: softmax over groups.
    Softmax {
        /// Values in a group.
        group: u32,
    },
    /// `(x) -> rows [width/group]`.
    Reduce {
        /// Which.
        by: Reduction,
        /// Values reduced to one.
        group: u32,
    },
    /// `(x) -> values, index`: the `top_k` largest of a row, ties to the lower index, best first.
    TopK {
        /// How many.
        top_k: u32,
    },
    /// `(x, index) -> rows`: chunks of `width` values of x by number.
    Gather {
        /// Values in a chunk.
        width: u32,
    },
    /// `(x) -> x` with another split into streams; `streams` 1 gives plain rows.
    Reshape {
        /// Streams of the result.
        streams: u32,
    },
    /// `(x [streams, width]) -> [width, streams]`.
    Transpose {},
    // ---- a seat's own
    /// Run by the seat's `cpu_op`: f32 rows in, f32 rows out; the node's declared shape stands.
    Custom {
        /// Name that the seat knows.
        name: String,
        /// Version that the seat knows.
        version: u32,
        /// Constants.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        attributes: BTreeMap<String, f64>,
    },
}

/// A function of one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Function {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU, tanh form.
    GeluTanh,
    /// GELU, exact (erf).
    GeluErf,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `ln(1 + exp(x))`.
    Softplus,
    /// `exp(x)`.
    Exp,
    /// `max(x, 0)`.
    Relu,
    /// `tanh(x)`.
    Tanh,
}

/// Limits of a gated unit, applied before the activation: `gate = min(gate, gate_max)`, `up = clamp(up, -up_abs, up_abs)`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clamp {
    /// Upper limit of the gate.
    pub gate_max: f32,
    /// Limit of the up value's size.
    pub up_abs: f32,
}

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

/// A reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// Sum.
    Sum,
    /// Mean.
    Mean,
    /// Maximum.
    Max,
}

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

fn one() -> u32 {
    1
}
fn is_one(v: &u32) -> bool {
    *v == 1
}
fn is_zero(v: &u32) -> bool {
    *v == 0
}
fn one_f() -> f32 {
    1.0
}
fn is_one_f(v: &f32) -> bool {
    *v == 1.0
}
fn is_zero_f(v: &f32) -> bool {
    *v == 0.0
}
