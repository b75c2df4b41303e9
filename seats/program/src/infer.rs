//! Shape and state inference: the one place that says what an operator gives for its operands.
//!
//! The builder calls it as a seat grows its graph, so a wrong shape fails in the seat by name; the checker calls it
//! again in the host, which trusts nothing.

mod attention;
mod embed;
mod experts;
mod head;
mod operands;
mod recurrent;
mod streams;

use crate::op::Op;
use crate::{Shape, State, TensorFacts};
use operands::{divide, finite, positive, rows, same, streams_of};
use std::collections::BTreeMap;

/// What inference may look at.
pub struct Context<'a> {
    /// Shapes of the operands.
    pub ins: &'a [Shape],
    /// Role to tensor of the file.
    pub tensors: &'a BTreeMap<&'a str, &'a TensorFacts>,
    /// The program's states.
    pub states: &'a [State],
}

/// Largest width of a row and largest constant that counts something.
pub const WIDEST: u64 = 1 << 30;

type Result<T> = std::result::Result<T, String>;

/// Shapes of the results of `op`, or why the operands do not fit.
///
/// # Errors
/// A sentence without the node's name; callers add it.
pub fn infer(op: &Op, context: &Context<'_>) -> Result<Vec<Shape>> {
    let c = context;
    match op {
        Op::Embed { scale } => {
            c.operands(1)?;
            c.tokens(0)?;
            finite("scale", *scale)?;
            let dims = c.matrix("weight")?;
            rows(dims[0])
        }
        Op::NgramEmbed { max_ngram, heads, multipliers, moduli, offsets, state, .. } => {
            embed::ngram_embed(c, *max_ngram, *heads, [multipliers, moduli, offsets], *state)
        }
        Op::RmsNorm { eps, group } => {
            c.norm(*eps, *group, &["weight"], 1)?;
            same(c.ins[0])
        }
        Op::LayerNorm { eps, group } => {
            c.norm(*eps, *group, &["weight", "bias"], 1)?;
            same(c.ins[0])
        }
        Op::L2Norm { eps, group } => {
            c.norm(*eps, *group, &[], 1)?;
            same(c.ins[0])
        }
        Op::GatedRmsNorm { eps, group, .. } => {
            c.norm(*eps, *group, &["weight"], 2)?;
            c.alike(0, 1)?;
            same(c.ins[0])
        }
        Op::Linear {} => {
            c.operands(1)?;
            let width = c.row(0)?;
            let dims = match c.tensor("weight")?.dims[..] {
                [inputs] => [inputs, 1],
                _ => c.matrix("weight")?,
            };
            if dims[0] != width {
                return Err(format!("weight {dims:?} does not take a row of {width}"));
            }
            c.vector("bias", dims[1])?;
            rows(dims[1])
        }
        Op::GroupedLinear { groups } => {
            c.operands(1)?;
            let (width, groups) = (c.row(0)?, u64::from(*groups));
            let t = c.tensor("weight")?;
            let (k, n) = match t.dims[..] {
                [k, n, g] if g == groups => (k, n),
                [k, total] if groups > 0 && total % groups == 0 => (k, total / groups),
                _ => return Err(format!("weight {:?} does not split into {groups} groups", t.dims)),
            };
            if groups == 0 || k.checked_mul(groups) != Some(width) {
                return Err(format!("weight {:?} in {groups} groups does not take a row of {width}", t.dims));
            }
            rows(n.saturating_mul(groups))
        }
        Op::Add {} | Op::Mul {} => {
            c.operands(2)?;
            let (a, b) = (c.row(0)?, c.row(1)?);
            if a != b && b != 1 {
                return Err(format!("widths {a} and {b}"));
            }
            same(c.ins[0])
        }
        Op::Scale { by, plus } => {
            c.operands(1)?;
            c.row(0)?;
            finite("by", *by)?;
            finite("plus", *plus)?;
            same(c.ins[0])
        }
        Op::Affine {} => {
            c.operands(1)?;
            let width = c.row(0)?;
            if c.tensors.is_empty() {
                return Err("neither scale nor bias".into());
            }
            for role in ["scale", "bias"] {
                c.repeated(role, width)?;
            }
            same(c.ins[0])
        }
        Op::Unary { .. } => {
            c.operands(1)?;
            c.row(0)?;
            same(c.ins[0])
        }
        Op::Glu { clamp, .. } => {
            c.operands(2)?;
            c.alike(0, 1)?;
            if let Some(limit) = clamp {
                finite("gate_max", limit.gate_max)?;
                positive("up_abs", limit.up_abs)?;
            }
            same(c.ins[0])
        }
        Op::Concat {} => {
            if c.ins.is_empty() {
                return Err("no operands".into());
            }
            let mut width = 0u64;
            for i in 0..c.ins.len() {
                width = width.saturating_add(c.row(i)?);
            }
            rows(width)
        }
        Op::Slice { group, start, width } => {
            c.operands(1)?;
            let row = c.row(0)?;
            let groups = divide(row, *group)?;
            if *width == 0 || u64::from(*start) + u64::from(*width) > u64::from(*group) {
                return Err(format!("slice {start}..+{width} of groups of {group}"));
            }
            rows(groups * u64::from(*width))
        }
        Op::Rope(rope) => attention::rope(rope, c),
        Op::Append { state } => attention::append(c, *state),
        Op::Attention(attention) => attention::attention(attention, c),
        Op::Pool { ratio, weights, state } => attention::pool(c, *ratio, *weights, *state),
        Op::IndexScore { heads, key, state } => attention::index_score(c, *heads, *key, *state),
        Op::TopRows { top_k, expand, tail } => attention::top_rows(c, *top_k, *expand, *tail),
        Op::CandidateBlocks { block, keep } => {
            c.operands(1)?;
            let every = c.scores()?;
            if *block == 0 || *keep == 0 {
                return Err("block or keep is 0".into());
            }
            Ok(vec![Shape::Selection { every }])
        }
        Op::CausalConv { taps, dilation, state, .. } => recurrent::causal_conv(c, *taps, *dilation, *state),
        Op::GatedDelta(delta) => recurrent::gated_delta(delta, c),
        Op::StreamSpread { streams } => {
            c.operands(1)?;
            streams_of(*streams, c.row(0)?)
        }
        Op::StreamCollapse {} => streams::stream_collapse(c),
        Op::StreamCombine {} => streams::stream_combine(c),
        Op::StreamScale {} => {
            c.operands(2)?;
            streams_of(u32::try_from(c.row(1)?).unwrap_or(0), c.row(0)?)
        }
        Op::HyperMix { iterations, eps, norm_eps } => streams::hyper_mix(c, *iterations, *eps, *norm_eps),
        Op::HyperHead { eps, norm_eps } => streams::hyper_head(c, *eps, *norm_eps),
        Op::LowRankMix { eps } => streams::low_rank_mix(c, *eps),
        Op::MemoryGate { eps } => streams::memory_gate(c, *eps),
        Op::Route(route) => experts::route(route, c),
        Op::Experts { experts, used, clamp, .. } => experts::experts(c, *experts, *used, *clamp),
        Op::MarkovChain { rank } => head::markov_chain(c, *rank),
        Op::DecisionHead { heads, routing_blocks, decoder_blocks, eps } => {
            head::decision_head(c, *heads, *routing_blocks, *decoder_blocks, *eps)
        }
        Op::MatMul { k } => {
            c.operands(2)?;
            rows(divide(c.row(0)?, *k)? * divide(c.row(1)?, *k)?)
        }
        Op::Softmax { group } => {
            c.operands(1)?;
            divide(c.row(0)?, *group)?;
            same(c.ins[0])
        }
        Op::Reduce { group, .. } => {
            c.operands(1)?;
            rows(divide(c.row(0)?, *group)?)
        }
        Op::TopK { top_k } => {
            c.operands(1)?;
            if *top_k == 0 || u64::from(*top_k) > c.row(0)? {
                return Err(format!("top_k {top_k} of {}", c.row(0)?));
            }
            Ok(vec![Shape::Rows { width: *top_k }, Shape::Index { width: *top_k }])
        }
        Op::Gather { width } => {
            c.operands(2)?;
            divide(c.row(0)?, *width)?;
            let Shape::Index { width: n } = c.ins[1] else { return Err(format!("index is {}", c.ins[1])) };
            rows(u64::from(n) * u64::from(*width))
        }
        Op::Reshape { streams } => {
            c.operands(1)?;
            let width = divide(c.row(0)?, *streams)?;
            if *streams == 1 { rows(width) } else { streams_of(*streams, width) }
        }
        Op::Transpose {} => {
            c.operands(1)?;
            let (s, width) = c.streams(0)?;
            streams_of(u32::try_from(width).unwrap_or(0), s)
        }
        Op::Custom { .. } => Err("a custom operator's shape cannot be inferred".into()),
    }
}
