//! Rows of weights times many rows of activations on int8 tensor cores: the integers of a group of 256 are exact, its value and the order
//! of groups are those of every other kernel, so the bits are theirs too.

use super::sort::TILE_WORDS;
use super::tiles::Tile;
use crate::dev::{
    copies_commit, copies_wait, copy4, copy16, ctaid_x, ctaid_y, mma_s8, shared, shared2, shared4, sync, tid,
};
use crate::warp::div;
use bloomery_formats::join::{group_value, group_value_with_min};

/// Rows of activations of a block.
pub const TILE_ROWS: u32 = 32;
/// Rows of weights of a block.
pub const TILE_COLUMNS: u32 = 64;
/// Threads of a block: four warps, sixteen rows of weights each.
pub const THREADS: u32 = 128;

/// Bytes from row to row in shared memory, so that lanes meet different banks.
const QUANTS: u32 = 272;
const SUMS: u32 = 36;

/// Rows of activations, 256 to a scale.
#[derive(Clone, Copy)]
pub struct Rows {
    pub qs: *const i8,
    pub scales: *const f32,
    pub sums: *const i16,
    /// Places of rows, or null where every row has its own; see [`sort`](super::sort::sort).
    pub order: *const u32,
    pub tiles: *const u32,
    /// Places that share a row of activations.
    pub used: u32,
    pub rows: u32,
}

/// Shared memory of a block.
#[must_use]
pub const fn shared_bytes(step: u32) -> u32 {
    4 * TILE_ROWS + 2 * buffer_bytes(step)
}
const fn buffer_bytes(step: u32) -> u32 {
    (TILE_ROWS * (QUANTS + SUMS + 4) + TILE_COLUMNS * step).next_multiple_of(16)
}

/// Where a group lies in shared memory.
#[derive(Clone, Copy)]
struct Buffer {
    quants: u32,
    sums: u32,
    scales: u32,
    weights: u32,
}
impl Buffer {
    #[inline(always)]
    fn new(number: u32, step: u32) -> Buffer {
        let quants = 4 * TILE_ROWS + number * buffer_bytes(step);
        let weights = quants + TILE_ROWS * QUANTS;
        let sums = weights + TILE_COLUMNS * step;
        Buffer { quants, weights, sums, scales: sums + TILE_ROWS * SUMS }
    }
}

/// `out[place, j] = w_j x (+ bias_j) (+ residual[place, j])`. Grid: x tiles of weight rows, y tiles of activation rows.
///
/// # Safety
/// Every pointer is null or leads to what the shapes say; `n` and `rows` are not zero.
#[inline(always)]
pub unsafe fn gemm<W: Tile>(
    w: *const u8,
    row_bytes: u32,
    n: u32,
    cols: u32,
    x: Rows,
    bias: *const f32,
    residual: *const f32,
    out: *mut f32,
) {
    let (mut expert, mut first, mut end) = (0, ctaid_y() * TILE_ROWS, x.rows);
    if !x.tiles.is_null() {
        let tile = x.tiles.add((ctaid_y() * TILE_WORDS) as usize);
        (expert, first, end) = (*tile, *tile.add(1), *tile.add(2));
    }
    if first >= end {
        return;
    }
    let count = if end - first < TILE_ROWS { end - first } else { TILE_ROWS };
    let (warp, lane) = (tid() >> 5, tid() & 31);
    // Rows past the end repeat the last one and are not written.
    if tid() < TILE_ROWS {
        let place = first + if tid() < count { tid() } else { count - 1 };
        let place = if x.order.is_null() { place } else { *x.order.add(place as usize) };
        *shared().cast::<u32>().add(tid() as usize) = place;
    }
    sync();
    let column = ctaid_x() * TILE_COLUMNS;
    let columns = if n - column < TILE_COLUMNS { n - column } else { TILE_COLUMNS };
    let w = w.add((expert as usize * n as usize + column as usize) * row_bytes as usize);
    let groups = cols / 256;

    // An expert seldom has many rows in a step of a few streams: then half of the work would be thrown away.
    let (left, right) = if count <= TILE_ROWS / 2 {
        walk::<W, 1>(w, row_bytes, columns, &x, groups)
    } else {
        walk::<W, 2>(w, row_bytes, columns, &x, groups)
    };

    let mut m = 0;
    while m < 2 {
        let mut k = 0;
        while k < 4 {
            let row = 16 * m as u32 + (lane >> 2) + 8 * (k as u32 >> 1);
            let j = 16 * warp + 2 * (lane & 3) + (k as u32 & 1);
            if row < count {
                let place = shared4(4 * row) as usize;
                let put = |j: u32, mut value: f32| {
                    if j >= columns {
                        return;
                    }
                    let j = (column + j) as usize;
                    let at = place * n as usize + j;
                    if !bias.is_null() {
                        value += *bias.add(expert as usize * n as usize + j);
                    }
                    if !residual.is_null() {
                        value += *residual.add(at);
                    }
                    *out.add(at) = value;
                };
                put(j, left[m][k]);
                put(j + 8, right[m][k]);
            }
            k += 1;
        }
        m += 1;
    }
}

/// Sums of a warp: [sixteen rows of activations][the four of a lane], of its first eight rows of weights or the others.
type Sums = [[f32; 4]; 2];

/// All groups, for the first `16 * HALVES` rows of activations.
#[inline(always)]
unsafe fn walk<W: Tile, const HALVES: u32>(
    w: *const u8,
    row_bytes: u32,
    columns: u32,
    x: &Rows,
    groups: u32,
) -> (Sums, Sums) {
    let (warp, lane) = (tid() >> 5, tid() & 31);
    stage::<W, HALVES>(Buffer::new(0, W::STEP), w, row_bytes, columns, x, groups, 0);
    // Eight rows of weights each, by name: what is indexed by a loop would lie in local memory.
    let (mut left, mut right) = ([[0.0f32; 4]; 2], [[0.0f32; 4]; 2]);
    let mut group = 0;
    while group < groups {
        copies_wait::<0>();
        sync();
        let here = Buffer::new(group & 1, W::STEP);
        if group + 1 < groups {
            let next = Buffer::new((group + 1) & 1, W::STEP);
            stage::<W, HALVES>(next, w, row_bytes, columns, x, groups, group + 1);
        }
        products::<W, HALVES>(here, 16 * warp, lane, &mut left);
        products::<W, HALVES>(here, 16 * warp + 8, lane, &mut right);
        group += 1;
    }
    (left, right)
}

/// Begins to bring a group of the rows.
#[inline(always)]
unsafe fn stage<W: Tile, const HALVES: u32>(
    to: Buffer,
    w: *const u8,
    row_bytes: u32,
    columns: u32,
    x: &Rows,
    groups: u32,
    group: u32,
) {
    let mut i = tid();
    while i < HALVES * 16 * 16 {
        let (row, piece) = (i >> 4, 16 * (i & 15));
        let at = div(shared4(4 * row), x.used) as usize * groups as usize + group as usize;
        copy16(to.quants + row * QUANTS + piece, x.qs.add(256 * at + piece as usize).cast());
        i += THREADS;
    }
    let mut i = tid();
    while i < HALVES * 16 * 8 {
        let (row, piece) = (i >> 3, 4 * (i & 7));
        let at = div(shared4(4 * row), x.used) as usize * groups as usize + group as usize;
        copy4(to.sums + row * SUMS + piece, x.sums.cast::<u8>().add(32 * at + piece as usize));
        i += THREADS;
    }
    if tid() < HALVES * 16 {
        let at = div(shared4(4 * tid()), x.used) as usize * groups as usize + group as usize;
        copy4(to.scales + 4 * tid(), x.scales.add(at).cast());
    }
    W::stage(to.weights, w.add((group * W::BYTES) as usize), row_bytes, columns);
    copies_commit();
}

/// Adds the values of a group: `16 * HALVES` rows of activations, eight of weights from `column` on. `sums[m][k]` belongs to row
/// `16 m + lane / 4 + 8 (k / 2)` and column `2 (lane mod 4) + k mod 2`.
#[inline(always)]
unsafe fn products<W: Tile, const HALVES: u32>(b: Buffer, column: u32, lane: u32, sums: &mut Sums) {
    let (g, t) = (lane >> 2, lane & 3);
    let weights = b.weights + (column + g) * W::STEP;
    let scales = [
        W::scales(b.weights + (column + 2 * t) * W::STEP),
        W::scales(b.weights + (column + 2 * t + 1) * W::STEP),
    ];
    let (mut isum, mut msum) = ([[0i32; 4]; 2], [[0i32; 4]; 2]);
    let place = (g, t);
    sub_block::<W, HALVES, 0>(b, weights, &scales, place, &mut isum, &mut msum);
    sub_block::<W, HALVES, 1>(b, weights, &scales, place, &mut isum, &mut msum);
    sub_block::<W, HALVES, 2>(b, weights, &scales, place, &mut isum, &mut msum);
    sub_block::<W, HALVES, 3>(b, weights, &scales, place, &mut isum, &mut msum);
    sub_block::<W, HALVES, 4>(b, weights, &scales, place, &mut isum, &mut msum);
    sub_block::<W, HALVES, 5>(b, weights, &scales, place, &mut isum, &mut msum);
    sub_block::<W, HALVES, 6>(b, weights, &scales, place, &mut isum, &mut msum);
    sub_block::<W, HALVES, 7>(b, weights, &scales, place, &mut isum, &mut msum);
    let floats = [W::floats(&scales[0]), W::floats(&scales[1])];
    let mut m = 0;
    while m < HALVES as usize {
        let mut k = 0;
        while k < 4 {
            let row = 16 * m as u32 + g + 8 * (k as u32 >> 1);
            let da = f32::from_bits(shared4(b.scales + 4 * row));
            let (d, dmin) = floats[k & 1];
            sums[m][k] += if W::PER_16 {
                group_value(d, isum[m][k], da)
            } else {
                group_value_with_min(d, isum[m][k], dmin, msum[m][k], da)
            };
            k += 1;
        }
        m += 1;
    }
}

/// Adds the integers of sub-block `S`.
#[inline(always)]
unsafe fn sub_block<W: Tile, const HALVES: u32, const S: u32>(
    b: Buffer,
    weights: u32,
    scales: &[W::Scales; 2],
    (g, t): (u32, u32),
    isum: &mut [[i32; 4]; 2],
    msum: &mut [[i32; 4]; 2],
) {
    let (first, second) = W::values(weights, S, t);
    let pairs = [W::pair::<S>(&scales[0]), W::pair::<S>(&scales[1])];
    let mut m = 0;
    while m < HALVES as usize {
        let row = 16 * m as u32 + g;
        let at = b.quants + row * QUANTS + 32 * S + 4 * t;
        let low = at + 8 * QUANTS;
        let a = [shared4(at), shared4(low), shared4(at + 16), shared4(low + 16)];
        let place = b.sums + row * SUMS + 4 * S;
        let of = [
            (shared2(place) as i16 as i32, shared2(place + 2) as i16 as i32),
            (shared2(place + 8 * SUMS) as i16 as i32, shared2(place + 8 * SUMS + 2) as i16 as i32),
        ];
        if W::PER_16 {
            // Weights are 32 too large: the sums start that much lower.
            let (u, v) = (-32 * of[0].0, -32 * of[1].0);
            let c = mma_s8([u, u, v, v], a, [first, 0]);
            let (u, v) = (-32 * of[0].1, -32 * of[1].1);
            let e = mma_s8([u, u, v, v], a, [0, second]);
            let mut k = 0;
            while k < 4 {
                isum[m][k] += pairs[k & 1].0 * c[k] + pairs[k & 1].1 * e[k];
                k += 1;
            }
        } else {
            let c = mma_s8([0; 4], a, [first, second]);
            let mut k = 0;
            while k < 4 {
                isum[m][k] += pairs[k & 1].0 * c[k];
                msum[m][k] += pairs[k & 1].1 * (of[k >> 1].0 + of[k >> 1].1);
                k += 1;
            }
        }
        m += 1;
    }
}
