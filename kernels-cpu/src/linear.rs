//! Projections: several matrices over the same rows in one job, with bias and residual.

use crate::activations::Activations;
use crate::cpu::{Cpu, weight_tile, with_scratch};
use crate::matmul::{Rows, matmul};
use crate::matrix::Matrix;
use crate::output::OutTile;

/// One projection of a job: `out = x . weight^T + bias + residual`, added in this order.
pub struct Projection<'a> {
    /// `[outputs, inputs]`.
    pub weight: Matrix<'a>,
    /// `[outputs]`.
    pub bias: Option<&'a [f32]>,
    /// `[rows, outputs]`.
    pub residual: Option<&'a [f32]>,
    /// `[rows, outputs]`.
    pub out: &'a mut [f32],
}

/// Most projections of one job.
pub const MOST: usize = 4;

/// Runs projections of the same activations, split by weight rows.
///
/// # Panics
/// When shapes disagree or there are more than [`MOST`] projections.
pub fn project<'a: 'p, 'p>(
    cpu: &Cpu,
    x: &Activations,
    projections: impl IntoIterator<Item = &'p mut Projection<'a>>,
) {
    let mut list: [Option<&mut Projection<'_>>; MOST] = [const { None }; MOST];
    let mut count = 0;
    for projection in projections {
        assert!(count < MOST, "at most {MOST} projections at once");
        list[count] = Some(projection);
        count += 1;
    }
    let rows = x.rows();
    let mut starts = [0usize; MOST + 1];
    let mut tiles = [16usize; MOST];
    let total: usize = list.iter().flatten().map(|p| p.weight.rows()).sum();
    for (i, p) in list.iter().flatten().enumerate() {
        let n = p.weight.rows();
        let fits = |v: &[f32]| v.len() >= rows * n;
        assert!(
            p.residual.is_none_or(fits) && p.bias.is_none_or(|b| b.len() == n),
            "operands of a projection"
        );
        tiles[i] = weight_tile(total, p.weight.cols(), rows, cpu.pool.threads());
        starts[i + 1] = starts[i] + n.div_ceil(tiles[i]);
    }
    let fixed: [_; MOST] = std::array::from_fn(|i| list[i].as_ref().map(|p| (p.weight, p.bias, p.residual)));
    let mut targets: [Option<OutTile<'_>>; MOST] = [const { None }; MOST];
    for (target, p) in targets.iter_mut().zip(list.into_iter().flatten()) {
        let n = p.weight.rows();
        *target = Some(OutTile::new(&mut *p.out, rows, n, n).expect("an output of every row"));
    }
    cpu.pool.run(starts[count], |chunk, _| {
        let i = starts[1..=count].partition_point(|end| *end <= chunk);
        let (Some((weight, bias, residual)), Some(target)) = (&fixed[i], &targets[i]) else { return };
        let n = weight.rows();
        let first = (chunk - starts[i]) * tiles[i];
        let range = first..n.min(first + tiles[i]);
        // SAFETY: chunks of one projection take disjoint columns.
        let mut tile = unsafe { target.window(0..rows, range.clone()) };
        with_scratch(0, |scratch, _| {
            matmul(cpu.level, weight, range.clone(), x, Rows::Range(0..rows), &mut tile, scratch)
                .expect("the activations fit the weights");
        });
        for row in 0..rows {
            let out = tile.row_mut(row);
            if let Some(bias) = bias {
                out.iter_mut().zip(&bias[range.clone()]).for_each(|(o, b)| *o += b);
            }
            if let Some(residual) = residual {
                let residual = &residual[row * n..(row + 1) * n][range.clone()];
                out.iter_mut().zip(residual).for_each(|(o, r)| *o += r);
            }
        }
    });
}
