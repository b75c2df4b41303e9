//! Row-wise and point-wise launches.

use super::{Emitter, FEW_ROWS, Label, Result};
use crate::cpu::step::{NormOf, Slot, Vector, Work};
use bloomery_formats::ActivationKind;
use bloomery_kernels_cpu::pointwise::{Function, GateLimits};
use bloomery_kernels_gpu::layout::Quantized;
use bloomery_kernels_gpu::{Argument, Buffer, GpuError};

/// Operands of a row job.
#[derive(Default)]
pub(super) struct RowJob {
    pub up: Option<Buffer>,
    pub act: u32,
    pub limits: Option<GateLimits>,
    pub norm: Option<NormOf>,
    pub width: usize,
    pub out: Option<Buffer>,
    pub quantized: Vec<(Quantized, ActivationKind)>,
}

/// Operands of a point-wise job.
#[derive(Default)]
pub(super) struct Pointwise {
    pub mode: u32,
    pub b: Option<Buffer>,
    pub c: Option<Buffer>,
    pub index: Option<Buffer>,
    pub widths: [usize; 3],
    pub width: usize,
    pub out_width: usize,
    pub out_at: usize,
    pub piece: [usize; 3],
    pub by: f32,
    pub plus: f32,
    pub act: u32,
}

impl Emitter<'_> {
    /// Operators of single values, and copies of rows.
    pub(super) fn plain(&mut self, index: u32, rows: usize, work: &Work) -> Result<()> {
        let b = self.buffers;
        let values = |slot: Slot, width: usize| b.rows_of(slot, rows, width);
        match work {
            Work::Unary { x, width, function, out } => {
                let job = Pointwise { mode: 4, act: number(*function), ..one(*width) };
                self.pointwise(index, values(*x, *width)?, rows, job, values(*out, *width)?)
            }
            Work::Glu { gate, up, width, function, limits, out } => {
                let job = Pointwise {
                    mode: 5,
                    b: Some(values(*up, *width)?),
                    by: limits.map_or(f32::INFINITY, |l| l.gate_max),
                    plus: limits.map_or(f32::INFINITY, |l| l.up_abs),
                    act: number(*function),
                    ..one(*width)
                };
                self.pointwise(index, values(*gate, *width)?, rows, job, values(*out, *width)?)
            }
            Work::Add { a, b: other, width, one: single, out }
            | Work::Mul { a, b: other, width, one: single, out } => {
                let right = if *single { 1 } else { *width };
                let job = Pointwise {
                    mode: u32::from(matches!(work, Work::Mul { .. })),
                    b: Some(values(*other, right)?),
                    widths: [*width, right, 0],
                    ..one(*width)
                };
                self.pointwise(index, values(*a, *width)?, rows, job, values(*out, *width)?)
            }
            Work::Scale { x, width, by, plus, out } => {
                let job = Pointwise { mode: 2, by: *by, plus: *plus, ..one(*width) };
                self.pointwise(index, values(*x, *width)?, rows, job, values(*out, *width)?)
            }
            Work::Affine { x, width, scale, bias, out } => {
                let length = |vector: &Option<Vector>| vector.map_or(0, |v| self.lowered.vectors[v].len());
                let job = Pointwise {
                    mode: 3,
                    b: self.vector(*scale),
                    c: self.vector(*bias),
                    widths: [*width, length(scale), length(bias)],
                    ..one(*width)
                };
                self.pointwise(index, values(*x, *width)?, rows, job, values(*out, *width)?)
            }
            Work::Concat { parts, out } => {
                let total: usize = parts.iter().map(|(_, width)| width).sum();
                let mut at = 0;
                for (part, width) in parts {
                    let job = Pointwise {
                        mode: 6,
                        piece: [*width, 0, *width],
                        out_width: total,
                        out_at: at,
                        ..one(*width)
                    };
                    self.pointwise(index, values(*part, *width)?, rows, job, values(*out, total)?)?;
                    at += width;
                }
                Ok(())
            }
            Work::Slice { x, width, group, start, take, out } => {
                let taken = width / group * take;
                let job = Pointwise {
                    mode: 6,
                    piece: [*group, *start, *take],
                    widths: [*width, 0, 0],
                    ..one(taken)
                };
                self.pointwise(index, values(*x, *width)?, rows, job, values(*out, taken)?)
            }
            Work::Copy { x, width, out } => {
                let job = Pointwise { mode: 6, piece: [*width, 0, *width], ..one(*width) };
                self.pointwise(index, values(*x, *width)?, rows, job, values(*out, *width)?)
            }
            Work::Gather { from, width, to } => {
                let job = Pointwise { mode: 7, index: Some(self.input.tail), ..one(*width) };
                self.pointwise(index, b.rows_of(*from, self.rows, *width)?, rows, job, values(*to, *width)?)
            }
            other => Err(GpuError::NoKernel(format!("{other:?} as a point-wise launch"))),
        }
    }

    pub(super) fn row_job(
        &mut self,
        operator: &'static str,
        index: u32,
        x: Buffer,
        rows: usize,
        job: RowJob,
    ) -> Result<()> {
        let find = |kind| job.quantized.iter().find(|(_, k)| *k == kind).map(|(arrays, _)| *arrays);
        let (wide, narrow) = (find(ActivationKind::Q8K), find(ActivationKind::Q8Block32));
        let plain = find(ActivationKind::F32).map(|arrays| arrays.quants);
        let group = job.norm.map_or(job.width, |norm| norm.group);
        let weight = job.norm.and_then(|norm| norm.weight);
        let mut arguments: Vec<Argument> = vec![
            x.into(),
            job.up.into(),
            job.act.into(),
            job.limits.map_or(f32::INFINITY, |l| l.gate_max).into(),
            job.limits.map_or(f32::INFINITY, |l| l.up_abs).into(),
            u32::from(job.norm.is_some()).into(),
            self.vector(weight).into(),
            weight.map_or(0, |v| self.lowered.vectors[v].len() as u32).into(),
            (group as u32).into(),
            job.norm.map_or(0.0, |norm| norm.eps).into(),
            (job.width as u32).into(),
            job.out.into(),
        ];
        for arrays in [wide, narrow] {
            arguments.push(arrays.map(|a| a.quants).into());
            arguments.push(arrays.map(|a| a.scales).into());
            arguments.push(arrays.map(|a| a.sums).into());
        }
        let tail: [Argument; 3] = [plain.into(), self.buffers.report.into(), index.into()];
        arguments.extend(tail);
        let groups = job.width.div_ceil(group.max(1));
        let shared = 4 * (job.width.next_multiple_of(4) + groups + 4) as u32;
        let label = Label { operator, step: index, bytes: 0 };
        // A warp quantises a group of 256; where rows are few, idle warps cost nothing and help with the rest.
        let threads = if rows > FEW_ROWS { 32 * job.width.div_ceil(256).clamp(2, 8) as u32 } else { 256 };
        self.launch("row_quantize", [rows as u32, 1, 1], threads, shared, arguments, label)
    }

    pub(super) fn pointwise(
        &mut self,
        index: u32,
        a: Buffer,
        rows: usize,
        job: Pointwise,
        out: Buffer,
    ) -> Result<()> {
        let n = |value: usize| Argument::U32(value as u32);
        let arguments = vec![
            job.mode.into(),
            a.into(),
            job.b.into(),
            job.c.into(),
            job.index.into(),
            n(job.widths[0]),
            n(job.widths[1]),
            n(job.widths[2]),
            n(job.width),
            n(job.out_width),
            n(job.out_at),
            n(job.piece[0]),
            n(job.piece[1]),
            n(job.piece[2]),
            job.by.into(),
            job.plus.into(),
            job.act.into(),
            out.into(),
        ];
        let label = Label { operator: "point-wise", step: index, bytes: 0 };
        self.launch(
            "pointwise_any",
            [job.width.div_ceil(128) as u32, rows as u32, 1],
            128,
            0,
            arguments,
            label,
        )
    }
}

pub(super) fn one(width: usize) -> Pointwise {
    Pointwise { widths: [width, width, 0], width, out_width: width, ..Pointwise::default() }
}

pub(super) fn number(function: Function) -> u32 {
    match function {
        Function::Silu => 0,
        Function::GeluTanh => 1,
        Function::GeluErf => 2,
        Function::Sigmoid => 3,
        Function::Softplus => 4,
        Function::Exp => 5,
        Function::Relu => 6,
        Function::Tanh => 7,
    }
}
