//! Slots (row times rank) in the order of their experts, cut into tiles of rows that one block multiplies.

use crate::dev::{ctaid_x, load16_kept, nctaid_x, shared, shfl, sync, tid};
use crate::many::gemm::TILE_ROWS;

/// Words of a tile: its expert, its first place in the order, and the place behind its last.
pub const TILE_WORDS: u32 = 3;

/// Experts of slots `i..i + 4`; none past the last.
#[inline(always)]
unsafe fn four(ids: *const u32, i: u32, slots: u32) -> [u32; 4] {
    if i + 4 <= slots {
        return load16_kept(ids.add(i as usize).cast());
    }
    let mut four = [u32::MAX; 4];
    let mut k = 0;
    while k < 4 {
        if i + k < slots {
            four[k as usize] = *ids.add((i + k) as usize);
        }
        k += 1;
    }
    four
}

/// Threads of a block.
pub const THREADS: u32 = 256;
/// Shared memory of a block: two words a warp.
pub const SHARED: u32 = 2 * 4 * THREADS / 32;

/// `order` takes the slots, expert after expert and inside an expert as they come; `tiles` takes `most` tiles, some of them empty: an
/// expert's begin where they would if every expert before it had one more than its rows fill. Grid: a block an expert. A slot whose
/// expert is none of them is in no tile.
///
/// # Safety
/// `ids` has `slots` values and is aligned to 16; `most` is at least `slots / TILE_ROWS + experts`, rounded up; shared memory holds
/// [`SHARED`].
#[inline(always)]
pub unsafe fn sort(ids: *const u32, slots: u32, order: *mut u32, tiles: *mut u32, most: u32) {
    let (expert, warp, lane) = (ctaid_x(), tid() >> 5, tid() & 31);
    // Each thread looks at neighbours, so that threads in order have slots in order.
    let share = slots.div_ceil(THREADS).next_multiple_of(4);
    let begin = tid() * share;
    let end = if begin + share < slots { begin + share } else { slots };
    let (mut before, mut mine) = (0, 0);
    let mut i = begin;
    while i < end {
        let four = four(ids, i, slots);
        let mut k = 0;
        while k < 4 {
            before += (four[k as usize] < expert) as u32;
            mine += (four[k as usize] == expert) as u32;
            k += 1;
        }
        i += 4;
    }
    // Sums over the lanes up to this one, then over warps.
    let (mut all_before, mut until) = (before, mine);
    let mut step = 1;
    while step < 32 {
        let (a, b) =
            (shfl(all_before, lane.wrapping_sub(step) & 31), shfl(until, lane.wrapping_sub(step) & 31));
        if lane >= step {
            all_before += a;
            until += b;
        }
        step *= 2;
    }
    let totals = shared().cast::<u32>();
    if lane == 31 {
        *totals.add(2 * warp as usize) = all_before;
        *totals.add(2 * warp as usize + 1) = until;
    }
    sync();
    let (mut first, mut count, mut at) = (0, 0, until - mine);
    let mut w = 0;
    while w < THREADS / 32 {
        let (b, m) = (*totals.add(2 * w as usize), *totals.add(2 * w as usize + 1));
        first += b;
        count += m;
        at += if w < warp { m } else { 0 };
        w += 1;
    }

    let tile = first / TILE_ROWS + expert;
    let next = if expert + 1 == nctaid_x() { most } else { (first + count) / TILE_ROWS + expert + 1 };
    let mut i = tid();
    while tile + i < next {
        let from = i * TILE_ROWS;
        let words = tiles.add(((tile + i) * TILE_WORDS) as usize);
        let there = from < count;
        let to = if count < from + TILE_ROWS { count } else { from + TILE_ROWS };
        *words = if there { expert } else { 0 };
        *words.add(1) = if there { first + from } else { 0 };
        *words.add(2) = if there { first + to } else { 0 };
        i += THREADS;
    }

    at += first;
    let mut i = begin;
    while i < end {
        let four = four(ids, i, slots);
        let mut k = 0;
        while k < 4 {
            if four[k as usize] == expert {
                *order.add(at as usize) = i + k;
                at += 1;
            }
            k += 1;
        }
        i += 4;
    }
}
