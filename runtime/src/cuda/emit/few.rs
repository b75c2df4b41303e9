//! Steps of few rows (generation): every weight is read once for all rows, in as few launches as possible. What has no kernel here
//! falls back to the launches of the operators themselves.

pub(super) mod attention;
mod experts;
mod linear;

use super::super::joins::{Join, Kind};
use super::rows::{Pointwise, number};
use super::{Emitter, Result};
use crate::cpu::step::{Item, Slot, Step, Work};
use crate::cpu::weights::TensorRef;
use attention::Rows;
use linear::{MOST_MATRICES, NORMED_ROWS, Normed, Source, Target};

impl Emitter<'_> {
    /// Emits a group of steps and returns how many steps that were: none where the group has no launch of its own.
    pub(super) fn joined(&mut self, index: usize, join: Join, rows: usize) -> Result<usize> {
        let steps = &self.lowered.steps[index..index + join.steps];
        let done = match join.kind {
            Kind::Attend => self.joined_attend(index, rows, steps)?,
            Kind::NormProject => self.joined_norm(index, rows, steps)?,
            Kind::RouteExperts => match steps {
                [route, experts] => self.few_routed(index as u32, rows, &route.work, &experts.work)?,
                _ => false,
            },
        };
        Ok(if done { join.steps } else { 0 })
    }

    fn joined_attend(&mut self, index: usize, rows: usize, steps: &[Step]) -> Result<bool> {
        let [first, rest @ ..] = steps else { return Ok(false) };
        let Work::Attend { q, out, of } = &first.work else { return Ok(false) };
        if self.has_flash(of) {
            return Ok(false);
        }
        let quantized: Vec<Slot> = rest
            .iter()
            .filter_map(|step| match &step.work {
                Work::Quantize { out, .. } => Some(*out),
                _ => None,
            })
            .collect();
        let keep = self.joins.read_from(*out, index + steps.len());
        self.few_attend(index as u32, Rows::all(rows), (*q, *out), of, keep, &quantized)?;
        Ok(true)
    }

    fn joined_norm(&mut self, index: usize, rows: usize, steps: &[Step]) -> Result<bool> {
        let [Step { work: Work::Norm { x, width, norm, out, quantized }, .. }, project] = steps else {
            return Ok(false);
        };
        let Work::Project { x: projected, items } = &project.work else { return Ok(false) };
        let b = self.buffers;
        let (_, kind, _) = b.quantized(*projected)?;
        let weights: Vec<TensorRef> = items.iter().map(|item| item.weight).collect();
        let whole = norm.weight.is_none_or(|v| self.lowered.vectors[v].len() == *width);
        let plain = items.iter().skip(1).all(|item| item.residual.is_none());
        let simple = rows <= NORMED_ROWS && norm.group == *width && whole && plain;
        if !simple || !self.has_few_linear(kind, rows, true, &weights) {
            return Ok(false);
        }
        let after = index + steps.len();
        let kept: Vec<Slot> =
            quantized.iter().copied().filter(|slot| self.joins.read_from(*slot, after)).collect();
        let normed = Normed {
            x: b.rows_of(*x, rows, *width)?,
            norm: *norm,
            out: match self.joins.read_from(*out, index) {
                true => Some(b.rows_of(*out, rows, *width)?),
                false => None,
            },
            forms: self.targets(&kept)?,
        };
        let (residual, targets) = self.few_targets(rows, items)?;
        let source = Source::Normed(normed);
        self.few_linear("norm and linear", index as u32, rows, (&source, kind), residual, &targets)?;
        Ok(true)
    }

    /// Where the products of projections go, and what is added to the first.
    fn few_targets(
        &self,
        rows: usize,
        items: &[Item],
    ) -> Result<(Option<bloomery_kernels_gpu::Buffer>, Vec<Target>)> {
        let b = self.buffers;
        let residual = items.first().and_then(|item| Some((item.residual?, item.weight.rows)));
        let residual = residual.map(|(slot, n)| b.rows_of(slot, rows, n)).transpose()?;
        let targets = items.iter().map(|item| {
            let out = b.rows_of(item.out, rows, item.weight.rows)?;
            Ok(Target { weight: item.weight, bias: item.bias, out })
        });
        Ok((residual, targets.collect::<Result<Vec<_>>>()?))
    }

    pub(super) fn few_project(&mut self, index: u32, rows: usize, x: Slot, items: &[Item]) -> Result<()> {
        let (arrays, kind, _) = self.buffers.quantized(x)?;
        let mut left = items;
        while !left.is_empty() {
            // A residual can only be added to the first product of a launch.
            let more = left[1..].iter().take(MOST_MATRICES - 1).take_while(|item| item.residual.is_none());
            let (now, later) = left.split_at(1 + more.count());
            let weights: Vec<TensorRef> = now.iter().map(|item| item.weight).collect();
            if self.has_few_linear(kind, rows, false, &weights) {
                let (residual, targets) = self.few_targets(rows, now)?;
                let source = (&Source::Ready(arrays), kind);
                self.few_linear("linear", index, rows, source, residual, &targets)?;
            } else {
                self.project(index, rows, x, now)?;
            }
            left = later;
        }
        Ok(())
    }

    pub(super) fn few_gate_up(&mut self, index: u32, rows: usize, work: &Work) -> Result<()> {
        let Work::GateUp { x, x_up, gate, up, function, limits, out } = work else { return Ok(()) };
        let b = self.buffers;
        let (arrays, kind, _) = b.quantized(*x)?;
        if x != x_up || !self.has_few_linear(kind, rows, false, &[*gate, *up]) {
            return self.gate_up(index, rows, work);
        }
        let n = gate.rows;
        let half = (4 * rows * n).next_multiple_of(256) as u64;
        let places = (b.work.part(0, half)?, b.work.part(half, half)?);
        let target = |weight: TensorRef, out| Target { weight, bias: None, out };
        let targets = [target(*gate, places.0), target(*up, places.1)];
        self.few_linear("linear", index, rows, (&Source::Ready(arrays), kind), None, &targets)?;
        let job = Pointwise {
            mode: 5,
            b: Some(places.1),
            widths: [n, n, 0],
            width: n,
            out_width: n,
            by: limits.map_or(f32::INFINITY, |l| l.gate_max),
            plus: limits.map_or(f32::INFINITY, |l| l.up_abs),
            act: number(*function),
            ..Pointwise::default()
        };
        self.pointwise(index, places.0, rows, job, b.rows_of(*out, rows, n)?)
    }
}
