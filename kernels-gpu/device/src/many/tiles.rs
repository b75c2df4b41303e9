//! Weight types as tensor cores take them: a group of 256 columns of a tile's rows in shared memory, in the file's own layout.

use crate::dev::{copy16, half, load4, shared, shared2, shared4, tid};
use crate::few::weights::scales_and_minima;
use crate::many::gemm::{THREADS, TILE_COLUMNS};

/// A 256-value type.
pub trait Tile {
    /// Bytes of a group in the file, and from row to row in shared memory (a multiple of four).
    const BYTES: u32;
    const STEP: u32;
    /// One scale for sixteen values (of weights that are 32 too large), not one with a minimum for 32.
    const PER_16: bool;
    /// What the products of a column are multiplied by.
    type Scales: Copy;
    /// Begins to bring the group of each of the tile's rows from `w` on, `row_bytes` apart, to `at`; rows past `rows` repeat the last.
    ///
    /// # Safety
    /// The rows are there, and 16 bytes behind them; all threads of the block come here.
    unsafe fn stage(at: u32, w: *const u8, row_bytes: u32, rows: u32);
    /// Sub-block `s` of 32 values of the row at `row`: this lane's values `4 t..` and `16 + 4 t..`.
    ///
    /// # Safety
    /// The row is there.
    unsafe fn values(row: u32, s: u32, t: u32) -> (u32, u32);
    /// # Safety
    /// The row is there.
    unsafe fn scales(row: u32) -> Self::Scales;
    /// The scale of sub-block `S` and its minimum, or the scales of its halves.
    fn pair<const S: u32>(scales: &Self::Scales) -> (i32, i32);
    /// The f32 scales of products and minima.
    fn floats(scales: &Self::Scales) -> (f32, f32);
}

#[inline(always)]
unsafe fn stage_aligned(at: u32, step: u32, bytes: u32, w: *const u8, row_bytes: u32, rows: u32) {
    let per = bytes / 16;
    let mut i = tid();
    while i < TILE_COLUMNS * per {
        let row = i / per;
        let piece = 16 * (i - row * per);
        let from = if row < rows { row } else { rows - 1 };
        copy16(at + row * step + piece, w.add(from as usize * row_bytes as usize + piece as usize));
        i += THREADS;
    }
}

/// The first sixteen bytes of a Q4_K or Q5_K group.
#[inline(always)]
unsafe fn head(row: u32) -> [u32; 4] {
    [shared4(row), shared4(row + 4), shared4(row + 8), shared4(row + 12)]
}
#[inline(always)]
fn scale_and_minimum(head: &[u32; 4], s: u32) -> (i32, i32) {
    let (scales, minima) = scales_and_minima(*head, s >> 1);
    let shift = 8 * (s & 1);
    (((scales >> shift) & 0xff) as i32, ((minima >> shift) & 0xff) as i32)
}
#[inline(always)]
fn halves(word: u32) -> (f32, f32) {
    (half(word as u16), half((word >> 16) as u16))
}

pub struct Q4K;
impl Tile for Q4K {
    const BYTES: u32 = 144;
    const STEP: u32 = 144;
    const PER_16: bool = false;
    type Scales = [u32; 4];
    #[inline(always)]
    unsafe fn stage(at: u32, w: *const u8, row_bytes: u32, rows: u32) {
        stage_aligned(at, Self::STEP, Self::BYTES, w, row_bytes, rows);
    }
    #[inline(always)]
    unsafe fn values(row: u32, s: u32, t: u32) -> (u32, u32) {
        let at = row + 16 + 32 * (s >> 1) + 4 * t;
        let shift = 4 * (s & 1);
        ((shared4(at) >> shift) & 0x0f0f_0f0f, (shared4(at + 16) >> shift) & 0x0f0f_0f0f)
    }
    #[inline(always)]
    unsafe fn scales(row: u32) -> [u32; 4] {
        head(row)
    }
    #[inline(always)]
    fn pair<const S: u32>(scales: &[u32; 4]) -> (i32, i32) {
        scale_and_minimum(scales, S)
    }
    #[inline(always)]
    fn floats(scales: &[u32; 4]) -> (f32, f32) {
        halves(scales[0])
    }
}

pub struct Q5K;
impl Tile for Q5K {
    const BYTES: u32 = 176;
    const STEP: u32 = 176;
    const PER_16: bool = false;
    type Scales = [u32; 4];
    #[inline(always)]
    unsafe fn stage(at: u32, w: *const u8, row_bytes: u32, rows: u32) {
        stage_aligned(at, Self::STEP, Self::BYTES, w, row_bytes, rows);
    }
    #[inline(always)]
    unsafe fn values(row: u32, s: u32, t: u32) -> (u32, u32) {
        let (low, fifth) = (row + 48 + 32 * (s >> 1) + 4 * t, row + 16 + 4 * t);
        let shift = 4 * (s & 1);
        let value = |by: u32| {
            (shared4(low + by) >> shift) & 0x0f0f_0f0f | ((shared4(fifth + by) >> s) & 0x0101_0101) << 4
        };
        (value(0), value(16))
    }
    #[inline(always)]
    unsafe fn scales(row: u32) -> [u32; 4] {
        head(row)
    }
    #[inline(always)]
    fn pair<const S: u32>(scales: &[u32; 4]) -> (i32, i32) {
        scale_and_minimum(scales, S)
    }
    #[inline(always)]
    fn floats(scales: &[u32; 4]) -> (f32, f32) {
        halves(scales[0])
    }
}

pub struct Q6K;
impl Tile for Q6K {
    const BYTES: u32 = 210;
    const STEP: u32 = 212;
    const PER_16: bool = true;
    /// Sixteen scales, and the f32 one's half in the last word.
    type Scales = [u32; 5];
    #[inline(always)]
    unsafe fn stage(at: u32, w: *const u8, row_bytes: u32, rows: u32) {
        // Groups begin at multiples of two: aligned words are read and shifted. A warp takes every `THREADS / 32`-th row.
        let (warp, lane) = (tid() >> 5, tid() & 31);
        let mut row = warp;
        while row < TILE_COLUMNS {
            let mut words = [[0u32; 4]; 4];
            let mut k = 0;
            while k < 4 {
                let from = row + k as u32 * (THREADS / 32);
                let from = if from < rows { from } else { rows - 1 };
                let p = w.add(from as usize * row_bytes as usize);
                let (base, shift) = ((p as usize & !3) as *const u8, (p as usize as u32 & 2) * 8);
                let second = if lane < 53 - 32 { 32 + lane } else { 52 };
                let pair = |word: u32| {
                    let at = base.add(4 * word as usize);
                    // The word behind is only needed where the group begins between words.
                    let next = if shift == 0 { 0 } else { load4(at.add(4)) };
                    ((((next as u64) << 32) | load4(at) as u64) >> shift) as u32
                };
                words[k] = [pair(lane), pair(second), second, 0];
                k += 1;
            }
            let mut k = 0;
            while k < 4 {
                let to = at + (row + k as u32 * (THREADS / 32)) * Self::STEP;
                *shared().add((to + 4 * lane) as usize).cast::<u32>() = words[k][0];
                *shared().add((to + 4 * words[k][2]) as usize).cast::<u32>() = words[k][1];
                k += 1;
            }
            row += 4 * (THREADS / 32);
        }
    }
    #[inline(always)]
    unsafe fn values(row: u32, s: u32, t: u32) -> (u32, u32) {
        let (side, i) = (s >> 2, s & 3);
        let low = row + 64 * side + 32 * (i & 1) + 4 * t;
        let top = row + 128 + 32 * side + 4 * t;
        let value = |by: u32| {
            let nibbles = (shared4(low + by) >> (4 * (i >> 1))) & 0x0f0f_0f0f;
            nibbles | ((shared4(top + by) >> (2 * i)) & 0x0303_0303) << 4
        };
        (value(0), value(16))
    }
    #[inline(always)]
    unsafe fn scales(row: u32) -> [u32; 5] {
        let at = row + 192;
        [shared4(at), shared4(at + 4), shared4(at + 8), shared4(at + 12), shared2(at + 16) as u32]
    }
    #[inline(always)]
    fn pair<const S: u32>(scales: &[u32; 5]) -> (i32, i32) {
        let word = scales[(S >> 1) as usize & 3] >> (16 * (S & 1));
        (word as u8 as i8 as i32, (word >> 8) as u8 as i8 as i32)
    }
    #[inline(always)]
    fn floats(scales: &[u32; 5]) -> (f32, f32) {
        (half(scales[4] as u16), 0.0)
    }
}
