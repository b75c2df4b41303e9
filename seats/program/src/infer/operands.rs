//! What every rule asks of its operands, tensors and states, each with the sentence for when it is not so.

use super::{Context, Result, WIDEST};
use crate::{Shape, StateId, StateKind, TensorFacts};

impl Context<'_> {
    pub(super) fn operands(&self, n: usize) -> Result<()> {
        if self.ins.len() == n {
            Ok(())
        } else {
            Err(format!("takes {n} operands, found {}", self.ins.len()))
        }
    }
    pub(super) fn tokens(&self, i: usize) -> Result<()> {
        match self.ins.get(i) {
            Some(Shape::Tokens {}) => Ok(()),
            other => Err(format!("operand {i} must be the tokens, found {other:?}")),
        }
    }
    /// Values in a row of operand i, streams flattened.
    pub(super) fn row(&self, i: usize) -> Result<u64> {
        match self.ins.get(i) {
            Some(s @ (Shape::Rows { .. } | Shape::Streams { .. })) => Ok(s.row_len().unwrap_or(0)),
            Some(other) => Err(format!("operand {i} is {other}, expected rows")),
            None => Err(format!("operand {i} is missing")),
        }
    }
    pub(super) fn expect(&self, i: usize, width: u64) -> Result<()> {
        let found = self.row(i)?;
        if found == width { Ok(()) } else { Err(format!("operand {i} has width {found}, expected {width}")) }
    }
    pub(super) fn alike(&self, i: usize, j: usize) -> Result<()> {
        let (a, b) = (self.row(i)?, self.row(j)?);
        if a == b { Ok(()) } else { Err(format!("operands have widths {a} and {b}")) }
    }
    pub(super) fn streams(&self, i: usize) -> Result<(u64, u64)> {
        match self.ins.get(i) {
            Some(Shape::Streams { streams, width }) => Ok((u64::from(*streams), u64::from(*width))),
            other => Err(format!("operand {i} must have streams, found {other:?}")),
        }
    }
    /// Tokens that one row of the scored store stands for.
    pub(super) fn scores(&self) -> Result<u32> {
        match self.ins.first() {
            Some(Shape::Scores { state }) => match self.state(StateId(*state))? {
                StateKind::Rows { every, .. } => Ok(*every),
                other => Err(format!("scores of {other:?}")),
            },
            other => Err(format!("operand 0 must be scores, found {other:?}")),
        }
    }
    pub(super) fn state(&self, id: StateId) -> Result<&StateKind> {
        self.states
            .get(id.0 as usize)
            .map(|s| &s.kind)
            .ok_or_else(|| format!("state {} is not declared", id.0))
    }
    pub(super) fn tensor(&self, role: &str) -> Result<&TensorFacts> {
        self.tensors.get(role).copied().ok_or_else(|| format!("needs a tensor `{role}`"))
    }
    pub(super) fn matrix(&self, role: &str) -> Result<[u64; 2]> {
        let t = self.tensor(role)?;
        <[u64; 2]>::try_from(t.dims.clone()).map_err(|d| format!("{role} {d:?} is no matrix"))
    }
    pub(super) fn dims(&self, role: &str, expected: &[u64]) -> Result<()> {
        let t = self.tensor(role)?;
        // Files leave out dimensions of 1 at the end.
        let (found, wanted) = (without_ones(&t.dims), without_ones(expected));
        if found == wanted { Ok(()) } else { Err(format!("{role} {:?}, expected {expected:?}", t.dims)) }
    }
    pub(super) fn vector(&self, role: &str, len: u64) -> Result<()> {
        if self.tensors.contains_key(role) { self.dims(role, &[len]) } else { Ok(()) }
    }
    pub(super) fn repeated(&self, role: &str, width: u64) -> Result<()> {
        match self.tensors.get(role).map(|t| (t.elements(), &t.dims)) {
            None => Ok(()),
            Some((Some(n), _)) if n > 0 && width.is_multiple_of(n) => Ok(()),
            Some((_, d)) => Err(format!("{role} {d:?} does not repeat over a row of {width}")),
        }
    }
    pub(super) fn norm(&self, eps: f32, group: u32, roles: &[&str], operands: usize) -> Result<()> {
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

pub(super) fn rows(width: u64) -> Result<Vec<Shape>> {
    match u32::try_from(width) {
        Ok(width) if width > 0 && u64::from(width) <= WIDEST => Ok(vec![Shape::Rows { width }]),
        _ => Err(format!("a row of {width} values")),
    }
}

pub(super) fn streams_of(streams: u32, width: u64) -> Result<Vec<Shape>> {
    match (u32::try_from(width), u64::from(streams).checked_mul(width)) {
        (Ok(width), Some(n)) if n > 0 && n <= WIDEST => Ok(vec![Shape::Streams { streams, width }]),
        _ => Err(format!("{streams} streams of {width} values")),
    }
}

pub(super) fn same(shape: Shape) -> Result<Vec<Shape>> {
    Ok(vec![shape])
}

pub(super) fn divide(width: u64, group: u32) -> Result<u64> {
    let group = u64::from(group);
    if group > 0 && width.is_multiple_of(group) {
        Ok(width / group)
    } else {
        Err(format!("groups of {group} do not divide a row of {width}"))
    }
}

pub(super) fn finite(name: &str, v: f32) -> Result<()> {
    if v.is_finite() { Ok(()) } else { Err(format!("{name} is {v}")) }
}

pub(super) fn positive(name: &str, v: f32) -> Result<()> {
    if v.is_finite() && v > 0.0 { Ok(()) } else { Err(format!("{name} is {v}, expected a positive number")) }
}

/// Dimensions without those of 1 at the end.
fn without_ones(dims: &[u64]) -> &[u64] {
    let end = dims.iter().rposition(|n| *n != 1).map_or(0, |last| last + 1);
    &dims[..end]
}
