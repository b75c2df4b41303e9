//! Residual streams: spread, collapse, combine, hyper-connection coefficients, and the gate of a memory.

use super::super::CpuError;
use super::super::execute::{Buffers, Machine};
use super::super::lower::Lowering;
use super::super::step::{Class, Item, NormOf, Slot, Use, Vector, Work};
use super::super::weights::TensorRef;
use super::broken;
use bloomery_kernels_cpu::pointwise::Function;
use bloomery_kernels_cpu::streams::{
    HyperSpec, MemoryGateSpec, collapse, combine, hyper_head, hyper_mix, low_rank_mixed, memory_gate, scale,
    spread,
};
use bloomery_program::{Node, Op};

/// A step over `streams` streams of `width` values.
#[derive(Debug, Clone)]
pub(crate) struct StreamWork {
    pub streams: usize,
    pub width: usize,
    pub kind: StreamKind,
}

#[derive(Debug, Clone)]
pub(crate) enum StreamKind {
    Spread {
        x: Slot,
        out: Slot,
    },
    Collapse {
        h: Slot,
        pre: Option<Slot>,
        out: Slot,
    },
    Combine {
        h: Slot,
        y: Slot,
        post: Slot,
        comb: Option<Slot>,
        out: Slot,
    },
    Scale {
        value: Slot,
        gate: Slot,
        out: Slot,
    },
    /// From the projections of the normalised streams.
    Mix {
        m: Slot,
        scale: Vector,
        base: Vector,
        iterations: usize,
        eps: f32,
        outs: [Slot; 3],
    },
    /// From the projections of the normalised streams.
    Head {
        m: Slot,
        scale: Vector,
        base: Vector,
        eps: f32,
        out: Slot,
    },
    /// The gated mean of normalised streams.
    LowRank {
        x: Slot,
        up: Slot,
        out: Slot,
    },
    Gate {
        h: Slot,
        key: Slot,
        query_norm: Vector,
        key_norm: Vector,
        eps: f32,
        out: Slot,
    },
}

impl StreamWork {
    /// The operator's name.
    pub fn name(&self) -> &'static str {
        match self.kind {
            StreamKind::Spread { .. } => "stream_spread",
            StreamKind::Collapse { .. } => "stream_collapse",
            StreamKind::Combine { .. } => "stream_combine",
            StreamKind::Scale { .. } => "stream_scale",
            StreamKind::Mix { .. } => "hyper_mix",
            StreamKind::Head { .. } => "hyper_head",
            StreamKind::LowRank { .. } => "low_rank_mix",
            StreamKind::Gate { .. } => "memory_gate",
        }
    }

    /// Calls `f` with every slot.
    pub fn visit(&mut self, f: &mut impl FnMut(&mut Slot, Use)) {
        let (ins, outs): (Vec<&mut Slot>, Vec<&mut Slot>) = match &mut self.kind {
            StreamKind::Spread { x, out } => (vec![x], vec![out]),
            StreamKind::Collapse { h, pre, out } => ([h].into_iter().chain(pre).collect(), vec![out]),
            StreamKind::Combine { h, y, post, comb, out } => {
                ([h, y, post].into_iter().chain(comb).collect(), vec![out])
            }
            StreamKind::Scale { value, gate, out } => (vec![value, gate], vec![out]),
            StreamKind::Mix { m, outs, .. } => (vec![m], outs.iter_mut().collect()),
            StreamKind::Head { m, out, .. } => (vec![m], vec![out]),
            StreamKind::LowRank { x, up, out } => (vec![x, up], vec![out]),
            StreamKind::Gate { h, key, out, .. } => (vec![h, key], vec![out]),
        };
        ins.into_iter().for_each(|slot| f(slot, Use::Read));
        outs.into_iter().for_each(|slot| f(slot, Use::Write));
    }
}

impl Lowering<'_> {
    /// A node of this file.
    pub(crate) fn streams(&mut self, node: &Node) -> Result<(), CpuError> {
        let first = self.width(node.ins[0]);
        let results: Vec<usize> =
            node.outs.iter().map(|o| o.shape.row_len().map_or(0, |w| w as usize)).collect();
        let out_width = results.first().copied().unwrap_or(0);
        let divide = |all: usize, by: usize| all.checked_div(by).unwrap_or(0);
        let optional = |this: &Self, i: usize| match node.ins.len() > i {
            true => this.operand(node, i).map(Some),
            false => Ok(None),
        };
        let (streams, width, kind) = match &node.op {
            Op::StreamSpread { streams } => {
                let (x, out) = (self.operand(node, 0)?, self.result(node, 0)?);
                (*streams as usize, first, StreamKind::Spread { x, out })
            }
            Op::StreamCollapse {} => {
                let (h, pre) = (self.operand(node, 0)?, optional(self, 1)?);
                let out = self.result(node, 0)?;
                (divide(first, out_width), out_width, StreamKind::Collapse { h, pre, out })
            }
            Op::StreamCombine {} => {
                let (h, y, post) = (self.operand(node, 0)?, self.operand(node, 1)?, self.operand(node, 2)?);
                let comb = optional(self, 3)?;
                let width = self.width(node.ins[1]);
                let out = self.result(node, 0)?;
                (divide(first, width), width, StreamKind::Combine { h, y, post, comb, out })
            }
            Op::StreamScale {} => {
                let (value, gate) = (self.operand(node, 0)?, self.operand(node, 1)?);
                let out = self.result(node, 0)?;
                (self.width(node.ins[1]), first, StreamKind::Scale { value, gate, out })
            }
            Op::HyperMix { iterations, eps, norm_eps } => {
                let m = self.projected_streams(node, *norm_eps)?;
                let (scale, base) = (self.needed(node, "scale")?, self.needed(node, "base")?);
                let outs = [self.result(node, 0)?, self.result(node, 1)?, self.result(node, 2)?];
                let (iterations, eps) = (*iterations as usize, *eps);
                let kind = StreamKind::Mix { m, scale, base, iterations, eps, outs };
                (out_width, divide(first, out_width), kind)
            }
            Op::HyperHead { eps, norm_eps } => {
                let m = self.projected_streams(node, *norm_eps)?;
                let (scale, base) = (self.needed(node, "scale")?, self.needed(node, "base")?);
                let out = self.result(node, 0)?;
                (out_width, divide(first, out_width), StreamKind::Head { m, scale, base, eps: *eps, out })
            }
            Op::MemoryGate { eps } => {
                let (h, key) = (self.operand(node, 0)?, self.operand(node, 1)?);
                let query_norm = self.needed(node, "query_norm")?;
                let key_norm = self.needed(node, "key_norm")?;
                let out = self.result(node, 0)?;
                let kind = StreamKind::Gate { h, key, query_norm, key_norm, eps: *eps, out };
                (out_width, divide(first, out_width), kind)
            }
            other => return Err(broken(format!("{} is no operator of streams", other.name()))),
        };
        self.push(Work::Streams(StreamWork { streams, width, kind }), node);
        Ok(())
    }

    /// Norm of every stream, two narrow projections of it, and the steps between them.
    pub(crate) fn low_rank_mix(&mut self, node: &Node, eps: f32) -> Result<(), CpuError> {
        let (h, all) = (self.operand(node, 0)?, self.width(node.ins[0]));
        let width = node.outs.first().and_then(|o| o.shape.row_len()).unwrap_or(0) as usize;
        let streams = all.checked_div(width).unwrap_or(0);
        let mean = 1.0 / streams as f32;
        let (down, up) = (self.matrix(node, "down")?, self.matrix(node, "up")?);
        let inject = match node.tensors.contains_key("inject") {
            true => Some(self.matrix(node, "inject")?),
            false => None,
        };
        // 1. The streams normalised, in the forms that the projections take.
        let norm = NormOf { weight: Some(self.needed(node, "norm")?), group: width, eps };
        let x = self.new_slot(Class::Rows { width: all });
        let of_down = self.quantized_slot(down, all)?;
        let of_inject = match inject {
            Some(inject) if self.kind(inject)? != self.kind(down)? => self.quantized_slot(inject, all)?,
            _ => of_down,
        };
        let mut quantized = vec![of_down, of_inject];
        quantized.dedup();
        self.push_part(Work::Norm { x: h, width: all, norm, out: x, quantized }, node);
        let project = |this: &mut Self, x: Slot, weight: TensorRef| {
            let out = this.new_slot(Class::Rows { width: weight.rows });
            let items = vec![Item { weight, bias: None, residual: None, out }];
            this.push_part(Work::Project { x, items }, node);
            out
        };
        let scaled = |this: &mut Self, x: Slot, width: usize, by: f32| {
            let out = this.new_slot(Class::Rows { width });
            this.push_part(Work::Scale { x, width, by, plus: 0.0, out }, node);
            out
        };
        let function = |this: &mut Self, x: Slot, width: usize, function: Function| {
            let out = this.new_slot(Class::Rows { width });
            this.push_part(Work::Unary { x, width, function, out }, node);
            out
        };
        // 2. Down, silu, up.
        let low = project(self, of_down, down);
        let low = scaled(self, low, down.rows, mean);
        let low = function(self, low, down.rows, Function::Silu);
        let of_up = self.quantized_slot(up, down.rows)?;
        self.push_part(Work::Quantize { x: low, out: of_up }, node);
        let gate = project(self, of_up, up);
        // 3. What the sub-block's result is multiplied with.
        if let Some(inject) = inject {
            let post = project(self, of_inject, inject);
            let post = scaled(self, post, inject.rows, mean);
            let post = function(self, post, inject.rows, Function::Sigmoid);
            let out = self.result(node, 1)?;
            self.push_part(Work::Scale { x: post, width: inject.rows, by: 2.0, plus: 0.0, out }, node);
        }
        let out = self.result(node, 0)?;
        let kind = StreamKind::LowRank { x, up: gate, out };
        self.push(Work::Streams(StreamWork { streams, width, kind }), node);
        Ok(())
    }

    fn quantized_slot(&mut self, weight: TensorRef, width: usize) -> Result<Slot, CpuError> {
        let kind = self.kind(weight)?;
        Ok(self.new_slot(Class::Quantized { kind, width }))
    }

    /// `fn . rms(flat streams)`.
    fn projected_streams(&mut self, node: &Node, eps: f32) -> Result<Slot, CpuError> {
        let (x, width) = (self.operand(node, 0)?, self.width(node.ins[0]));
        let weight = self.matrix(node, "fn")?;
        let kind = self.kind(weight)?;
        let normed = self.new_slot(Class::Rows { width });
        let quantized = self.new_slot(Class::Quantized { kind, width });
        let out = self.new_slot(Class::Rows { width: weight.rows });
        let norm = NormOf { weight: None, group: width, eps };
        self.push_part(Work::Norm { x, width, norm, out: normed, quantized: vec![quantized] }, node);
        let items = vec![Item { weight, bias: None, residual: None, out }];
        self.push_part(Work::Project { x: quantized, items }, node);
        Ok(out)
    }
}

impl Machine<'_> {
    pub(crate) fn streams(&self, work: &StreamWork, rows: usize, b: &mut Buffers) {
        let cpu = self.cpu;
        let (n, width) = (work.streams, work.width);
        match &work.kind {
            StreamKind::Spread { x, out } => {
                let mut target = b.open(*out, rows);
                spread(&cpu.pool, n, rows, width, &b.rows[x.0], &mut target);
                b.rows[out.0] = target;
            }
            StreamKind::Collapse { h, pre, out } => {
                let mut target = b.open(*out, rows);
                let pre = pre.map(|p| &b.rows[p.0][..]);
                collapse(cpu, n, rows, width, &b.rows[h.0], pre, &mut target);
                b.rows[out.0] = target;
            }
            StreamKind::Combine { h, y, post, comb, out } => {
                let mut target = b.open(*out, rows);
                let comb = comb.map(|c| &b.rows[c.0][..]);
                let (h, y, post) = (&b.rows[h.0], &b.rows[y.0], &b.rows[post.0]);
                combine(cpu, n, rows, width, h, y, post, comb, &mut target);
                b.rows[out.0] = target;
            }
            StreamKind::Scale { value, gate, out } => {
                let mut target = b.open(*out, rows);
                scale(&cpu.pool, n, rows, width, &b.rows[value.0], &b.rows[gate.0], &mut target);
                b.rows[out.0] = target;
            }
            StreamKind::Mix { m, scale, base, iterations, eps, outs } => {
                let mut targets = outs.map(|out| b.open(out, rows));
                let spec = HyperSpec {
                    streams: n,
                    scale: &self.lowered.vectors[*scale],
                    base: &self.lowered.vectors[*base],
                    iterations: *iterations,
                    eps: *eps,
                };
                let [pre, post, comb] = &mut targets;
                hyper_mix(cpu, &spec, rows, &b.rows[m.0], pre, post, comb);
                for (out, target) in outs.iter().zip(targets) {
                    b.rows[out.0] = target;
                }
            }
            StreamKind::Head { m, scale, base, eps, out } => {
                let mut target = b.open(*out, rows);
                let scale = self.lowered.vectors[*scale].first().copied().unwrap_or(1.0);
                hyper_head(cpu, scale, &self.lowered.vectors[*base], *eps, rows, &b.rows[m.0], &mut target);
                b.rows[out.0] = target;
            }
            StreamKind::LowRank { x, up, out } => {
                let mut target = b.open(*out, rows);
                low_rank_mixed(cpu, n, rows, width, &b.rows[x.0], &b.rows[up.0], &mut target);
                b.rows[out.0] = target;
            }
            StreamKind::Gate { h, key, query_norm, key_norm, eps, out } => {
                let mut target = b.open(*out, rows);
                let spec = MemoryGateSpec {
                    streams: n,
                    width,
                    query_norm: &self.lowered.vectors[*query_norm],
                    key_norm: &self.lowered.vectors[*key_norm],
                    eps: *eps,
                };
                memory_gate(cpu, &spec, rows, &b.rows[h.0], &b.rows[key.0], &mut target);
                b.rows[out.0] = target;
            }
        }
    }
}
