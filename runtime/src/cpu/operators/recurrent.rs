//! Convolutions and delta rules over a sequence's own states.

use super::super::CpuError;
use super::super::execute::{Buffers, Held, Machine};
use super::super::lower::{Lowering, function_of};
use super::super::step::{Slot, Use, Vector, Work};
use super::broken;
use bloomery_kernels_cpu::conv::{ConvSpec, causal_conv};
use bloomery_kernels_cpu::delta::{Decay, DeltaRows, DeltaSpec, gated_delta};
use bloomery_kernels_cpu::kv::Run;
use bloomery_kernels_cpu::pointwise::Function;
use bloomery_program::op::{self, GatedDelta, HeadMap};
use bloomery_program::{Node, Op};
use std::ops::Range;

/// A step that rolls a state on; `state` is its place in a sequence's block.
#[derive(Debug, Clone)]
pub(crate) enum RecurrentWork {
    Conv {
        x: Slot,
        of: ConvOf,
        state: Range<usize>,
        out: Slot,
    },
    /// Queries, keys, values, decays and betas.
    Delta {
        ins: [Slot; 5],
        of: DeltaOf,
        state: Range<usize>,
        out: Slot,
    },
}

/// A convolution, its weights `[taps, width]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConvOf {
    pub width: usize,
    pub taps: usize,
    pub dilation: usize,
    pub weight: Vector,
    pub bias: Option<Vector>,
    pub function: Option<Function>,
}

/// A delta rule.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeltaOf {
    pub key_heads: usize,
    pub value_heads: usize,
    pub key: usize,
    pub value: usize,
    pub decay: Decay,
    pub scale: f32,
    pub l2_eps: Option<f32>,
    pub tiled: bool,
    pub a: Vector,
    pub dt: Vector,
}

impl RecurrentWork {
    /// The operator's name.
    pub fn name(&self) -> &'static str {
        match self {
            RecurrentWork::Conv { .. } => "causal_conv",
            RecurrentWork::Delta { .. } => "gated_delta",
        }
    }

    /// Calls `f` with every slot.
    pub fn visit(&mut self, f: &mut impl FnMut(&mut Slot, Use)) {
        match self {
            RecurrentWork::Conv { x, out, .. } => {
                f(x, Use::Read);
                f(out, Use::Write);
            }
            RecurrentWork::Delta { ins, out, .. } => {
                ins.iter_mut().for_each(|slot| f(slot, Use::Read));
                f(out, Use::Write);
            }
        }
    }
}

impl Lowering<'_> {
    pub(crate) fn conv(&mut self, node: &Node) -> Result<(), CpuError> {
        let Op::CausalConv { taps, dilation, function, state } = &node.op else {
            return Err(broken("no convolution"));
        };
        let place = self.fixed.place(*state).ok_or_else(|| broken("a convolution without a state"))?;
        let (taps, width) = (*taps as usize, self.width(node.ins[0]));
        let given = self.needed(node, "weight")?;
        let of = ConvOf {
            width,
            taps,
            dilation: *dilation as usize,
            // A file keeps the taps of a channel side by side, the kernel the channels of a tap.
            weight: self.transposed(given, taps),
            bias: self.vector(node, "bias")?,
            function: function.map(function_of),
        };
        let (x, out) = (self.operand(node, 0)?, self.result(node, 0)?);
        self.push(Work::Recurrent(RecurrentWork::Conv { x, of, state: place, out }), node);
        Ok(())
    }

    pub(crate) fn delta(&mut self, node: &Node, delta: &GatedDelta) -> Result<(), CpuError> {
        let place = self.fixed.place(delta.state).ok_or_else(|| broken("a delta rule without a state"))?;
        let of = DeltaOf {
            key_heads: delta.key_heads as usize,
            value_heads: delta.value_heads as usize,
            key: delta.key as usize,
            value: delta.value as usize,
            decay: match delta.decay {
                op::Decay::ScalarSoftplus {} => Decay::ScalarSoftplus,
                op::Decay::ChannelSoftplus {} => Decay::ChannelSoftplus,
                op::Decay::ChannelSigmoid { lower_bound } => Decay::ChannelSigmoid { lower_bound },
            },
            scale: delta.scale,
            l2_eps: delta.l2_eps,
            tiled: delta.head_map == HeadMap::Tiled,
            a: self.needed(node, "a")?,
            dt: self.needed(node, "dt")?,
        };
        let mut ins = [Slot(0); 5];
        for (i, slot) in ins.iter_mut().enumerate() {
            *slot = self.operand(node, i)?;
        }
        let out = self.result(node, 0)?;
        self.push(Work::Recurrent(RecurrentWork::Delta { ins, of, state: place, out }), node);
        Ok(())
    }
}

impl Machine<'_> {
    pub(crate) fn recurrent(
        &self,
        work: &RecurrentWork,
        rows: usize,
        b: &mut Buffers,
        held: &mut Held<'_>,
        runs: &[Run<'_>],
    ) {
        let vectors = &self.lowered.vectors;
        match work {
            RecurrentWork::Conv { x, of, state, out } => {
                let mut target = b.open(*out, rows);
                let spec = ConvSpec {
                    taps: of.taps,
                    dilation: of.dilation,
                    weight: &vectors[of.weight],
                    bias: self.vector(of.bias),
                    function: of.function,
                };
                for (run, block) in runs.iter().zip(held.blocks.iter_mut()) {
                    let history = &mut block[state.clone()];
                    causal_conv(self.cpu, &spec, run, of.width, &b.rows[x.0], history, &mut target);
                }
                b.rows[out.0] = target;
            }
            RecurrentWork::Delta { ins, of, state, out } => {
                let mut target = b.open(*out, rows);
                let spec = DeltaSpec {
                    key_heads: of.key_heads,
                    value_heads: of.value_heads,
                    key: of.key,
                    value: of.value,
                    decay: of.decay,
                    scale: of.scale,
                    l2_eps: of.l2_eps,
                    tiled: of.tiled,
                    a: &vectors[of.a],
                    dt: &vectors[of.dt],
                };
                let [q, k, v, decay, beta] = ins.map(|slot| &b.rows[slot.0][..]);
                let operands = DeltaRows { q, k, v, decay, beta };
                let blocks = &mut held.blocks[..];
                gated_delta(self.cpu, &spec, runs, &operands, blocks, state.clone(), &mut target);
                b.rows[out.0] = target;
            }
        }
    }
}
