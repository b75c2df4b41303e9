//! Rules of operators that carry a recurrent state.

use super::operands::{finite, positive, rows, same};
use super::{Context, Result};
use crate::op::{Decay, GatedDelta};
use crate::{Shape, StateId, StateKind};

pub(super) fn causal_conv(c: &Context<'_>, taps: u32, dilation: u32, state: StateId) -> Result<Vec<Shape>> {
    c.operands(1)?;
    let width = c.row(0)?;
    let t = c.tensor("weight")?;
    let squeezed: Vec<u64> = t.dims.iter().copied().filter(|d| *d != 1).collect();
    let expected: Vec<u64> = [u64::from(taps), width].into_iter().filter(|d| *d != 1).collect();
    if taps == 0 || dilation == 0 || squeezed != expected {
        return Err(format!("weight {:?} with {taps} taps over a row of {width}", t.dims));
    }
    c.vector("bias", width)?;
    let kept = u64::from(taps - 1) * u64::from(dilation);
    match c.state(state)? {
        StateKind::Recent { rows, width: w } if u64::from(*rows) == kept && u64::from(*w) == width => {}
        other => {
            return Err(format!("needs a recent state of {kept} rows of {width}, found {other:?}"));
        }
    }
    same(c.ins[0])
}

pub(super) fn gated_delta(d: &GatedDelta, c: &Context<'_>) -> Result<Vec<Shape>> {
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
