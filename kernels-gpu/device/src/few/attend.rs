//! Attention for few rows: a block takes one span of keys for up to eight query heads that share a key head, from shared memory.
//!
//! The rule is that of `attention`: inside a span page by page, spans merged in order. Nothing here depends on how many rows or
//! spans there are.

use crate::attention::{LOWEST, SPAN, Shape};
use crate::dev::{
    copies_commit, copies_wait, copy4, copy16, ctaid_x, ctaid_y, ctaid_z, half, shared, shared2, shared4,
    shared16, shfl, sync, tid, wait_for_launches,
};
use crate::heads::Place;
use crate::warp::{div, max_f32, tree_sum};
use bloomery_formats::float::fma;
use bloomery_formats::math;

/// Query heads of a block.
pub const HEADS: u32 = 8;
/// Threads of a block.
pub const THREADS: u32 = 256;

/// Copies segments of global memory into shared memory, all threads together: `count` segments of `bytes`, `from_step` and `to_step`
/// bytes apart.
///
/// # Safety
/// All of it is there; `to` and `to_step` are multiples of 16, everything else of 2.
#[inline(always)]
unsafe fn stage(to: u32, to_step: u32, from: *const u8, from_step: u32, count: u32, bytes: u32) {
    let odd = from as u32 | from_step | bytes;
    if odd & 15 == 0 {
        let per = bytes / 16;
        let mut i = tid();
        while i < count * per {
            let (segment, piece) = (div(i, per), i);
            let piece = (piece - segment * per) * 16;
            copy16(to + segment * to_step + piece, from.add((segment * from_step + piece) as usize));
            i += THREADS;
        }
    } else if odd & 3 == 0 {
        let per = bytes / 4;
        let mut i = tid();
        while i < count * per {
            let segment = div(i, per);
            let piece = (i - segment * per) * 4;
            copy4(to + segment * to_step + piece, from.add((segment * from_step + piece) as usize));
            i += THREADS;
        }
    } else {
        let per = bytes / 2;
        let mut i = tid();
        while i < count * per {
            let segment = div(i, per);
            let piece = (i - segment * per) * 2;
            let target = shared().add((to + segment * to_step + piece) as usize).cast::<u16>();
            *target = *from.add((segment * from_step + piece) as usize).cast::<u16>();
            i += THREADS;
        }
    }
}

/// A storage type, read from shared memory.
trait Cache {
    /// The value of a key's channel: `block` is the place of channel 0 of its head's first block, `channel` counts from there.
    unsafe fn key(block: u32, channel: u32, lane: u32) -> f32;
    /// The value of a token's channel.
    unsafe fn value(token: u32, channel: u32) -> f32;
}
struct Whole;
impl Cache for Whole {
    #[inline(always)]
    unsafe fn key(block: u32, channel: u32, lane: u32) -> f32 {
        f32::from_bits(shared4(block + channel * 128 + lane * 4))
    }
    #[inline(always)]
    unsafe fn value(token: u32, channel: u32) -> f32 {
        f32::from_bits(shared4(token + channel * 4))
    }
}
struct Half;
impl Cache for Half {
    #[inline(always)]
    unsafe fn key(block: u32, channel: u32, lane: u32) -> f32 {
        half(shared2(block + channel * 64 + lane * 2))
    }
    #[inline(always)]
    unsafe fn value(token: u32, channel: u32) -> f32 {
        half(shared2(token + channel * 2))
    }
}
struct Eighth;
impl Cache for Eighth {
    #[inline(always)]
    unsafe fn key(block: u32, channel: u32, lane: u32) -> f32 {
        let block = block + channel / 32 * 1088;
        let scale = half(shared2(block + lane * 2));
        scale * *shared().add((block + (2 + channel % 32) * 32 + lane) as usize).cast::<i8>() as f32
    }
    #[inline(always)]
    unsafe fn value(token: u32, channel: u32) -> f32 {
        let block = token + channel / 32 * 34;
        half(shared2(block)) * *shared().add((block + 2 + channel % 32) as usize).cast::<i8>() as f32
    }
}

/// Scores of four heads and one key a lane.
#[inline(always)]
unsafe fn scores<K: Cache>(keys: u32, first: u32, q: u32, channels: u32, lane: u32) -> [f32; 4] {
    let mut sum = [0.0f32; 4];
    let mut c = 0;
    while c + 8 <= channels {
        let k: [f32; 8] = [
            K::key(keys, first + c, lane),
            K::key(keys, first + c + 1, lane),
            K::key(keys, first + c + 2, lane),
            K::key(keys, first + c + 3, lane),
            K::key(keys, first + c + 4, lane),
            K::key(keys, first + c + 5, lane),
            K::key(keys, first + c + 6, lane),
            K::key(keys, first + c + 7, lane),
        ];
        let mut i = 0;
        while i < 8 {
            let queries = shared16(q + (c + i as u32) * 32);
            let mut h = 0;
            while h < 4 {
                sum[h] = fma(f32::from_bits(queries[h]), k[i], sum[h]);
                h += 1;
            }
            i += 1;
        }
        c += 8;
    }
    while c < channels {
        let k = K::key(keys, first + c, lane);
        let queries = shared16(q + c * 32);
        let mut h = 0;
        while h < 4 {
            sum[h] = fma(f32::from_bits(queries[h]), k, sum[h]);
            h += 1;
        }
        c += 1;
    }
    sum
}

/// Adds the weighted values of a page's tokens `from..to` for four heads and `C` channels a thread.
#[inline(always)]
unsafe fn gather<K: Cache, const C: usize>(
    values: u32,
    step: u32,
    weights: u32,
    (from, to): (u32, u32),
    channel: u32,
    sum: &mut [[f32; 4]; C],
) {
    let mut token = from;
    while token + 4 <= to {
        let mut v = [[0.0f32; 4]; C];
        let mut i = 0;
        while i < C {
            let mut t = 0;
            while t < 4 {
                v[i][t] = K::value(values + (token + t as u32) * step, channel + 128 * i as u32);
                t += 1;
            }
            i += 1;
        }
        let mut t = 0;
        while t < 4 {
            let w = shared16(weights + (token + t as u32) * 32);
            let mut i = 0;
            while i < C {
                let mut h = 0;
                while h < 4 {
                    sum[i][h] = fma(f32::from_bits(w[h]), v[i][t], sum[i][h]);
                    h += 1;
                }
                i += 1;
            }
            t += 1;
        }
        token += 4;
    }
    while token < to {
        let w = shared16(weights + token * 32);
        let mut i = 0;
        while i < C {
            let v = K::value(values + token * step, channel + 128 * i as u32);
            let mut h = 0;
            while h < 4 {
                sum[i][h] = fma(f32::from_bits(w[h]), v, sum[i][h]);
                h += 1;
            }
            i += 1;
        }
        token += 1;
    }
}

/// Grid: x rows, y key heads times parts of their query heads, z spans by turns. `partial` is `[rows, heads, spans, 2 + value]`.
/// `list` names the rows; null for all of them.
/// `tile` pages of keys and values are in shared memory at a time; `C` times 128 channels cover a value.
///
/// # Safety
/// Every pointer leads to what the shapes say; shared memory is as large as the launcher computes.
#[inline(always)]
pub unsafe fn attend_few<const C: usize>(
    place: Place,
    shape: Shape,
    list: *const u32,
    q: *const f32,
    partial: *mut f32,
    spans: u32,
    turns: u32,
    tile: u32,
) {
    wait_for_launches();
    let (slot, warp, lane) = (ctaid_x(), tid() >> 5, tid() & 31);
    let row = if list.is_null() { slot } else { *list.add(slot as usize) };
    let group = div(shape.heads, shape.kv_heads);
    let parts = group.div_ceil(HEADS);
    let kv = div(ctaid_y(), parts);
    let part = ctaid_y() - kv * parts;
    let first_head = kv * group + part * HEADS;
    let heads = if group - part * HEADS < HEADS { group - part * HEADS } else { HEADS };
    let position = *place.positions.add(row as usize);
    let oldest =
        if shape.window != 0 && position + 1 > shape.window { position + 1 - shape.window } else { 0 };
    let (first, last) = (oldest / (32 * SPAN), position / (32 * SPAN));

    let start = kv * shape.key;
    let first_block = start / 32;
    let (key_from, key_bytes, key_first) = match shape.keys {
        1 => (start * 128, shape.key * 128, 0),
        2 => (start * 64, shape.key * 64, 0),
        _ => (
            first_block * 1088,
            ((start + shape.key).div_ceil(32) - first_block) * 1088,
            start - first_block * 32,
        ),
    };
    let row_width = shape.kv_heads * shape.value;
    let start = kv * shape.value;
    let first_block = start / 32;
    let (value_row, value_from, value_bytes, value_first) = match shape.values {
        1 => (row_width * 4, start * 4, shape.value * 4, 0),
        2 => (row_width * 2, start * 2, shape.value * 2, 0),
        _ => (
            row_width / 32 * 34,
            first_block * 34,
            ((start + shape.value).div_ceil(32) - first_block) * 34,
            start - first_block * 32,
        ),
    };
    let value_step = value_bytes.next_multiple_of(16);
    let weights_at = shape.key * 32;
    let decays_at = weights_at + tile * 1024;
    let keys_at = decays_at + tile * 32;
    let values_at = keys_at + tile * key_bytes;

    // Queries as [channel][head], zeros for heads that are not there.
    let queries = q.add(((row * shape.heads + first_head) * shape.key) as usize);
    let mut i = tid();
    while i < shape.key * HEADS {
        let head = div(i, shape.key);
        let at = ((i - head * shape.key) * HEADS + head) * 4;
        if head < heads {
            copy4(at, queries.add(i as usize).cast());
        } else {
            *shared().add(at as usize).cast::<f32>() = 0.0;
        }
        i += THREADS;
    }

    let (channel, set) = (tid() & 127, tid() >> 7);
    let mut n = ctaid_z();
    if n < first {
        n += div(first - n + turns - 1, turns) * turns;
    }
    while n <= last {
        let (mut highest, mut sum) = (LOWEST, 0.0f32);
        let mut values = [[0.0f32; 4]; C];
        let mut page_number = n * SPAN;
        let end = if position / 32 + 1 < (n + 1) * SPAN { position / 32 + 1 } else { (n + 1) * SPAN };
        if page_number < oldest / 32 {
            page_number = oldest / 32;
        }
        while page_number < end {
            let pages = if end - page_number < tile { end - page_number } else { tile };
            // Every page's number is asked for at once, by a lane each.
            let number = if lane < pages { place.page_number(row, page_number + lane) } else { 0 };
            let mut p = 0;
            while p < pages {
                let page = place.at(shfl(number, p)) as *const u8;
                let keys = page.add((shape.keys_at + key_from) as usize);
                stage(keys_at + p * key_bytes, 0, keys, 0, 1, key_bytes);
                p += 1;
            }
            copies_commit();
            let mut p = 0;
            while p < pages {
                let at = (page_number + p) * 32;
                let page = place.at(shfl(number, p)) as *const u8;
                let from = page.add((shape.values_at + value_from) as usize);
                let tokens = if position - at < 31 { position - at + 1 } else { 32 };
                stage(values_at + p * 32 * value_step, value_step, from, value_row, tokens, value_bytes);
                p += 1;
            }
            copies_commit();
            copies_wait::<1>();
            sync();

            // Scores: a warp takes four heads and a page.
            let mut item = warp;
            while item < 2 * pages {
                let (p, side) = (item >> 1, item & 1);
                if side * 4 < heads {
                    let (keys, q) = (keys_at + p * key_bytes, side * 16);
                    let mut s = match shape.keys {
                        1 => scores::<Whole>(keys, key_first, q, shape.key, lane),
                        2 => scores::<Half>(keys, key_first, q, shape.key, lane),
                        _ => scores::<Eighth>(keys, key_first, q, shape.key, lane),
                    };
                    let at = (page_number + p) * 32 + lane;
                    let mut h = 0;
                    while h < 4 {
                        let mut score = s[h] * shape.scale;
                        if shape.softcap != 0.0 {
                            score = shape.softcap * math::tanh(score / shape.softcap);
                        }
                        s[h] = if at > position || at < oldest { f32::NEG_INFINITY } else { score };
                        h += 1;
                    }
                    let to =
                        shared().add((weights_at + (p * 32 + lane) * 32 + side * 16) as usize).cast::<f32>();
                    *to = s[0];
                    *to.add(1) = s[1];
                    *to.add(2) = s[2];
                    *to.add(3) = s[3];
                }
                item += THREADS / 32;
            }
            sync();

            // Weights: a warp a head, page after page.
            let mut p = 0;
            while p < pages {
                let at = shared().add((weights_at + (p * 32 + lane) * 32 + warp * 4) as usize).cast::<f32>();
                let score = *at;
                let best = max_f32(score);
                let mut decay = 1.0f32;
                if best > highest {
                    decay = math::exp(highest - best);
                    sum *= decay;
                    highest = best;
                }
                let weight = math::exp(score - highest);
                sum += tree_sum(weight);
                *at = weight;
                if lane == 0 {
                    *shared().add((decays_at + p * 32 + warp * 4) as usize).cast::<f32>() = decay;
                }
                p += 1;
            }
            copies_wait::<0>();
            sync();

            // Values: a thread takes four heads and its channels.
            if set * 4 < heads && channel < shape.value {
                let mut p = 0;
                while p < pages {
                    let decay = shared16(decays_at + p * 32 + set * 16);
                    let mut i = 0;
                    while i < C {
                        let mut h = 0;
                        while h < 4 {
                            values[i][h] *= f32::from_bits(decay[h]);
                            h += 1;
                        }
                        i += 1;
                    }
                    let at = (page_number + p) * 32;
                    let from = if oldest > at { oldest - at } else { 0 };
                    let to = if position - at < 31 { position - at + 1 } else { 32 };
                    let (v, w) = (values_at + p * 32 * value_step, weights_at + p * 1024 + set * 16);
                    let channel = value_first + channel;
                    match shape.values {
                        1 => gather::<Whole, C>(v, value_step, w, (from, to), channel, &mut values),
                        2 => gather::<Half, C>(v, value_step, w, (from, to), channel, &mut values),
                        _ => gather::<Eighth, C>(v, value_step, w, (from, to), channel, &mut values),
                    }
                    p += 1;
                }
            }
            sync();
            page_number += pages;
        }

        if warp < heads && lane == 0 {
            let to = partial
                .add((((slot * shape.heads + first_head + warp) * spans + n) * (2 + shape.value)) as usize);
            *to = highest;
            *to.add(1) = sum;
        }
        let mut h = 0;
        while h < 4 {
            let head = set * 4 + h;
            if head < heads {
                let to = partial.add(
                    (((slot * shape.heads + first_head + head) * spans + n) * (2 + shape.value) + 2) as usize,
                );
                let mut i = 0;
                while i < C {
                    let c = channel + 128 * i as u32;
                    if c < shape.value {
                        *to.add(c as usize) = values[i][h as usize];
                    }
                    i += 1;
                }
            }
            h += 1;
        }
        n += turns;
    }
}
