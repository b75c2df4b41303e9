//! Operators that roll a state over the rows of a sequence: causal convolution and the gated delta rule.
//!
//! Every channel of a convolution and every value channel of a delta rule is a chain of its own, in the order of taps and of key channels. Rows are
//! taken one by one, so how a text is cut into steps changes nothing.

use crate::cpu::Cpu;
use crate::history::{before, remember};
use crate::kv::Run;
use crate::lanes::{Lanes, WIDTH};
use crate::level::Kernel;
use crate::norm::squares;
use crate::pointwise::{Function, UnaryInPlace};
use crate::rows::for_rows;
use crate::split::Split;
use bloomery_formats::math;
use std::cell::RefCell;

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

/// Logarithm of the decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decay {
    /// `a * softplus(x + dt)`, one for a head.
    ScalarSoftplus,
    /// `a * softplus(x + dt)`, one for a key channel.
    ChannelSoftplus,
    /// `lower_bound * sigmoid(-a * (x + dt))`, one for a key channel.
    ChannelSigmoid {
        /// Negative: the strongest decay.
        lower_bound: f32,
    },
}

/// Constants of the gated delta rule.
#[derive(Debug, Clone, Copy)]
pub struct DeltaSpec<'a> {
    /// Heads of q and k.
    pub key_heads: usize,
    /// Heads of v and beta; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Width of a key.
    pub key: usize,
    /// Width of a value.
    pub value: usize,
    /// How the decay comes about.
    pub decay: Decay,
    /// Factor on q.
    pub scale: f32,
    /// L2-normalise q and k per head with this epsilon.
    pub l2_eps: Option<f32>,
    /// Key head of value head j: `j mod key_heads`, otherwise `j / (value_heads / key_heads)`.
    pub tiled: bool,
    /// `[value_heads]`, negative.
    pub a: &'a [f32],
    /// As wide as a row of the decay operand: `[value_heads]`, or `[value_heads, key]` for a decay per channel.
    pub dt: &'a [f32],
}

/// Operands of the rule, rows of the step.
#[derive(Debug, Clone, Copy)]
pub struct DeltaRows<'a> {
    /// `[rows, key_heads, key]`.
    pub q: &'a [f32],
    /// `[rows, key_heads, key]`.
    pub k: &'a [f32],
    /// `[rows, value_heads, value]`.
    pub v: &'a [f32],
    /// `[rows, value_heads]` or `[rows, value_heads, key]`.
    pub decay: &'a [f32],
    /// `[rows, value_heads]`, between 0 and 1.
    pub beta: &'a [f32],
}

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = RefCell::default();
}

/// Runs the rule over the rows of one sequence (Yang et al. 2024; a decay per channel: Kimi team 2025). For every value head with its state S
/// `[key, value]`: `S = exp(g) S; d = beta (v - S^T k); S = S + k d^T; out = S^T q`. `state` is `[value_heads, key, value]`, `out` `[rows of the
/// step, value_heads, value]`.
///
/// # Panics
/// When a length disagrees with the constants.
pub fn gated_delta(
    cpu: &Cpu,
    spec: &DeltaSpec<'_>,
    run: &Run<'_>,
    rows: &DeltaRows<'_>,
    state: &mut [f32],
    out: &mut [f32],
) {
    let (keys, values) = (spec.key_heads * spec.key, spec.value_heads * spec.value);
    let gates =
        if spec.decay == Decay::ScalarSoftplus { spec.value_heads } else { spec.value_heads * spec.key };
    let block = spec.key * spec.value;
    let n = run.first_row + run.rows;
    let heads = spec.key_heads > 0 && spec.value_heads.is_multiple_of(spec.key_heads);
    assert!(heads && state.len() == spec.value_heads * block, "the state of {} heads", spec.value_heads);
    assert!(
        spec.a.len() == spec.value_heads && spec.dt.len() == gates,
        "the decay of {} heads",
        spec.value_heads
    );
    let fits = rows.q.len() >= n * keys && rows.k.len() >= n * keys && rows.v.len() >= n * values;
    let fits = fits && rows.decay.len() >= n * gates && rows.beta.len() >= n * spec.value_heads;
    assert!(fits && out.len() >= n * values, "{n} rows of a delta rule");
    let (state, out) = (Split::new(state), Split::new(out));
    cpu.pool.run(spec.value_heads, |head, _| {
        // SAFETY: every head is one chunk.
        let state = unsafe { state.part(head * block..(head + 1) * block) };
        SCRATCH.with_borrow_mut(|scratch| {
            cpu.level.run(DeltaHead { spec, run, rows, head, gates, state, out: &out, scratch });
        });
    });
}

/// All rows of a run for one value head.
struct DeltaHead<'a> {
    spec: &'a DeltaSpec<'a>,
    run: &'a Run<'a>,
    rows: &'a DeltaRows<'a>,
    head: usize,
    /// Width of a row of the decay operand.
    gates: usize,
    /// `[key, value]`.
    state: &'a mut [f32],
    out: &'a Split<'a, f32>,
    scratch: &'a mut Vec<f32>,
}

/// Vectors of value channels that are held at once.
const HELD: usize = 4;

impl Kernel for DeltaHead<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let DeltaHead { spec, run, rows, head, gates, state, out, scratch } = self;
        let (key, value) = (spec.key, spec.value);
        let key_head = match spec.tiled {
            true => head % spec.key_heads,
            false => head / (spec.value_heads / spec.key_heads),
        };
        scratch.resize(3 * key, 0.0);
        let (q, rest) = scratch.split_at_mut(key);
        let (k, factors) = rest.split_at_mut(key);
        for row in run.first_row..run.first_row + run.rows {
            let at = (row * spec.key_heads + key_head) * key;
            normalise(lanes, &rows.q[at..at + key], spec.l2_eps, spec.scale, q);
            normalise(lanes, &rows.k[at..at + key], spec.l2_eps, 1.0, k);
            let x = &rows.decay[row * gates..(row + 1) * gates];
            let a = spec.a[head];
            match spec.decay {
                Decay::ScalarSoftplus => factors.fill(math::exp(a * math::softplus(x[head] + spec.dt[head]))),
                Decay::ChannelSoftplus => {
                    let span = head * key..(head + 1) * key;
                    for ((f, x), dt) in factors.iter_mut().zip(&x[span.clone()]).zip(&spec.dt[span]) {
                        *f = math::exp(a * math::softplus(x + dt));
                    }
                }
                Decay::ChannelSigmoid { lower_bound } => {
                    let span = head * key..(head + 1) * key;
                    for ((f, x), dt) in factors.iter_mut().zip(&x[span.clone()]).zip(&spec.dt[span]) {
                        *f = math::exp(lower_bound * math::sigmoid(-a * (x + dt)));
                    }
                }
            }
            let at = (row * spec.value_heads + head) * value;
            let v = &rows.v[at..at + value];
            // SAFETY: every (row, head) belongs to one chunk.
            let out = unsafe { out.part(at..at + value) };
            let beta = rows.beta[row * spec.value_heads + head];
            let mut first = 0;
            while first + HELD * WIDTH <= value {
                advance::<L, HELD>(lanes, state, value, first, [&*q, &*k, &*factors], v, beta, out);
                first += HELD * WIDTH;
            }
            while first < value {
                advance::<L, 1>(lanes, state, value, first, [&*q, &*k, &*factors], v, beta, out);
                first += WIDTH;
            }
        }
    }
}

/// `x / sqrt(sum x^2 + eps) * scale`, without eps `x * scale`.
#[inline(always)]
fn normalise<L: Lanes>(lanes: L, x: &[f32], eps: Option<f32>, scale: f32, out: &mut [f32]) {
    let factor = eps.map_or(1.0, |eps| 1.0 / (squares(lanes, x, 0.0) + eps).sqrt()) * scale;
    out.iter_mut().zip(x).for_each(|(out, x)| *out = x * factor);
}

/// One row for the value channels `first .. first + N*WIDTH`, fewer at the end.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "a row of the rule")]
fn advance<L: Lanes, const N: usize>(
    lanes: L,
    state: &mut [f32],
    value: usize,
    first: usize,
    [q, k, factors]: [&[f32]; 3],
    v: &[f32],
    beta: f32,
    out: &mut [f32],
) {
    let span = |i: usize| first + i * WIDTH..value.min(first + (i + 1) * WIDTH);
    let zero = lanes.splat(0.0);
    // 1. Decay, and what the state answers for k.
    let mut answer = [zero; N];
    for ((state, k), factor) in state.chunks_exact_mut(value).zip(k).zip(factors) {
        let (k, factor) = (lanes.splat(*k), lanes.splat(*factor));
        for (i, answer) in answer.iter_mut().enumerate() {
            let s = lanes.mul(lanes.load_some(&state[span(i)]), factor);
            lanes.store_some(s, &mut state[span(i)]);
            *answer = lanes.fma(k, s, *answer);
        }
    }
    // 2. The correction.
    let beta = lanes.splat(beta);
    let mut delta = [zero; N];
    for (i, delta) in delta.iter_mut().enumerate() {
        *delta = lanes.mul(beta, lanes.sub(lanes.load_some(&v[span(i)]), answer[i]));
    }
    // 3. Learn it, then ask with q.
    let mut sums = [zero; N];
    for ((state, k), q) in state.chunks_exact_mut(value).zip(k).zip(q) {
        let (k, q) = (lanes.splat(*k), lanes.splat(*q));
        for i in 0..N {
            let s = lanes.fma(k, delta[i], lanes.load_some(&state[span(i)]));
            lanes.store_some(s, &mut state[span(i)]);
            sums[i] = lanes.fma(q, s, sums[i]);
        }
    }
    for (i, sum) in sums.into_iter().enumerate() {
        lanes.store_some(sum, &mut out[span(i)]);
    }
}
