//! Rules of the router and its experts.

use super::operands::{finite, positive, rows};
use super::{Context, Result};
use crate::Shape;
use crate::op::{Clamp, Route};

pub(super) fn route(r: &Route, c: &Context<'_>) -> Result<Vec<Shape>> {
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

pub(super) fn experts(c: &Context<'_>, experts: u32, used: u32, clamp: Option<Clamp>) -> Result<Vec<Shape>> {
    c.operands(3)?;
    let width = c.row(0)?;
    if c.ins[1] != (Shape::Index { width: used }) || c.ins[2] != (Shape::Rows { width: used }) {
        return Err(format!("ids {} and weights {}, expected {used} of each", c.ins[1], c.ins[2]));
    }
    if let Some(limit) = clamp {
        finite("gate_max", limit.gate_max)?;
        positive("up_abs", limit.up_abs)?;
    }
    let n = u64::from(experts);
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
