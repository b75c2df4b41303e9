//! Spans of attention joined in order, and the row quantised for the projection that follows. A block takes 256 channels of a row.

use crate::attention::SPAN;
use crate::dev::{ctaid_x, ctaid_y, shared, sync, tid, wait_for_launches};
use crate::rows::{eight, quantize_block, quantize_group};
use crate::warp::div;
use bloomery_formats::math;

/// Spans whose factors are in shared memory at a time.
pub const TURN: u32 = 64;
/// Threads of a block, and its channels.
pub const THREADS: u32 = 256;

/// Grid: x 256 channels each, y rows. `partial` is `[rows, heads, spans, 2 + value]`; every target may be null. `list` names
/// the rows; null for all of them.
///
/// # Safety
/// Every pointer leads to what the shapes say; shared memory holds 256 values and four times `TURN` of every head that a block meets.
#[inline(always)]
pub unsafe fn merge_few(
    positions: *const u32,
    list: *const u32,
    heads: u32,
    value: u32,
    window: u32,
    sinks: *const f32,
    partial: *const f32,
    spans: u32,
    out: *mut f32,
    plain: *mut f32,
    qs: *mut i8,
    scales: *mut f32,
    sums: *mut i16,
    qs32: *mut i8,
    scales32: *mut f32,
    sums32: *mut i16,
) {
    wait_for_launches();
    let (slot, first_channel, t) = (ctaid_y(), ctaid_x() * THREADS, tid());
    let row = if list.is_null() { slot } else { *list.add(slot as usize) };
    let width = heads * value;
    let channel = first_channel + t;
    let there = channel < width;
    let first_head = div(first_channel, value);
    let last_channel = if first_channel + THREADS < width { first_channel + THREADS - 1 } else { width - 1 };
    let met = div(last_channel, value) - first_head + 1;
    let head = if there { div(channel, value) } else { first_head };
    let mine = head - first_head;
    let c = if there { channel - head * value } else { 0 };
    let position = *positions.add(row as usize);
    let oldest = if window != 0 && position + 1 > window { position + 1 - window } else { 0 };
    let (first, last) = (oldest / (32 * SPAN), position / (32 * SPAN));

    let results = shared().cast::<f32>();
    let maxima = results.add(THREADS as usize);
    let sums_there = maxima.add((met * TURN) as usize);
    let on_total = sums_there.add((met * TURN) as usize);
    let on_span = on_total.add((met * TURN) as usize);

    let step = 2 + value;
    let (mut highest, mut sum, mut v) = (f32::NEG_INFINITY, 0.0f32, 0.0f32);
    let mut base = first;
    while base <= last {
        let n = if last + 1 - base < TURN { last + 1 - base } else { TURN };
        let mut i = t;
        while i < met * n {
            let h = div(i, n);
            let k = i - h * n;
            let from = partial.add((((slot * heads + first_head + h) * spans + base + k) * step) as usize);
            *maxima.add((h * TURN + k) as usize) = *from;
            *sums_there.add((h * TURN + k) as usize) = *from.add(1);
            i += THREADS;
        }
        // What was highest before these spans, for every head: its first channel's thread knows.
        if there && (c == 0 || t == 0) {
            *results.add(mine as usize) = highest;
        }
        sync();
        let mut i = t;
        while i < met * n {
            let h = div(i, n);
            let k = i - h * n;
            let mut before = *results.add(h as usize);
            let mut j = 0;
            while j < k {
                let other = *maxima.add((h * TURN + j) as usize);
                before = if other > before { other } else { before };
                j += 1;
            }
            let here = *maxima.add((h * TURN + k) as usize);
            let (mut total, mut span) = (1.0f32, 1.0f32);
            if here > before {
                total = math::exp(before - here);
            } else {
                span = math::exp(here - before);
            }
            *on_total.add((h * TURN + k) as usize) = total;
            *on_span.add((h * TURN + k) as usize) = span;
            i += THREADS;
        }
        sync();
        let from = partial.add((((slot * heads + head) * spans + base) * step + 2 + c) as usize);
        let at = mine * TURN;
        let mut k = 0;
        while k < n {
            // Four loads are under way at a time; those past the end repeat the last.
            let mut values = [0.0f32; 4];
            let mut i = 0;
            while i < 4 {
                let which = if k + (i as u32) < n { k + i as u32 } else { n - 1 };
                values[i] = *from.add((which * step) as usize);
                i += 1;
            }
            let mut i = 0;
            while i < 4 {
                if k + (i as u32) < n {
                    let which = (at + k + i as u32) as usize;
                    let (total, span) = (*on_total.add(which), *on_span.add(which));
                    if base + k + i as u32 == first {
                        sum = *sums_there.add(which);
                        v = values[i];
                    } else {
                        sum = sum * total + *sums_there.add(which) * span;
                        v = v * total + values[i] * span;
                    }
                    let here = *maxima.add(which);
                    highest = if here > highest { here } else { highest };
                }
                i += 1;
            }
            k += 4;
        }
        sync();
        base += n;
    }

    let mut factor = 1.0f32;
    if !sinks.is_null() {
        let sink = *sinks.add(head as usize);
        let top = if sink > highest { sink } else { highest };
        factor = math::exp(highest - top);
        sum = sum * factor + math::exp(sink - top);
    }
    let inverse = if sum == 0.0 { 0.0 } else { factor / sum };
    let result = if there { v * inverse + 0.0 } else { 0.0 };
    *results.add(t as usize) = result;
    if there && !out.is_null() {
        *out.add((row * width + channel) as usize) = result;
    }
    if there && !plain.is_null() {
        *plain.add((row * width + channel) as usize) = result;
    }
    sync();
    let (warp, lane) = (t >> 5, t & 31);
    let group = (row * width.div_ceil(256) + ctaid_x()) as usize;
    if !qs.is_null() && warp == 0 {
        quantize_group(
            eight(results, lane),
            lane,
            qs.add(256 * group),
            scales.add(group),
            sums.add(16 * group),
        );
    }
    if !qs32.is_null() && first_channel + 32 * warp < width {
        let block = 8 * group + warp as usize;
        let v = *results.add(t as usize);
        quantize_block(v, lane, qs32.add(32 * block), scales32.add(block), sums32.add(2 * block));
    }
}
