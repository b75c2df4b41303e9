//! Shape and state inference: the one place that says what an operator gives for its operands.
//!
//! The builder calls it as a seat grows its graph, so a wrong shape fails in the seat by name; the checker calls it
//! again in the host, which trusts nothing.

use crate::op::{Attention, Decay, GatedDelta, Op, PoolWeights, Rope, Route};
use crate::{Shape, State, StateId, StateKind, TensorFacts};
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
            c.operands(1)?;
            c.tokens(0)?;
            let dims = c.matrix("weight")?;
            let n = u64::from(max_ngram.saturating_sub(1)) * u64::from(*heads);
            if *max_ngram < 2 || *heads == 0 || multipliers.len() != *max_ngram as usize {
                return Err(format!(
                    "max_ngram {max_ngram} with {} multipliers and {heads} heads",
                    multipliers.len()
                ));
            }
            if moduli.len() as u64 != n || offsets.len() as u64 != n || moduli.contains(&0) {
                return Err(format!(
                    "{n} non-zero moduli and offsets are needed, found {} and {}",
                    moduli.len(),
                    offsets.len()
                ));
            }
            for (modulus, offset) in moduli.iter().zip(offsets) {
                if offset.checked_add(*modulus).is_none_or(|end| end > dims[1]) {
                    return Err(format!(
                        "rows {offset}..+{modulus} lie outside the table of {} rows",
                        dims[1]
                    ));
                }
            }
            match c.state(*state)? {
                StateKind::Tokens { count } if *count >= max_ngram - 1 => {}
                other => {
                    return Err(format!("needs a tokens state of {} ids, found {other:?}", max_ngram - 1));
                }
            }
            rows(dims[0].saturating_mul(n))
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
        Op::Rope(rope) => infer_rope(rope, c),
        Op::Append { state } => {
            let StateKind::Rows { parts, .. } = c.state(*state)? else {
                return Err(format!("state {} keeps no rows", state.0));
            };
            c.operands(parts.len())?;
            for (i, part) in parts.iter().enumerate() {
                if c.row(i)? != u64::from(part.width) {
                    return Err(format!(
                        "part {i} of the store has width {}, the row {}",
                        part.width,
                        c.row(i)?
                    ));
                }
            }
            Ok(vec![])
        }
        Op::Attention(attention) => infer_attention(attention, c),
        Op::Pool { ratio, weights, state } => {
            let gated = matches!(weights, PoolWeights::Softmax { .. });
            let overlap = matches!(weights, PoolWeights::Softmax { overlap: true });
            c.operands(if gated { 2 } else { 1 })?;
            let width = c.row(0)?;
            if gated {
                c.alike(0, 1)?;
            }
            let out = if overlap { divide(width, 2).map(|_| width / 2)? } else { width };
            if *ratio == 0 {
                return Err("ratio 0".into());
            }
            if let Some(t) = c.tensors.get("position_bias")
                && t.dims != [width, u64::from(*ratio)]
            {
                return Err(format!("position_bias {:?}, expected [{width}, {ratio}]", t.dims));
            }
            let kept = u64::from(*ratio) * if overlap { 2 } else { 1 } - 1;
            match c.state(*state)? {
                StateKind::Recent { rows, width: w }
                    if u64::from(*rows) >= kept && u64::from(*w) == width * c.ins.len() as u64 => {}
                other => {
                    return Err(format!(
                        "needs a recent state of {kept} rows of {}, found {other:?}",
                        width * c.ins.len() as u64
                    ));
                }
            }
            rows(out)
        }
        Op::IndexScore { heads, key, state } => {
            if c.ins.len() != 1 {
                c.operands(2)?;
                c.expect(1, u64::from(*heads))?;
            }
            c.expect(0, u64::from(*heads) * u64::from(*key))?;
            match c.state(*state)? {
                StateKind::Rows { parts, .. } if parts.len() == 1 && parts[0].width == *key => {}
                other => return Err(format!("needs a store of one key of {key}, found {other:?}")),
            }
            Ok(vec![Shape::Scores { state: state.0 }])
        }
        Op::TopRows { top_k, expand, tail } => {
            let every = c.scores()?;
            if c.ins.len() != 1 {
                c.operands(2)?;
                if c.ins[1] != (Shape::Selection { every }) {
                    return Err(format!("cannot choose within {}", c.ins[1]));
                }
            }
            if *top_k == 0 || (*tail && !*expand) {
                return Err("top_k 0, or a tail without expansion".into());
            }
            Ok(vec![Shape::Selection { every: if *expand { 1 } else { every } }])
        }
        Op::CandidateBlocks { block, keep } => {
            c.operands(1)?;
            let every = c.scores()?;
            if *block == 0 || *keep == 0 {
                return Err("block or keep is 0".into());
            }
            Ok(vec![Shape::Selection { every }])
        }
        Op::CausalConv { taps, dilation, state, .. } => {
            c.operands(1)?;
            let width = c.row(0)?;
            let t = c.tensor("weight")?;
            let squeezed: Vec<u64> = t.dims.iter().copied().filter(|d| *d != 1).collect();
            let expected: Vec<u64> = [u64::from(*taps), width].into_iter().filter(|d| *d != 1).collect();
            if *taps == 0 || *dilation == 0 || squeezed != expected {
                return Err(format!("weight {:?} with {taps} taps over a row of {width}", t.dims));
            }
            c.vector("bias", width)?;
            let kept = u64::from(taps - 1) * u64::from(*dilation);
            match c.state(*state)? {
                StateKind::Recent { rows, width: w }
                    if u64::from(*rows) == kept && u64::from(*w) == width => {}
                other => {
                    return Err(format!("needs a recent state of {kept} rows of {width}, found {other:?}"));
                }
            }
            same(c.ins[0])
        }
        Op::GatedDelta(delta) => infer_gated_delta(delta, c),
        Op::StreamSpread { streams } => {
            c.operands(1)?;
            streams_of(*streams, c.row(0)?)
        }
        Op::StreamCollapse {} => {
            let (streams, width) = c.streams(0)?;
            if c.ins.len() != 1 {
                c.operands(2)?;
                c.expect(1, streams)?;
            }
            rows(width)
        }
        Op::StreamCombine {} => {
            let (streams, width) = c.streams(0)?;
            if c.ins.len() != 3 {
                c.operands(4)?;
                c.expect(3, streams * streams)?;
            }
            c.expect(1, width)?;
            c.expect(2, streams)?;
            same(c.ins[0])
        }
        Op::StreamScale {} => {
            c.operands(2)?;
            streams_of(u32::try_from(c.row(1)?).unwrap_or(0), c.row(0)?)
        }
        Op::HyperMix { iterations, eps, norm_eps } => {
            c.operands(1)?;
            let (s, width) = c.streams(0)?;
            positive("eps", *eps)?;
            positive("norm_eps", *norm_eps)?;
            if *iterations == 0 {
                return Err("0 iterations".into());
            }
            let n = (2 + s) * s;
            c.dims("fn", &[s * width, n])?;
            c.dims("scale", &[3])?;
            c.dims("base", &[n])?;
            Ok([s, s, s * s].into_iter().flat_map(|w| rows(w).into_iter().flatten()).collect())
        }
        Op::HyperHead { eps, norm_eps } => {
            c.operands(1)?;
            let (s, width) = c.streams(0)?;
            positive("eps", *eps)?;
            positive("norm_eps", *norm_eps)?;
            c.dims("fn", &[s * width, s])?;
            c.dims("scale", &[1])?;
            c.dims("base", &[s])?;
            rows(s)
        }
        Op::LowRankMix { eps } => {
            c.operands(1)?;
            let (s, width) = c.streams(0)?;
            positive("eps", *eps)?;
            c.dims("norm", &[s * width])?;
            let rank = match c.tensor("down")?.dims[..] {
                [k, rank] if k == s * width => rank,
                ref d => return Err(format!("down {d:?} does not take {} values", s * width)),
            };
            c.dims("up", &[rank, s * width])?;
            let mut outs = rows(width)?;
            if c.tensors.contains_key("inject") {
                c.dims("inject", &[s * width, s])?;
                outs.extend(rows(s)?);
            }
            Ok(outs)
        }
        Op::MemoryGate { eps } => {
            c.operands(2)?;
            let (s, width) = c.streams(0)?;
            c.expect(1, s * width)?;
            positive("eps", *eps)?;
            for role in ["query_norm", "key_norm"] {
                let t = c.tensor(role)?;
                if t.elements() != Some(s * width) {
                    return Err(format!("{role} {:?}, expected {} values", t.dims, s * width));
                }
            }
            rows(s)
        }
        Op::Route(route) => infer_route(route, c),
        Op::Experts { experts, used, clamp, .. } => {
            c.operands(3)?;
            let width = c.row(0)?;
            if c.ins[1] != (Shape::Index { width: *used }) || c.ins[2] != (Shape::Rows { width: *used }) {
                return Err(format!("ids {} and weights {}, expected {used} of each", c.ins[1], c.ins[2]));
            }
            if let Some(limit) = clamp {
                finite("gate_max", limit.gate_max)?;
                positive("up_abs", limit.up_abs)?;
            }
            let n = u64::from(*experts);
            let ff = match c.tensor("down")?.dims[..] {
                [ff, w, e] if w == width && e == n => ff,
                ref d => return Err(format!("down {d:?}, expected [ff, {width}, {n}]")),
            };
            if c.tensors.contains_key("gate_up") {
                c.dims("gate_up", &[width, ff.saturating_mul(2), n])?;
            } else {
                c.dims("gate", &[width, ff, n])?;
                c.dims("up", &[width, ff, n])?;
            }
            for (role, w) in [("gate_bias", ff), ("up_bias", ff), ("down_bias", width)] {
                if c.tensors.contains_key(role) {
                    c.dims(role, &[w, n])?;
                }
            }
            rows(width)
        }
        Op::MarkovChain { rank } => {
            c.operands(3)?;
            let (vocab, width) = (c.row(0)?, c.row(1)?);
            c.tokens(2)?;
            if *rank == 0 {
                return Err("rank 0".into());
            }
            c.dims("w1", &[u64::from(*rank), vocab])?;
            c.dims("w2", &[u64::from(*rank), vocab])?;
            c.dims("confidence", &[width + u64::from(*rank), 1])?;
            Ok(vec![c.ins[0], Shape::Rows { width: 1 }])
        }
        Op::DecisionHead { heads, routing_blocks, decoder_blocks, eps } => {
            c.operands(3)?;
            let width = c.row(0)?;
            c.tokens(1)?;
            if c.ins[2] != (Shape::Spans {}) {
                return Err(format!("operand 2 must be the spans, found {}", c.ins[2]));
            }
            positive("eps", *eps)?;
            infer_decision_tensors(c, width, *heads, *routing_blocks, *decoder_blocks)?;
            rows(1)
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

fn infer_rope(rope: &Rope, c: &Context<'_>) -> Result<Vec<Shape>> {
    c.operands(1)?;
    divide(c.row(0)?, rope.head)?;
    positive("theta", rope.theta)?;
    positive("linear_factor", rope.linear_factor)?;
    let end = u64::from(rope.offset) + u64::from(rope.dims);
    if rope.dims == 0 || !rope.dims.is_multiple_of(2) || end > u64::from(rope.head) || rope.group == 0 {
        return Err(format!("rotates {} values at {} of heads of {}", rope.dims, rope.offset, rope.head));
    }
    if let Some(yarn) = rope.yarn {
        for (name, v) in
            [("factor", yarn.factor), ("beta_fast", yarn.beta_fast), ("beta_slow", yarn.beta_slow)]
        {
            positive(name, v)?;
        }
        finite("magnitude", yarn.magnitude)?;
    }
    if c.tensors.contains_key("freq_factors") {
        c.dims("freq_factors", &[u64::from(rope.dims / 2)])?;
    }
    same(c.ins[0])
}

fn infer_attention(a: &Attention, c: &Context<'_>) -> Result<Vec<Shape>> {
    if a.kv_heads == 0 || a.heads == 0 || !a.heads.is_multiple_of(a.kv_heads) {
        return Err(format!("{} heads over {} key-value heads", a.heads, a.kv_heads));
    }
    if a.key == 0 || a.value == 0 || a.sources.is_empty() {
        return Err("no key, no value or no source".into());
    }
    finite("scale", a.scale)?;
    if let Some(cap) = a.softcap {
        positive("softcap", cap)?;
    }
    c.operands(1 + a.sources.iter().filter(|s| s.selected).count())?;
    c.expect(0, u64::from(a.heads) * u64::from(a.key))?;
    let (key, value) = (u64::from(a.kv_heads) * u64::from(a.key), u64::from(a.kv_heads) * u64::from(a.value));
    let mut next_selection = 1;
    for source in &a.sources {
        let StateKind::Rows { parts, every, window } = c.state(source.state)? else {
            return Err(format!("state {} keeps no rows", source.state.0));
        };
        let fits = match parts[..] {
            [k, v] => u64::from(k.width) == key && u64::from(v.width) == value,
            [both] => u64::from(both.width) == key && a.value <= a.key,
            _ => false,
        };
        if !fits {
            return Err(format!(
                "the store's parts {parts:?} do not hold keys of {key} and values of {value}"
            ));
        }
        if let Some(kept) = window
            && source.window.is_none_or(|w| w > *kept)
        {
            return Err(format!("reads {:?} tokens back, the store keeps {kept}", source.window));
        }
        if source.window == Some(0) {
            return Err("a window of 0".into());
        }
        if source.selected {
            if c.ins[next_selection] != (Shape::Selection { every: *every }) {
                return Err(format!(
                    "{} does not choose rows of the store (every {every})",
                    c.ins[next_selection]
                ));
            }
            next_selection += 1;
        }
    }
    if c.tensors.contains_key("sinks") {
        c.dims("sinks", &[u64::from(a.heads)])?;
    }
    rows(u64::from(a.heads) * u64::from(a.value))
}

fn infer_gated_delta(d: &GatedDelta, c: &Context<'_>) -> Result<Vec<Shape>> {
    c.operands(5)?;
    let [kh, vh, key, value] = [d.key_heads, d.value_heads, d.key, d.value].map(u64::from);
    if kh == 0 || vh % kh != 0 || key == 0 || value == 0 {
        return Err(format!("{vh} value heads of {value} over {kh} key heads of {key}"));
    }
    let channels = match d.decay {
        Decay::ScalarSoftplus {} => vh,
        Decay::ChannelSoftplus {} | Decay::ChannelSigmoid { .. } => vh * key,
    };
    for (i, width) in [kh * key, kh * key, vh * value, channels, vh].into_iter().enumerate() {
        c.expect(i, width)?;
    }
    if c.tensor("a")?.elements() != Some(vh) {
        return Err(format!("a {:?}, expected {vh} values", c.tensor("a")?.dims));
    }
    if c.tensor("dt")?.elements() != Some(channels) {
        return Err(format!("dt {:?}, expected {channels} values", c.tensor("dt")?.dims));
    }
    finite("scale", d.scale)?;
    if let Some(eps) = d.l2_eps {
        positive("l2_eps", eps)?;
    }
    if let Decay::ChannelSigmoid { lower_bound } = d.decay {
        positive("-lower_bound", -lower_bound)?;
    }
    match c.state(d.state)? {
        StateKind::Recurrent { dims } if *dims == [d.value_heads, d.key, d.value] => {}
        other => return Err(format!("needs a recurrent state [{vh}, {key}, {value}], found {other:?}")),
    }
    rows(vh * value)
}

fn infer_route(r: &Route, c: &Context<'_>) -> Result<Vec<Shape>> {
    c.expect(0, u64::from(r.experts))?;
    if r.used == 0 || r.used > r.experts {
        return Err(format!("{} of {} experts", r.used, r.experts));
    }
    if let Some(g) = r.groups {
        if g.count == 0
            || g.used == 0
            || g.used > g.count
            || !r.experts.is_multiple_of(g.count)
            || r.experts / g.count < 2
        {
            return Err(format!("{} of {} groups of {} experts", g.used, g.count, r.experts));
        }
        if r.used > r.experts / g.count * g.used {
            return Err("the kept groups hold fewer experts than are used".into());
        }
    }
    finite("scale", r.scale)?;
    finite("sum_floor", r.sum_floor)?;
    if c.tensors.contains_key("table") {
        c.operands(2)?;
        c.tokens(1)?;
        let dims = c.matrix("table")?;
        if dims[0] != u64::from(r.used) {
            return Err(format!("table {dims:?} does not hold {} ids a token", r.used));
        }
    } else {
        c.operands(1)?;
    }
    if c.tensors.contains_key("bias") {
        c.dims("bias", &[u64::from(r.experts)])?;
    }
    Ok(vec![Shape::Index { width: r.used }, Shape::Rows { width: r.used }])
}

/// Tensors of the decision head: width `w` inside, `width` of the model outside.
fn infer_decision_tensors(c: &Context<'_>, width: u64, heads: u32, routing: u32, decoder: u32) -> Result<()> {
    let [_, w] = c.matrix("proj_memory.weight")?;
    rows(w)?;
    divide(w, heads).map_err(|e| format!("{heads} heads: {e}"))?;
    let affine = |name: String, dims: &[u64], bias: u64| {
        c.dims(&format!("{name}.weight"), dims)?;
        c.dims(&format!("{name}.bias"), &[bias])
    };
    affine("hidden_norm".into(), &[width], width)?;
    for name in ["memory", "question", "option_question", "global", "option_context", "option_lexical"] {
        c.dims(&format!("proj_{name}.weight"), &[width, w])?;
    }
    c.dims("token_types.weight", &[w, 3])?;
    c.dims("scales", &[3])?;
    for name in ["option_summary_norm", "field_norm", "option_norm"] {
        affine(name.into(), &[w], w)?;
    }
    affine("scorer".into(), &[w.saturating_mul(4), w], w)?;
    affine("scorer_out".into(), &[w, 1], 1)?;
    if c.matrix("output.weight")?[0] != width {
        return Err(format!("output.weight {:?} has no rows of {width}", c.tensor("output.weight")?.dims));
    }
    if u64::from(routing) + u64::from(decoder) > 1024 {
        return Err(format!("{routing} routing and {decoder} decoder blocks, at most 1024 are taken"));
    }
    for block in 0..routing + decoder {
        let part = |name: &str| format!("dec.blk.{block}.{name}");
        let mut projections = vec!["cross_attn_q", "cross_attn_k", "cross_attn_v", "cross_attn_o"];
        let mut norms = vec!["cross_attn_norm", "ffn_norm"];
        if block < routing {
            norms.push("cross_attn_norm_kv");
        } else {
            projections.extend(["attn_q", "attn_k", "attn_v", "attn_o"]);
            norms.push("attn_norm");
        }
        for name in projections {
            affine(part(name), &[w, w], w)?;
        }
        for name in norms {
            affine(part(name), &[w], w)?;
        }
        let [_, ff] = c.matrix(&part("ffn_up.weight"))?;
        affine(part("ffn_up"), &[w, ff], ff)?;
        affine(part("ffn_down"), &[ff, w], w)?;
    }
    Ok(())
}

impl Context<'_> {
    fn operands(&self, n: usize) -> Result<()> {
        if self.ins.len() == n {
            Ok(())
        } else {
            Err(format!("takes {n} operands, found {}", self.ins.len()))
        }
    }
    fn tokens(&self, i: usize) -> Result<()> {
        match self.ins.get(i) {
            Some(Shape::Tokens {}) => Ok(()),
            other => Err(format!("operand {i} must be the tokens, found {other:?}")),
        }
    }
    /// Values in a row of operand i, streams flattened.
    fn row(&self, i: usize) -> Result<u64> {
        match self.ins.get(i) {
            Some(s @ (Shape::Rows { .. } | Shape::Streams { .. })) => Ok(s.row_len().unwrap_or(0)),
            Some(other) => Err(format!("operand {i} is {other}, expected rows")),
            None => Err(format!("operand {i} is missing")),
        }
    }
    fn expect(&self, i: usize, width: u64) -> Result<()> {
        let found = self.row(i)?;
        if found == width { Ok(()) } else { Err(format!("operand {i} has width {found}, expected {width}")) }
    }
    fn alike(&self, i: usize, j: usize) -> Result<()> {
        let (a, b) = (self.row(i)?, self.row(j)?);
        if a == b { Ok(()) } else { Err(format!("operands have widths {a} and {b}")) }
    }
    fn streams(&self, i: usize) -> Result<(u64, u64)> {
        match self.ins.get(i) {
            Some(Shape::Streams { streams, width }) => Ok((u64::from(*streams), u64::from(*width))),
            other => Err(format!("operand {i} must have streams, found {other:?}")),
        }
    }
    /// Tokens that one row of the scored store stands for.
    fn scores(&self) -> Result<u32> {
        match self.ins.first() {
            Some(Shape::Scores { state }) => match self.state(StateId(*state))? {
                StateKind::Rows { every, .. } => Ok(*every),
                other => Err(format!("scores of {other:?}")),
            },
            other => Err(format!("operand 0 must be scores, found {other:?}")),
        }
    }
    fn state(&self, id: StateId) -> Result<&StateKind> {
        self.states
            .get(id.0 as usize)
            .map(|s| &s.kind)
            .ok_or_else(|| format!("state {} is not declared", id.0))
    }
    fn tensor(&self, role: &str) -> Result<&TensorFacts> {
        self.tensors.get(role).copied().ok_or_else(|| format!("needs a tensor `{role}`"))
    }
    fn matrix(&self, role: &str) -> Result<[u64; 2]> {
        let t = self.tensor(role)?;
        <[u64; 2]>::try_from(t.dims.clone()).map_err(|d| format!("{role} {d:?} is no matrix"))
    }
    fn dims(&self, role: &str, expected: &[u64]) -> Result<()> {
        let t = self.tensor(role)?;
        if t.dims == expected { Ok(()) } else { Err(format!("{role} {:?}, expected {expected:?}", t.dims)) }
    }
    fn vector(&self, role: &str, len: u64) -> Result<()> {
        if self.tensors.contains_key(role) { self.dims(role, &[len]) } else { Ok(()) }
    }
    fn repeated(&self, role: &str, width: u64) -> Result<()> {
        match self.tensors.get(role).map(|t| (t.elements(), &t.dims)) {
            None => Ok(()),
            Some((Some(n), _)) if n > 0 && width.is_multiple_of(n) => Ok(()),
            Some((_, d)) => Err(format!("{role} {d:?} does not repeat over a row of {width}")),
        }
    }
    fn norm(&self, eps: f32, group: u32, roles: &[&str], operands: usize) -> Result<()> {
        self.operands(operands)?;
        positive("eps", eps)?;
        let width = self.row(0)?;
        divide(width, group)?;
        for role in roles {
            self.repeated(role, width)?;
            if let Some(t) = self.tensors.get(role)
                && t.elements().is_none_or(|n| n % u64::from(group) != 0)
            {
                return Err(format!("{role} {:?} does not fit groups of {group}", t.dims));
            }
        }
        Ok(())
    }
}

fn rows(width: u64) -> Result<Vec<Shape>> {
    match u32::try_from(width) {
        Ok(width) if width > 0 && u64::from(width) <= WIDEST => Ok(vec![Shape::Rows { width }]),
        _ => Err(format!("a row of {width} values")),
    }
}

fn streams_of(streams: u32, width: u64) -> Result<Vec<Shape>> {
    match (u32::try_from(width), u64::from(streams).checked_mul(width)) {
        (Ok(width), Some(n)) if n > 0 && n <= WIDEST => Ok(vec![Shape::Streams { streams, width }]),
        _ => Err(format!("{streams} streams of {width} values")),
    }
}

fn same(shape: Shape) -> Result<Vec<Shape>> {
    Ok(vec![shape])
}

fn divide(width: u64, group: u32) -> Result<u64> {
    let group = u64::from(group);
    if group > 0 && width.is_multiple_of(group) {
        Ok(width / group)
    } else {
        Err(format!("groups of {group} do not divide a row of {width}"))
    }
}

fn finite(name: &str, v: f32) -> Result<()> {
    if v.is_finite() { Ok(()) } else { Err(format!("{name} is {v}")) }
}

fn positive(name: &str, v: f32) -> Result<()> {
    if v.is_finite() && v > 0.0 { Ok(()) } else { Err(format!("{name} is {v}, expected a positive number")) }
}
