//! Activations into shared memory, in the form that weights multiply: as they are, quantised, or normed and quantised.

use super::weights::Activations;
use crate::dev::{copies_commit, copies_wait, copy4, copy16, ntid, shared, shared4, shared16, sync, tid};
use crate::rows::{inverse_rms, quantize_block, quantize_group};

/// How activations come.
pub const READY: u32 = 0;
/// f32 rows, to be normed and quantised.
pub const NORM: u32 = 2;

/// Rows of activations in global memory, and the forms that the first block leaves there for others.
#[derive(Clone, Copy)]
pub struct Input {
    /// [`READY`], [`NORM`], or anything else for f32 rows that are only quantised.
    pub mode: u32,
    pub rows: u32,
    pub cols: u32,
    /// `[rows, cols]`; not read where they are ready.
    pub x: *const f32,
    /// `[cols]` of the norm, or null.
    pub weight: *const f32,
    pub eps: f32,
    /// Where normed rows go, or null.
    pub out: *mut f32,
    /// Forms of the rows: read where they are ready, otherwise written where they are not null.
    pub plain: *mut f32,
    pub qs: *mut i8,
    pub scales: *mut f32,
    pub sums: *mut i16,
    pub qs32: *mut i8,
    pub scales32: *mut f32,
    pub sums32: *mut i16,
    pub fault: *mut u32,
    pub step: u32,
}

impl Input {
    /// Rows that stand quantised in one form.
    #[inline(always)]
    pub fn ready(rows: u32, cols: u32, qs: *mut i8, scales: *mut f32, sums: *mut i16) -> Input {
        let none = core::ptr::null_mut;
        Input {
            mode: READY,
            rows,
            cols,
            x: core::ptr::null(),
            weight: core::ptr::null(),
            eps: 0.0,
            out: none(),
            plain: none(),
            qs,
            scales,
            sums,
            qs32: qs,
            scales32: scales,
            sums32: sums,
            fault: core::ptr::null_mut(),
            step: 0,
        }
    }
}

/// Begins to copy bytes to shared memory, all threads together. `to` is a multiple of 16; `bytes` of four.
#[inline(always)]
pub unsafe fn copy(to: u32, from: *const u8, bytes: u32) {
    if (from as u32 | bytes) & 15 == 0 {
        let mut i = 16 * tid();
        while i < bytes {
            copy16(to + i, from.add(i as usize));
            i += 16 * ntid();
        }
    } else {
        let mut i = 4 * tid();
        while i < bytes {
            copy4(to + i, from.add(i as usize));
            i += 4 * ntid();
        }
    }
}

/// Begins to copy a row that is ready to its place. [`copies_wait`] and a barrier end it.
///
/// # Safety
/// Every pointer leads to what the shapes say.
#[inline(always)]
pub unsafe fn stage_ready<const K: u32>(input: &Input, row: u32, to: Activations) {
    let groups = input.cols.div_ceil(256);
    let at = (row * groups) as usize;
    match K {
        0 => copy(to.quants, input.plain.add((row * input.cols) as usize).cast(), 4 * input.cols),
        32 => {
            copy(to.quants, input.qs32.add(at * 256).cast(), 256 * groups);
            copy(to.scales, input.scales32.add(at * 8).cast(), 32 * groups);
            copy(to.sums, input.sums32.add(at * 16).cast(), 32 * groups);
        }
        _ => {
            copy(to.quants, input.qs.add(at * 256).cast(), 256 * groups);
            copy(to.scales, input.scales.add(at).cast(), 4 * groups);
            copy(to.sums, input.sums.add(at * 16).cast(), 32 * groups);
        }
    }
}

/// What this block reads that no launch writes: the norm's weights, behind the rows and the room for a row's values.
///
/// # Safety
/// As for [`stage`], which follows.
#[inline(always)]
pub unsafe fn stage_weights<const K: u32, const R: usize>(input: &Input) {
    if input.mode == NORM && !input.weight.is_null() {
        copy(weights_at::<K, R>(input.cols), input.weight.cast(), 4 * input.cols);
        copies_commit();
    }
}

/// Where a row's values stand before they are quantised; floats stand in their own place.
#[inline(always)]
fn values_at<const K: u32, const R: usize>(cols: u32) -> u32 {
    Activations::new::<K>(0, cols).step * R as u32
}
#[inline(always)]
fn weights_at<const K: u32, const R: usize>(cols: u32) -> u32 {
    values_at::<K, R>(cols) + if K == 0 { 0 } else { 4 * cols.next_multiple_of(256) }
}

/// A row's values in shared memory, normed as they are read.
#[derive(Clone, Copy)]
struct Normed {
    values: u32,
    weights: u32,
    inverse: f32,
    mode: u32,
    weighted: bool,
}

impl Normed {
    #[inline(always)]
    unsafe fn one(&self, i: u32) -> f32 {
        let v = f32::from_bits(shared4(self.values + 4 * i));
        if self.mode != NORM {
            return v;
        }
        let v = v * self.inverse;
        if self.weighted { v * f32::from_bits(shared4(self.weights + 4 * i)) } else { v }
    }
    /// Eight from a multiple of eight on.
    #[inline(always)]
    unsafe fn eight(&self, i: u32) -> [f32; 8] {
        let quads = [shared16(self.values + 4 * i), shared16(self.values + 4 * i + 16)];
        let mut v = [0.0f32; 8];
        let mut k = 0;
        while k < 8 {
            v[k] = f32::from_bits(quads[k / 4][k % 4]);
            k += 1;
        }
        if self.mode != NORM {
            return v;
        }
        let mut factors = [1.0f32; 8];
        if self.weighted {
            let quads = [shared16(self.weights + 4 * i), shared16(self.weights + 4 * i + 16)];
            let mut k = 0;
            while k < 8 {
                factors[k] = f32::from_bits(quads[k / 4][k % 4]);
                k += 1;
            }
        }
        let mut k = 0;
        while k < 8 {
            v[k] *= self.inverse;
            v[k] = if self.weighted { v[k] * factors[k] } else { v[k] };
            k += 1;
        }
        v
    }
}

/// All rows, from the start of shared memory. Ends with a barrier. `leaves`: this block writes what others read.
///
/// # Safety
/// Every pointer is null or leads to what the shapes say; all threads of the block come here; shared memory holds `R` rows, and where
/// they are not ready the values of one and the norm's weights.
#[inline(always)]
pub unsafe fn stage<const K: u32, const R: usize>(input: &Input, leaves: bool) -> Activations {
    let all = Activations::new::<K>(0, input.cols);
    let (cols, groups) = (input.cols, input.cols.div_ceil(256));
    let (warp, lane, warps) = (tid() >> 5, tid() & 31, ntid() >> 5);
    let weighted = !input.weight.is_null();
    let mut r = 0;
    while r < R as u32 {
        if r >= input.rows {
            break;
        }
        let here = all.row(r);
        if input.mode == READY {
            stage_ready::<K>(input, r, here);
            r += 1;
            continue;
        }
        let at = if K == 0 { here.quants } else { values_at::<K, R>(cols) };
        copy(at, input.x.add((r * cols) as usize).cast(), 4 * cols);
        copies_commit();
        copies_wait::<0>();
        sync();
        let values = shared().add(at as usize).cast::<f32>();
        let mut inverse = 1.0;
        if input.mode == NORM {
            // Every warp for itself: cheaper than a barrier more.
            inverse = inverse_rms(values, cols, input.eps, lane);
            if K == 0 {
                sync();
            }
        }
        let of =
            Normed { values: at, weights: weights_at::<K, R>(cols), inverse, mode: input.mode, weighted };
        let mut broken = false;
        if K == 0 || leaves && (!input.out.is_null() || !input.plain.is_null()) {
            let mut i = tid();
            while i < cols {
                let v = of.one(i);
                broken |= v.is_nan();
                if leaves && !input.out.is_null() {
                    *input.out.add((r * cols + i) as usize) = v;
                }
                if leaves && !input.plain.is_null() {
                    *input.plain.add((r * cols + i) as usize) = v;
                }
                if K == 0 {
                    *values.add(i as usize) = v;
                }
                i += ntid();
            }
        }
        let of = if K == 0 { Normed { mode: READY, ..of } } else { of };
        if K == 0 {
            sync();
        }
        if K == 256 || leaves && !input.qs.is_null() {
            let mut g = warp;
            while g * 256 < cols {
                let v = of.eight(256 * g + 8 * lane);
                let at = (r * groups + g) as usize;
                if K == 256 {
                    broken |= quantize_group(
                        v,
                        lane,
                        shared().add((here.quants + 256 * g) as usize).cast(),
                        shared().add((here.scales + 4 * g) as usize).cast(),
                        shared().add((here.sums + 32 * g) as usize).cast(),
                    );
                }
                if leaves && !input.qs.is_null() {
                    quantize_group(
                        v,
                        lane,
                        input.qs.add(256 * at),
                        input.scales.add(at),
                        input.sums.add(16 * at),
                    );
                }
                g += warps;
            }
        }
        if K == 32 || leaves && !input.qs32.is_null() {
            let mut b = warp;
            while b * 32 < cols {
                let v = of.one(32 * b + lane);
                let at = (r * groups * 8 + b) as usize;
                if K == 32 {
                    broken |= quantize_block(
                        v,
                        lane,
                        shared().add((here.quants + 32 * b) as usize).cast(),
                        shared().add((here.scales + 4 * b) as usize).cast(),
                        shared().add((here.sums + 4 * b) as usize).cast(),
                    );
                }
                if leaves && !input.qs32.is_null() {
                    quantize_block(
                        v,
                        lane,
                        input.qs32.add(32 * at),
                        input.scales32.add(at),
                        input.sums32.add(2 * at),
                    );
                }
                b += warps;
            }
        }
        if leaves && broken && !input.fault.is_null() {
            *input.fault = 1;
            *input.fault.add(1) = input.step;
            *input.fault.add(2) = r;
        }
        if R > 1 {
            // The next row's values come to the same place.
            sync();
        }
        r += 1;
    }
    copies_commit();
    copies_wait::<0>();
    sync();
    all
}
