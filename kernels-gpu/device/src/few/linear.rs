//! Projections of few rows: up to three matrices in one launch, every weight read once for all rows.

use super::stage::{Input, stage, stage_weights};
use super::weights::{Activations, Floats, GROUPS, Q4K, Q5K, Q6K, Q80, Weights, in_order};
use crate::dev::{ctaid_x, ntid, prefetch, tid, wait_for_launches};
use crate::gemv::{BF16, F16, F32};

/// A matrix, and where its products go.
#[derive(Clone, Copy)]
pub struct Matrix {
    pub w: *const u8,
    /// Number of the type among those of its activations.
    pub ty: u32,
    pub row_bytes: u32,
    pub n: u32,
    /// Blocks that work on it.
    pub blocks: u32,
    pub bias: *const f32,
    /// `[rows, n]`
    pub out: *mut f32,
}

/// Lines of memory that a warp asks for before its activations stand.
const AHEAD: u32 = 96;

/// Asks for the first rows of weights that a warp will read: `rows` of them, `apart` rows from one to the next.
///
/// # Safety
/// The matrix is there.
#[inline(always)]
pub unsafe fn ask(w: *const u8, row_bytes: u32, first: u32, apart: u32, n: u32, lane: u32) {
    let lines = row_bytes / 128 + 1;
    let (mut row, mut asked) = (first, 0);
    while row < n && asked < AHEAD {
        let start = w.add(row as usize * row_bytes as usize);
        let mut line = lane;
        while line < lines {
            let at = line * 128;
            prefetch(start.add(if at < row_bytes { at } else { row_bytes - 1 } as usize));
            line += 32;
        }
        asked += lines;
        row += apart;
    }
}

/// Grid: x the blocks of all matrices; `residual` is `[rows, n]` of the first matrix.
///
/// # Safety
/// Every pointer is null or leads to what the shapes say; all matrices have the input's columns.
#[inline(always)]
pub unsafe fn linear<const K: u32, const R: usize>(
    input: Input,
    residual: *const f32,
    a: Matrix,
    b: Matrix,
    c: Matrix,
) {
    let block = ctaid_x();
    let (m, block, residual) = if block < a.blocks {
        (a, block, residual)
    } else if block < a.blocks + b.blocks {
        (b, block - a.blocks, core::ptr::null())
    } else {
        (c, block - a.blocks - b.blocks, core::ptr::null())
    };
    // Rows go round over blocks first: few rows use as many multiprocessors as there are.
    let (warp, lane) = (tid() >> 5, tid() & 31);
    let first = block + m.blocks * warp;
    let apart = m.blocks * (ntid() >> 5);
    ask(m.w, m.row_bytes, first, apart, m.n, lane);
    stage_weights::<K, R>(&input);
    wait_for_launches();
    let x = stage::<K, R>(&input, ctaid_x() == 0);
    match (K, m.ty) {
        (256, 0) => products::<Q4K, R>(&m, &input, residual, x, first, apart, lane),
        (256, 1) => products::<Q5K, R>(&m, &input, residual, x, first, apart, lane),
        (256, _) => products::<Q6K, R>(&m, &input, residual, x, first, apart, lane),
        (32, _) => products::<Q80, R>(&m, &input, residual, x, first, apart, lane),
        (_, 0) => products::<Floats<F32>, R>(&m, &input, residual, x, first, apart, lane),
        (_, 1) => products::<Floats<F16>, R>(&m, &input, residual, x, first, apart, lane),
        _ => products::<Floats<BF16>, R>(&m, &input, residual, x, first, apart, lane),
    }
}

/// Rows `first`, `first + apart`, ... of a matrix by one warp; the next fragment is on its way while one is multiplied.
#[inline(always)]
unsafe fn products<W: Weights, const R: usize>(
    m: &Matrix,
    input: &Input,
    residual: *const f32,
    x: Activations,
    first: u32,
    apart: u32,
    lane: u32,
) {
    if first >= m.n {
        return;
    }
    let (cols, groups) = (input.cols, input.cols.div_ceil(256));
    let read = |(row, group): (u32, u32)| {
        // Past the end the last row is read again, and not used.
        let row = if row < m.n { row } else { first };
        W::load(m.w.add(row as usize * m.row_bytes as usize), group, cols, lane)
    };
    let behind = |(row, group): (u32, u32)| match group + GROUPS < groups {
        true => (row, group + GROUPS),
        false => (row + apart, 0),
    };
    let mut place = (first, 0);
    let mut next_place = behind(place);
    let mut fragment = read(place);
    let mut next = if W::DEEP { read(next_place) } else { fragment };
    let mut sums = [0.0f32; R];
    loop {
        let (row, group) = place;
        let later_place = behind(next_place);
        let later = if !W::DEEP {
            next = if next_place.0 < m.n { read(next_place) } else { fragment };
            next
        } else if later_place.0 < m.n {
            read(later_place)
        } else {
            next
        };
        let values = W::values::<R>(&fragment, x, group, cols, lane);
        let left = groups - group;
        let mut r = 0;
        while r < R {
            sums[r] = in_order(sums[r], values[r], left);
            r += 1;
        }
        if next_place.1 == 0 {
            let mut r = 0;
            while r < R {
                if lane == r as u32 && lane < input.rows {
                    let mut value = sums[r];
                    if !m.bias.is_null() {
                        value += *m.bias.add(row as usize);
                    }
                    let at = r * m.n as usize + row as usize;
                    if !residual.is_null() {
                        value += *residual.add(at);
                    }
                    *m.out.add(at) = value;
                }
                sums[r] = 0.0;
                r += 1;
            }
            if next_place.0 >= m.n {
                return;
            }
        }
        (place, next_place) = (next_place, later_place);
        (fragment, next) = (next, later);
    }
}
