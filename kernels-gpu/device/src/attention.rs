//! Attention over pages: a lane a key for the scores, a lane a few channels for the values. Keys are cut into fixed spans, each summed
//! in order; spans are merged in order, by whoever: a row's result does not depend on the company it had.

use crate::dev::{ctaid_x, ctaid_y, tid, wait_for_launches};
use crate::heads::Place;
use crate::warp::{get_f32, max_f32, tree_sum};
use bloomery_formats::float::fma;
use bloomery_formats::half::f16_to_f32;
use bloomery_formats::math;

/// Pages of a span.
pub const SPAN: u32 = 4;
pub const LOWEST: f32 = -1e30;

#[derive(Clone, Copy)]
pub struct Shape {
    pub heads: u32,
    pub kv_heads: u32,
    pub key: u32,
    pub value: u32,
    pub scale: f32,
    /// 0 for none.
    pub softcap: f32,
    /// 0 for none.
    pub window: u32,
    pub keys_at: u32,
    pub keys: u32,
    pub values_at: u32,
    pub values: u32,
}

struct Sum<const V: usize> {
    highest: f32,
    sum: f32,
    values: [f32; V],
}

impl<const V: usize> Sum<V> {
    #[inline(always)]
    fn new() -> Self {
        Sum { highest: LOWEST, sum: 0.0, values: [0.0; V] }
    }
    #[inline(always)]
    fn decay(&mut self, by: f32) {
        self.sum *= by;
        let mut i = 0;
        while i < V {
            self.values[i] *= by;
            i += 1;
        }
    }
    /// Takes a later span in.
    #[inline(always)]
    fn merge(&mut self, mut other: Sum<V>, first: bool) {
        if first {
            *self = other;
            return;
        }
        if other.highest > self.highest {
            self.decay(math::exp(self.highest - other.highest));
            self.highest = other.highest;
        } else {
            other.decay(math::exp(other.highest - self.highest));
        }
        self.sum += other.sum;
        let mut i = 0;
        while i < V {
            self.values[i] += other.values[i];
            i += 1;
        }
    }
}

#[inline(always)]
unsafe fn span<const V: usize>(
    place: &Place,
    shape: &Shape,
    q: *const f32,
    row: u32,
    kv: u32,
    position: u32,
    oldest: u32,
    first_page: u32,
    lane: u32,
) -> Sum<V> {
    let mut out = Sum::<V>::new();
    let mut page_number = first_page;
    while page_number < first_page + SPAN && page_number * 32 <= position {
        if page_number * 32 + 31 < oldest {
            page_number += 1;
            continue;
        }
        let page = place.page(row, page_number * 32) as *const u8;
        let keys = page.add(shape.keys_at as usize);
        let mut score = 0.0f32;
        let (start, l) = ((kv * shape.key) as usize, lane as usize);
        let mut c = 0usize;
        match shape.keys {
            1 => {
                while c < shape.key as usize {
                    score = fma(*q.add(c), *keys.cast::<f32>().add((start + c) * 32 + l), score);
                    c += 1;
                }
            }
            2 => {
                let keys = keys.cast::<u16>().add(start * 32 + l);
                while c + 8 <= shape.key as usize {
                    let k = keys.add(c * 32);
                    let (a, b, d, e) = (*k, *k.add(32), *k.add(64), *k.add(96));
                    let (f, g, h, i) = (*k.add(128), *k.add(160), *k.add(192), *k.add(224));
                    score = fma(*q.add(c), f16_to_f32(a), score);
                    score = fma(*q.add(c + 1), f16_to_f32(b), score);
                    score = fma(*q.add(c + 2), f16_to_f32(d), score);
                    score = fma(*q.add(c + 3), f16_to_f32(e), score);
                    score = fma(*q.add(c + 4), f16_to_f32(f), score);
                    score = fma(*q.add(c + 5), f16_to_f32(g), score);
                    score = fma(*q.add(c + 6), f16_to_f32(h), score);
                    score = fma(*q.add(c + 7), f16_to_f32(i), score);
                    c += 8;
                }
                while c < shape.key as usize {
                    score = fma(*q.add(c), f16_to_f32(*keys.add(c * 32)), score);
                    c += 1;
                }
            }
            _ => {
                while c < shape.key as usize {
                    let channel = start + c;
                    let block = keys.add(channel / 32 * 34 * 32);
                    let scale = f16_to_f32(*block.cast::<u16>().add(l));
                    let quant = *block.add((2 + channel % 32) * 32 + l).cast::<i8>();
                    score = fma(*q.add(c), scale * quant as f32, score);
                    c += 1;
                }
            }
        }
        score *= shape.scale;
        if shape.softcap != 0.0 {
            score = shape.softcap * math::tanh(score / shape.softcap);
        }
        let at = page_number * 32 + lane;
        if at > position || at < oldest {
            score = f32::NEG_INFINITY;
        }
        let best = max_f32(score);
        if best > out.highest {
            out.decay(math::exp(out.highest - best));
            out.highest = best;
        }
        let weight = math::exp(score - out.highest);
        out.sum += tree_sum(weight);
        let values = page.add(shape.values_at as usize);
        let from = if oldest > page_number * 32 { oldest - page_number * 32 } else { 0 };
        let to = if position - page_number * 32 < 31 { position - page_number * 32 + 1 } else { 32 };
        let row_width = (shape.kv_heads * shape.value) as usize;
        let mut token = from;
        while token < to {
            let w = get_f32(weight, token);
            let mut i = 0;
            while i < V {
                let c = lane as usize + 32 * i;
                if c < shape.value as usize {
                    let channel = (kv * shape.value) as usize + c;
                    let v = match shape.values {
                        1 => *values.cast::<f32>().add(token as usize * row_width + channel),
                        2 => f16_to_f32(*values.cast::<u16>().add(token as usize * row_width + channel)),
                        _ => {
                            let block =
                                values.add(token as usize * (row_width / 32 * 34) + channel / 32 * 34);
                            f16_to_f32(*block.cast::<u16>())
                                * *block.add(2 + channel % 32).cast::<i8>() as f32
                        }
                    };
                    out.values[i] = fma(w, v, out.values[i]);
                }
                i += 1;
            }
            token += 1;
        }
        page_number += 1;
    }
    out
}

/// Ends a head: the sink, the division, the result.
#[inline(always)]
unsafe fn finish<const V: usize>(
    total: &Sum<V>,
    shape: &Shape,
    sinks: *const f32,
    row: u32,
    head: u32,
    out: *mut f32,
    lane: u32,
) {
    let (mut sum, mut factor) = (total.sum, 1.0f32);
    if !sinks.is_null() {
        let sink = *sinks.add(head as usize);
        let highest = if sink > total.highest { sink } else { total.highest };
        factor = math::exp(total.highest - highest);
        sum = sum * factor + math::exp(sink - highest);
    }
    let inverse = if sum == 0.0 { 0.0 } else { factor / sum };
    let out = out.add(((row * shape.heads + head) * shape.value) as usize);
    let mut i = 0;
    while i < V {
        let c = lane + 32 * i as u32;
        if c < shape.value {
            *out.add(c as usize) = total.values[i] * inverse + 0.0;
        }
        i += 1;
    }
}

/// Grid: x rows, y key heads; a warp a query head of the group.
///
/// # Safety
/// Every pointer leads to what the shapes say.
#[inline(always)]
pub unsafe fn attend<const V: usize>(
    place: Place,
    shape: Shape,
    sinks: *const f32,
    q: *const f32,
    out: *mut f32,
) {
    wait_for_launches();
    let (row, kv, warp, lane) = (ctaid_x(), ctaid_y(), tid() >> 5, tid() & 31);
    let group = crate::warp::div(shape.heads, shape.kv_heads);
    if warp >= group {
        return;
    }
    let head = kv * group + warp;
    let position = *place.positions.add(row as usize);
    let oldest =
        if shape.window != 0 && position + 1 > shape.window { position + 1 - shape.window } else { 0 };
    let q = q.add(((row * shape.heads + head) * shape.key) as usize);
    let (first, last) = (oldest / (32 * SPAN), position / (32 * SPAN));
    let mut total = Sum::<V>::new();
    let mut n = first;
    while n <= last {
        let of = span::<V>(&place, &shape, q, row, kv, position, oldest, n * SPAN, lane);
        total.merge(of, n == first);
        n += 1;
    }
    finish(&total, &shape, sinks, row, head, out, lane);
}
