//! The gated delta rule (Yang et al. 2024; with a decay per key channel: Kimi team 2025), row by row.
//!
//! A head's state is `[key, value]`, and its value channels know nothing of each other: each is a lane with chains of its own over the key
//! channels in order. So neither the width of a register nor the cut of a text into steps nor the company of other sequences touches a bit.
//! What differs is only where the state lies meanwhile: a single row works on it in place, many rows on a copy of [`HELD`] vectors of
//! channels that stays in the first cache.

use crate::cpu::Cpu;
use crate::kv::Run;
use crate::lanes::{Lanes, WIDTH};
use crate::level::Kernel;
use crate::norm::squares;
use crate::split::Split;
use bloomery_formats::math;
use std::cell::RefCell;
use std::ops::Range;

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

/// Vectors of value channels that are held at once.
const HELD: usize = 4;

/// Rows whose keys, queries and decays are made at once.
const TILE: usize = 32;

/// From so many rows on copying a part of the state pays.
const COPIED: usize = 3;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

#[derive(Default)]
struct Scratch {
    /// `[TILE, 4, key]`: query, key, decay, key times decay.
    rows: Vec<f32>,
    /// `[key, HELD]` vectors of the state.
    state: Vec<[f32; WIDTH]>,
    /// `[TILE, HELD]` vectors: values in, results out.
    values: Vec<[f32; WIDTH]>,
}

/// Runs the rule over the rows of some sequences. For every value head with its state S `[key, value]`:
/// `S = exp(g) S; d = beta (v - S^T k); S = S + k d^T; out = S^T q`. `blocks[i][place]` is the state `[value_heads, key, value]` of the i-th
/// run, `out` is `[rows, value_heads, value]`.
///
/// # Panics
/// When a length disagrees with the constants, or runs share a row.
pub fn gated_delta(
    cpu: &Cpu,
    spec: &DeltaSpec<'_>,
    runs: &[Run<'_>],
    rows: &DeltaRows<'_>,
    blocks: &mut [&mut [f32]],
    place: Range<usize>,
    out: &mut [f32],
) {
    let (keys, values) = (spec.key_heads * spec.key, spec.value_heads * spec.value);
    let gates = spec.gates();
    let head_state = spec.key * spec.value;
    let heads = spec.key_heads > 0 && spec.value_heads.is_multiple_of(spec.key_heads);
    assert!(heads && place.len() == spec.value_heads * head_state, "a state of {} heads", spec.value_heads);
    assert!(
        spec.a.len() == spec.value_heads && spec.dt.len() == gates,
        "decays of {} heads",
        spec.value_heads
    );
    assert!(runs.len() == blocks.len(), "{} runs with {} states", runs.len(), blocks.len());
    let mut end = 0;
    for run in runs {
        assert!(run.first_row >= end, "runs share row {}", run.first_row);
        end = run.first_row + run.rows;
    }
    let fits = rows.q.len() >= end * keys && rows.k.len() >= end * keys && rows.v.len() >= end * values;
    let fits = fits && rows.decay.len() >= end * gates && rows.beta.len() >= end * spec.value_heads;
    assert!(fits && out.len() >= end * values, "{end} rows of a delta rule");
    let states: Vec<Split<'_, f32>> = blocks.iter_mut().map(|b| Split::new(&mut b[place.clone()])).collect();
    let out = Split::new(out);
    cpu.pool.run(runs.len() * spec.value_heads, |chunk, _| {
        let (run, head) = (chunk / spec.value_heads, chunk % spec.value_heads);
        // SAFETY: every head of every sequence is one chunk.
        let state = unsafe { states[run].part(head * head_state..(head + 1) * head_state) };
        let run = &runs[run];
        SCRATCH.with_borrow_mut(|scratch| {
            cpu.level.run(Head { spec, run, rows, head, state, out: &out, scratch });
        });
    });
}

impl DeltaSpec<'_> {
    /// Width of a row of the decay operand.
    fn gates(&self) -> usize {
        match self.decay {
            Decay::ScalarSoftplus => self.value_heads,
            _ => self.value_heads * self.key,
        }
    }
}

/// All rows of a run for one value head.
struct Head<'a> {
    spec: &'a DeltaSpec<'a>,
    run: &'a Run<'a>,
    rows: &'a DeltaRows<'a>,
    head: usize,
    /// `[key, value]`.
    state: &'a mut [f32],
    out: &'a Split<'a, f32>,
    scratch: &'a mut Scratch,
}

impl Kernel for Head<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Head { spec, run, rows, head, state, out, scratch } = self;
        let (key, value) = (spec.key, spec.value);
        scratch.rows.resize(TILE * 4 * key, 0.0);
        scratch.state.resize(key * HELD, [0.0; WIDTH]);
        scratch.values.resize(TILE * HELD, [0.0; WIDTH]);
        let in_place = run.rows < COPIED && value.is_multiple_of(WIDTH);
        for first in (run.first_row..run.first_row + run.rows).step_by(TILE) {
            let tile = first..(first + TILE).min(run.first_row + run.rows);
            for (row, made) in tile.clone().zip(scratch.rows.chunks_exact_mut(4 * key)) {
                spec.make(lanes, rows, row, head, made);
            }
            for from in (0..value).step_by(HELD * WIDTH) {
                let channels = from..value.min(from + HELD * WIDTH);
                let n = channels.len().div_ceil(WIDTH);
                let at = |row: usize| {
                    let start = (row * spec.value_heads + head) * value;
                    start + channels.start..start + channels.end
                };
                for (row, held) in tile.clone().zip(scratch.values.chunks_exact_mut(HELD)) {
                    for (v, held) in rows.v[at(row)].chunks(WIDTH).zip(held) {
                        lanes.store(lanes.load_some(v), held);
                    }
                }
                if !in_place {
                    for (s, held) in state.chunks_exact(value).zip(scratch.state.chunks_exact_mut(HELD)) {
                        for (s, held) in s[channels.clone()].chunks(WIDTH).zip(held) {
                            lanes.store(lanes.load_some(s), held);
                        }
                    }
                }
                for (i, row) in tile.clone().enumerate() {
                    let made = &scratch.rows[i * 4 * key..(i + 1) * 4 * key];
                    let beta = rows.beta[row * spec.value_heads + head];
                    let held = &mut scratch.values[i * HELD..i * HELD + n];
                    let (vectors, stride, offset) = match in_place {
                        true => (state.as_chunks_mut().0, value / WIDTH, from / WIDTH),
                        false => (&mut scratch.state[..], HELD, 0),
                    };
                    match n {
                        HELD => advance::<L, HELD>(lanes, vectors, stride, offset, made, beta, held),
                        _ => {
                            for (j, held) in held.chunks_exact_mut(1).enumerate() {
                                advance::<L, 1>(lanes, vectors, stride, offset + j, made, beta, held);
                            }
                        }
                    }
                    // SAFETY: every (row, head) belongs to one chunk.
                    let out = unsafe { out.part(at(row)) };
                    for (out, held) in out.chunks_mut(WIDTH).zip(&scratch.values[i * HELD..]) {
                        lanes.store_some(lanes.load(held), out);
                    }
                }
                if !in_place {
                    for (s, held) in state.chunks_exact_mut(value).zip(scratch.state.chunks_exact(HELD)) {
                        for (s, held) in s[channels.clone()].chunks_mut(WIDTH).zip(held) {
                            lanes.store_some(lanes.load(held), s);
                        }
                    }
                }
            }
        }
    }
}

impl DeltaSpec<'_> {
    /// Query, key, decay and key times decay of a row, `[4, key]`.
    #[inline(always)]
    fn make<L: Lanes>(&self, lanes: L, rows: &DeltaRows<'_>, row: usize, head: usize, made: &mut [f32]) {
        let key = self.key;
        let key_head = match self.tiled {
            true => head % self.key_heads,
            false => head / (self.value_heads / self.key_heads),
        };
        let (q, rest) = made.split_at_mut(key);
        let (k, rest) = rest.split_at_mut(key);
        let (decay, decayed) = rest.split_at_mut(key);
        let at = (row * self.key_heads + key_head) * key;
        normalise(lanes, &rows.q[at..at + key], self.l2_eps, self.scale, q);
        normalise(lanes, &rows.k[at..at + key], self.l2_eps, 1.0, k);
        let gates = self.gates();
        let (x, a) = (&rows.decay[row * gates..(row + 1) * gates], self.a[head]);
        let span = head * key..(head + 1) * key;
        match self.decay {
            Decay::ScalarSoftplus => decay.fill(math::exp(a * math::softplus(x[head] + self.dt[head]))),
            Decay::ChannelSoftplus => {
                for ((f, x), dt) in decay.iter_mut().zip(&x[span.clone()]).zip(&self.dt[span]) {
                    *f = math::exp(a * math::softplus(x + dt));
                }
            }
            Decay::ChannelSigmoid { lower_bound } => {
                for ((f, x), dt) in decay.iter_mut().zip(&x[span.clone()]).zip(&self.dt[span]) {
                    *f = math::exp(lower_bound * math::sigmoid(-a * (x + dt)));
                }
            }
        }
        for ((decayed, k), decay) in decayed.iter_mut().zip(&*k).zip(&*decay) {
            *decayed = k * decay;
        }
    }
}

/// `x / sqrt(sum x^2 + eps) * scale`, without eps `x * scale`.
#[inline(always)]
fn normalise<L: Lanes>(lanes: L, x: &[f32], eps: Option<f32>, scale: f32, out: &mut [f32]) {
    let factor = eps.map_or(1.0, |eps| 1.0 / (squares(lanes, x, 0.0) + eps).sqrt()) * scale;
    out.iter_mut().zip(x).for_each(|(out, x)| *out = x * factor);
}

/// One row for N vectors of value channels: `state` holds a key channel's at `offset` of every `stride`, `values` come as v and leave as the
/// result. The decay goes with the key where the state answers and into the state where it is written, so the state is read twice and
/// written once.
#[inline(always)]
fn advance<L: Lanes, const N: usize>(
    lanes: L,
    state: &mut [[f32; WIDTH]],
    stride: usize,
    offset: usize,
    made: &[f32],
    beta: f32,
    values: &mut [[f32; WIDTH]],
) {
    let key = made.len() / 4;
    let (q, rest) = made.split_at(key);
    let (k, rest) = rest.split_at(key);
    let (decay, decayed) = rest.split_at(key);
    let zero = lanes.splat(0.0);
    // 1. What the decayed state answers for k.
    let mut answer = [zero; N];
    for (s, k) in state.chunks_exact(stride).zip(decayed) {
        let (k, s) = (lanes.splat(*k), &s[offset..offset + N]);
        for (answer, s) in answer.iter_mut().zip(s) {
            *answer = lanes.fma(k, lanes.load(s), *answer);
        }
    }
    // 2. The correction.
    let beta = lanes.splat(beta);
    let mut delta = [zero; N];
    for ((delta, answer), v) in delta.iter_mut().zip(answer).zip(&*values) {
        *delta = lanes.mul(beta, lanes.sub(lanes.load(v), answer));
    }
    // 3. Decay, learn the correction, then ask with q.
    let mut sums = [zero; N];
    for (((s, k), q), decay) in state.chunks_exact_mut(stride).zip(k).zip(q).zip(decay) {
        let (k, q, decay) = (lanes.splat(*k), lanes.splat(*q), lanes.splat(*decay));
        let s = &mut s[offset..offset + N];
        for i in 0..N {
            let new = lanes.fma(k, delta[i], lanes.mul(lanes.load(&s[i]), decay));
            lanes.store(new, &mut s[i]);
            sums[i] = lanes.fma(q, new, sums[i]);
        }
    }
    for (sum, out) in sums.into_iter().zip(values) {
        lanes.store(sum, out);
    }
}
