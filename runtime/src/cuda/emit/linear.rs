//! Projections: rows of weights times rows of activations.

use super::many::{Grouped, gemm_step};
use super::rows::{Pointwise, number};
use super::{Emitter, FEW_ROWS, Label, Result, SCRATCH};
use crate::cpu::step::{Item, Slot, Vector, Work};
use crate::cpu::weights::TensorRef;
use bloomery_formats::ActivationKind;
use bloomery_kernels_gpu::layout::Quantized;
use bloomery_kernels_gpu::{Argument, Buffer};

/// Which weights a row takes: those of its expert, or the only ones there are.
#[derive(Clone, Copy)]
pub(super) struct Chosen {
    /// Of each slot.
    pub ids: Option<Buffer>,
    pub experts: usize,
    /// Slots that share a row of activations.
    pub used: usize,
    /// Where slots are sorted by expert.
    pub grouped: Option<Grouped>,
}

impl Chosen {
    /// One matrix for all rows.
    pub const NONE: Chosen = Chosen { ids: None, experts: 0, used: 1, grouped: None };
}

/// Operands of a product.
pub(super) struct Product {
    pub weight: TensorRef,
    pub x: Quantized,
    pub kind: ActivationKind,
    pub chosen: Chosen,
    pub bias: Option<Vector>,
    pub residual: Option<Buffer>,
    pub out: Buffer,
    /// Blocks in the second direction.
    pub rows: usize,
    /// More matrices of the same type and activations: weight, bias, out.
    pub more: Vec<(TensorRef, Option<Vector>, Buffer)>,
}

impl Emitter<'_> {
    /// Every projection of one row of activations, up to three matrices of a type in one launch.
    pub(super) fn project(&mut self, index: u32, rows: usize, x: Slot, items: &[Item]) -> Result<()> {
        let b = self.buffers;
        let values = |slot: Slot, width: usize| b.rows_of(slot, rows, width);
        let (x, kind, _) = b.quantized(x)?;
        let ty = |item: &Item| self.source.shape(item.weight.tensor).0;
        let mut left: Vec<&Item> = items.iter().collect();
        while !left.is_empty() {
            let item = left.remove(0);
            let n = item.weight.rows;
            let mut more = Vec::new();
            let mut rest = Vec::new();
            for other in left {
                let joins = more.len() < 2
                    && ty(other) == ty(item)
                    && other.weight.cols == item.weight.cols
                    && other.residual.is_none();
                match joins {
                    true => more.push((other.weight, other.bias, values(other.out, other.weight.rows)?)),
                    false => rest.push(other),
                }
            }
            left = rest;
            let product = Product {
                more,
                weight: item.weight,
                x,
                kind,
                chosen: Chosen::NONE,
                bias: item.bias,
                residual: item.residual.map(|slot| values(slot, n)).transpose()?,
                out: values(item.out, n)?,
                rows,
            };
            self.product("linear", index, product)?;
        }
        Ok(())
    }

    /// A gated unit of two projections.
    pub(super) fn gate_up(&mut self, index: u32, rows: usize, work: &Work) -> Result<()> {
        let b = self.buffers;
        let values = |slot: Slot, width: usize| b.rows_of(slot, rows, width);
        let Work::GateUp { x, x_up, gate, up, function, limits, out } = work else { return Ok(()) };
        let n = gate.rows;
        let half = (4 * rows * n).next_multiple_of(256) as u64;
        let (a, c) = (b.work.part(0, half)?, b.work.part(half, half)?);
        let pair = [(*gate, *x, None, a), (*up, *x_up, None, c)];
        self.pair("linear", index, pair, Chosen::NONE, rows)?;
        let job = Pointwise {
            mode: 5,
            b: Some(c),
            widths: [n, n, 0],
            width: n,
            out_width: n,
            by: limits.map_or(f32::INFINITY, |l| l.gate_max),
            plus: limits.map_or(f32::INFINITY, |l| l.up_abs),
            act: number(*function),
            ..Pointwise::default()
        };
        self.pointwise(index, a, rows, job, values(*out, n)?)
    }

    /// Two products, in one launch where type and activations are the same.
    pub(super) fn pair(
        &mut self,
        operator: &'static str,
        index: u32,
        pair: [(TensorRef, Slot, Option<Vector>, Buffer); 2],
        chosen: Chosen,
        rows: usize,
    ) -> Result<()> {
        let ty = |matrix: TensorRef| self.source.shape(matrix.tensor).0;
        let joins =
            ty(pair[0].0) == ty(pair[1].0) && pair[0].1 == pair[1].1 && pair[0].0.cols == pair[1].0.cols;
        let list = if joins { &pair[..1] } else { &pair[..] };
        for (weight, x, bias, out) in list.iter().copied() {
            let (x, kind, _) = self.buffers.quantized(x)?;
            let more = if joins { vec![(pair[1].0, pair[1].2, pair[1].3)] } else { Vec::new() };
            let product = Product { weight, x, kind, chosen, bias, residual: None, out, rows, more };
            self.product(operator, index, product)?;
        }
        Ok(())
    }

    pub(super) fn product(&mut self, operator: &'static str, index: u32, p: Product) -> Result<()> {
        let (ty, row_bytes) = self.row(p.weight)?;
        let Chosen { ids, experts, used, grouped } = p.chosen;
        if p.rows > FEW_ROWS * used && ids.is_none() == grouped.is_none() && gemm_step(&ty).is_some() {
            return self.gemm(operator, index, &p);
        }
        if p.rows > FEW_ROWS && self.has_floats(&p, &ty) {
            return self.floats(operator, index, &p);
        }
        let of_expert = |rows: usize| if ids.is_some() { rows / experts.max(1) } else { rows };
        let n = of_expert(p.weight.rows);
        debug_assert_eq!(self.source.shape(p.weight.tensor).0.activation_kind(), Some(p.kind));
        let mut arguments = vec![
            self.weights.matrix(p.weight)?.into(),
            row_bytes.into(),
            (n as u32).into(),
            (p.weight.cols as u32).into(),
            p.x.quants.into(),
            p.x.scales.into(),
            p.x.sums.into(),
            ids.into(),
            (experts as u32).into(),
            (used as u32).into(),
            self.vector(p.bias).into(),
            p.residual.into(),
            p.out.into(),
        ];
        let mut all = n;
        let mut most = n;
        for i in 0..2 {
            let Some((weight, bias, out)) = p.more.get(i).copied() else {
                arguments.extend([
                    Buffer::NONE.into(),
                    Argument::U32(0),
                    Buffer::NONE.into(),
                    Buffer::NONE.into(),
                ]);
                continue;
            };
            let n = of_expert(weight.rows);
            (all, most) = (all + n, most.max(n));
            let vector: Argument = self.vector(bias).into();
            arguments.extend([
                self.weights.matrix(weight)?.into(),
                Argument::U32(n as u32),
                vector,
                out.into(),
            ]);
        }
        let direct = matches!(ty.as_str(), "q4_k" | "q6_k" | "q8_0" | "f32" | "f16" | "bf16");
        let warps: u32 = if n < 2048 { 2 } else { 4 };
        let shared = if direct { 0 } else { warps * SCRATCH };
        let sets = if ids.is_some() { p.rows } else { 1 };
        let bytes = u64::from(row_bytes) * all as u64 * sets as u64;
        let grid = [most.div_ceil(warps as usize) as u32, p.rows as u32, 1 + p.more.len() as u32];
        self.launch(
            &format!("gemv_{ty}"),
            grid,
            32 * warps,
            shared,
            arguments,
            Label { operator, step: index, bytes },
        )
    }
}
