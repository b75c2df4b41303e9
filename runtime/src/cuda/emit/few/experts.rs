//! The router and its experts for few rows: two launches.

use super::super::rows::number;
use super::super::work::ExpertWork;
use super::super::{Emitter, Label, Result};
use super::linear::{MOST_SHARED, THREADS, direct, letter, per_block, row_bytes};
use crate::cpu::step::{ExpertsOf, RouteOf, Work};
use bloomery_formats::ActivationKind;
use bloomery_kernels_gpu::Argument;

/// Rows of the down matrix of a block, as the kernel has them.
const TILE: usize = 8;
/// Ranks that a block computes side by side.
const WARPS: usize = 8;

/// Shared memory of the router inside a block.
fn route_shared(of: &RouteOf) -> usize {
    8 * of.experts.next_multiple_of(16) + 128 + 8 * of.used.next_multiple_of(4)
}

fn down_shared(kind: ActivationKind, of: &ExpertsOf) -> usize {
    WARPS * row_bytes(kind, of.spec.ff) + 4 * (TILE + 1) * of.used
}

impl Emitter<'_> {
    /// Router and experts, where there are kernels for them; otherwise nothing is emitted.
    pub(super) fn few_routed(
        &mut self,
        index: u32,
        rows: usize,
        route: &Work,
        experts: &Work,
    ) -> Result<bool> {
        let Work::Route { logits, of: route, ids, weights } = route else { return Ok(false) };
        let Work::Experts { x, x_up, ids: chosen, weights: factors, residual, out, of } = experts else {
            return Ok(false);
        };
        let Some(up) = of.up else { return Ok(false) };
        let ty = |tensor| self.source.shape(tensor).0;
        let (gate_type, down_type) = (ty(of.gate.tensor), ty(of.down.tensor));
        let (Some(kind), Some(down_kind)) = (gate_type.activation_kind(), down_type.activation_kind()) else {
            return Ok(false);
        };
        let (Some(gate_number), Some(down_number)) = (direct(gate_type), direct(down_type)) else {
            return Ok(false);
        };
        let floats = |kind| kind == ActivationKind::F32;
        let shared = row_bytes(kind, of.spec.width) + route_shared(route);
        let same = x == x_up && ids == chosen && weights == factors && ty(up.tensor) == gate_type;
        let fits = shared <= MOST_SHARED && down_shared(down_kind, of) <= MOST_SHARED;
        if !same || !fits || floats(kind) || floats(down_kind) || route.groups.is_some() {
            return Ok(false);
        }
        let b = self.buffers;
        let (ff, width, used) = (of.spec.ff, of.spec.width, of.used);
        let slots = rows * used;
        let hidden = b.work.part(ExpertWork::new(of, slots).gate, (4 * slots * ff) as u64)?;
        let (x, _, _) = b.quantized(*x)?;
        let ids = b.rows_of(*ids, rows, used)?;
        let weights = b.rows_of(*weights, rows, used)?;
        let row_bytes = self.row(of.gate)?.1;
        let arguments = vec![
            Argument::U32(rows as u32),
            Argument::U32(width as u32),
            x.quants.into(),
            x.scales.into(),
            x.sums.into(),
            b.rows_of(*logits, rows, route.experts)?.into(),
            self.vector(route.bias).into(),
            Argument::U32(route.experts as u32),
            Argument::U32(used as u32),
            (route.score as u32).into(),
            u32::from(route.normalize).into(),
            route.sum_floor.into(),
            route.scale.into(),
            b.report.into(),
            index.into(),
            ids.into(),
            weights.into(),
            gate_number.into(),
            row_bytes.into(),
            Argument::U32(ff as u32),
            self.weights.matrix(of.gate)?.into(),
            self.weights.matrix(up)?.into(),
            self.vector(of.gate_bias).into(),
            self.vector(of.up_bias).into(),
            number(of.spec.function).into(),
            of.spec.limits.map_or(f32::INFINITY, |l| l.gate_max).into(),
            of.spec.limits.map_or(f32::INFINITY, |l| l.up_abs).into(),
            hidden.into(),
        ];
        let processors = self.machine.processors() as usize;
        let per = per_block(ff, (2 * processors / slots).max(1));
        let grid = [ff.div_ceil(per) as u32, slots as u32, 1];
        let bytes = u64::from(row_bytes) * (2 * ff * slots) as u64;
        let label = Label { operator: "experts gate and up", step: index, bytes };
        let name = format!("gate_up_few_{}", letter(kind));
        self.launch(&name, grid, THREADS, shared as u32, arguments, label)?;

        let row_bytes = self.row(of.down)?.1;
        let arguments = vec![
            hidden.into(),
            ids.into(),
            weights.into(),
            Argument::U32(of.spec.experts as u32),
            Argument::U32(used as u32),
            down_number.into(),
            row_bytes.into(),
            Argument::U32(width as u32),
            Argument::U32(ff as u32),
            self.weights.matrix(of.down)?.into(),
            self.vector(of.down_bias).into(),
            residual.map(|slot| b.rows_of(slot, rows, width)).transpose()?.into(),
            b.rows_of(*out, rows, width)?.into(),
            b.report.into(),
            (index + 1).into(),
        ];
        let grid = [width.div_ceil(TILE) as u32, rows as u32, 1];
        let bytes = u64::from(row_bytes) * (width * slots) as u64;
        let label = Label { operator: "experts down", step: index + 1, bytes };
        let name = format!("down_few_{}", letter(down_kind));
        let shared = down_shared(down_kind, of) as u32;
        self.launch(&name, grid, THREADS, shared, arguments, label)?;
        Ok(true)
    }
}
