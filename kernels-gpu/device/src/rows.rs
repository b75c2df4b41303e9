//! Row-wise work: norms, gated units, quantisation, and plain point-wise functions.

use crate::dev::{
    copies_commit, copies_wait, ctaid_x, ctaid_y, ntid, shared, shfl_xor, sqrt, sync, tid, wait_for_launches,
};
use crate::few::stage::copy;
use crate::warp::{get_f32, max_u32, tree_sum, xor_f32};
use bloomery_formats::float::{fma, round_even};
use bloomery_formats::half::{f16_to_f32, f32_to_f16};
use bloomery_formats::math;

const INFINITY_BITS: u32 = 0x7f80_0000;
const TINY_BITS: u32 = (127 - 119) << 23;

/// A function of one value, by number.
#[inline(always)]
pub fn function(number: u32, x: f32) -> f32 {
    match number {
        0 => math::silu(x),
        1 => math::gelu_tanh(x),
        2 => math::gelu_erf(x),
        3 => math::sigmoid(x),
        4 => math::softplus(x),
        5 => math::exp(x),
        6 => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        7 => math::tanh(x),
        _ => x,
    }
}

/// `1 / sqrt(mean(x^2) + eps)` of `n` values, by one warp: 64 interleaved chains and the tree. Every lane returns it.
///
/// # Safety
/// The values are there.
#[inline(always)]
pub unsafe fn inverse_rms(x: *const f32, n: u32, eps: f32, lane: u32) -> f32 {
    let (mut a, mut b) = (0.0f32, 0.0f32);
    let mut i = lane;
    // Eight values of each chain are read before they are added.
    while i + 64 * 7 + 32 < n {
        let mut v = [0.0f32; 16];
        let mut k = 0;
        while k < 16 {
            v[k] = *x.add(i as usize + 32 * k);
            k += 1;
        }
        let mut k = 0;
        while k < 16 {
            a = fma(v[k], v[k], a);
            b = fma(v[k + 1], v[k + 1], b);
            k += 2;
        }
        i += 64 * 8;
    }
    while i < n {
        let v = *x.add(i as usize);
        a = fma(v, v, a);
        if i + 32 < n {
            let v = *x.add(i as usize + 32);
            b = fma(v, v, b);
        }
        i += 64;
    }
    let squares = tree_sum(a + b);
    1.0 / sqrt(squares / n as f32 + eps)
}

/// A lane's eight of 256 values.
#[inline(always)]
pub unsafe fn eight(values: *const f32, lane: u32) -> [f32; 8] {
    let mine = values.add(8 * lane as usize);
    let mut v = [0.0f32; 8];
    let mut i = 0;
    while i < 8 {
        v[i] = *mine.add(i);
        i += 1;
    }
    v
}

/// Quantises 256 values with one warp, eight a lane. True where one is no number.
#[inline(always)]
pub unsafe fn quantize_group(v: [f32; 8], lane: u32, qs: *mut i8, scale: *mut f32, sums: *mut i16) -> bool {
    quantize_groups([v], lane, [(qs, scale, sums)])
}

/// Quantises `N` times 256 values with one warp, side by side; the targets are quants, scale and sums.
#[inline(always)]
pub unsafe fn quantize_groups<const N: usize>(
    v: [[f32; 8]; N],
    lane: u32,
    to: [(*mut i8, *mut f32, *mut i16); N],
) -> bool {
    let mut largest = [0u32; N];
    let mut n = 0;
    while n < N {
        let mut i = 0;
        while i < 8 {
            let bits = v[n][i].to_bits() & 0x7fff_ffff;
            largest[n] = if bits > largest[n] { bits } else { largest[n] };
            i += 1;
        }
        n += 1;
    }
    let mut mask = 16;
    while mask > 0 {
        let mut n = 0;
        while n < N {
            let other = shfl_xor(largest[n], mask);
            largest[n] = if other > largest[n] { other } else { largest[n] };
            n += 1;
        }
        mask /= 2;
    }
    // The first of the largest counts, with its sign.
    let (mut first, mut here) = ([u32::MAX; N], [0.0f32; N]);
    let mut n = 0;
    while n < N {
        let mut i = 8;
        while i > 0 {
            i -= 1;
            let is = v[n][i].to_bits() & 0x7fff_ffff == largest[n];
            first[n] = if is { 8 * lane + i as u32 } else { first[n] };
            here[n] = if is { v[n][i] } else { here[n] };
        }
        n += 1;
    }
    let mut mask = 16;
    while mask > 0 {
        let mut n = 0;
        while n < N {
            let other = shfl_xor(first[n], mask);
            first[n] = if other < first[n] { other } else { first[n] };
            n += 1;
        }
        mask /= 2;
    }
    let mut sums = [0i32; N];
    let mut inverses = [0.0f32; N];
    let mut n = 0;
    while n < N {
        let whole = largest[n] >= TINY_BITS && largest[n] < INFINITY_BITS;
        let inverse = -127.0 / get_f32(here[n], (first[n] & 255) >> 3);
        inverses[n] = inverse;
        let mut words = [0u32; 2];
        let mut i = 0;
        while i < 8 {
            let q = if whole { round_even(inverse * v[n][i]) as i8 } else { 0 };
            sums[n] += q as i32;
            words[i / 4] |= (q as u8 as u32) << (8 * (i & 3));
            i += 1;
        }
        let target = to[n].0.add(8 * lane as usize).cast::<u32>();
        *target = words[0];
        *target.add(1) = words[1];
        n += 1;
    }
    let mut broken = false;
    let mut n = 0;
    while n < N {
        let sum = sums[n] + shfl_xor(sums[n] as u32, 1) as i32;
        if lane & 1 == 0 {
            *to[n].2.add(lane as usize / 2) = sum as i16;
        }
        if lane == 0 {
            *to[n].1 = if largest[n] >= TINY_BITS && largest[n] < INFINITY_BITS {
                1.0 / inverses[n]
            } else if largest[n] >= INFINITY_BITS {
                f32::NAN
            } else {
                0.0
            };
        }
        broken |= largest[n] > INFINITY_BITS;
        n += 1;
    }
    broken
}

/// Quantises 32 values with one warp. True where one is no number.
#[inline(always)]
pub unsafe fn quantize_block(value: f32, lane: u32, qs: *mut i8, scale: *mut f32, sums: *mut i16) -> bool {
    let bits = max_u32(value.to_bits() & 0x7fff_ffff);
    let whole = bits >= TINY_BITS && bits < INFINITY_BITS;
    let largest = f32::from_bits(bits);
    let q = if whole { round_even(127.0 / largest * value) as i8 } else { 0 };
    *qs.add(lane as usize) = q;
    let mut sum = q as i32;
    let mut mask = 8;
    while mask > 0 {
        sum += shfl_xor(sum as u32, mask) as i32;
        mask /= 2;
    }
    if lane & 15 == 0 {
        *sums.add(lane as usize / 16) = sum as i16;
    }
    if lane == 0 {
        *scale = if whole {
            f16_to_f32(f32_to_f16(largest / 127.0))
        } else if bits >= INFINITY_BITS {
            f32::NAN
        } else {
            0.0
        };
    }
    bits > INFINITY_BITS
}

/// One block a row: `v = x`, or `v = act(x) * y` (with limits), or `v = norm(x)`; then `out = v`, and v quantised in up to two
/// forms. A NaN goes into the fault words.
///
/// # Safety
/// Every pointer is null or leads to what the shapes say.
#[inline(always)]
pub unsafe fn rows(
    x: *const f32,
    y: *const f32,
    act: u32,
    gate_max: f32,
    up_abs: f32,
    norm: u32,
    weight: *const f32,
    weight_len: u32,
    group: u32,
    eps: f32,
    width: u32,
    out: *mut f32,
    qs: *mut i8,
    scales: *mut f32,
    sums: *mut i16,
    qs32: *mut i8,
    scales32: *mut f32,
    sums32: *mut i16,
    plain: *mut f32,
    fault: *mut u32,
    step: u32,
) {
    wait_for_launches();
    let row = ctaid_x() as usize;
    let (w, warp, lane, warps) = (width as usize, tid() >> 5, tid() & 31, ntid() >> 5);
    let values = shared().cast::<f32>();
    let inverses = values.add(w.next_multiple_of(4));
    let from = x.add(row * w);
    if y.is_null() {
        copy(0, from.cast(), 4 * width);
        copies_commit();
        copies_wait::<0>();
        // Every thread looks at what it copied itself and at others' only behind the barrier.
        sync();
    }
    let mut i = tid();
    while i < width {
        let mut v = if y.is_null() { *values.add(i as usize) } else { *from.add(i as usize) };
        if !y.is_null() {
            let u = *y.add(row * w + i as usize);
            let g = if v > gate_max { gate_max } else { v };
            let u = if u > up_abs { up_abs } else { u };
            let u = if u < -up_abs { -up_abs } else { u };
            v = function(act, g) * u;
            *values.add(i as usize) = v;
        }
        if v.is_nan() && !fault.is_null() {
            *fault = 1;
            *fault.add(1) = step;
            *fault.add(2) = row as u32;
        }
        i += ntid();
    }
    sync();
    if norm != 0 {
        let mut g = warp;
        while g * group < width {
            let inverse = inverse_rms(values.add((g * group) as usize), group, eps, lane);
            if lane == 0 {
                *inverses.add(g as usize) = inverse;
            }
            g += warps;
        }
        sync();
        let mut first = tid();
        while first < width {
            // Four weights are asked for before one is used.
            let mut weights = [1.0f32; 4];
            let mut k = 0;
            while k < 4 {
                let i = first + k as u32 * ntid();
                if i < width && !weight.is_null() {
                    let at = if weight_len == width { i } else { rem(i, weight_len) };
                    weights[k] = *weight.add(at as usize);
                }
                k += 1;
            }
            let mut k = 0;
            while k < 4 {
                let i = first + k as u32 * ntid();
                if i < width {
                    let g = if group == width { 0 } else { crate::warp::div(i, group) };
                    let v = *values.add(i as usize) * *inverses.add(g as usize);
                    *values.add(i as usize) = if weight.is_null() { v } else { v * weights[k] };
                }
                k += 1;
            }
            first += 4 * ntid();
        }
        sync();
    }
    let mut i = tid();
    while i < width {
        let v = *values.add(i as usize);
        if !out.is_null() {
            *out.add(row * w + i as usize) = v;
        }
        if !plain.is_null() {
            *plain.add(row * w + i as usize) = v;
        }
        i += ntid();
    }
    let groups = w.div_ceil(256);
    if !qs.is_null() {
        let mut g = warp;
        while g * 256 < width {
            let at = row * groups + g as usize;
            quantize_group(
                eight(values.add(256 * g as usize), lane),
                lane,
                qs.add(256 * at),
                scales.add(at),
                sums.add(16 * at),
            );
            g += warps;
        }
    }
    if !qs32.is_null() {
        let mut b = warp;
        while b * 32 < width {
            let at = row * groups * 8 + b as usize;
            let v = *values.add((32 * b + lane) as usize);
            quantize_block(v, lane, qs32.add(32 * at), scales32.add(at), sums32.add(2 * at));
            b += warps;
        }
    }
}

#[inline(always)]
fn rem(a: u32, b: u32) -> u32 {
    if b == 0 { 0 } else { a % b }
}

/// Point-wise: 0 add, 1 mul, 2 scale and shift, 3 affine, 4 function, 5 gated unit, 6 copy of columns, 7 gather of rows.
/// Grid: x over columns, y over rows.
///
/// # Safety
/// Every pointer leads to what the shapes say.
#[inline(always)]
pub unsafe fn pointwise(
    mode: u32,
    a: *const f32,
    b: *const f32,
    c: *const f32,
    index: *const u32,
    a_width: u32,
    b_width: u32,
    c_width: u32,
    width: u32,
    out_width: u32,
    out_at: u32,
    group: u32,
    start: u32,
    take: u32,
    by: f32,
    plus: f32,
    act: u32,
    out: *mut f32,
) {
    wait_for_launches();
    let i = ctaid_x() * ntid() + tid();
    if i >= width {
        return;
    }
    let row = ctaid_y() as usize;
    let at = |p: *const f32, w: u32| *p.add(row * w as usize + if w == 1 { 0 } else { i as usize });
    let value = match mode {
        0 => at(a, a_width) + at(b, b_width),
        1 => at(a, a_width) * at(b, b_width),
        2 => at(a, a_width) * by + plus,
        3 => {
            let mut v = at(a, a_width);
            if !b.is_null() {
                v *= *b.add(rem(i, b_width) as usize);
            }
            if !c.is_null() {
                v += *c.add(rem(i, c_width) as usize);
            }
            v
        }
        4 => function(act, at(a, a_width)),
        5 => {
            let (g, u) = (at(a, a_width), at(b, b_width));
            let g = if g > by { by } else { g };
            let u = if u > plus { plus } else { u };
            let u = if u < -plus { -plus } else { u };
            function(act, g) * u
        }
        6 => {
            let piece = crate::warp::div(i, take);
            *a.add(row * a_width as usize + (piece * group + start + (i - piece * take)) as usize)
        }
        _ => *a.add(*index.add(row) as usize * a_width as usize + i as usize),
    };
    *out.add(row * out_width as usize + (out_at + i) as usize) = value;
}

/// `out[row] = sum over ranks of factor * result (+ residual)`; grid: x over columns, y over rows.
///
/// # Safety
/// Every pointer leads to what the shapes say.
#[inline(always)]
pub unsafe fn combine(
    results: *const f32,
    factors: *const f32,
    used: u32,
    width: u32,
    residual: *const f32,
    out: *mut f32,
) {
    wait_for_launches();
    let i = ctaid_x() * ntid() + tid();
    if i >= width {
        return;
    }
    let row = ctaid_y() as usize;
    let mut sum = 0.0f32;
    let mut rank = 0;
    while rank < used as usize {
        let slot = row * used as usize + rank;
        sum += *factors.add(slot) * *results.add(slot * width as usize + i as usize);
        rank += 1;
    }
    let at = row * width as usize + i as usize;
    if !residual.is_null() {
        sum += *residual.add(at);
    }
    *out.add(at) = sum;
}

#[allow(unused)]
fn unused() -> f32 {
    xor_f32(0.0, 1)
}
