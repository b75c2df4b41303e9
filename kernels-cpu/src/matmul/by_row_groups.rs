//! A few activation rows times 256-value groups, weight rows front to back; see [`by_row`](super::by_row) for why.
//!
//! All products of a group meet in integer lanes before anything is rounded, so the bits are the tiles' bits. Four groups of a row are
//! finished together, their lane sums and the f32 expression in one register each, and then added from left to right.

use super::by_row::MOST_ROWS;
use super::drive::Job;
use super::row_group::{MOST_GROUPS, RowGroup};
use super::wide::{SpreadOrders, Wide, spread_orders};
use crate::output::OutTile;
use bloomery_formats::WeightType;
use std::arch::x86_64::*;

const GROUP: usize = 256;
/// How many bytes ahead of the arithmetic memory is asked for: the hardware's own requests end at every page.
const AHEAD: usize = 4096;

/// The lane sums of four registers, in their order, as f32.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn lane_sums(d: [__m256i; MOST_GROUPS]) -> __m128 {
    // SAFETY: register arithmetic of AVX2.
    unsafe {
        let sums = _mm256_hadd_epi32(_mm256_hadd_epi32(d[0], d[1]), _mm256_hadd_epi32(d[2], d[3]));
        let sums = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
        _mm_cvtepi32_ps(sums)
    }
}

/// What the groups of one activation row are multiplied from: quants, sums per sixteen, scales.
type Row<'a> = (&'a [i8], &'a [i16], &'a [f32]);

/// One group's integers for each of the `N` activation rows: the lanes of its products, and of its pairs (only with minima).
///
/// # Safety
/// As for [`product`].
#[inline(always)]
unsafe fn integers<W: Wide, D: RowGroup, const N: usize>(
    (ty, block): (WeightType, &[u8]),
    activations: &[Row<'_>; N],
    group: usize,
    orders: &SpreadOrders,
) -> ([(__m256i, __m256i); N], D::Floats) {
    // SAFETY: register arithmetic of what the caller has; loads go through checked slices.
    unsafe {
        let (weights, floats) = D::decode::<W>(ty, block);
        let mut lanes = [(_mm256_setzero_si256(), _mm256_setzero_si256()); N];
        for ((qs, sums16, _), lanes) in activations.iter().zip(&mut lanes) {
            let qs = qs[group * GROUP..(group + 1) * GROUP].as_chunks().0;
            let acc = if D::SIGNED {
                let scales = W::spread(weights.scale, D::PER_32, orders);
                let mut acc = W::zero();
                for ((w, scales), q) in weights.q.iter().zip(scales).zip(qs) {
                    let (w, q) = W::move_signs(*w, W::load(q));
                    acc = W::accumulate(acc, w, q, scales);
                }
                W::halve(acc)
            } else {
                let scales = W::spread_sums(weights.scale, D::PER_32, orders);
                let mut acc = _mm256_setzero_si256();
                for ((w, scales), q) in weights.q.iter().zip(scales).zip(qs) {
                    acc = W::accumulate_sums(acc, *w, W::load(q), scales);
                }
                acc
            };
            let sums16 = &sums16[group * 16..(group + 1) * 16];
            let pair = _mm256_madd_epi16(weights.pair, _mm256_loadu_si256(sums16.as_ptr().cast()));
            *lanes = if D::HAS_MIN {
                (acc, pair)
            } else if D::SIGNED {
                (acc, _mm256_setzero_si256())
            } else {
                (_mm256_add_epi32(acc, pair), _mm256_setzero_si256())
            };
        }
        (lanes, floats)
    }
}

/// Adds the values of `RUN` groups, the first of them `first`, to the sums of the `N` activation rows. The number is a constant: only
/// then do the groups' lanes stay in registers.
///
/// # Safety
/// As for [`product`].
#[inline(always)]
unsafe fn run<W: Wide, D: RowGroup, const N: usize, const RUN: usize>(
    (ty, row): (WeightType, &[u8]),
    activations: &[Row<'_>; N],
    first: usize,
    orders: &SpreadOrders,
    sums: &mut [f32; N],
) {
    const { assert!(RUN <= MOST_GROUPS) };
    let bytes = D::block_bytes(ty);
    let blocks = &row[first * bytes..(first + RUN) * bytes];
    // SAFETY: register arithmetic of what the caller has; loads go through checked slices; nothing need be readable where memory is asked for.
    unsafe {
        let ahead = blocks.as_ptr().wrapping_add(AHEAD);
        for line in 0..(RUN * D::block_bytes(ty)).div_ceil(64) {
            _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(64 * line).cast());
        }
        let none = [(_mm256_setzero_si256(), _mm256_setzero_si256()); N];
        let mut groups = [(none, D::Floats::default()); MOST_GROUPS];
        // Written out: as a loop it would keep the lanes in memory. No closure either: it would not be compiled for the instruction set.
        if RUN > 0 {
            groups[0] = integers::<W, D, N>((ty, &blocks[..bytes]), activations, first, orders);
        }
        if RUN > 1 {
            groups[1] = integers::<W, D, N>((ty, &blocks[bytes..2 * bytes]), activations, first + 1, orders);
        }
        if RUN > 2 {
            groups[2] =
                integers::<W, D, N>((ty, &blocks[2 * bytes..3 * bytes]), activations, first + 2, orders);
        }
        if RUN > 3 {
            groups[3] =
                integers::<W, D, N>((ty, &blocks[3 * bytes..4 * bytes]), activations, first + 3, orders);
        }
        let [a, b, c, e] = groups;
        let (d, dmin) = D::floats([a.1, b.1, c.1, e.1]);
        for (n, (_, _, scales)) in activations.iter().enumerate() {
            // The expressions of `formats::join::group_value` and `group_value_with_min`.
            let mut value = _mm_mul_ps(d, lane_sums([a.0[n].0, b.0[n].0, c.0[n].0, e.0[n].0]));
            if D::HAS_MIN {
                let pairs = lane_sums([a.0[n].1, b.0[n].1, c.0[n].1, e.0[n].1]);
                value = _mm_fnmadd_ps(dmin, pairs, value);
            }
            let mut values = [0.0; MOST_GROUPS];
            _mm_storeu_ps(values.as_mut_ptr(), value);
            for (value, scale) in values.iter().zip(&scales[first..first + RUN]) {
                sums[n] += value * scale;
            }
        }
    }
}

/// Every weight row times the `N` activation rows.
///
/// # Safety
/// The machine has AVX2, FMA, F16C and the instruction set of `W`.
#[inline(always)]
unsafe fn rows<W: Wide, D: RowGroup, const N: usize>(job: &Job<'_>, out: &mut OutTile<'_>) {
    let a = job.activations;
    let strides = a.strides();
    let groups = job.weights.cols() / GROUP;
    let activations: [Row<'_>; N] = std::array::from_fn(|n| {
        let row = job.activation_rows.get(n);
        (
            &a.qs[row * strides.qs..][..groups * GROUP],
            &a.sums[row * strides.sums..][..groups * 16],
            &a.scales[row * strides.scales..][..groups],
        )
    });
    // SAFETY: as for this function.
    let orders = unsafe { spread_orders(D::SIGNED, D::PER_32) };
    for (column, n) in job.weight_rows.clone().enumerate() {
        let row = (job.weights.ty(), job.weights.row(n));
        let mut sums = [0.0f32; N];
        let mut first = 0;
        // SAFETY: as for this function.
        unsafe {
            while groups - first >= 4 {
                run::<W, D, N, 4>(row, &activations, first, &orders, &mut sums);
                first += 4;
            }
            match groups - first {
                3 => run::<W, D, N, 3>(row, &activations, first, &orders, &mut sums),
                2 => run::<W, D, N, 2>(row, &activations, first, &orders, &mut sums),
                1 => run::<W, D, N, 1>(row, &activations, first, &orders, &mut sums),
                _ => {}
            }
        }
        for (a, sum) in sums.into_iter().enumerate() {
            out.row_mut(a)[column] = sum;
        }
    }
}

/// The product for at most [`MOST_ROWS`] activation rows.
///
/// # Safety
/// The machine has AVX2, FMA, F16C and the instruction set of `W`.
#[inline(always)]
pub(crate) unsafe fn product<W: Wide, D: RowGroup>(job: &Job<'_>, out: &mut OutTile<'_>) {
    const { assert!(MOST_ROWS == 4) };
    // SAFETY: as for this function.
    unsafe {
        match job.activation_rows.len() {
            1 => rows::<W, D, 1>(job, out),
            2 => rows::<W, D, 2>(job, out),
            3 => rows::<W, D, 3>(job, out),
            4 => rows::<W, D, 4>(job, out),
            count => unreachable!("{count} activation rows go through tiles"),
        }
    }
}
