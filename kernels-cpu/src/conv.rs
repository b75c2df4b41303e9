//! Causal convolution. Every channel is a chain of its own, in the order of taps, so how a text is cut into steps changes nothing.

use crate::cpu::Cpu;
use crate::history::{before, remember};
use crate::kv::Run;
use crate::lanes::{Lanes, WIDTH};
use crate::level::Kernel;
use crate::pointwise::{Function, UnaryInPlace};
use crate::rows::for_rows;

/// Constants of a causal depthwise convolution.
#[derive(Debug, Clone, Copy)]
pub struct ConvSpec<'a> {
    /// Taps; the last one meets the current row.
    pub taps: usize,
    /// Rows between taps.
    pub dilation: usize,
    /// `[taps, width]`.
    pub weight: &'a [f32],
    /// `[width]`.
    pub bias: Option<&'a [f32]>,
    /// Applied to the sum.
    pub function: Option<Function>,
}

/// Convolves the rows of one sequence: `out[c] = f(sum over k of weight[k][c] * x[row - (taps-1-k)*dilation][c] + bias[c])`. `x` and `out` are `[rows
/// of the step, width]`, `history` `[kept, width]` the rows before the run, oldest first; it moves on to the run's end.
///
/// # Panics
/// When a length disagrees with the constants, or the history is too short.
pub fn causal_conv(
    cpu: &Cpu,
    spec: &ConvSpec<'_>,
    run: &Run<'_>,
    width: usize,
    x: &[f32],
    history: &mut [f32],
    out: &mut [f32],
) {
    assert!(spec.taps > 0 && spec.weight.len() == spec.taps * width, "{} taps over {width}", spec.taps);
    assert!(spec.bias.is_none_or(|b| b.len() == width), "the bias of a convolution");
    let reach = (spec.taps - 1) * spec.dilation;
    assert!(
        history.len().is_multiple_of(width) && history.len() >= reach * width,
        "a history of {}",
        history.len()
    );
    let span = run.first_row * width..(run.first_row + run.rows) * width;
    let (x, out) = (&x[span.clone()], &mut out[span]);
    let kept = &*history;
    for_rows(&cpu.pool, run.rows, width, out, |range, out| {
        for (row, out) in range.zip(out.chunks_exact_mut(width)) {
            cpu.level.run(ConvRow { spec, x, history: kept, row, out });
        }
    });
    remember(history, width, run.rows, |row, to| to.copy_from_slice(&x[row * width..][..width]));
}

struct ConvRow<'a> {
    spec: &'a ConvSpec<'a>,
    x: &'a [f32],
    history: &'a [f32],
    row: usize,
    out: &'a mut [f32],
}

impl Kernel for ConvRow<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let ConvRow { spec, x, history, row, out } = self;
        let width = out.len();
        match spec.bias {
            Some(bias) => out.copy_from_slice(bias),
            None => out.fill(0.0),
        }
        for (k, weight) in spec.weight.chunks_exact(width).enumerate() {
            let back = (spec.taps - 1 - k) * spec.dilation;
            let met = match row.checked_sub(back) {
                Some(row) => &x[row * width..][..width],
                None => before(history, width, back - row),
            };
            for ((out, met), weight) in out.chunks_mut(WIDTH).zip(met.chunks(WIDTH)).zip(weight.chunks(WIDTH))
            {
                let sum = lanes.fma(lanes.load_some(weight), lanes.load_some(met), lanes.load_some(out));
                lanes.store_some(sum, out);
            }
        }
        if let Some(function) = spec.function {
            UnaryInPlace(function, out).run(lanes);
        }
    }
}
