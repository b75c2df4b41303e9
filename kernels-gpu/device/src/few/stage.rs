//! Activations into shared memory, in the form that weights multiply: as they are, quantised, or normed and quantised.

use super::weights::Activations;
use crate::dev::{ntid, shared, sync, tid};
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

/// Copies words, all threads together.
#[inline(always)]
unsafe fn copy(to: u32, from: *const u32, words: u32) {
    let to = shared().add(to as usize).cast::<u32>();
    let mut i = tid();
    while i < words {
        *to.add(i as usize) = *from.add(i as usize);
        i += ntid();
    }
}

/// Bytes of shared memory that `R` rows take at most, and where their values stand in between.
#[inline(always)]
pub fn bytes<const K: u32, const R: usize>(cols: u32) -> u32 {
    Activations::new::<K>(0, cols).step * R as u32
}

/// One row that is ready, from row `row` of the input to `to`.
///
/// # Safety
/// Every pointer leads to what the shapes say.
#[inline(always)]
pub unsafe fn stage_ready<const K: u32>(input: &Input, row: u32, to: Activations) {
    let groups = input.cols.div_ceil(256);
    match K {
        0 => copy(to.quants, input.plain.add((row * input.cols) as usize).cast(), input.cols),
        32 => {
            copy(to.quants, input.qs32.add((row * groups * 256) as usize).cast(), 64 * groups);
            copy(to.scales, input.scales32.add((row * groups * 8) as usize).cast(), 8 * groups);
            copy(to.sums, input.sums32.add((row * groups * 16) as usize).cast(), 8 * groups);
        }
        _ => {
            copy(to.quants, input.qs.add((row * groups * 256) as usize).cast(), 64 * groups);
            copy(to.scales, input.scales.add((row * groups) as usize).cast(), groups);
            copy(to.sums, input.sums.add((row * groups * 16) as usize).cast(), 8 * groups);
        }
    }
}

/// All rows, from the start of shared memory; behind them is room for the values of a row. Ends with a barrier. `leaves`: this block
/// writes what others read.
///
/// # Safety
/// Every pointer is null or leads to what the shapes say; all threads of the block come here.
#[inline(always)]
pub unsafe fn stage<const K: u32, const R: usize>(input: &Input, leaves: bool) -> Activations {
    let all = Activations::new::<K>(0, input.cols);
    let (cols, groups) = (input.cols, input.cols.div_ceil(256));
    let (warp, lane, warps) = (tid() >> 5, tid() & 31, ntid() >> 5);
    let mut r = 0;
    while r < R as u32 {
        if r >= input.rows {
            break;
        }
        let here = Activations {
            quants: all.quants + r * all.step,
            scales: all.scales + r * all.step,
            sums: all.sums + r * all.step,
            step: all.step,
        };
        if input.mode == READY {
            stage_ready::<K>(input, r, here);
            r += 1;
            continue;
        }
        let values = match K {
            0 => shared().add(here.quants as usize),
            _ => shared().add(bytes::<K, R>(cols) as usize),
        }
        .cast::<f32>();
        let x = input.x.add((r * cols) as usize);
        let mut i = tid();
        while i < cols {
            let v = *x.add(i as usize);
            if leaves && v.is_nan() && !input.fault.is_null() {
                *input.fault = 1;
                *input.fault.add(1) = input.step;
                *input.fault.add(2) = r;
            }
            *values.add(i as usize) = v;
            i += ntid();
        }
        sync();
        if input.mode == NORM {
            // Every warp for itself: cheaper than a barrier more.
            let inverse = inverse_rms(values, cols, input.eps, lane);
            sync();
            let mut i = tid();
            while i < cols {
                let mut v = *values.add(i as usize) * inverse;
                if !input.weight.is_null() {
                    v *= *input.weight.add(i as usize);
                }
                *values.add(i as usize) = v;
                i += ntid();
            }
            sync();
        }
        if K == 256 || leaves && !input.qs.is_null() {
            let mut g = warp;
            while g * 256 < cols {
                let from = values.add(256 * g as usize);
                let at = (r * groups + g) as usize;
                if K == 256 {
                    quantize_group(
                        from,
                        lane,
                        shared().add((here.quants + 256 * g) as usize).cast(),
                        shared().add((here.scales + 4 * g) as usize).cast(),
                        shared().add((here.sums + 32 * g) as usize).cast(),
                    );
                }
                if leaves && !input.qs.is_null() {
                    quantize_group(
                        from,
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
                let v = *values.add((32 * b + lane) as usize);
                let at = (r * groups * 8 + b) as usize;
                if K == 32 {
                    quantize_block(
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
        if leaves {
            let mut i = tid();
            while i < cols {
                let v = *values.add(i as usize);
                if !input.out.is_null() {
                    *input.out.add((r * cols + i) as usize) = v;
                }
                if !input.plain.is_null() {
                    *input.plain.add((r * cols + i) as usize) = v;
                }
                i += ntid();
            }
        }
        if R > 1 {
            // The next row's values come to the same place.
            sync();
        }
        r += 1;
    }
    sync();
    all
}
