//! Pooled rows: one row for each group of tokens, out of the tokens' rows.
//!
//! Members are visited in order, each channel for itself: `sum += e` and `weighted += e * value` with e the shared exponential of the
//! gate over its maximum.

use crate::cpu::Cpu;
use crate::history::{before, remember};
use crate::kv::Run;
use crate::lanes::{Lanes, WIDTH};
use crate::level::Kernel;
use crate::rows::for_rows;

/// How members are weighted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolWeights {
    /// All alike.
    Mean,
    /// Softmax over the members, per channel, of gate plus position bias.
    Softmax,
    /// The same, where x, gate and bias are twice as wide as the result: members of the group before use the first half, members of this
    /// group the second.
    OverlappingSoftmax,
}

/// Constants of a pool.
#[derive(Debug, Clone, Copy)]
pub struct PoolSpec<'a> {
    /// Tokens in a group.
    pub ratio: usize,
    /// Values in a result.
    pub width: usize,
    /// How members are weighted.
    pub weights: PoolWeights,
    /// `[ratio, values in a row of x]`, added to the gate.
    pub bias: Option<&'a [f32]>,
}

impl PoolSpec<'_> {
    /// Values in a row of x, and of the gate.
    pub fn x_width(&self) -> usize {
        if self.weights == PoolWeights::OverlappingSoftmax { 2 * self.width } else { self.width }
    }

    /// Rows before a step that its first row can reach back to.
    pub fn history(&self) -> usize {
        let groups = if self.weights == PoolWeights::OverlappingSoftmax { 2 } else { 1 };
        (groups * self.ratio).saturating_sub(1)
    }
}

/// Pools the rows of one sequence. `x` and `gate` are `[rows of the step, x_width]`, `out` `[rows of the step, width]`: the group's row where
/// the run's row completes a group, zeros elsewhere. `history` is `[kept, x and gate]`, the rows before the run, oldest first; it moves on to
/// the run's end.
///
/// # Panics
/// When a length disagrees with the constants, or the history is shorter than [`PoolSpec::history`].
pub fn pool_rows(
    cpu: &Cpu,
    spec: &PoolSpec<'_>,
    run: &Run<'_>,
    x: &[f32],
    gate: Option<&[f32]>,
    history: &mut [f32],
    out: &mut [f32],
) {
    let wide = spec.x_width();
    let joined = wide * if gate.is_some() { 2 } else { 1 };
    let span = run.first_row..run.first_row + run.rows;
    let x = &x[span.start * wide..span.end * wide];
    let gate = gate.map(|g| &g[span.start * wide..span.end * wide]);
    let softmax = spec.weights != PoolWeights::Mean;
    let fits = history.len().is_multiple_of(joined) && history.len() / joined >= spec.history();
    assert!(fits && spec.ratio > 0 && (gate.is_some() || !softmax), "a history of {} values", history.len());
    assert!(spec.bias.is_none_or(|b| b.len() == spec.ratio * wide), "position biases of a pool");
    let out = &mut out[span.start * spec.width..span.end * spec.width];
    let kept = &*history;
    for_rows(&cpu.pool, run.rows, spec.width, out, |range, out| {
        for (row, out) in range.zip(out.chunks_exact_mut(spec.width)) {
            let tokens = run.position + row + 1;
            if tokens.is_multiple_of(spec.ratio) {
                let group = Group { spec, x, gate, history: kept, row, tokens, out };
                cpu.level.run(group);
            } else {
                out.fill(0.0);
            }
        }
    });
    remember(history, joined, run.rows, |row, to| {
        to[..wide].copy_from_slice(&x[row * wide..][..wide]);
        if let Some(gate) = gate {
            to[wide..].copy_from_slice(&gate[row * wide..][..wide]);
        }
    });
}

/// The row that completes a group.
struct Group<'a> {
    spec: &'a PoolSpec<'a>,
    /// Of the run.
    x: &'a [f32],
    gate: Option<&'a [f32]>,
    history: &'a [f32],
    row: usize,
    /// Tokens up to and with the row's.
    tokens: usize,
    out: &'a mut [f32],
}

impl Group<'_> {
    /// Value and gate of the row `back` rows before this one.
    #[inline(always)]
    fn member(&self, back: usize) -> (&[f32], &[f32]) {
        let wide = self.spec.x_width();
        if let Some(row) = self.row.checked_sub(back) {
            let at = row * wide..(row + 1) * wide;
            return (&self.x[at.clone()], self.gate.map_or(&[], |g| &g[at]));
        }
        let joined = wide * if self.gate.is_some() { 2 } else { 1 };
        before(self.history, joined, back - self.row).split_at(wide)
    }

    /// The `i`-th of `members` members: value, gate, and its place in the group with its first channel.
    #[inline(always)]
    fn part(&self, i: usize, members: usize) -> (&[f32], &[f32], usize) {
        let ratio = self.spec.ratio;
        let (value, gate) = self.member(members - 1 - i);
        let overlap = self.spec.weights == PoolWeights::OverlappingSoftmax;
        let first = if overlap && i + ratio >= members { self.spec.width } else { 0 };
        let span = first..first + self.spec.width;
        let bias = i % ratio * self.spec.x_width() + first;
        (&value[span.clone()], gate.get(span).unwrap_or(&[]), bias)
    }
}

impl Kernel for Group<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L) {
        let out = std::mem::take(&mut self.out);
        let ratio = self.spec.ratio;
        if self.spec.weights == PoolWeights::Mean {
            out.fill(0.0);
            for i in 0..ratio {
                let value = self.part(i, ratio).0;
                out.iter_mut().zip(value).for_each(|(o, v)| *o += v / ratio as f32);
            }
            return;
        }
        // The first group has no group before it.
        let overlap = self.spec.weights == PoolWeights::OverlappingSoftmax && self.tokens >= 2 * ratio;
        let members = if overlap { 2 * ratio } else { ratio };
        for (c, out) in out.chunks_mut(WIDTH).enumerate() {
            let at = c * WIDTH..c * WIDTH + out.len();
            let mut most = lanes.splat(f32::NEG_INFINITY);
            for i in 0..members {
                most = lanes.max(self.logit(lanes, i, members, at.clone()).0, most);
            }
            let (mut sum, mut weighted) = (lanes.splat(0.0), lanes.splat(0.0));
            for i in 0..members {
                let (logit, value) = self.logit(lanes, i, members, at.clone());
                let e = lanes.exp(lanes.sub(logit, most));
                sum = lanes.add(sum, e);
                weighted = lanes.fma(e, value, weighted);
            }
            let (mut sums, mut all) = ([0.0; WIDTH], [0.0; WIDTH]);
            lanes.store(sum, &mut sums);
            lanes.store(weighted, &mut all);
            out.iter_mut().zip(all).zip(sums).for_each(|((o, w), s)| *o = w / s);
        }
    }
}

impl Group<'_> {
    /// Gate plus bias, and the value, of some channels of a member.
    #[inline(always)]
    fn logit<L: Lanes>(
        &self,
        lanes: L,
        i: usize,
        members: usize,
        at: std::ops::Range<usize>,
    ) -> (L::V, L::V) {
        let (value, gate, bias) = self.part(i, members);
        let gate = lanes.load_some(&gate[at.clone()]);
        let value = lanes.load_some(&value[at.clone()]);
        match self.spec.bias {
            None => (gate, value),
            Some(b) => (lanes.add(gate, lanes.load_some(&b[bias + at.start..bias + at.end])), value),
        }
    }
}
