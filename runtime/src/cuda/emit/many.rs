//! Steps of many rows (prompts, many streams): products on tensor cores, experts with their rows together.

use super::linear::{Chosen, Product};
use super::work::{ExpertWork, most_tiles};
use super::{Emitter, Label, Result};
use crate::cpu::step::{Item, Slot, Work};
use bloomery_kernels_gpu::{Argument, Buffer};

/// Rows of activations and of weights of a block, and its threads, as the kernels have them.
pub(super) const TILE_ROWS: usize = 32;
const TILE_COLUMNS: usize = 64;
const THREADS: u32 = 128;

/// Slots sorted by expert.
#[derive(Clone, Copy)]
pub(super) struct Grouped {
    order: Buffer,
    tiles: Buffer,
    /// Tiles there may be.
    most: usize,
}

/// Bytes of a group of a weight row in shared memory, for types that tensor cores take.
pub(super) fn gemm_step(ty: &str) -> Option<usize> {
    Some(match ty {
        "q4_k" => 144,
        "q5_k" => 176,
        "q6_k" => 212,
        _ => return None,
    })
}

/// Shared memory of a block: places of rows, and two groups of quants, sums, scales and weights.
fn gemm_shared(step: usize) -> usize {
    4 * TILE_ROWS + 2 * (TILE_ROWS * (272 + 36 + 4) + TILE_COLUMNS * step).next_multiple_of(16)
}

impl Emitter<'_> {
    pub(super) fn many_project(&mut self, index: u32, rows: usize, x: Slot, items: &[Item]) -> Result<()> {
        self.project(index, rows, x, items)
    }

    pub(super) fn many_gate_up(&mut self, index: u32, rows: usize, work: &Work) -> Result<()> {
        self.gate_up(index, rows, work)
    }

    pub(super) fn many_experts(&mut self, index: u32, rows: usize, work: &Work) -> Result<()> {
        self.experts(index, rows, work)
    }

    /// Brings the slots of a step into the order of their experts.
    pub(super) fn sort(
        &mut self,
        index: u32,
        ids: Buffer,
        slots: usize,
        experts: usize,
        places: &ExpertWork,
    ) -> Result<Grouped> {
        let work = self.buffers.work;
        let most = most_tiles(slots, experts);
        let order = work.part(places.order, 4 * slots as u64)?;
        let tiles = work.part(places.tiles, 12 * most as u64)?;
        let arguments =
            vec![ids.into(), (slots as u32).into(), order.into(), tiles.into(), Argument::U32(most as u32)];
        let label = Label { operator: "sort by expert", step: index, bytes: 0 };
        self.launch("sort_experts", [experts as u32, 1, 1], 256, 64, arguments, label)?;
        Ok(Grouped { order, tiles, most })
    }

    /// A product on tensor cores, one launch a matrix.
    pub(super) fn gemm(&mut self, operator: &'static str, index: u32, p: &Product) -> Result<()> {
        let (ty, row_bytes) = self.row(p.weight)?;
        let Chosen { experts, used, grouped, .. } = p.chosen;
        let shared = gemm_shared(gemm_step(&ty).unwrap_or(0)) as u32;
        let first = (p.weight, p.bias, p.out, p.residual);
        let more = p.more.iter().map(|(weight, bias, out)| (*weight, *bias, *out, None));
        for (weight, bias, out, residual) in std::iter::once(first).chain(more) {
            let sets = if grouped.is_some() { experts.max(1) } else { 1 };
            let n = weight.rows / sets;
            let tiles = grouped.map_or(p.rows.div_ceil(TILE_ROWS), |grouped| grouped.most);
            let arguments = vec![
                self.weights.matrix(weight)?.into(),
                row_bytes.into(),
                Argument::U32(n as u32),
                Argument::U32(weight.cols as u32),
                p.x.quants.into(),
                p.x.scales.into(),
                p.x.sums.into(),
                grouped.map(|grouped| grouped.order).into(),
                grouped.map(|grouped| grouped.tiles).into(),
                Argument::U32(used as u32),
                Argument::U32(p.rows as u32),
                self.vector(bias).into(),
                residual.into(),
                out.into(),
            ];
            let bytes = u64::from(row_bytes) * (n * sets.min(p.rows)) as u64;
            let grid = [n.div_ceil(TILE_COLUMNS) as u32, tiles as u32, 1];
            let label = Label { operator, step: index, bytes };
            self.launch(&format!("gemm_{ty}"), grid, THREADS, shared, arguments, label)?;
        }
        Ok(())
    }
}
