//! The plain tier: whatever only reads and writes f32 rows runs here, without a kernel of its own that anybody tuned.

use super::super::CpuError;
use super::super::execute::{Buffers, Machine};
use super::super::lower::Lowering;
use super::super::step::{Slot, Use, Work};
use super::broken;
use bloomery_kernels_cpu::plain::{Reduction, gather, l2_norm, mat_mul, reduce, softmax, top_k, transpose};
use bloomery_program::{Node, Op, Shape, op};

/// A step from rows to rows.
#[derive(Debug, Clone)]
pub(crate) struct PlainWork {
    pub kind: PlainKind,
    /// Operands that are f32 rows, with their widths.
    pub ins: Vec<(Slot, usize)>,
    /// The first result.
    pub out: Slot,
    /// Its width.
    pub width: usize,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum PlainKind {
    L2Norm {
        eps: f32,
        group: usize,
    },
    Softmax {
        group: usize,
    },
    Reduce {
        by: Reduction,
        group: usize,
    },
    MatMul {
        k: usize,
    },
    Transpose {
        columns: usize,
    },
    TopK {
        places: Slot,
    },
    /// Chunks by number; the second operand.
    Gather {
        chunk: usize,
        index: Slot,
    },
}

impl PlainWork {
    /// The operator's name.
    pub fn name(&self) -> &'static str {
        match self.kind {
            PlainKind::L2Norm { .. } => "l2_norm",
            PlainKind::Softmax { .. } => "softmax",
            PlainKind::Reduce { .. } => "reduce",
            PlainKind::MatMul { .. } => "mat_mul",
            PlainKind::Transpose { .. } => "transpose",
            PlainKind::TopK { .. } => "top_k",
            PlainKind::Gather { .. } => "gather",
        }
    }

    /// Calls `f` with every slot.
    pub fn visit(&mut self, f: &mut impl FnMut(&mut Slot, Use)) {
        self.ins.iter_mut().for_each(|(slot, _)| f(slot, Use::Read));
        if let PlainKind::Gather { index, .. } = &mut self.kind {
            f(index, Use::Read);
        }
        f(&mut self.out, Use::Write);
        if let PlainKind::TopK { places } = &mut self.kind {
            f(places, Use::Write);
        }
    }
}

impl Lowering<'_> {
    /// A node of this file.
    pub(crate) fn plain(&mut self, node: &Node) -> Result<(), CpuError> {
        let rows = if matches!(node.op, Op::Gather { .. }) { 1 } else { node.ins.len() };
        let mut ins = Vec::with_capacity(rows);
        for i in 0..rows {
            ins.push((self.operand(node, i)?, self.width(node.ins[i])));
        }
        let kind = match &node.op {
            Op::L2Norm { eps, group } => PlainKind::L2Norm { eps: *eps, group: *group as usize },
            Op::Softmax { group } => PlainKind::Softmax { group: *group as usize },
            Op::Reduce { by, group } => {
                let by = match by {
                    op::Reduction::Sum => Reduction::Sum,
                    op::Reduction::Mean => Reduction::Mean,
                    op::Reduction::Max => Reduction::Max,
                };
                PlainKind::Reduce { by, group: *group as usize }
            }
            Op::MatMul { k } => PlainKind::MatMul { k: *k as usize },
            Op::Transpose {} => {
                // A result of one stream is plain rows in disguise; its shape says how many columns there were.
                let columns = match node.outs.first().map(|o| o.shape) {
                    Some(Shape::Streams { streams, .. }) => streams as usize,
                    _ => 1,
                };
                PlainKind::Transpose { columns }
            }
            Op::TopK { .. } => PlainKind::TopK { places: self.result(node, 1)? },
            Op::Gather { width } => {
                PlainKind::Gather { chunk: *width as usize, index: self.operand(node, 1)? }
            }
            other => return Err(broken(format!("{} is no plain operator", other.name()))),
        };
        let width = node.outs.first().and_then(|o| o.shape.row_len()).unwrap_or(0) as usize;
        let out = self.result(node, 0)?;
        self.push(Work::Plain(PlainWork { kind, ins, out, width }), node);
        Ok(())
    }

    /// The same values under another division into streams.
    pub(crate) fn reshape(&mut self, node: &Node) -> Result<(), CpuError> {
        let (x, width) = (self.operand(node, 0)?, self.width(node.ins[0]));
        let out = self.result(node, 0)?;
        self.push(Work::Copy { x, width, out }, node);
        Ok(())
    }
}

impl Machine<'_> {
    pub(crate) fn plain(&self, work: &PlainWork, rows: usize, b: &mut Buffers) -> Result<(), CpuError> {
        let cpu = self.cpu;
        let mut out = b.open(work.out, rows);
        let target = &mut out[..rows * work.width];
        let Some((slot, width)) = work.ins.first().copied() else {
            return Err(broken(format!("{} of nothing", work.name())));
        };
        let x = &b.rows[slot.0];
        let mut done = Ok(());
        match work.kind {
            PlainKind::L2Norm { eps, group } => l2_norm(cpu, eps, group, rows, width, x, target),
            PlainKind::Softmax { group } => softmax(cpu, group, rows, width, x, target),
            PlainKind::Reduce { by, group } => reduce(&cpu.pool, by, group, rows, width, x, target),
            PlainKind::MatMul { k } => {
                let Some((other, b_width)) = work.ins.get(1).copied() else {
                    return Err(broken("a product of one operand"));
                };
                mat_mul(cpu, k, rows, width / k, b_width / k, x, &b.rows[other.0], target);
            }
            PlainKind::Transpose { columns } => {
                transpose(&cpu.pool, rows, width / columns.max(1), columns, x, target);
            }
            PlainKind::TopK { places } => {
                let mut numbers = b.open_index(places, rows);
                top_k(work.width, rows, width, &b.rows[slot.0], target, &mut numbers);
                b.index[places.0] = numbers;
            }
            PlainKind::Gather { chunk, index } => {
                let picked = work.width / chunk;
                done = gather(chunk, rows, width, picked, x, &b.index[index.0], target).map_err(broken);
            }
        }
        b.rows[work.out.0] = out;
        done
    }
}
