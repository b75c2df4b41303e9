//! Gated feed-forward networks, routed and dense: rows grouped by expert, each expert's matrices read once for all its rows.
//!
//! Three phases over rows sorted by expert (a slot is one (row, rank) pair): gate and up with the activation, quantisation of
//! the result, down. Then every row adds its experts' outputs up in rank order, whichever thread computed them when.

use crate::activations::Activations;
use crate::cpu::{Cpu, weight_tile, with_scratch};
use crate::matmul::{Rows, matmul};
use crate::matrix::Matrix;
use crate::output::OutTile;
use crate::pointwise::{Function, GateInPlace, GateLimits};
use crate::rows::{for_rows, quantize};
use std::ops::Range;

/// Weights of all experts of a layer, stacked.
#[derive(Debug, Clone, Copy)]
pub struct ExpertWeights<'a> {
    /// `[experts*ff, width]`; with `up` absent `[experts*2*ff, width]`, an expert's gate rows before its up rows.
    pub gate: Matrix<'a>,
    /// `[experts*ff, width]`.
    pub up: Option<Matrix<'a>>,
    /// `[experts*width, ff]`.
    pub down: Matrix<'a>,
    /// `[experts*ff]`.
    pub gate_bias: Option<&'a [f32]>,
    /// `[experts*ff]`.
    pub up_bias: Option<&'a [f32]>,
    /// `[experts*width]`.
    pub down_bias: Option<&'a [f32]>,
}

/// Constants of a gated network.
#[derive(Debug, Clone, Copy)]
pub struct ExpertSpec {
    /// Experts.
    pub experts: usize,
    /// Width of the hidden layer.
    pub ff: usize,
    /// Width of a row.
    pub width: usize,
    /// Applied to the gate.
    pub function: Function,
    /// Limits.
    pub limits: Option<GateLimits>,
}

/// Which slots belong to which expert. Memory is kept between steps.
#[derive(Debug, Clone, Default)]
pub struct Grouping {
    /// First slot of each expert, and the end: `[experts + 1]`.
    starts: Vec<u32>,
    /// Row of each slot.
    rows: Vec<u32>,
    /// Slot of each (row, rank).
    slots: Vec<u32>,
    used: usize,
}

impl Grouping {
    /// Sorts `[rows, used]` expert numbers by expert; rows of one expert keep their order.
    ///
    /// # Panics
    /// When a number is not below `experts`.
    pub fn sort(&mut self, experts: usize, used: usize, ids: &[u32]) {
        self.used = used;
        self.starts.clear();
        self.starts.resize(experts + 1, 0);
        for id in ids {
            self.starts[*id as usize + 1] += 1;
        }
        for e in 0..experts {
            self.starts[e + 1] += self.starts[e];
        }
        self.rows.resize(ids.len(), 0);
        self.slots.resize(ids.len(), 0);
        // `starts` serves as the cursor and is shifted back afterwards.
        for (i, id) in ids.iter().enumerate() {
            let slot = self.starts[*id as usize];
            self.starts[*id as usize] += 1;
            self.rows[slot as usize] = (i / used.max(1)) as u32;
            self.slots[i] = slot;
        }
        self.starts.copy_within(0..experts, 1);
        self.starts[0] = 0;
    }

    /// All slots.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn range(&self, expert: usize) -> Range<usize> {
        self.starts[expert] as usize..self.starts[expert + 1] as usize
    }
}

/// Memory of the phases, kept between steps.
pub struct ExpertBuffers {
    hidden: Vec<f32>,
    hidden_quantized: Activations,
    results: Vec<f32>,
    chunks: Vec<ChunkOf>,
}

#[derive(Debug, Clone, Copy)]
struct ChunkOf {
    expert: u32,
    first: u32,
    tile: u32,
}

impl ExpertBuffers {
    /// Buffers for hidden rows of this width.
    ///
    /// # Errors
    /// The width cannot be quantised for `down`.
    pub fn new(spec: &ExpertSpec, down: &Matrix<'_>) -> Result<ExpertBuffers, crate::matrix::MatmulError> {
        Ok(ExpertBuffers {
            hidden: Vec::new(),
            hidden_quantized: Activations::new(down.activation_kind(), spec.ff)?,
            results: Vec::new(),
            chunks: Vec::new(),
        })
    }
}

/// Routed experts: `out[row] = residual[row] + sum over ranks of weight * expert(x[row])`.
///
/// `x` and `x_up` (the same rows, in the form that `up` needs where it differs) hold `[rows, width]`, `weights` and the
/// grouping's ids `[rows, used]`, `out` and `residual` `[rows, width]`.
///
/// # Panics
/// When shapes disagree.
#[allow(clippy::too_many_arguments, reason = "a fat operator")]
pub fn experts(
    cpu: &Cpu,
    spec: &ExpertSpec,
    weights: &ExpertWeights<'_>,
    buffers: &mut ExpertBuffers,
    x: &Activations,
    x_up: &Activations,
    grouping: &Grouping,
    factors: &[f32],
    residual: Option<&[f32]>,
    out: &mut [f32],
) {
    let (rows, used, width) = (x.rows(), grouping.used, spec.width);
    assert!(
        grouping.starts.len() == spec.experts + 1 && grouping.len() == rows * used,
        "grouping of other rows"
    );
    assert!(factors.len() >= rows * used && out.len() >= rows * width, "operands of experts");
    assert!(residual.is_none_or(|r| r.len() >= rows * width), "residual of experts");
    let row_of = |slots: Range<usize>| &grouping.rows[slots];
    hidden(
        cpu,
        spec,
        weights,
        buffers,
        x,
        x_up,
        &|e| grouping.range(e),
        &|r| Rows::List(row_of(r)),
        grouping.len(),
    );
    let ExpertBuffers { results, .. } = buffers;
    let results = &results[..];
    for_rows(&cpu.pool, rows, width, out, |range, out| {
        for (row, out) in range.zip(out.chunks_exact_mut(width)) {
            out.fill(0.0);
            for rank in 0..used {
                let slot = grouping.slots[row * used + rank] as usize;
                let factor = factors[row * used + rank];
                let result = &results[slot * width..(slot + 1) * width];
                out.iter_mut().zip(result).for_each(|(o, r)| *o += factor * r);
            }
            if let Some(residual) = residual {
                let residual = &residual[row * width..(row + 1) * width];
                out.iter_mut().zip(residual).for_each(|(o, r)| *o += r);
            }
        }
    });
}

/// The first half of a dense network: `out = function(x . gate^T) * (x . up^T)`, `[rows, ff]`.
///
/// # Panics
/// When shapes disagree.
#[allow(clippy::too_many_arguments, reason = "two matrices with their operands")]
pub fn gate_up(
    cpu: &Cpu,
    function: Function,
    limits: Option<GateLimits>,
    gate: &Matrix<'_>,
    up: &Matrix<'_>,
    x: &Activations,
    x_up: &Activations,
    out: &mut [f32],
) {
    let (rows, ff) = (x.rows(), gate.rows());
    let tile = half_tile(ff, gate.cols(), rows, cpu.pool.threads());
    let target = OutTile::new(out, rows, ff, ff).expect("an output of every row");
    cpu.pool.run(ff.div_ceil(tile), |chunk, _| {
        let columns = chunk * tile..ff.min((chunk + 1) * tile);
        // SAFETY: chunks take disjoint columns.
        let part = unsafe { target.window(0..rows, columns.clone()) };
        let halves = Halves { gate, up, gate_rows: columns.clone(), up_rows: columns, biases: (None, None) };
        halves.multiply(cpu, function, limits, (x, x_up), Rows::Range(0..rows), part);
    });
}

/// Weight rows of each of two matrices that a chunk takes.
fn half_tile(ff: usize, cols: usize, rows: usize, threads: usize) -> usize {
    weight_tile(ff, 2 * cols, rows, threads)
}

/// Gate and up rows of one chunk.
struct Halves<'a> {
    gate: &'a Matrix<'a>,
    up: &'a Matrix<'a>,
    gate_rows: Range<usize>,
    up_rows: Range<usize>,
    /// Of these rows.
    biases: (Option<&'a [f32]>, Option<&'a [f32]>),
}

impl Halves<'_> {
    fn multiply(
        self,
        cpu: &Cpu,
        function: Function,
        limits: Option<GateLimits>,
        x: (&Activations, &Activations),
        rows: Rows<'_>,
        mut out: OutTile<'_>,
    ) {
        let (n, columns) = (rows.len(), self.gate_rows.len());
        with_scratch(n * columns, |scratch, up| {
            matmul(cpu.level, self.gate, self.gate_rows, x.0, rows.clone(), &mut out, scratch)
                .expect("the activations fit the gate");
            let mut up_tile = OutTile::new(up, n, columns, columns).expect("scratch of this size");
            matmul(cpu.level, self.up, self.up_rows, x.1, rows, &mut up_tile, scratch)
                .expect("the activations fit the up matrix");
            for (row, up) in up.chunks_exact_mut(columns).enumerate() {
                let gate = out.row_mut(row);
                if let Some(bias) = self.biases.0 {
                    gate.iter_mut().zip(bias).for_each(|(v, b)| *v += b);
                }
                if let Some(bias) = self.biases.1 {
                    up.iter_mut().zip(bias).for_each(|(v, b)| *v += b);
                }
                cpu.level.run(GateInPlace { function, limits, gate, up });
            }
        });
    }
}

/// All phases up to the experts' results `[slots, width]`.
#[allow(clippy::too_many_arguments, reason = "a fat operator")]
fn hidden<'r>(
    cpu: &Cpu,
    spec: &ExpertSpec,
    weights: &ExpertWeights<'_>,
    buffers: &mut ExpertBuffers,
    x: &Activations,
    x_up: &Activations,
    slots_of: &(impl Fn(usize) -> Range<usize> + Sync),
    rows_of: &(impl Fn(Range<usize>) -> Rows<'r> + Sync),
    slots: usize,
) {
    let (ff, width) = (spec.ff, spec.width);
    let fused = weights.up.is_none();
    let expected = (spec.experts * ff * if fused { 2 } else { 1 }, spec.experts * width);
    assert!((weights.gate.rows(), weights.down.rows()) == expected, "expert matrices of another shape");
    assert!(weights.up.is_none_or(|u| u.rows() == spec.experts * ff), "expert matrices of another shape");
    let ExpertBuffers { hidden, hidden_quantized, results, chunks } = buffers;
    hidden.resize(hidden.len().max(slots * ff), 0.0);
    results.resize(results.len().max(slots * width), 0.0);
    let threads = cpu.pool.threads();
    let active = (0..spec.experts).filter(|e| !slots_of(*e).is_empty()).count();
    // Experts side by side occupy the threads already: each needs only its share of chunks.
    let share = threads.div_ceil(active.max(1));

    // Gate and up.
    plan(chunks, spec.experts, ff, slots_of, |rows| half_tile(ff, weights.gate.cols(), rows, share));
    let up = weights.up.unwrap_or(weights.gate);
    let target = OutTile::new(&mut hidden[..slots * ff], slots, ff, ff).expect("an output of every slot");
    cpu.pool.run(chunks.len(), |chunk, _| {
        let ChunkOf { expert, first, tile } = chunks[chunk];
        let (expert, first) = (expert as usize, first as usize);
        let columns = first..ff.min(first + tile as usize);
        let slots = slots_of(expert);
        let (gate_start, up_start) =
            if fused { (expert * 2 * ff, expert * 2 * ff + ff) } else { (expert * ff, expert * ff) };
        let bias = |b: Option<&'_ [f32]>, columns: &Range<usize>| -> Option<Range<usize>> {
            b.map(|_| expert * ff + columns.start..expert * ff + columns.end)
        };
        let gate_bias = bias(weights.gate_bias, &columns).and_then(|r| weights.gate_bias.map(|b| &b[r]));
        let up_bias = bias(weights.up_bias, &columns).and_then(|r| weights.up_bias.map(|b| &b[r]));
        // SAFETY: chunks differ in expert (disjoint slots) or columns.
        let part = unsafe { target.window(slots.clone(), columns.clone()) };
        Halves {
            gate: &weights.gate,
            up: &up,
            gate_rows: gate_start + columns.start..gate_start + columns.end,
            up_rows: up_start + columns.start..up_start + columns.end,
            biases: (gate_bias, up_bias),
        }
        .multiply(cpu, spec.function, spec.limits, (x, x_up), rows_of(slots), part);
    });

    // Quantisation.
    let kind = hidden_quantized.kind();
    hidden_quantized.reset(kind, ff, slots).expect("the width was accepted when the buffers were made");
    quantize(cpu, slots, ff, hidden, &mut [hidden_quantized]);

    // Down.
    plan(chunks, spec.experts, width, slots_of, |rows| weight_tile(width, ff, rows, share));
    let target =
        OutTile::new(&mut results[..slots * width], slots, width, width).expect("an output of every slot");
    let hidden_quantized = &*hidden_quantized;
    cpu.pool.run(chunks.len(), |chunk, _| {
        let ChunkOf { expert, first, tile } = chunks[chunk];
        let (expert, first) = (expert as usize, first as usize);
        let columns = first..width.min(first + tile as usize);
        let slots = slots_of(expert);
        // SAFETY: chunks differ in expert (disjoint slots) or columns.
        let mut part = unsafe { target.window(slots.clone(), columns.clone()) };
        let n = slots.len();
        let range = expert * width + columns.start..expert * width + columns.end;
        with_scratch(0, |scratch, _| {
            matmul(
                cpu.level,
                &weights.down,
                range.clone(),
                hidden_quantized,
                Rows::Range(slots),
                &mut part,
                scratch,
            )
            .expect("the hidden rows fit the down matrix");
        });
        if let Some(bias) = weights.down_bias {
            for row in 0..n {
                part.row_mut(row).iter_mut().zip(&bias[range.clone()]).for_each(|(v, b)| *v += b);
            }
        }
    });
}

/// Lists the chunks of a phase: every expert that has slots, its output rows in tiles.
fn plan(
    chunks: &mut Vec<ChunkOf>,
    experts: usize,
    outputs: usize,
    slots_of: &impl Fn(usize) -> Range<usize>,
    tile_for: impl Fn(usize) -> usize,
) {
    chunks.clear();
    for expert in 0..experts {
        let slots = slots_of(expert);
        if slots.is_empty() {
            continue;
        }
        let tile = tile_for(slots.len());
        for first in (0..outputs).step_by(tile) {
            chunks.push(ChunkOf { expert: expert as u32, first: first as u32, tile: tile as u32 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grouping_sorts_slots_by_expert() {
        let mut g = Grouping::default();
        g.sort(4, 2, &[3, 1, 1, 0, 3, 0]);
        assert_eq!(g.starts, [0, 2, 4, 4, 6]);
        assert_eq!(g.rows, [1, 2, 0, 1, 0, 2]);
        for (i, slot) in g.slots.iter().enumerate() {
            assert_eq!(g.rows[*slot as usize] as usize, i / 2);
        }
        g.sort(2, 1, &[]);
        assert!(g.is_empty() && g.range(1).is_empty());
    }
}
