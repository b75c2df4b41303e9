//! The router inside a block: every thread an expert, ranks by counting. The order of every sum is that of `route`.

use crate::dev::{ntid, shared, shared4, shared16, sqrt, sync, tid};
use crate::warp::{max_f32, max_u32};
use bloomery_formats::math;

/// Constants of a router.
#[derive(Clone, Copy)]
pub struct Router {
    /// `[rows, experts]`
    pub logits: *const f32,
    pub bias: *const f32,
    pub experts: u32,
    pub used: u32,
    pub score: u32,
    pub normalize: u32,
    pub sum_floor: f32,
    pub scale: f32,
    pub fault: *mut u32,
    pub step: u32,
}

/// Sixteen values of shared memory, all read before the first is used.
#[inline(always)]
unsafe fn sixteen(at: u32) -> [f32; 16] {
    let quads = [shared16(at), shared16(at + 16), shared16(at + 32), shared16(at + 48)];
    let mut v = [0.0f32; 16];
    let mut i = 0;
    while i < 16 {
        v[i] = f32::from_bits(quads[i / 4][i % 4]);
        i += 1;
    }
    v
}

/// The expert of one rank of a row, and its weight. `ids` and `weights`, where they are not null, take those of all ranks. All threads
/// of the block come here; `at` is a multiple of 16.
///
/// # Safety
/// Every pointer is null or leads to what the shapes say; shared memory from `at` on is free: eight bytes for every expert, in sixteens, eight for every rank, in fours, and 128.
#[inline(always)]
pub unsafe fn choose(
    r: &Router,
    row: u32,
    rank: u32,
    at: u32,
    ids: *mut u32,
    weights: *mut f32,
) -> (u32, f32) {
    let (experts, used) = (r.experts, r.used);
    let padded = experts.next_multiple_of(16);
    let choices_at = at + 4 * padded;
    let warps_at = choices_at + 4 * padded;
    let ids_at = warps_at + 128;
    let taken_at = ids_at + 4 * used.next_multiple_of(4);
    let place = |at: u32, i: u32| shared().add((at + 4 * i) as usize).cast::<f32>();
    let logits = r.logits.add((row * experts) as usize);
    let (lane, warp, warps) = (tid() & 31, tid() >> 5, ntid() >> 5);

    let (mut top, mut broken) = (f32::NEG_INFINITY, 0);
    let mut e = tid();
    while e < experts {
        let v = *logits.add(e as usize);
        top = if v > top { v } else { top };
        broken |= v.is_nan() as u32;
        *place(at, e) = v;
        e += ntid();
    }
    let mut i = tid();
    while i < used {
        // Nothing but NaN: any expert will do, the fault is told.
        *place(ids_at, i) = f32::from_bits(i);
        *place(taken_at, i) = 0.0;
        i += ntid();
    }
    let (top, broken) = (max_f32(top), max_u32(broken));
    if lane == 0 {
        *place(warps_at, warp) = top;
        if broken != 0 && !r.fault.is_null() {
            *r.fault = 1;
            *r.fault.add(1) = r.step;
            *r.fault.add(2) = row;
        }
    }
    sync();
    let mut top = f32::NEG_INFINITY;
    let mut i = 0;
    while i < warps {
        let v = f32::from_bits(shared4(warps_at + 4 * i));
        top = if v > top { v } else { top };
        i += 1;
    }
    let mut e = tid();
    while e < padded {
        // Padding stands below everything.
        let mut s = f32::NEG_INFINITY;
        if e < experts {
            let v = *place(at, e);
            s = match r.score {
                0 => math::exp(v - top),
                1 => math::sigmoid(v),
                2 => sqrt(math::softplus(v)),
                _ => v,
            };
        }
        *place(at, e) = s;
        e += ntid();
    }
    sync();
    let mut sum = 1.0f32;
    if r.score == 0 {
        sum = 0.0;
        let mut e = 0;
        while e + 16 <= experts {
            let v = sixteen(at + 4 * e);
            let mut k = 0;
            while k < 16 {
                sum += v[k];
                k += 1;
            }
            e += 16;
        }
        while e < experts {
            sum += f32::from_bits(shared4(at + 4 * e));
            e += 1;
        }
        sync();
    }
    let mut e = tid();
    while e < padded {
        let mut choice = f32::NEG_INFINITY;
        if e < experts {
            let mut s = *place(at, e);
            if r.score == 0 {
                s /= sum;
                *place(at, e) = s;
            }
            choice = s;
            if !r.bias.is_null() {
                choice += *r.bias.add(e as usize);
            }
        }
        *place(choices_at, e) = choice;
        e += ntid();
    }
    sync();
    let mut e = tid();
    while e < experts {
        let mine = *place(choices_at, e);
        let mut before = 0;
        let mut other = 0;
        while other < padded {
            let v = sixteen(choices_at + 4 * other);
            let mut k = 0;
            while k < 16 {
                // Without branches: a hundred of them cost more than all else here.
                let (above, same) = ((v[k] > mine) as u32, (v[k] == mine) as u32);
                before += above | same & (other + (k as u32) < e) as u32;
                k += 1;
            }
            other += 16;
        }
        if before < used && !mine.is_nan() {
            *place(ids_at, before) = f32::from_bits(e);
            *place(taken_at, before) = *place(at, e);
        }
        e += ntid();
    }
    sync();
    // Every thread adds for itself, in the order of ranks.
    let taken = |i: u32| f32::from_bits(shared4(taken_at + 4 * i));
    let (mut top, mut chosen) = (f32::NEG_INFINITY, 1.0f32);
    if r.score == 3 {
        let mut i = 0;
        while i < used {
            top = if taken(i) > top { taken(i) } else { top };
            i += 1;
        }
        chosen = 0.0;
        let mut i = 0;
        while i < used {
            chosen += math::exp(taken(i) - top);
            i += 1;
        }
    }
    let value = |i: u32| if r.score == 3 { math::exp(taken(i) - top) / chosen } else { taken(i) };
    let mut sum = 0.0f32;
    let mut i = 0;
    while i < used {
        sum += value(i);
        i += 1;
    }
    let sum = if sum < r.sum_floor { r.sum_floor } else { sum };
    let weight = |i: u32| (if r.normalize != 0 { value(i) / sum } else { value(i) }) * r.scale;
    let mut i = tid();
    while i < used {
        if !ids.is_null() {
            *ids.add((row * used + i) as usize) = shared4(ids_at + 4 * i);
        }
        if !weights.is_null() {
            *weights.add((row * used + i) as usize) = weight(i);
        }
        i += ntid();
    }
    (shared4(ids_at + 4 * rank), weight(rank))
}
