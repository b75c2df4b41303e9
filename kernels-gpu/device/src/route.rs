//! The router: scores, the choice of experts, their weights. One warp a row.

use crate::dev::{ctaid_x, dp4a_us, shared, sqrt, sync, tid, wait_for_launches};
use crate::warp::{max_f32, max_u32, min_u32};
use bloomery_formats::math;

/// # Safety
/// Every pointer leads to what the shapes say; shared memory holds `2 experts + 2 used` values.
#[inline(always)]
pub unsafe fn route(
    logits: *const f32,
    bias: *const f32,
    experts: u32,
    used: u32,
    score: u32,
    normalize: u32,
    sum_floor: f32,
    scale: f32,
    ids: *mut u32,
    weights: *mut f32,
    fault: *mut u32,
    step: u32,
) {
    wait_for_launches();
    let (lane, row) = (tid() & 31, ctaid_x() as usize);
    let logits = logits.add(row * experts as usize);
    let scores = shared().cast::<f32>();
    let choice = scores.add(experts as usize);
    let taken = choice.add(experts as usize);
    let mut top = f32::NEG_INFINITY;
    let mut broken = 0;
    let mut i = lane;
    while i < experts {
        let v = *logits.add(i as usize);
        top = if v > top { v } else { top };
        broken |= v.is_nan() as u32;
        *scores.add(i as usize) = v;
        i += 32;
    }
    let top = max_f32(top);
    if max_u32(broken) != 0 && lane == 0 && !fault.is_null() {
        *fault = 1;
        *fault.add(1) = step;
        *fault.add(2) = row as u32;
    }
    let mut i = lane;
    while i < experts {
        let v = *scores.add(i as usize);
        *scores.add(i as usize) = match score {
            0 => math::exp(v - top),
            1 => math::sigmoid(v),
            2 => sqrt(math::softplus(v)),
            _ => v,
        };
        i += 32;
    }
    sync();
    if score == 0 {
        let mut sum = 0.0f32;
        let mut i = 0;
        while i < experts {
            sum += *scores.add(i as usize);
            i += 1;
        }
        sync();
        let mut i = lane;
        while i < experts {
            *scores.add(i as usize) /= sum;
            i += 32;
        }
    }
    let mut i = lane;
    while i < experts {
        let mut v = *scores.add(i as usize);
        if !bias.is_null() {
            v += *bias.add(i as usize);
        }
        *choice.add(i as usize) = v;
        i += 32;
    }
    sync();
    let mut rank = 0;
    while rank < used {
        let mut best = f32::NEG_INFINITY;
        let mut i = lane;
        while i < experts {
            let v = *choice.add(i as usize);
            best = if v > best { v } else { best };
            i += 32;
        }
        let best = max_f32(best);
        let mut first = u32::MAX;
        let mut i = lane;
        while i < experts {
            if *choice.add(i as usize) == best && i < first {
                first = i;
            }
            i += 32;
        }
        let first = min_u32(first);
        // Nothing but NaN: any expert will do, the fault is told.
        let first = if first < experts { first } else { rank };
        sync();
        if lane == 0 {
            *ids.add(row * used as usize + rank as usize) = first;
            *taken.add(rank as usize) = *scores.add(first as usize);
            *choice.add(first as usize) = f32::NEG_INFINITY;
        }
        sync();
        rank += 1;
    }
    if lane == 0 {
        let weights = weights.add(row * used as usize);
        if score == 3 {
            let mut top = f32::NEG_INFINITY;
            let mut i = 0;
            while i < used as usize {
                let v = *taken.add(i);
                top = if v > top { v } else { top };
                i += 1;
            }
            let mut sum = 0.0f32;
            let mut i = 0;
            while i < used as usize {
                let v = math::exp(*taken.add(i) - top);
                *taken.add(i) = v;
                sum += v;
                i += 1;
            }
            let mut i = 0;
            while i < used as usize {
                *taken.add(i) /= sum;
                i += 1;
            }
        }
        let mut sum = 0.0f32;
        let mut i = 0;
        while i < used as usize {
            sum += *taken.add(i);
            i += 1;
        }
        let sum = if sum < sum_floor { sum_floor } else { sum };
        let mut i = 0;
        while i < used as usize {
            let mut v = *taken.add(i);
            if normalize != 0 {
                v /= sum;
            }
            *weights.add(i) = v * scale;
            i += 1;
        }
    }
}

#[allow(unused)]
fn unused() -> i32 {
    dp4a_us(0, 0, 0)
}
