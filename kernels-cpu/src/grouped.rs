//! Block-diagonal products: every group of a row through a matrix of its own, as the per-head projections of absorbed latent attention.

use crate::activations::Activations;
use crate::cpu::{Cpu, weight_tile, with_scratch};
use crate::matmul::{Rows, matmul};
use crate::matrix::Matrix;
use crate::output::OutTile;
use crate::rows::quantize_rows;

/// `out[row][g] = weight_g . x[row][g]` for `groups` groups: `x` is `[rows, groups*in]`, `weight` holds the groups' matrices `[groups*out, in]`
/// one after the other, `out` is `[rows, groups*out]`. `quantized` is memory of the weight's kind and width.
///
/// # Panics
/// When shapes disagree.
pub fn grouped_linear(
    cpu: &Cpu,
    groups: usize,
    weight: &Matrix<'_>,
    rows: usize,
    x: &[f32],
    quantized: &mut Activations,
    out: &mut [f32],
) {
    let (cols, outs) = (weight.cols(), weight.rows() / groups.max(1));
    assert!(groups * outs == weight.rows() && groups > 0, "{groups} groups of {} rows", weight.rows());
    assert!(
        x.len() >= rows * groups * cols && out.len() >= rows * groups * outs,
        "{rows} rows of {groups} groups"
    );
    if rows == 0 {
        return;
    }
    let fits = quantized.rows() == rows * groups && quantized.cols() == cols;
    assert!(fits, "{} activation rows of {}", quantized.rows(), quantized.cols());
    // Rows of one group lie together.
    quantize_rows(cpu, quantized, |i| &x[(i % rows * groups + i / rows) * cols..][..cols]);
    let tile = weight_tile(groups * outs, cols, rows, cpu.pool.threads()).min(outs.next_multiple_of(16));
    let per_group = outs.div_ceil(tile);
    let width = groups * outs;
    let target = OutTile::new(out, rows, width, width).expect("an output of every row");
    let quantized = &*quantized;
    cpu.pool.run(groups * per_group, |chunk, _| {
        let (group, part) = (chunk / per_group, chunk % per_group);
        let range = group * outs + part * tile..group * outs + outs.min((part + 1) * tile);
        // SAFETY: chunks take disjoint columns.
        let mut tile = unsafe { target.window(0..rows, range.clone()) };
        with_scratch(0, |scratch, _| {
            let rows = Rows::Range(group * rows..(group + 1) * rows);
            matmul(cpu.level, weight, range, quantized, rows, &mut tile, scratch)
                .expect("the activations fit the weights");
        });
    });
}
