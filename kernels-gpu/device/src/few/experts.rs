//! Routed experts of few rows in two launches: router, gate, up and activation; then down, weighted sum and residual.

use super::linear::ask;
use super::route::{Router, choose};
use super::stage::{Input, stage_ready};
use super::weights::{Activations, GROUPS, Q4K, Q5K, Q6K, Q80, Weights, in_order};
use crate::dev::{
    copies_commit, copies_wait, ctaid_x, ctaid_y, nctaid_x, ntid, shared, sync, tid, wait_for_launches,
};
use crate::rows::{eight, function, quantize_block, quantize_groups};
use crate::warp::div;

/// Gate and up matrices `[experts, ff, cols]`, of one type.
#[derive(Clone, Copy)]
pub struct GateUp {
    pub ty: u32,
    pub row_bytes: u32,
    pub ff: u32,
    pub gate: *const u8,
    pub up: *const u8,
    pub gate_bias: *const f32,
    pub up_bias: *const f32,
    pub act: u32,
    pub gate_max: f32,
    pub up_abs: f32,
}

/// `out[slot, j] = act(gate_j x) * (up_j x)`. Grid: x over `ff` by turns, y slots (row times rank). The router's choice is made here, by
/// every block for itself; the first blocks leave it in `ids` and `weights`.
///
/// # Safety
/// Every pointer is null or leads to what the shapes say.
#[inline(always)]
pub unsafe fn gate_up<const K: u32>(
    input: Input,
    router: Router,
    ids: *mut u32,
    weights: *mut f32,
    m: GateUp,
    out: *mut f32,
) {
    wait_for_launches();
    let slot = ctaid_y();
    let row = div(slot, router.used);
    let rank = slot - row * router.used;
    let x = Activations::new::<K>(0, input.cols);
    stage_ready::<K>(&input, row, x);
    copies_commit();
    let leaves = ctaid_x() == 0 && rank == 0;
    let (expert, _) = choose(
        &router,
        row,
        rank,
        x.step,
        if leaves { ids } else { core::ptr::null_mut() },
        if leaves { weights } else { core::ptr::null_mut() },
    );
    // A broken router must not lead outside the weights.
    let expert = if expert < router.experts { expert } else { 0 };
    let (warp, lane) = (tid() >> 5, tid() & 31);
    let (first, apart) = (ctaid_x() + nctaid_x() * warp, nctaid_x() * (ntid() >> 5));
    let start = expert as usize * m.ff as usize * m.row_bytes as usize;
    ask(m.gate.add(start), m.row_bytes, first, apart, m.ff, lane);
    ask(m.up.add(start), m.row_bytes, first, apart, m.ff, lane);
    copies_wait::<0>();
    sync();
    match (K, m.ty) {
        (256, 0) => pairs::<Q4K>(&m, &input, x, expert, out, slot, first, apart, lane),
        (256, 1) => pairs::<Q5K>(&m, &input, x, expert, out, slot, first, apart, lane),
        (256, _) => pairs::<Q6K>(&m, &input, x, expert, out, slot, first, apart, lane),
        _ => pairs::<Q80>(&m, &input, x, expert, out, slot, first, apart, lane),
    }
}

#[inline(always)]
unsafe fn pairs<W: Weights>(
    m: &GateUp,
    input: &Input,
    x: Activations,
    expert: u32,
    out: *mut f32,
    slot: u32,
    first: u32,
    apart: u32,
    lane: u32,
) {
    if first >= m.ff {
        return;
    }
    let (cols, groups) = (input.cols, input.cols.div_ceil(256));
    let start =
        |w: *const u8, j: u32| w.add((expert as usize * m.ff as usize + j as usize) * m.row_bytes as usize);
    let (mut j, mut group) = (first, 0);
    let mut gate = W::load(start(m.gate, j), 0, cols, lane);
    let mut up = W::load(start(m.up, j), 0, cols, lane);
    let (mut g, mut u) = (0.0f32, 0.0f32);
    loop {
        let (mut next_j, mut next_group) = (j, group + GROUPS);
        if next_group >= groups {
            (next_j, next_group) = (j + apart, 0);
        }
        let (mut next_gate, mut next_up) = (gate, up);
        if next_j < m.ff {
            next_gate = W::load(start(m.gate, next_j), next_group, cols, lane);
            next_up = W::load(start(m.up, next_j), next_group, cols, lane);
        }
        let left = groups - group;
        let [value] = W::values::<1>(&gate, x, group, cols, lane);
        g = in_order(g, value, left);
        let [value] = W::values::<1>(&up, x, group, cols, lane);
        u = in_order(u, value, left);
        if next_group == 0 {
            if lane == 0 {
                let at = expert as usize * m.ff as usize + j as usize;
                if !m.gate_bias.is_null() {
                    g += *m.gate_bias.add(at);
                }
                if !m.up_bias.is_null() {
                    u += *m.up_bias.add(at);
                }
                let g = if g > m.gate_max { m.gate_max } else { g };
                let u = if u > m.up_abs { m.up_abs } else { u };
                let u = if u < -m.up_abs { -m.up_abs } else { u };
                *out.add(slot as usize * m.ff as usize + j as usize) = function(m.act, g) * u;
            }
            (g, u) = (0.0, 0.0);
            if next_j >= m.ff {
                return;
            }
        }
        (j, group, gate, up) = (next_j, next_group, next_gate, next_up);
    }
}

/// Down matrix `[experts, n, ff]`.
#[derive(Clone, Copy)]
pub struct Down {
    pub ty: u32,
    pub row_bytes: u32,
    pub n: u32,
    pub ff: u32,
    pub w: *const u8,
    pub bias: *const f32,
}

/// Rows of the down matrix that a block computes for every rank.
pub const TILE: u32 = 8;

/// `out[row, i] = sum over ranks of weights[rank] * (down_i hidden[rank]) (+ residual)`. Grid: x tiles of rows, y rows; a warp takes
/// every eighth rank. `hidden` is `[rows, used, ff]`.
///
/// # Safety
/// Every pointer is null or leads to what the shapes say.
#[inline(always)]
pub unsafe fn down<const K: u32>(
    hidden: *const f32,
    ids: *const u32,
    weights: *const f32,
    experts: u32,
    used: u32,
    m: Down,
    residual: *const f32,
    out: *mut f32,
    fault: *mut u32,
    step: u32,
) {
    wait_for_launches();
    let (row, first) = (ctaid_y(), ctaid_x() * TILE);
    let (warp, lane, warps) = (tid() >> 5, tid() & 31, ntid() >> 5);
    let x = Activations::new::<K>(0, m.ff);
    let results_at = x.step * warps;
    let here = Activations {
        quants: x.quants + warp * x.step,
        scales: x.scales + warp * x.step,
        sums: x.sums + warp * x.step,
        step: x.step,
    };
    let end = if m.n - first < TILE { m.n } else { first + TILE };
    // What the end needs is asked for at the beginning.
    let factors = shared().add((results_at + used * TILE * 4) as usize).cast::<f32>();
    let mut i = tid();
    while i < used {
        *factors.add(i as usize) = *weights.add((row * used + i) as usize);
        i += ntid();
    }
    let mut left = 0.0f32;
    if tid() < end - first && !residual.is_null() {
        left = *residual.add((row * m.n + first + tid()) as usize);
    }
    let mut base = 0;
    while base < used {
        let rank = base + warp;
        let active = rank < used;
        // Warps without a rank go along with the last one's and write nothing.
        let slot = row * used + if active { rank } else { used - 1 };
        let expert = *ids.add(slot as usize);
        let expert = if expert < experts { expert } else { 0 };
        let w = m.w.add(expert as usize * m.n as usize * m.row_bytes as usize);
        if active {
            ask(w, m.row_bytes, first, 1, end, lane);
        }
        let values = hidden.add((slot * m.ff) as usize);
        let mut broken = false;
        let mut g = 0;
        while K == 256 && g * 256 < m.ff {
            // Two groups side by side: each is a long chain.
            let other = if (g + 1) * 256 < m.ff { g + 1 } else { g };
            let v =
                [eight(values.add(256 * g as usize), lane), eight(values.add(256 * other as usize), lane)];
            let places = [g, other].map(|g| {
                (
                    shared().add((here.quants + 256 * g) as usize).cast(),
                    shared().add((here.scales + 4 * g) as usize).cast(),
                    shared().add((here.sums + 32 * g) as usize).cast(),
                )
            });
            broken |= quantize_groups(v, lane, places);
            g += 2;
        }
        let mut b = 0;
        while K == 32 && b * 32 < m.ff {
            broken |= quantize_block(
                *values.add((32 * b + lane) as usize),
                lane,
                shared().add((here.quants + 32 * b) as usize).cast(),
                shared().add((here.scales + 4 * b) as usize).cast(),
                shared().add((here.sums + 4 * b) as usize).cast(),
            );
            b += 1;
        }
        if broken && lane == 0 && !fault.is_null() {
            *fault = 1;
            *fault.add(1) = step;
            *fault.add(2) = row;
        }
        sync();
        if active {
            let results = shared().add((results_at + rank * TILE * 4) as usize).cast::<f32>();
            let bias = if m.bias.is_null() { m.bias } else { m.bias.add(expert as usize * m.n as usize) };
            match (K, m.ty) {
                (256, 0) => tile::<Q4K>(w, &m, bias, here, first, end, results, lane),
                (256, 1) => tile::<Q5K>(w, &m, bias, here, first, end, results, lane),
                (256, _) => tile::<Q6K>(w, &m, bias, here, first, end, results, lane),
                _ => tile::<Q80>(w, &m, bias, here, first, end, results, lane),
            }
        }
        sync();
        base += warps;
    }
    let i = tid();
    if i < end - first {
        let results = shared().add(results_at as usize).cast::<f32>();
        let mut sum = 0.0f32;
        let mut rank = 0;
        while rank < used {
            sum += *factors.add(rank as usize) * *results.add((rank * TILE + i) as usize);
            rank += 1;
        }
        let at = (row * m.n + first + i) as usize;
        if !residual.is_null() {
            sum += left;
        }
        *out.add(at) = sum;
    }
}

#[inline(always)]
unsafe fn tile<W: Weights>(
    w: *const u8,
    m: &Down,
    bias: *const f32,
    x: Activations,
    first: u32,
    end: u32,
    results: *mut f32,
    lane: u32,
) {
    let groups = m.ff.div_ceil(256);
    // A row past the end repeats the last.
    let start = |i: u32| w.add(if i < end { i } else { end - 1 } as usize * m.row_bytes as usize);
    let (mut i, mut group) = (first, 0);
    let mut a = W::load(start(i), 0, m.ff, lane);
    let mut b = W::load(start(i + 1), 0, m.ff, lane);
    let mut sums = [0.0f32; 2];
    loop {
        let (mut next_i, mut next_group) = (i, group + GROUPS);
        if next_group >= groups {
            (next_i, next_group) = (i + 2, 0);
        }
        let (mut next_a, mut next_b) = (a, b);
        if next_i < end {
            next_a = W::load(start(next_i), next_group, m.ff, lane);
            next_b = W::load(start(next_i + 1), next_group, m.ff, lane);
        }
        let left = groups - group;
        let [value] = W::values::<1>(&a, x, group, m.ff, lane);
        let [other] = W::values::<1>(&b, x, group, m.ff, lane);
        sums[0] = in_order(sums[0], value, left);
        sums[1] = in_order(sums[1], other, left);
        if next_group == 0 {
            if lane < 2 && i + lane < end {
                let mut sum = if lane == 0 { sums[0] } else { sums[1] };
                if !bias.is_null() {
                    sum += *bias.add((i + lane) as usize);
                }
                *results.add((i + lane - first) as usize) = sum;
            }
            sums = [0.0; 2];
            if next_i >= end {
                return;
            }
        }
        (i, group, a, b) = (next_i, next_group, next_a, next_b);
    }
}
