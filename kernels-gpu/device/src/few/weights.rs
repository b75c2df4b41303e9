//! Weight types that few rows read from the file's own layout: four groups of 256 columns at a time, a lane's share in registers
//! before anything is multiplied.

use crate::dev::{bytes_of, dp4a_us, half, load2, load4, load16, shared, shared2, shared4, shared16};
use crate::gemv::{Float, join_lanes};
use crate::warp::{get_f32, sum_i32};
use bloomery_formats::float::fma;
use bloomery_formats::join::{block_term, group_value, group_value_with_min};

/// Groups of a fragment.
pub const GROUPS: u32 = 4;

/// Where rows of activations lie in shared memory: places of the first row's arrays, and bytes from row to row.
#[derive(Clone, Copy)]
pub struct Activations {
    pub quants: u32,
    pub scales: u32,
    pub sums: u32,
    pub step: u32,
}

impl Activations {
    /// Bytes of a row of `K` quants a scale (0: floats), and its arrays from `at` on.
    #[inline(always)]
    pub fn new<const K: u32>(at: u32, cols: u32) -> Activations {
        let groups = cols.div_ceil(256);
        match K {
            0 => Activations { quants: at, scales: at, sums: at, step: (cols * 4).next_multiple_of(16) },
            32 => Activations {
                quants: at,
                scales: at + 256 * groups,
                sums: at + 288 * groups,
                step: 320 * groups,
            },
            _ => Activations {
                quants: at,
                sums: at + 256 * groups,
                scales: at + 288 * groups,
                step: (292 * groups).next_multiple_of(16),
            },
        }
    }
    #[inline(always)]
    pub fn row(&self, r: u32) -> Activations {
        let by = self.step * r;
        Activations {
            quants: self.quants + by,
            scales: self.scales + by,
            sums: self.sums + by,
            step: self.step,
        }
    }
    #[inline(always)]
    unsafe fn scale(&self, i: u32) -> f32 {
        f32::from_bits(shared4(self.scales + 4 * i))
    }
    #[inline(always)]
    unsafe fn sum(&self, i: u32) -> i32 {
        shared2(self.sums + 2 * i) as i16 as i32
    }
}

/// A weight type.
pub trait Weights {
    /// A lane's share of four groups.
    type Fragment: Copy;
    /// Two fragments are on their way while one is multiplied, where registers allow.
    const DEEP: bool;
    /// Reads groups `first..first + 4` of a row of `cols` columns; those past the end repeat one that is there.
    ///
    /// # Safety
    /// The row is there, and 16 bytes behind it.
    unsafe fn load(row: *const u8, first: u32, cols: u32, lane: u32) -> Self::Fragment;
    /// The groups' values for `R` rows of activations: group `first + g` in lanes `8 g ..`.
    ///
    /// # Safety
    /// The activations are there.
    unsafe fn values<const R: usize>(
        f: &Self::Fragment,
        x: Activations,
        first: u32,
        cols: u32,
        lane: u32,
    ) -> [f32; R];
}

#[inline(always)]
fn block(first: u32, cols: u32, lane: u32) -> u32 {
    let (b, blocks) = (first + (lane >> 3), cols / 256);
    if b < blocks { b } else { blocks - 1 }
}

/// Six-bit scales and minima of a pair of sub-blocks, one in each low byte half.
#[inline(always)]
pub fn scales_and_minima(h: [u32; 4], pair: u32) -> (u32, u32) {
    let shift = (pair & 1) * 16;
    let (s0, s1, s2) = (h[1] >> shift, h[2] >> shift, h[3] >> shift);
    if pair < 2 {
        (s0 & 0x3f3f, s1 & 0x3f3f)
    } else {
        ((s2 & 0x0f0f) | ((s0 & 0xc0c0) >> 2), ((s2 >> 4) & 0x0f0f) | ((s1 & 0xc0c0) >> 2))
    }
}

/// What Q4_K and Q5_K share: 16 low and 16 high values a lane, with scales and minima.
#[inline(always)]
unsafe fn with_minima<const R: usize>(
    h: [u32; 4],
    low: [u32; 4],
    high: [u32; 4],
    x: Activations,
    b: u32,
    l: u32,
) -> [f32; R] {
    let (pair, side) = (l >> 1, l & 1);
    let (scales, minima) = scales_and_minima(h, pair);
    let (d, dmin) = (half(h[0] as u16), half((h[0] >> 16) as u16));
    let mut out = [0.0f32; R];
    let mut r = 0;
    while r < R {
        let x = x.row(r as u32);
        let at = x.quants + 256 * b + 64 * pair + 16 * side;
        let (a, c) = (shared16(at), shared16(at + 32));
        let (mut first, mut second) = (0i32, 0i32);
        let mut i = 0;
        while i < 4 {
            first = dp4a_us(low[i], a[i], first);
            second = dp4a_us(high[i], c[i], second);
            i += 1;
        }
        let isum = (scales & 0xff) as i32 * first + (scales >> 8) as i32 * second;
        let j = 16 * b + 4 * pair + side;
        let msum = (minima & 0xff) as i32 * x.sum(j) + (minima >> 8) as i32 * x.sum(j + 2);
        let (isum, msum) = (sum_i32::<8>(isum), sum_i32::<8>(msum));
        out[r] = group_value_with_min(d, isum, dmin, msum, x.scale(b));
        r += 1;
    }
    out
}

/// Q4_K.
pub struct Q4K;
impl Weights for Q4K {
    type Fragment = ([u32; 4], [u32; 4]);
    const DEEP: bool = true;
    #[inline(always)]
    unsafe fn load(row: *const u8, first: u32, cols: u32, lane: u32) -> Self::Fragment {
        let w = row.add(block(first, cols, lane) as usize * 144);
        (load16(w), load16(w.add(16 + 16 * (lane & 7) as usize)))
    }
    #[inline(always)]
    unsafe fn values<const R: usize>(
        f: &Self::Fragment,
        x: Activations,
        first: u32,
        cols: u32,
        lane: u32,
    ) -> [f32; R] {
        let (mut low, mut high) = ([0u32; 4], [0u32; 4]);
        let mut i = 0;
        while i < 4 {
            low[i] = f.1[i] & 0x0f0f_0f0f;
            high[i] = (f.1[i] >> 4) & 0x0f0f_0f0f;
            i += 1;
        }
        with_minima::<R>(f.0, low, high, x, block(first, cols, lane), lane & 7)
    }
}

/// Q5_K.
pub struct Q5K;
impl Weights for Q5K {
    type Fragment = ([u32; 4], [u32; 4], [u32; 4]);
    const DEEP: bool = true;
    #[inline(always)]
    unsafe fn load(row: *const u8, first: u32, cols: u32, lane: u32) -> Self::Fragment {
        let w = row.add(block(first, cols, lane) as usize * 176);
        let l = (lane & 7) as usize;
        (load16(w), load16(w.add(16 + 16 * (l & 1))), load16(w.add(48 + 16 * l)))
    }
    #[inline(always)]
    unsafe fn values<const R: usize>(
        f: &Self::Fragment,
        x: Activations,
        first: u32,
        cols: u32,
        lane: u32,
    ) -> [f32; R] {
        let shift = lane & 6;
        let (mut low, mut high) = ([0u32; 4], [0u32; 4]);
        let mut i = 0;
        while i < 4 {
            let fifth = f.1[i] >> shift;
            low[i] = f.2[i] & 0x0f0f_0f0f | (fifth & 0x0101_0101) << 4;
            high[i] = (f.2[i] >> 4) & 0x0f0f_0f0f | (fifth & 0x0202_0202) << 3;
            i += 1;
        }
        with_minima::<R>(f.0, low, high, x, block(first, cols, lane), lane & 7)
    }
}

/// Sixteen bytes at a multiple of two, from aligned words.
#[inline(always)]
unsafe fn load16_of_words(p: *const u8) -> [u32; 5] {
    let p = (p as usize & !3) as *const u8;
    [load4(p), load4(p.add(4)), load4(p.add(8)), load4(p.add(12)), load4(p.add(16))]
}
/// Q6_K: a lane takes a sub-block of low nibbles and the one of high nibbles in the same bytes.
pub struct Q6K;
#[derive(Clone, Copy)]
pub struct Sixth {
    ql: [u32; 5],
    qh: [u32; 5],
    scales: (i8, i8),
    d: u16,
    /// Which bytes of two words are one of the row's.
    which: u32,
}
impl Weights for Q6K {
    type Fragment = Sixth;
    const DEEP: bool = true;
    #[inline(always)]
    unsafe fn load(row: *const u8, first: u32, cols: u32, lane: u32) -> Sixth {
        let w = row.add(block(first, cols, lane) as usize * 210);
        let l = (lane & 7) as usize;
        let (side, part, second) = (l >> 2, (l >> 1) & 1, l & 1);
        let j = 8 * side + 2 * part + second;
        Sixth {
            ql: load16_of_words(w.add(64 * side + 32 * part + 16 * second)),
            qh: load16_of_words(w.add(128 + 32 * side + 16 * second)),
            scales: (*w.add(192 + j).cast::<i8>(), *w.add(196 + j).cast::<i8>()),
            d: load2(w.add(208)),
            which: if w as usize & 2 != 0 { 0x5432 } else { 0x3210 },
        }
    }
    #[inline(always)]
    unsafe fn values<const R: usize>(
        f: &Sixth,
        x: Activations,
        first: u32,
        cols: u32,
        lane: u32,
    ) -> [f32; R] {
        let b = block(first, cols, lane);
        let l = lane & 7;
        let (side, part, second) = (l >> 2, (l >> 1) & 1, l & 1);
        let j = 8 * side + 2 * part + second;
        let (mut low, mut high) = ([0u32; 4], [0u32; 4]);
        let mut i = 0;
        while i < 4 {
            let ql = bytes_of(f.ql[i], f.ql[i + 1], f.which);
            let qh = bytes_of(f.qh[i], f.qh[i + 1], f.which) >> (2 * part);
            low[i] = ql & 0x0f0f_0f0f | (qh & 0x0303_0303) << 4;
            high[i] = (ql >> 4) & 0x0f0f_0f0f | (qh & 0x3030_3030);
            i += 1;
        }
        let d = half(f.d);
        let mut out = [0.0f32; R];
        let mut r = 0;
        while r < R {
            let x = x.row(r as u32);
            let at = x.quants + 256 * b + 16 * j;
            let (a, c) = (shared16(at), shared16(at + 64));
            let (mut sum, mut other) = (0i32, 0i32);
            let mut i = 0;
            while i < 4 {
                sum = dp4a_us(low[i], a[i], sum);
                other = dp4a_us(high[i], c[i], other);
                i += 1;
            }
            sum -= 32 * x.sum(16 * b + j);
            other -= 32 * x.sum(16 * b + j + 4);
            let isum = sum_i32::<8>(f.scales.0 as i32 * sum + f.scales.1 as i32 * other);
            out[r] = group_value(d, isum, x.scale(b));
            r += 1;
        }
        out
    }
}

/// Q8_0: a lane takes a block of 32.
pub struct Q80;
impl Weights for Q80 {
    type Fragment = ([u32; 9], u32);
    const DEEP: bool = true;
    #[inline(always)]
    unsafe fn load(row: *const u8, first: u32, cols: u32, lane: u32) -> Self::Fragment {
        let (b, blocks) = (8 * first + lane, cols / 32);
        let w = row.add(34 * if b < blocks { b } else { blocks - 1 } as usize);
        let p = (w as usize & !3) as *const u8;
        let mut words = [0u32; 9];
        let mut i = 0;
        while i < 9 {
            words[i] = load4(p.add(4 * i));
            i += 1;
        }
        (words, w as usize as u32 & 2)
    }
    #[inline(always)]
    unsafe fn values<const R: usize>(
        f: &Self::Fragment,
        x: Activations,
        first: u32,
        cols: u32,
        lane: u32,
    ) -> [f32; R] {
        let b = 8 * first + lane;
        let there = b < cols / 32;
        let b = if there { b } else { 0 };
        let mut q = [0u32; 8];
        let mut i = 0;
        while i < 8 {
            // Signed weights as unsigned ones around 128.
            q[i] = bytes_of(f.0[i], f.0[i + 1], if f.1 != 0 { 0x7654 } else { 0x5432 }) ^ 0x8080_8080;
            i += 1;
        }
        let d = half(if f.1 != 0 { f.0[0] >> 16 } else { f.0[0] } as u16);
        let mut out = [0.0f32; R];
        let mut r = 0;
        while r < R {
            let x = x.row(r as u32);
            let (a, c) = (shared16(x.quants + 32 * b), shared16(x.quants + 32 * b + 16));
            let mut isum = 0i32;
            let mut i = 0;
            while i < 4 {
                isum = dp4a_us(q[i], a[i], isum);
                isum = dp4a_us(q[4 + i], c[i], isum);
                i += 1;
            }
            let sums = shared4(x.sums + 4 * b);
            isum -= 128 * (sums as i16 as i32 + (sums >> 16) as i16 as i32);
            let term = block_term(d, isum, x.scale(b));
            out[r] = join_lanes(if there { term } else { 0.0 });
            r += 1;
        }
        out
    }
}

/// Float types: eight lanes are the eight chains of a group.
pub struct Floats<F>(F);
impl<F: Float> Weights for Floats<F> {
    type Fragment = [[f32; 8]; 4];
    const DEEP: bool = false;
    #[inline(always)]
    unsafe fn load(row: *const u8, first: u32, cols: u32, lane: u32) -> [[f32; 8]; 4] {
        let start = 256 * (first + (lane >> 3)) + (lane & 7);
        let mut f = [[0.0f32; 8]; 4];
        let whole = 256 * (first + GROUPS) <= cols;
        let mut j = 0;
        while j < 4 {
            f[j] = match whole {
                true => eight::<F, true>(row, start + 64 * j as u32, cols),
                false => eight::<F, false>(row, start + 64 * j as u32, cols),
            };
            j += 1;
        }
        f
    }
    #[inline(always)]
    unsafe fn values<const R: usize>(
        f: &[[f32; 8]; 4],
        x: Activations,
        first: u32,
        cols: u32,
        lane: u32,
    ) -> [f32; R] {
        let start = 256 * (first + (lane >> 3)) + (lane & 7);
        let whole = 256 * (first + GROUPS) <= cols;
        let mut out = [0.0f32; R];
        let mut r = 0;
        while r < R {
            let values = shared().add(x.row(r as u32).quants as usize).cast::<f32>();
            let mut chain = 0.0f32;
            let mut j = 0;
            while j < 4 {
                chain = match whole {
                    true => along::<true>(&f[j], values, start + 64 * j as u32, cols, chain),
                    false => along::<false>(&f[j], values, start + 64 * j as u32, cols, chain),
                };
                j += 1;
            }
            // A chain's missing last value counts as zero times zero, which changes only the sign of a zero.
            out[r] = join_lanes(chain + 0.0);
            r += 1;
        }
        out
    }
}

/// Every eighth weight of a row from `start` on, zero past its end; `WHOLE`: none is past it.
#[inline(always)]
unsafe fn eight<F: Float, const WHOLE: bool>(row: *const u8, start: u32, cols: u32) -> [f32; 8] {
    let mut f = [0.0f32; 8];
    let mut i = 0;
    while i < 8 {
        let c = start + 8 * i as u32;
        f[i] = if WHOLE || c < cols { F::weight(row.add(c as usize * F::BYTES)) } else { 0.0 };
        i += 1;
    }
    f
}
/// A chain goes on over eight weights.
#[inline(always)]
unsafe fn along<const WHOLE: bool>(
    f: &[f32; 8],
    values: *const f32,
    start: u32,
    cols: u32,
    mut chain: f32,
) -> f32 {
    let mut i = 0;
    while i < 8 {
        let c = start + 8 * i as u32;
        let v = if WHOLE || c < cols { *values.add(c as usize) } else { 0.0 };
        chain = fma(f[i], v, chain);
        i += 1;
    }
    chain
}

/// Values of lanes 0, 8, 16 and 24, the first `count` of them, added in order to `row`: all are fetched before one is added.
#[inline(always)]
pub fn in_order(row: f32, value: f32, count: u32) -> f32 {
    let v = [get_f32(value, 0), get_f32(value, 8), get_f32(value, 16), get_f32(value, 24)];
    let row = row + v[0];
    let row = if count > 1 { row + v[1] } else { row };
    let row = if count > 2 { row + v[2] } else { row };
    if count > 3 { row + v[3] } else { row }
}
