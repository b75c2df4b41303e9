//! Rows of weights times rows of activations: one warp a weight row, exact integers inside a group of 256, groups added in order.

use crate::dev::{
    ctaid_x, ctaid_y, ctaid_z, dp4a_us, half, load2, load4, load16, load16_kept, ntid, shared, tid,
    wait_for_launches,
};
use crate::warp::{div, get_f32, sum_i32, xor_f32};
use bloomery_formats::block_formats::{BlockFormat, Blocks};
use bloomery_formats::group_formats::{Group, GroupFormat};
use bloomery_formats::half::f16_to_f32;
use bloomery_formats::join::{
    block_term, block_term_split, block_term_with_min, group_value, group_value_with_min,
};
use core::slice::from_raw_parts;

/// Activations of one row.
#[derive(Clone, Copy)]
pub struct Row {
    pub qs: *const i8,
    pub scales: *const f32,
    pub sums: *const i16,
}

/// The product of a whole weight row with a row of activations; every lane of the warp returns it.
pub trait WeightRow {
    /// Quantised activations per scale: 256, 32, or 0 for f32 rows.
    const SCALE: u32;
    /// # Safety
    /// `w` has the row's bytes, `x` its columns.
    unsafe fn dot(w: *const u8, x: Row, cols: u32, lane: u32, scratch: *mut u8) -> f32;
}

/// `out[y, row] = dot (+ bias[row]) (+ residual[y, row])`, for up to three matrices of the same activations (blocks' third number; the
/// residual belongs to the first). Block y works on activation row `y / used` with the weights of expert
/// `ids[y]` (or one set of weights where `ids` is null).
///
/// # Safety
/// Every pointer leads to what the shapes say.
#[inline(always)]
pub unsafe fn gemv<W: WeightRow>(
    w: *const u8,
    row_bytes: u32,
    n: u32,
    cols: u32,
    qs: *const i8,
    scales: *const f32,
    sums: *const i16,
    ids: *const u32,
    experts: u32,
    used: u32,
    bias: *const f32,
    residual: *const f32,
    out: *mut f32,
    w1: *const u8,
    n1: u32,
    bias1: *const f32,
    out1: *mut f32,
    w2: *const u8,
    n2: u32,
    bias2: *const f32,
    out2: *mut f32,
) {
    wait_for_launches();
    let (w, n, bias, out, residual) = match ctaid_z() {
        0 => (w, n, bias, out, residual),
        1 => (w1, n1, bias1, out1, core::ptr::null()),
        _ => (w2, n2, bias2, out2, core::ptr::null()),
    };
    let (warp, lane) = (tid() >> 5, tid() & 31);
    let row = ctaid_x() * (ntid() >> 5) + warp;
    if row >= n {
        return;
    }
    let y = ctaid_y();
    let mut expert = 0;
    if !ids.is_null() {
        let id = *ids.add(y as usize);
        // A broken router must not lead outside the weights.
        expert = if id < experts { id } else { 0 };
    }
    let x_row = div(y, used) as usize;
    let groups = (cols as usize).div_ceil(256);
    let x = if W::SCALE == 0 {
        Row { qs: qs.add(x_row * cols as usize * 4), scales, sums }
    } else {
        let per = if W::SCALE == 32 { 8 } else { 1 };
        Row {
            qs: qs.add(x_row * groups * 256),
            scales: scales.add(x_row * groups * per),
            sums: sums.add(x_row * groups * 16),
        }
    };
    let w_row = expert as usize * n as usize + row as usize;
    let scratch = shared().add(warp as usize * SCRATCH);
    let mut value = W::dot(w.add(w_row * row_bytes as usize), x, cols, lane, scratch);
    if lane == 0 {
        if !bias.is_null() {
            value += *bias.add(w_row);
        }
        let at = y as usize * n as usize + row as usize;
        if !residual.is_null() {
            value += *residual.add(at);
        }
        *out.add(at) = value;
    }
}

/// Shared memory of a warp for the types without a layout of their own: 32 unpacked groups.
pub const SCRATCH: usize = 32 * 384 + 64;

#[inline(always)]
fn align(p: *mut u8, lane: u32) -> *mut u8 {
    ((p as usize + 63 & !63) + lane as usize * 384) as *mut u8
}

/// Values of lanes `0..count` added in order to `row`.
#[inline(always)]
pub fn in_order(mut row: f32, value: f32, count: u32, step: u32) -> f32 {
    let mut i = 0;
    while i < count {
        row += get_f32(value, i * step);
        i += 1;
    }
    row
}

/// K-, I- and ternary types: a lane unpacks and multiplies a group.
pub struct Groups<F>(F);
impl<F: GroupFormat> WeightRow for Groups<F> {
    const SCALE: u32 = 256;
    #[inline(always)]
    unsafe fn dot(w: *const u8, x: Row, cols: u32, lane: u32, scratch: *mut u8) -> f32 {
        let blocks = cols / 256;
        let mut row = 0.0f32;
        let mut first = 0;
        while first < blocks {
            let count = if blocks - first < 32 { blocks - first } else { 32 };
            let mut value = 0.0;
            if lane < count {
                let b = (first + lane) as usize;
                let group = &mut *align(scratch, lane).cast::<Group>();
                F::unpack(from_raw_parts(w.add(b * F::TYPE.block_bytes()), F::TYPE.block_bytes()), group);
                let (qs, sums) = (x.qs.add(256 * b), x.sums.add(16 * b));
                let (mut isum, mut msum) = (0i32, 0i32);
                let mut j = 0;
                while j < 16 {
                    let mut part = 0i32;
                    let mut i = 0;
                    while i < 16 {
                        part += *group.q.as_ptr().add(16 * j + i) as i32 * *qs.add(16 * j + i) as i32;
                        i += 1;
                    }
                    isum += *group.scale.as_ptr().add(j) as i32 * part;
                    msum += *group.min.as_ptr().add(j) as i32 * *sums.add(j) as i32;
                    j += 1;
                }
                let da = *x.scales.add(b);
                value = if F::HAS_MIN {
                    group_value_with_min(group.d, isum, group.dmin, msum, da)
                } else {
                    group_value(group.d, isum, da)
                };
            }
            row = in_order(row, value, count, 1);
            first += count;
        }
        row
    }
}

/// 32-block types: a lane takes a block, eight lanes a group.
pub struct Block32<F>(F);
impl<F: BlockFormat> WeightRow for Block32<F> {
    const SCALE: u32 = 32;
    #[inline(always)]
    unsafe fn dot(w: *const u8, x: Row, cols: u32, lane: u32, scratch: *mut u8) -> f32 {
        let blocks = cols / 32;
        // Blocks of the file per 32 values; NVFP4 holds 64.
        let per = F::TYPE.block_len() / 32;
        let mut row = 0.0f32;
        let mut first = 0;
        while first < blocks {
            let mut term = 0.0f32;
            let b = (first + lane) as usize;
            if first + lane < blocks {
                let unpacked = &mut *align(scratch, lane).cast::<Blocks>();
                let bytes = F::TYPE.block_bytes();
                if per == 2 && b & 1 == 1 {
                    F::unpack(from_raw_parts(w.add(b / 2 * bytes), bytes), 1, 0, unpacked);
                } else {
                    F::unpack(from_raw_parts(w.add(b / per * bytes), bytes), 0, 0, unpacked);
                }
                let qs = x.qs.add(32 * b);
                let mut halves = [0i32; 2];
                let mut l = 0;
                while l < 16 {
                    halves[0] += *unpacked.q.as_ptr().add(l) as i32 * *qs.add(l) as i32;
                    halves[1] += *unpacked.q.as_ptr().add(16 + l) as i32 * *qs.add(16 + l) as i32;
                    l += 1;
                }
                let (d, da) = (unpacked.d[0], *x.scales.add(b));
                term = if F::SPLIT {
                    block_term_split(d, halves[0], unpacked.d_second[0], halves[1], da)
                } else if F::HAS_MIN {
                    let sa = da * (*x.sums.add(2 * b) as i32 + *x.sums.add(2 * b + 1) as i32) as f32;
                    block_term_with_min(d, halves[0] + halves[1], da, unpacked.m[0], sa)
                } else {
                    block_term(d, halves[0] + halves[1], da)
                };
            }
            let count = (if blocks - first < 32 { blocks - first } else { 32 }).div_ceil(8);
            row = in_order(row, join_lanes(term), count, 8);
            first += 32;
        }
        row
    }
}

/// The tree over eight lanes: ((p0+p4)+(p2+p6)) + ((p1+p5)+(p3+p7)).
#[inline(always)]
pub fn join_lanes(term: f32) -> f32 {
    let v = term + xor_f32(term, 4);
    let v = v + xor_f32(v, 2);
    v + xor_f32(v, 1)
}

/// A float type.
pub trait Float {
    const BYTES: usize;
    /// # Safety
    /// A value is there.
    unsafe fn at(p: *const u8) -> f32;
    /// The same for weights, which nobody writes.
    ///
    /// # Safety
    /// A value is there.
    unsafe fn weight(p: *const u8) -> f32;
}
pub struct F32;
impl Float for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn at(p: *const u8) -> f32 {
        *p.cast::<f32>()
    }
    #[inline(always)]
    unsafe fn weight(p: *const u8) -> f32 {
        f32::from_bits(load4(p))
    }
}
pub struct F16;
impl Float for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn at(p: *const u8) -> f32 {
        f16_to_f32(*p.cast::<u16>())
    }
    #[inline(always)]
    unsafe fn weight(p: *const u8) -> f32 {
        half(load2(p))
    }
}
pub struct BF16;
impl Float for BF16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn at(p: *const u8) -> f32 {
        f32::from_bits((*p.cast::<u16>() as u32) << 16)
    }
    #[inline(always)]
    unsafe fn weight(p: *const u8) -> f32 {
        f32::from_bits((load2(p) as u32) << 16)
    }
}

/// Float types: eight lanes are the eight chains of a group.
pub struct Floats<F>(F);
impl<F: Float> WeightRow for Floats<F> {
    const SCALE: u32 = 0;
    #[inline(always)]
    unsafe fn dot(w: *const u8, x: Row, cols: u32, lane: u32, _scratch: *mut u8) -> f32 {
        let x = x.qs.cast::<f32>();
        let mut row = 0.0f32;
        let mut first = 0;
        while first < cols {
            let start = first + 256 * (lane >> 3);
            let end = if start + 256 < cols { start + 256 } else { cols };
            let mut chain = 0.0f32;
            let mut i = start + (lane & 7);
            while i < end {
                chain = bloomery_formats::float::fma(
                    F::at(w.add(i as usize * F::BYTES)),
                    *x.add(i as usize),
                    chain,
                );
                i += 8;
            }
            // A chain's missing last value counts as zero times zero, which changes only the sign of a zero.
            chain += 0.0;
            let left = (cols - first).div_ceil(256);
            row = in_order(row, join_lanes(chain), if left < 4 { left } else { 4 }, 8);
            first += 1024;
        }
        row
    }
}

/// Q4_K: eight lanes a block.
pub struct Q4K;
impl WeightRow for Q4K {
    const SCALE: u32 = 256;
    #[inline(always)]
    unsafe fn dot(w: *const u8, x: Row, cols: u32, lane: u32, _scratch: *mut u8) -> f32 {
        let blocks = cols / 256;
        let l = lane & 7;
        let mut row = 0.0f32;
        let mut first = 0;
        while first < blocks {
            // Loads of up to two rounds are under way before the first is used.
            let (b0, b1) = (first + (lane >> 3), first + 4 + (lane >> 3));
            let (c0, c1) =
                (if b0 < blocks { b0 } else { blocks - 1 }, if b1 < blocks { b1 } else { blocks - 1 });
            let (w0, w1) = (w.add(c0 as usize * 144), w.add(c1 as usize * 144));
            let (h0, q0) = (load16(w0), load16(w0.add(16 + 16 * l as usize)));
            let (h1, q1) = (load16(w1), load16(w1.add(16 + 16 * l as usize)));
            let v0 = q4k_part(h0, q0, x, c0 as usize, l);
            let v1 = q4k_part(h1, q1, x, c1 as usize, l);
            let left = blocks - first;
            row = in_order(row, v0, if left < 4 { left } else { 4 }, 8);
            if left > 4 {
                row = in_order(row, v1, if left < 8 { left - 4 } else { 4 }, 8);
            }
            first += 8;
        }
        row
    }
}

#[inline(always)]
unsafe fn q4k_part(h: [u32; 4], q: [u32; 4], x: Row, b: usize, l: u32) -> f32 {
    let (jp, half) = (l >> 1, (l & 1) as usize);
    let shift = (jp & 1) * 16;
    let (s0, s1, s2) = (h[1] >> shift, h[2] >> shift, h[3] >> shift);
    let (scales, minima) = if jp < 2 {
        (s0 & 0x3f3f, s1 & 0x3f3f)
    } else {
        ((s2 & 0x0f0f) | ((s0 & 0xc0c0) >> 2), ((s2 >> 4) & 0x0f0f) | ((s1 & 0xc0c0) >> 2))
    };
    let at = x.qs.add(256 * b + 64 * jp as usize + 16 * half).cast::<u8>();
    let (a, c) = (load16_kept(at), load16_kept(at.add(32)));
    let (mut low, mut high) = (0i32, 0i32);
    low = dp4a_us(q[0] & 0x0f0f_0f0f, a[0], low);
    high = dp4a_us((q[0] >> 4) & 0x0f0f_0f0f, c[0], high);
    low = dp4a_us(q[1] & 0x0f0f_0f0f, a[1], low);
    high = dp4a_us((q[1] >> 4) & 0x0f0f_0f0f, c[1], high);
    low = dp4a_us(q[2] & 0x0f0f_0f0f, a[2], low);
    high = dp4a_us((q[2] >> 4) & 0x0f0f_0f0f, c[2], high);
    low = dp4a_us(q[3] & 0x0f0f_0f0f, a[3], low);
    high = dp4a_us((q[3] >> 4) & 0x0f0f_0f0f, c[3], high);
    let isum = (scales & 0xff) as i32 * low + (scales >> 8) as i32 * high;
    let sums = x.sums.add(16 * b + 4 * jp as usize + half);
    let msum = (minima & 0xff) as i32 * *sums as i32 + (minima >> 8) as i32 * *sums.add(2) as i32;
    let (isum, msum) = (sum_i32::<8>(isum), sum_i32::<8>(msum));
    let (d, dmin) = (f16_to_f32(h[0] as u16), f16_to_f32((h[0] >> 16) as u16));
    group_value_with_min(d, isum, dmin, msum, *x.scales.add(b))
}

/// Q6_K: sixteen lanes a block, each a sub-block of 16.
pub struct Q6K;
impl WeightRow for Q6K {
    const SCALE: u32 = 256;
    #[inline(always)]
    unsafe fn dot(w: *const u8, x: Row, cols: u32, lane: u32, _scratch: *mut u8) -> f32 {
        let blocks = cols / 256;
        let j = (lane & 15) as usize;
        let (half, part, second) = (j >> 3, (j >> 1) & 3, j & 1);
        let (ql_at, qh_at) = (64 * half + 32 * (part & 1) + 16 * second, 128 + 32 * half + 16 * second);
        let (ql_shift, qh_shift) = (4 * (part as u32 >> 1), 2 * part as u32);
        let mut row = 0.0f32;
        let mut first = 0;
        while first < blocks {
            let mut values = [0.0f32; 2];
            let mut round = 0;
            while round < 2 {
                let b = first + 2 * round + (lane >> 4);
                let b = (if b < blocks { b } else { blocks - 1 }) as usize;
                let block = w.add(b * 210);
                let (ql, qh) = (block.add(ql_at).cast::<u16>(), block.add(qh_at).cast::<u16>());
                let a = load16_kept(x.qs.add(256 * b + 16 * j).cast::<u8>());
                let mut sum = 0i32;
                let mut i = 0;
                while i < 4 {
                    let l = *ql.add(2 * i) as u32 | (*ql.add(2 * i + 1) as u32) << 16;
                    let h = *qh.add(2 * i) as u32 | (*qh.add(2 * i + 1) as u32) << 16;
                    let q = ((l >> ql_shift) & 0x0f0f_0f0f) | (((h >> qh_shift) & 0x0303_0303) << 4);
                    sum = dp4a_us(q, a[i], sum);
                    i += 1;
                }
                sum -= 32 * *x.sums.add(16 * b + j) as i32;
                let isum = sum_i32::<16>(*block.add(192 + j).cast::<i8>() as i32 * sum);
                let d = f16_to_f32(*block.add(208).cast::<u16>());
                values[round as usize] = group_value(d, isum, *x.scales.add(b));
                round += 1;
            }
            let left = blocks - first;
            row = in_order(row, values[0], if left < 2 { left } else { 2 }, 16);
            if left > 2 {
                row = in_order(row, values[1], if left < 4 { left - 2 } else { 2 }, 16);
            }
            first += 4;
        }
        row
    }
}

/// Q8_0: eight lanes... one lane a block of 32, read by halves of words.
pub struct Q80;
impl WeightRow for Q80 {
    const SCALE: u32 = 32;
    #[inline(always)]
    unsafe fn dot(w: *const u8, x: Row, cols: u32, lane: u32, _scratch: *mut u8) -> f32 {
        let blocks = cols / 32;
        let mut row = 0.0f32;
        let mut first = 0;
        while first < blocks {
            let mut term = 0.0f32;
            let b = (first + lane) as usize;
            if first + lane < blocks {
                let block = w.add(34 * b).cast::<u16>();
                let (a, c) = (
                    load16_kept(x.qs.add(32 * b).cast::<u8>()),
                    load16_kept(x.qs.add(32 * b + 16).cast::<u8>()),
                );
                let mut isum = 0i32;
                let mut i = 0;
                while i < 8 {
                    let q = *block.add(1 + 2 * i) as u32 | (*block.add(2 + 2 * i) as u32) << 16;
                    // Signed weights as unsigned ones around 128.
                    isum = dp4a_us(q ^ 0x8080_8080, if i < 4 { a[i & 3] } else { c[i & 3] }, isum);
                    i += 1;
                }
                isum -= 128 * (*x.sums.add(2 * b) as i32 + *x.sums.add(2 * b + 1) as i32);
                term = block_term(f16_to_f32(*block), isum, *x.scales.add(b));
            }
            let count = (if blocks - first < 32 { blocks - first } else { 32 }).div_ceil(8);
            row = in_order(row, join_lanes(term), count, 8);
            first += 32;
        }
        row
    }
}

/// Rows of a table as f32, for tokens: block x a group of 256 columns, block y a token; one warp.
pub mod embed {
    use super::*;

    /// A value of a table's row.
    pub trait Table {
        /// Writes a lane's share of up to 256 values from `256 * group` on.
        ///
        /// # Safety
        /// The row is there.
        unsafe fn put(
            row: *const u8,
            group: u32,
            cols: u32,
            scratch: *mut u8,
            lane: u32,
            scale: f32,
            out: *mut f32,
        );
    }
    impl<F: GroupFormat> Table for Groups<F> {
        #[inline(always)]
        unsafe fn put(
            row: *const u8,
            group: u32,
            _cols: u32,
            scratch: *mut u8,
            lane: u32,
            by: f32,
            out: *mut f32,
        ) {
            let unpacked = &mut *align(scratch, lane).cast::<Group>();
            let bytes = F::TYPE.block_bytes();
            F::unpack(from_raw_parts(row.add(group as usize * bytes), bytes), unpacked);
            let mut j = lane as usize;
            while j < 256 {
                let s = j >> 4;
                let scale = unpacked.d * *unpacked.scale.as_ptr().add(s) as f32;
                let product = scale * *unpacked.q.as_ptr().add(j) as f32;
                let value = if F::HAS_MIN {
                    product - unpacked.dmin * *unpacked.min.as_ptr().add(s) as f32
                } else {
                    product
                };
                *out.add(j) = if by != 1.0 { value * by } else { value };
                j += 32;
            }
        }
    }
    impl<F: BlockFormat> Table for Block32<F> {
        #[inline(always)]
        unsafe fn put(
            row: *const u8,
            group: u32,
            cols: u32,
            scratch: *mut u8,
            lane: u32,
            by: f32,
            out: *mut f32,
        ) {
            let unpacked = &mut *align(scratch, lane).cast::<Blocks>();
            let (bytes, per) = (F::TYPE.block_bytes(), F::TYPE.block_len() / 32);
            // Four lanes a block of 32, eight values each.
            let i = lane >> 2;
            if 256 * group + 32 * i >= cols {
                return;
            }
            let b = (8 * group + i) as usize;
            if per == 2 && b & 1 == 1 {
                F::unpack(from_raw_parts(row.add(b / 2 * bytes), bytes), 1, 0, unpacked);
            } else {
                F::unpack(from_raw_parts(row.add(b / per * bytes), bytes), 0, 0, unpacked);
            }
            let first = 8 * (lane & 3) as usize;
            let mut l = first;
            while l < first + 8 {
                let scale = if F::SPLIT && l >= 16 { unpacked.d_second[0] } else { unpacked.d[0] };
                let product = *unpacked.q.as_ptr().add(l) as f32 * scale;
                let value = if F::HAS_MIN { product + unpacked.m[0] } else { product };
                *out.add(32 * i as usize + l) = if by != 1.0 { value * by } else { value };
                l += 1;
            }
        }
    }
    impl<F: Float> Table for Floats<F> {
        #[inline(always)]
        unsafe fn put(row: *const u8, group: u32, cols: u32, _: *mut u8, lane: u32, by: f32, out: *mut f32) {
            let mut i = lane;
            while i < 256 && 256 * group + i < cols {
                let value = F::at(row.add((256 * group + i) as usize * F::BYTES));
                *out.add(i as usize) = if by != 1.0 { value * by } else { value };
                i += 32;
            }
        }
    }

    /// # Safety
    /// Every pointer leads to what the shapes say.
    #[inline(always)]
    pub unsafe fn embed<T: Table>(
        table: *const u8,
        row_bytes: u32,
        tokens_there: u32,
        cols: u32,
        by: f32,
        tokens: *const u32,
        out: *mut f32,
    ) {
        wait_for_launches();
        let group = ctaid_x();
        if group * 256 >= cols {
            return;
        }
        let token = *tokens.add(ctaid_y() as usize);
        let token = if token < tokens_there { token } else { 0 };
        let out = out.add(ctaid_y() as usize * cols as usize + 256 * group as usize);
        T::put(table.add(token as usize * row_bytes as usize), group, cols, shared(), tid(), by, out);
    }
}
