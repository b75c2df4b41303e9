//! f32 weights times many rows of activations (routers): tiles in shared memory, in the order of sums of every other kernel: eight
//! chains to a group of 256 columns, joined by a tree, groups in order.

use crate::dev::{copies_commit, copies_wait, copy16, ctaid_x, ctaid_y, shared4, sync, tid};
use crate::gemv::join_lanes;
use bloomery_formats::float::fma;

/// Rows of activations of a block, and rows of weights.
pub const TILE: u32 = 32;
/// Threads of a block: warps in four times two, each eight rows and sixteen rows of weights.
pub const THREADS: u32 = 256;
/// Columns in shared memory at a time.
pub const COLUMNS: u32 = 64;

/// Bytes from row to row: two neighbouring rows' chains meet different banks.
const STEP: u32 = 4 * COLUMNS + 32;
const HALF: u32 = TILE * STEP;

/// Shared memory of a block: two buffers of activations and weights.
pub const SHARED: u32 = 4 * HALF;

/// Begins to bring `COLUMNS` columns of a tile's rows, `bytes` apart; rows past `rows` repeat the last.
#[inline(always)]
unsafe fn stage(to: u32, from: *const u8, bytes: u32, rows: u32) {
    let mut i = tid();
    while i < TILE * COLUMNS / 4 {
        let (row, piece) = (i / (COLUMNS / 4), 16 * (i % (COLUMNS / 4)));
        let of = if row < rows { row } else { rows - 1 };
        copy16(to + row * STEP + piece, from.add(of as usize * bytes as usize + piece as usize));
        i += THREADS;
    }
}

/// `out[y, j] = w_j x_y (+ bias_j) (+ residual[y, j])`. Grid: x tiles of weight rows, y tiles of activation rows.
///
/// # Safety
/// Every pointer is null or leads to what the shapes say, rows 16-byte aligned; `cols` is a multiple of [`COLUMNS`], nothing is zero.
#[inline(always)]
pub unsafe fn floats(
    w: *const u8,
    n: u32,
    cols: u32,
    x: *const u8,
    rows: u32,
    bias: *const f32,
    residual: *const f32,
    out: *mut f32,
) {
    let (warp, lane) = (tid() >> 5, tid() & 31);
    let (first_row, first_column) = (ctaid_y() * TILE, ctaid_x() * TILE);
    let bytes = 4 * cols;
    let w = w.add(first_column as usize * bytes as usize);
    let x = x.add(first_row as usize * bytes as usize);
    let (columns_left, rows_left) = (n - first_column, rows - first_row);

    // A lane has a chain of four rows times eight rows of weights; the lanes of other parts have their neighbours.
    let (chain, part) = (lane & 7, lane >> 3);
    let row = 8 * (warp & 3) + (part & 1);
    let column = 16 * (warp >> 2) + (part >> 1);
    let mut chains = [[0.0f32; 8]; 4];
    let mut sums = [[0.0f32; 8]; 4];

    stage(0, x, bytes, rows_left);
    stage(HALF, w, bytes, columns_left);
    copies_commit();
    let mut from = 0;
    while from < cols {
        copies_wait::<0>();
        sync();
        let here = (from / COLUMNS & 1) * 2 * HALF;
        let next = from + COLUMNS;
        if next < cols {
            stage(2 * HALF - here, x.add(4 * next as usize), bytes, rows_left);
            stage(3 * HALF - here, w.add(4 * next as usize), bytes, columns_left);
            copies_commit();
        }
        let mut at = here + 4 * chain;
        let end = at + 4 * COLUMNS;
        while at < end {
            let mut weights = [0.0f32; 8];
            let mut e = 0;
            while e < 8 {
                weights[e] = f32::from_bits(shared4(at + HALF + (column + 2 * e as u32) * STEP));
                e += 1;
            }
            let mut r = 0;
            while r < 4 {
                let value = f32::from_bits(shared4(at + (row + 2 * r as u32) * STEP));
                let mut e = 0;
                while e < 8 {
                    chains[r][e] = fma(weights[e], value, chains[r][e]);
                    e += 1;
                }
                r += 1;
            }
            at += 32;
        }
        if next & 255 == 0 || next == cols {
            let mut r = 0;
            while r < 4 {
                let mut e = 0;
                while e < 8 {
                    sums[r][e] += join_lanes(chains[r][e] + 0.0);
                    chains[r][e] = 0.0;
                    e += 1;
                }
                r += 1;
            }
        }
        from = next;
    }

    let mut r = 0;
    while r < 4 {
        let y = row + 2 * r as u32;
        let mut e = 0;
        while e < 8 {
            let j = column + 2 * e as u32;
            if chain == e as u32 && y < rows_left && j < columns_left {
                let j = (first_column + j) as usize;
                let at = (first_row + y) as usize * n as usize + j;
                let mut value = sums[r][e];
                if !bias.is_null() {
                    value += *bias.add(j);
                }
                if !residual.is_null() {
                    value += *residual.add(at);
                }
                *out.add(at) = value;
            }
            e += 1;
        }
        r += 1;
    }
}
