//! Slots (row times rank) in the order of their experts, cut into tiles of rows that one block multiplies.

use crate::dev::{ctaid_x, load16_kept, ntid, shared, sync, tid};
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

/// `order` takes the slots, expert after expert and inside an expert as they come; `tiles` takes `most` tiles, empty ones last. One block.
/// A slot whose expert is none of `experts` is in no tile.
///
/// # Safety
/// `ids` has `slots` values and is aligned to 16; `most` is at least `slots / TILE_ROWS + experts`; shared memory holds a
/// word for every expert.
#[inline(always)]
pub unsafe fn sort(ids: *const u32, slots: u32, experts: u32, order: *mut u32, tiles: *mut u32, most: u32) {
    if ctaid_x() != 0 {
        return;
    }
    let counts = shared().cast::<u32>();
    let mut i = tid();
    while i < most * TILE_WORDS {
        *tiles.add(i as usize) = 0;
        i += ntid();
    }
    let mut e = tid();
    while e < experts {
        let (mut count, mut i) = (0, 0);
        while i < slots {
            let four = four(ids, i, slots);
            let mut k = 0;
            while k < 4 {
                count += (four[k as usize] == e) as u32;
                k += 1;
            }
            i += 4;
        }
        *counts.add(e as usize) = count;
        e += ntid();
    }
    sync();
    if tid() == 0 {
        let (mut first, mut tile, mut e) = (0, 0, 0);
        while e < experts {
            let count = *counts.add(e as usize);
            *counts.add(e as usize) = first;
            let (mut at, end) = (first, first + count);
            while at < end {
                let next = if end - at < TILE_ROWS { end } else { at + TILE_ROWS };
                let words = tiles.add((tile * TILE_WORDS) as usize);
                *words = e;
                *words.add(1) = at;
                *words.add(2) = next;
                tile += 1;
                at = next;
            }
            first = end;
            e += 1;
        }
    }
    sync();
    let mut e = tid();
    while e < experts {
        let (mut at, mut i) = (*counts.add(e as usize), 0);
        while i < slots {
            let four = four(ids, i, slots);
            let mut k = 0;
            while k < 4 {
                if four[k as usize] == e {
                    *order.add(at as usize) = i + k;
                    at += 1;
                }
                k += 1;
            }
            i += 4;
        }
        e += ntid();
    }
}
