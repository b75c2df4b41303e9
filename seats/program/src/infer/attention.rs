//! Rules of positions, attention over stores and the choice of rows.

use super::operands::{divide, finite, positive, rows, same};
use super::{Context, Result};
use crate::op::{Attention, PoolWeights, Rope};
use crate::{Shape, StateId, StateKind};

pub(super) fn rope(rope: &Rope, c: &Context<'_>) -> Result<Vec<Shape>> {
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

pub(super) fn attention(a: &Attention, c: &Context<'_>) -> Result<Vec<Shape>> {
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

pub(super) fn append(c: &Context<'_>, state: StateId) -> Result<Vec<Shape>> {
    let StateKind::Rows { parts, .. } = c.state(state)? else {
        return Err(format!("state {} keeps no rows", state.0));
    };
    c.operands(parts.len())?;
    for (i, part) in parts.iter().enumerate() {
        if c.row(i)? != u64::from(part.width) {
            return Err(format!("part {i} of the store has width {}, the row {}", part.width, c.row(i)?));
        }
    }
    Ok(vec![])
}

pub(super) fn pool(c: &Context<'_>, ratio: u32, weights: PoolWeights, state: StateId) -> Result<Vec<Shape>> {
    let gated = matches!(weights, PoolWeights::Softmax { .. });
    let overlap = matches!(weights, PoolWeights::Softmax { overlap: true });
    c.operands(if gated { 2 } else { 1 })?;
    let width = c.row(0)?;
    if gated {
        c.alike(0, 1)?;
    }
    let out = if overlap { divide(width, 2).map(|_| width / 2)? } else { width };
    if ratio == 0 {
        return Err("ratio 0".into());
    }
    if let Some(t) = c.tensors.get("position_bias")
        && t.dims != [width, u64::from(ratio)]
    {
        return Err(format!("position_bias {:?}, expected [{width}, {ratio}]", t.dims));
    }
    let kept = u64::from(ratio) * if overlap { 2 } else { 1 } - 1;
    match c.state(state)? {
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

pub(super) fn index_score(c: &Context<'_>, heads: u32, key: u32, state: StateId) -> Result<Vec<Shape>> {
    if c.ins.len() != 1 {
        c.operands(2)?;
        c.expect(1, u64::from(heads))?;
    }
    c.expect(0, u64::from(heads) * u64::from(key))?;
    match c.state(state)? {
        StateKind::Rows { parts, .. } if parts.len() == 1 && parts[0].width == key => {}
        other => return Err(format!("needs a store of one key of {key}, found {other:?}")),
    }
    Ok(vec![Shape::Scores { state: state.0 }])
}

pub(super) fn top_rows(c: &Context<'_>, top_k: u32, expand: bool, tail: bool) -> Result<Vec<Shape>> {
    let every = c.scores()?;
    if c.ins.len() != 1 {
        c.operands(2)?;
        if c.ins[1] != (Shape::Selection { every }) {
            return Err(format!("cannot choose within {}", c.ins[1]));
        }
    }
    if top_k == 0 || (tail && !expand) {
        return Err("top_k 0, or a tail without expansion".into());
    }
    Ok(vec![Shape::Selection { every: if expand { 1 } else { every } }])
}
