//! Rules of heads beyond the plain projection.

use super::operands::{divide, positive, rows};
use super::{Context, Result};
use crate::Shape;

pub(super) fn markov_chain(c: &Context<'_>, rank: u32) -> Result<Vec<Shape>> {
    c.operands(3)?;
    let (vocab, width) = (c.row(0)?, c.row(1)?);
    c.tokens(2)?;
    if rank == 0 {
        return Err("rank 0".into());
    }
    c.dims("w1", &[u64::from(rank), vocab])?;
    c.dims("w2", &[u64::from(rank), vocab])?;
    c.dims("confidence", &[width + u64::from(rank), 1])?;
    Ok(vec![c.ins[0], Shape::Rows { width: 1 }])
}

pub(super) fn decision_head(
    c: &Context<'_>,
    heads: u32,
    routing_blocks: u32,
    decoder_blocks: u32,
    eps: f32,
) -> Result<Vec<Shape>> {
    c.operands(3)?;
    let width = c.row(0)?;
    c.tokens(1)?;
    if c.ins[2] != (Shape::Spans {}) {
        return Err(format!("operand 2 must be the spans, found {}", c.ins[2]));
    }
    positive("eps", eps)?;
    decision_tensors(c, width, heads, routing_blocks, decoder_blocks)?;
    rows(1)
}

/// Tensors of the decision head: width `w` inside, `width` of the model outside.
fn decision_tensors(c: &Context<'_>, width: u64, heads: u32, routing: u32, decoder: u32) -> Result<()> {
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
