//! Attention of many rows on f16 tensor cores: a block takes 64 rows, which are the query heads of a key head at consecutive positions,
//! and walks over their keys 64 at a time.
//!
//! Queries and weights go in as two halves each, whose sum is the f32 value to 22 bits, so that only the order of sums parts the result
//! from that of the other attention kernels. Tiles of keys are cut by position, counted from the text's start, and a tile that a
//! row does not see changes nothing of it: the row's result depends neither on its block nor on how the prompt was cut.

use crate::attention::{LOWEST, Shape};
use crate::dev::{
    copies_commit, copies_wait, copy16, ctaid_x, ctaid_y, ctaid_z, exp2, half, halves, matrices,
    matrices_turned, mma_f16, nctaid_x, shared, sync, tid,
};
use crate::heads::Place;
use crate::warp::{div, xor_f32};

/// Rows of a block: query heads that share a key head, query after query.
pub const ROWS: u32 = 64;
/// Keys of a tile: two pages.
pub const KEYS: u32 = 64;
/// Threads of a block: four warps, sixteen rows each.
pub const THREADS: u32 = 128;

/// Bytes from channel to channel of a tile of keys; 16 more than it holds, so that lanes meet different banks.
const KEY_STEP: u32 = 2 * KEYS + 16;
const LOG2_E: f32 = core::f32::consts::LOG2_E;

/// Which rows are a prompt's.
#[derive(Clone, Copy)]
pub struct Prompts {
    /// Its third word is the number of groups.
    pub counts: *const u32,
    /// `[groups, 4]`: first row, rows, position of the first row, page table.
    pub groups: *const u32,
    /// `[rows]`: not zero for rows that another kernel takes.
    pub wants: *const u32,
}

/// Bytes from row to row of so many channels.
const fn step(channels: u32) -> u32 {
    2 * channels + 16
}

/// Shared memory of a block: the queries in two halves, a tile of keys, a tile of values of which it takes `channels`.
#[must_use]
pub const fn shared_bytes(key: u32, channels: u32) -> u32 {
    2 * ROWS * step(key) + key * KEY_STEP + KEYS * step(channels)
}

/// What is left of values when their halves are taken away, as halves.
#[inline(always)]
fn rest(low: f32, high: f32, taken: u32) -> u32 {
    halves(low - half(taken as u16), high - half((taken >> 16) as u16))
}

/// The hyperbolic tangent, to a few units of 2^-24.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp2(2.0 * LOG2_E * x) + 1.0)
}

/// A block's keys.
#[derive(Clone, Copy)]
struct Keys {
    place: Place,
    /// A row of the sequence.
    row: u32,
    /// The first and the last position that a row of the block sees.
    oldest: u32,
    last: u32,
}

impl Keys {
    /// Numbers of a tile's pages; of those that nobody sees, any.
    #[inline(always)]
    unsafe fn pages(&self, tile: u32) -> [u32; 2] {
        let number = |page: u32| match page * 32 <= self.last && page * 32 + 31 >= self.oldest {
            true => self.place.page_number(self.row, page),
            false => 0,
        };
        [number(2 * tile), number(2 * tile + 1)]
    }

    /// Begins to bring a tile of keys, `[channel][key]`, from `from` bytes into each page on.
    #[inline(always)]
    unsafe fn stage_keys(&self, to: u32, tile: u32, pages: [u32; 2], from: u32, channels: u32) {
        let mut half = 0;
        while half < 2 {
            let page = 2 * tile + half as u32;
            if page * 32 <= self.last && page * 32 + 31 >= self.oldest {
                let keys = self.place.at(pages[half]).add(from as usize) as *const u8;
                let to = to + 64 * half as u32;
                let mut i = tid();
                while i < 4 * channels {
                    copy16(to + (i >> 2) * KEY_STEP + 16 * (i & 3), keys.add(16 * i as usize));
                    i += THREADS;
                }
            }
            half += 1;
        }
    }

    /// Begins to bring a tile of values, `[key][channel]`, `V` times 16 channels, `width` in a token's row. Those that nobody sees are
    /// zeros: their weights are, but nobody knows what lies in their place.
    #[inline(always)]
    unsafe fn stage_values<const V: usize>(
        &self,
        to: u32,
        tile: u32,
        pages: [u32; 2],
        from: u32,
        width: u32,
    ) {
        let pieces = 2 * V as u32;
        let first = tile * KEYS;
        if first >= self.oldest && first + KEYS - 1 <= self.last {
            // All of it, as nearly always.
            let (near, far) =
                (self.place.at(pages[0]).add(from as usize), self.place.at(pages[1]).add(from as usize));
            let mut i = tid();
            while i < KEYS * pieces {
                let token = i / pieces;
                let piece = 16 * (i - token * pieces);
                let page = if token < 32 { near } else { far };
                let at = (token & 31) * 2 * width + piece;
                copy16(to + token * step(16 * V as u32) + piece, page.add(at as usize) as *const u8);
                i += THREADS;
            }
            return;
        }
        let mut i = tid();
        while i < KEYS * pieces {
            let token = i / pieces;
            let piece = 16 * (i - token * pieces);
            let to = to + token * step(16 * V as u32) + piece;
            let position = first + token;
            if position <= self.last && position >= self.oldest {
                let page = self.place.at(if token < 32 { pages[0] } else { pages[1] });
                let at = from + (token & 31) * 2 * width + piece;
                copy16(to, page.add(at as usize) as *const u8);
            } else {
                let words = shared().add(to as usize).cast::<u32>();
                *words = 0;
                *words.add(1) = 0;
                *words.add(2) = 0;
                *words.add(3) = 0;
            }
            i += THREADS;
        }
    }
}

/// What a lane knows of its two rows: `r` and `r + 8` of its warp's sixteen, with `r = lane / 4`.
#[derive(Clone, Copy)]
struct RowState {
    position: [u32; 2],
    oldest: [u32; 2],
    /// The highest score so far, times log2 e.
    highest: [f32; 2],
    /// The weights of this lane's own keys.
    sum: [f32; 2],
}

/// Scores of sixteen rows and a tile's keys: `[n][k]` is row `lane / 4 + 8 (k / 2)`, key `8 n + 2 (lane mod 4) + k mod 2`.
type Scores = [[f32; 4]; 8];

#[inline(always)]
unsafe fn scores(queries: u32, keys: u32, channels: u32, lane: u32) -> Scores {
    let mut s: Scores = [[0.0; 4]; 8];
    let query_step = step(channels);
    let mut query = queries + (lane & 15) * query_step + 16 * (lane >> 4);
    let mut key = keys + (lane & 15) * KEY_STEP + 16 * (lane >> 4);
    let mut c = 0;
    while c < channels {
        let (whole, left) = (matrices(query), matrices(query + ROWS * query_step));
        let k = [
            matrices_turned(key),
            matrices_turned(key + 32),
            matrices_turned(key + 64),
            matrices_turned(key + 96),
        ];
        let mut n = 0;
        while n < 4 {
            s[2 * n] = mma_f16(s[2 * n], whole, [k[n][0], k[n][1]]);
            s[2 * n + 1] = mma_f16(s[2 * n + 1], whole, [k[n][2], k[n][3]]);
            n += 1;
        }
        let mut n = 0;
        while n < 4 {
            s[2 * n] = mma_f16(s[2 * n], left, [k[n][0], k[n][1]]);
            s[2 * n + 1] = mma_f16(s[2 * n + 1], left, [k[n][2], k[n][3]]);
            n += 1;
        }
        query += 32;
        key += 16 * KEY_STEP;
        c += 16;
    }
    s
}

impl RowState {
    /// Scores become weights; what was summed before is to be multiplied by the result, row by row.
    #[inline(always)]
    fn weigh(&mut self, s: &mut Scores) -> [f32; 2] {
        let mut best = self.highest;
        let mut n = 0;
        while n < 8 {
            let mut k = 0;
            while k < 4 {
                best[k >> 1] = if s[n][k] > best[k >> 1] { s[n][k] } else { best[k >> 1] };
                k += 1;
            }
            n += 1;
        }
        let mut decay = [1.0f32; 2];
        let mut r = 0;
        while r < 2 {
            let other = xor_f32(best[r], 1);
            best[r] = if other > best[r] { other } else { best[r] };
            let other = xor_f32(best[r], 2);
            best[r] = if other > best[r] { other } else { best[r] };
            decay[r] = exp2(self.highest[r] - best[r]);
            self.highest[r] = best[r];
            r += 1;
        }
        let mut sum = [0.0f32; 2];
        let mut n = 0;
        while n < 8 {
            let mut k = 0;
            while k < 4 {
                s[n][k] = exp2(s[n][k] - best[k >> 1]);
                sum[k >> 1] += s[n][k];
                k += 1;
            }
            n += 1;
        }
        self.sum = [self.sum[0] * decay[0] + sum[0], self.sum[1] * decay[1] + sum[1]];
        decay
    }

    /// Keys that a row does not see get no weight.
    #[inline(always)]
    fn hide(&self, s: &mut Scores, first: u32, lane: u32) {
        let mut n = 0;
        while n < 8 {
            let mut k = 0;
            while k < 4 {
                let at = first + 8 * n as u32 + 2 * (lane & 3) + (k as u32 & 1);
                if at > self.position[k >> 1] || at < self.oldest[k >> 1] {
                    s[n][k] = f32::NEG_INFINITY;
                }
                k += 1;
            }
            n += 1;
        }
    }
}

/// Adds the values of sixteen keys, from `values` on, weighed by two neighbours of the scores.
#[inline(always)]
unsafe fn gather<const V: usize>(
    values: u32,
    near: [f32; 4],
    far: [f32; 4],
    lane: u32,
    sums: &mut [[[f32; 4]; 2]; V],
) {
    let whole =
        [halves(near[0], near[1]), halves(near[2], near[3]), halves(far[0], far[1]), halves(far[2], far[3])];
    let left = [
        rest(near[0], near[1], whole[0]),
        rest(near[2], near[3], whole[1]),
        rest(far[0], far[1], whole[2]),
        rest(far[2], far[3], whole[3]),
    ];
    let at = values + (lane & 15) * step(16 * V as u32) + 16 * (lane >> 4);
    let mut n = 0;
    // Two at a time: products that wait for each other stand apart.
    while n + 1 < V {
        let v = matrices_turned(at + 32 * n as u32);
        let u = matrices_turned(at + 32 * n as u32 + 32);
        sums[n][0] = mma_f16(sums[n][0], whole, [v[0], v[1]]);
        sums[n][1] = mma_f16(sums[n][1], whole, [v[2], v[3]]);
        sums[n + 1][0] = mma_f16(sums[n + 1][0], whole, [u[0], u[1]]);
        sums[n + 1][1] = mma_f16(sums[n + 1][1], whole, [u[2], u[3]]);
        sums[n][0] = mma_f16(sums[n][0], left, [v[0], v[1]]);
        sums[n][1] = mma_f16(sums[n][1], left, [v[2], v[3]]);
        sums[n + 1][0] = mma_f16(sums[n + 1][0], left, [u[0], u[1]]);
        sums[n + 1][1] = mma_f16(sums[n + 1][1], left, [u[2], u[3]]);
        n += 2;
    }
    if n < V {
        let v = matrices_turned(at + 32 * n as u32);
        sums[n][0] = mma_f16(sums[n][0], whole, [v[0], v[1]]);
        sums[n][1] = mma_f16(sums[n][1], whole, [v[2], v[3]]);
        sums[n][0] = mma_f16(sums[n][0], left, [v[0], v[1]]);
        sums[n][1] = mma_f16(sums[n][1], left, [v[2], v[3]]);
    }
}

/// Grid: x blocks of rows, at least as many as the groups have, y key heads, z parts of `V` times 16 channels of a value. Keys and values
/// are f16, keys a multiple of 16 wide, and a key head has at most [`ROWS`] query heads.
///
/// # Safety
/// Every pointer leads to what the shapes say; shared memory holds [`shared_bytes`].
#[inline(always)]
pub unsafe fn flash<const V: usize>(
    place: Place,
    shape: Shape,
    sinks: *const f32,
    prompts: Prompts,
    q: *const f32,
    out: *mut f32,
) {
    let (kv, warp, lane) = (ctaid_y(), tid() >> 5, tid() & 31);
    let group = div(shape.heads, shape.kv_heads);
    let queries = div(ROWS, group);
    // Blocks with the most keys come first.
    let mut block = nctaid_x() - 1 - ctaid_x();
    let groups = *prompts.counts.add(2);
    let (mut n, mut rows) = (0, 0);
    while n < groups {
        rows = *prompts.groups.add((4 * n + 1) as usize);
        let blocks = div(rows + queries - 1, queries);
        if block < blocks {
            break;
        }
        block -= blocks;
        n += 1;
    }
    if n == groups {
        return;
    }
    let first_query = block * queries;
    let row = *prompts.groups.add((4 * n) as usize) + first_query;
    let position = *prompts.groups.add((4 * n + 2) as usize) + first_query;
    let here = if rows - first_query < queries { rows - first_query } else { queries };
    let mut others = 0;
    while others < here && *prompts.wants.add((row + others) as usize) != 0 {
        others += 1;
    }
    if others == here {
        return;
    }

    let oldest = |position: u32| match shape.window != 0 && position + 1 > shape.window {
        true => position + 1 - shape.window,
        false => 0,
    };
    let keys = Keys { place, row, oldest: oldest(position), last: position + here - 1 };
    let query_step = step(shape.key);
    let keys_at = 2 * ROWS * query_step;
    let values_at = keys_at + shape.key * KEY_STEP;
    let key_from = shape.keys_at + 64 * kv * shape.key;
    let channel = 16 * V as u32 * ctaid_z();
    let value_from = shape.values_at + 2 * (kv * shape.value + channel);
    let width = shape.kv_heads * shape.value;

    let (mut tile, last_tile) = (keys.oldest / KEYS, keys.last / KEYS);
    let mut pages = keys.pages(tile);
    keys.stage_keys(keys_at, tile, pages, key_from, shape.key);
    copies_commit();

    // Queries in halves, what their products are multiplied by already in them; zeros for rows that are not there.
    let capped = shape.softcap != 0.0;
    let factor = if capped { shape.scale } else { shape.scale * LOG2_E };
    let half_channels = shape.key / 2;
    let mut i = tid();
    while i < ROWS * half_channels {
        let r = div(i, half_channels);
        let c = i - r * half_channels;
        let query = div(r, group);
        let (mut a, mut b) = (0.0, 0.0);
        if query < here {
            let head = kv * group + r - query * group;
            let from = q.add((((row + query) * shape.heads + head) * shape.key + 2 * c) as usize);
            (a, b) = (*from * factor, *from.add(1) * factor);
        }
        let whole = halves(a, b);
        let to = shared().add((r * query_step + 4 * c) as usize);
        *to.cast::<u32>() = whole;
        *to.add((ROWS * query_step) as usize).cast::<u32>() = rest(a, b, whole);
        i += THREADS;
    }

    // Rows that are not there stand at the last query's position and are not written.
    let position_of = |r: u32| {
        let query = div(r, group);
        position + if query < here { query } else { here - 1 }
    };
    let first_row = 16 * warp;
    let own = [position_of(first_row + (lane >> 2)), position_of(first_row + (lane >> 2) + 8)];
    let mut state = RowState {
        position: own,
        oldest: [oldest(own[0]), oldest(own[1])],
        highest: [LOWEST; 2],
        sum: [0.0; 2],
    };
    let (lowest_position, highest_position) = (position_of(first_row), position_of(first_row + 15));
    let (lowest_oldest, highest_oldest) = (oldest(lowest_position), oldest(highest_position));
    let mut sums = [[[0.0f32; 4]; 2]; V];

    loop {
        copies_wait::<0>();
        sync();
        keys.stage_values::<V>(values_at, tile, pages, value_from, width);
        copies_commit();
        if tile < last_tile {
            pages = keys.pages(tile + 1);
        }
        let first = tile * KEYS;
        let seen = first <= highest_position && first + KEYS > lowest_oldest;
        let mut s: Scores = [[0.0; 4]; 8];
        if seen {
            s = scores(first_row * query_step, keys_at, shape.key, lane);
            if capped {
                let inverse = 1.0 / shape.softcap;
                let mut n = 0;
                while n < 8 {
                    let mut k = 0;
                    while k < 4 {
                        s[n][k] = shape.softcap * LOG2_E * tanh(s[n][k] * inverse);
                        k += 1;
                    }
                    n += 1;
                }
            }
            if first + KEYS - 1 > lowest_position || first < highest_oldest {
                state.hide(&mut s, first, lane);
            }
            let decay = state.weigh(&mut s);
            let mut n = 0;
            while n < V {
                let mut k = 0;
                while k < 4 {
                    sums[n][0][k] *= decay[k >> 1];
                    sums[n][1][k] *= decay[k >> 1];
                    k += 1;
                }
                n += 1;
            }
        }
        copies_wait::<0>();
        sync();
        if tile < last_tile {
            keys.stage_keys(keys_at, tile + 1, pages, key_from, shape.key);
            copies_commit();
        }
        if seen {
            let sixteen = 16 * step(16 * V as u32);
            gather::<V>(values_at, s[0], s[1], lane, &mut sums);
            gather::<V>(values_at + sixteen, s[2], s[3], lane, &mut sums);
            gather::<V>(values_at + 2 * sixteen, s[4], s[5], lane, &mut sums);
            gather::<V>(values_at + 3 * sixteen, s[6], s[7], lane, &mut sums);
        }
        if tile == last_tile {
            break;
        }
        tile += 1;
    }

    let mut r = 0;
    while r < 2 {
        let mut sum = state.sum[r];
        sum += xor_f32(sum, 1);
        sum += xor_f32(sum, 2);
        let place = first_row + (lane >> 2) + 8 * r as u32;
        let query = div(place, group);
        let head = kv * group + place - query * group;
        if query < here {
            let mut factor = 1.0f32;
            if !sinks.is_null() {
                let sink = *sinks.add(head as usize) * LOG2_E;
                let top = if sink > state.highest[r] { sink } else { state.highest[r] };
                factor = exp2(state.highest[r] - top);
                sum = sum * factor + exp2(sink - top);
            }
            let inverse = if sum == 0.0 { 0.0 } else { factor / sum };
            let channel = channel + 2 * (lane & 3);
            let to = out.add((((row + query) * shape.heads + head) * shape.value + channel) as usize);
            let mut n = 0;
            while n < V {
                let to = to.add(16 * n);
                *to = sums[n][0][2 * r] * inverse + 0.0;
                *to.add(1) = sums[n][0][2 * r + 1] * inverse + 0.0;
                *to.add(8) = sums[n][1][2 * r] * inverse + 0.0;
                *to.add(9) = sums[n][1][2 * r + 1] * inverse + 0.0;
                n += 1;
            }
        }
        r += 1;
    }
}
