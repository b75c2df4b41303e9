//! Rules of residual streams.

use super::operands::{positive, rows, same};
use super::{Context, Result};
use crate::Shape;

pub(super) fn stream_collapse(c: &Context<'_>) -> Result<Vec<Shape>> {
    let (streams, width) = c.streams(0)?;
    if c.ins.len() != 1 {
        c.operands(2)?;
        c.expect(1, streams)?;
    }
    rows(width)
}

pub(super) fn stream_combine(c: &Context<'_>) -> Result<Vec<Shape>> {
    let (streams, width) = c.streams(0)?;
    if c.ins.len() != 3 {
        c.operands(4)?;
        c.expect(3, streams * streams)?;
    }
    c.expect(1, width)?;
    c.expect(2, streams)?;
    same(c.ins[0])
}

pub(super) fn hyper_mix(c: &Context<'_>, iterations: u32, eps: f32, norm_eps: f32) -> Result<Vec<Shape>> {
    c.operands(1)?;
    let (s, width) = c.streams(0)?;
    positive("eps", eps)?;
    positive("norm_eps", norm_eps)?;
    if iterations == 0 {
        return Err("0 iterations".into());
    }
    let n = (2 + s) * s;
    c.dims("fn", &[s * width, n])?;
    c.dims("scale", &[3])?;
    c.dims("base", &[n])?;
    Ok([s, s, s * s].into_iter().flat_map(|w| rows(w).into_iter().flatten()).collect())
}

pub(super) fn hyper_head(c: &Context<'_>, eps: f32, norm_eps: f32) -> Result<Vec<Shape>> {
    c.operands(1)?;
    let (s, width) = c.streams(0)?;
    positive("eps", eps)?;
    positive("norm_eps", norm_eps)?;
    c.dims("fn", &[s * width, s])?;
    c.dims("scale", &[1])?;
    c.dims("base", &[s])?;
    rows(s)
}

pub(super) fn low_rank_mix(c: &Context<'_>, eps: f32) -> Result<Vec<Shape>> {
    c.operands(1)?;
    let (s, width) = c.streams(0)?;
    positive("eps", eps)?;
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

pub(super) fn memory_gate(c: &Context<'_>, eps: f32) -> Result<Vec<Shape>> {
    c.operands(2)?;
    let (s, width) = c.streams(0)?;
    c.expect(1, s * width)?;
    positive("eps", eps)?;
    for role in ["query_norm", "key_norm"] {
        let t = c.tensor(role)?;
        if t.elements() != Some(s * width) {
            return Err(format!("{role} {:?}, expected {} values", t.dims, s * width));
        }
    }
    rows(s)
}
