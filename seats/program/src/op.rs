//! The operators and their constants. `docs/operators.md` defines each one; its naive form is in `bloomery-reference`.

mod attention;
mod defaults;
mod describe;
mod experts;
mod function;
mod recurrent;

pub use attention::{Attention, Pairing, PoolWeights, Rope, Source, Yarn};
pub use experts::{Groups, Route, Score};
pub use function::{Clamp, Function, Reduction};
pub use recurrent::{Decay, GatedDelta, HeadMap};

use crate::StateId;
use defaults::{is_one, is_one_f, is_zero_f, one, one_f};
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
