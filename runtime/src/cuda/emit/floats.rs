//! Products of f32 weights with many rows (routers).

use super::linear::Product;
use super::{Emitter, Label, Result};
use bloomery_kernels_gpu::Argument;

/// Rows of activations and of weights of a block, its threads and shared memory, and the columns it takes at a time, as the kernel
/// has them.
const TILE: usize = 32;
const THREADS: u32 = 256;
const COLUMNS: usize = 64;
const SHARED: u32 = 4 * 32 * (4 * 64 + 32);

impl Emitter<'_> {
    pub(super) fn has_floats(&self, p: &Product, ty: &str) -> bool {
        ty == "f32"
            && p.chosen.ids.is_none()
            && p.chosen.grouped.is_none()
            && p.weight.cols.is_multiple_of(COLUMNS)
    }

    /// One launch a matrix.
    pub(super) fn floats(&mut self, operator: &'static str, index: u32, p: &Product) -> Result<()> {
        let first = (p.weight, p.bias, p.out, p.residual);
        let more = p.more.iter().map(|(weight, bias, out)| (*weight, *bias, *out, None));
        for (weight, bias, out, residual) in std::iter::once(first).chain(more) {
            let arguments = vec![
                self.weights.matrix(weight)?.into(),
                Argument::U32(weight.rows as u32),
                Argument::U32(weight.cols as u32),
                p.x.quants.into(),
                Argument::U32(p.rows as u32),
                self.vector(bias).into(),
                residual.into(),
                out.into(),
            ];
            let grid = [weight.rows.div_ceil(TILE) as u32, p.rows.div_ceil(TILE) as u32, 1];
            let label = Label { operator, step: index, bytes: 4 * (weight.rows * weight.cols) as u64 };
            self.launch("gemm_f32", grid, THREADS, SHARED, arguments, label)?;
        }
        Ok(())
    }
}
