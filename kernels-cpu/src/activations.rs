//! Rows of activations in the form that a weight type multiplies.
//!
//! Structure of arrays: quants, scales and sums of all rows lie each in one array with a fixed stride per row, which SIMD kernels and a
//! device read alike. Quantisation is the shared source's, compiled for wider units.

use crate::aligned::Aligned;
use crate::level::{Kind, Level};
use crate::matrix::MatmulError;
use bloomery_formats::{ActivationKind, ActivationRow, quantize_block, quantize_group, scaled_sum};

#[cfg(target_arch = "x86_64")]
mod avx512;

const GROUP: usize = 256;
const BLOCK: usize = 32;

/// Rows of activations `[rows, cols]` of one kind. Memory is kept between uses.
///
/// Layout per row, all padding zero: `qs` has `cols` rounded up to 256, plus 64 (so that rows do not share cache sets); `scales` one value
/// per group (Q8K) or eight per group (Q8Block32); `sums` sixteen per group; `sums32` eight per group (only Q8K: sums per 32);
/// `scaled_sums` as `scales` (only Q8Block32: scale times sum);
/// `values` (only F32) `cols` rounded up to 16.
pub struct Activations {
    kind: ActivationKind,
    rows: usize,
    cols: usize,
    pub(crate) qs: Aligned<i8>,
    pub(crate) scales: Aligned<f32>,
    pub(crate) sums: Aligned<i16>,
    pub(crate) sums32: Aligned<i16>,
    pub(crate) scaled_sums: Aligned<f32>,
    pub(crate) values: Aligned<f32>,
}

/// How far apart rows lie in each array.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strides {
    pub qs: usize,
    pub scales: usize,
    pub sums: usize,
    pub sums32: usize,
    pub scaled_sums: usize,
    pub values: usize,
}

fn strides(kind: ActivationKind, cols: usize) -> Strides {
    let groups = cols.div_ceil(GROUP);
    let none = Strides { qs: 0, scales: 0, sums: 0, sums32: 0, scaled_sums: 0, values: 0 };
    let quantised = Strides { qs: groups * GROUP + 64, sums: groups * 16, ..none };
    match kind {
        ActivationKind::Q8K => Strides { scales: groups, sums32: groups * 8, ..quantised },
        ActivationKind::Q8Block32 => Strides { scales: groups * 8, scaled_sums: groups * 8, ..quantised },
        ActivationKind::F32 => Strides { values: cols.next_multiple_of(16), ..none },
    }
}

impl Activations {
    /// No rows yet.
    pub fn new(kind: ActivationKind, cols: usize) -> Result<Self, MatmulError> {
        let mut activations = Activations {
            kind,
            rows: 0,
            cols,
            qs: Aligned::default(),
            scales: Aligned::default(),
            sums: Aligned::default(),
            sums32: Aligned::default(),
            scaled_sums: Aligned::default(),
            values: Aligned::default(),
        };
        activations.reset(kind, cols, 0)?;
        Ok(activations)
    }

    /// Rows quantised at once: `values` is `[rows, cols]`, row-major.
    pub fn quantize(
        level: Level,
        kind: ActivationKind,
        cols: usize,
        values: &[f32],
    ) -> Result<Self, MatmulError> {
        let mut activations = Activations::new(kind, cols)?;
        activations.fill(level, kind, cols, values)?;
        Ok(activations)
    }

    /// Takes another shape, keeping the memory. The rows' contents are unspecified until each was quantised.
    pub fn reset(&mut self, kind: ActivationKind, cols: usize, rows: usize) -> Result<(), MatmulError> {
        let multiple = match kind {
            ActivationKind::Q8K => GROUP,
            ActivationKind::Q8Block32 => BLOCK,
            ActivationKind::F32 => 1,
        };
        if !cols.is_multiple_of(multiple) {
            return Err(MatmulError::ActivationWidth { kind, multiple, cols });
        }
        let strides = strides(kind, cols);
        (self.kind, self.cols, self.rows) = (kind, cols, rows);
        self.qs.resize(rows * strides.qs);
        self.scales.resize(rows * strides.scales);
        self.sums.resize(rows * strides.sums);
        self.sums32.resize(rows * strides.sums32);
        self.scaled_sums.resize(rows * strides.scaled_sums);
        self.values.resize(rows * strides.values);
        Ok(())
    }

    /// Takes another shape and quantises `values` (`[rows, cols]`, row-major) into it.
    pub fn fill(
        &mut self,
        level: Level,
        kind: ActivationKind,
        cols: usize,
        values: &[f32],
    ) -> Result<(), MatmulError> {
        let rows = values.len().checked_div(cols).unwrap_or(0);
        if rows * cols != values.len() {
            return Err(MatmulError::Range {
                what: "activation value",
                index: values.len(),
                len: rows * cols,
            });
        }
        self.reset(kind, cols, rows)?;
        for (index, chunk) in self.chunks(rows.max(1)).enumerate() {
            debug_assert_eq!(index, 0);
            chunk.quantize(level, values)?;
        }
        Ok(())
    }

    /// Splits the rows into runs of `rows_per_chunk` (the last may be shorter), each writable on a thread of its own.
    pub fn chunks(&mut self, rows_per_chunk: usize) -> impl Iterator<Item = ActivationChunk<'_>> {
        let strides = self.strides();
        let (kind, cols, rows) = (self.kind, self.cols, self.rows);
        let mut qs = &mut self.qs[..];
        let mut scales = &mut self.scales[..];
        let mut sums = &mut self.sums[..];
        let mut sums32 = &mut self.sums32[..];
        let mut scaled_sums = &mut self.scaled_sums[..];
        let mut values = &mut self.values[..];
        let per_chunk = rows_per_chunk.max(1);
        (0..rows).step_by(per_chunk).map(move |first| {
            let count = per_chunk.min(rows - first);
            ActivationChunk {
                kind,
                cols,
                rows: count,
                strides,
                qs: split(&mut qs, count * strides.qs),
                scales: split(&mut scales, count * strides.scales),
                sums: split(&mut sums, count * strides.sums),
                sums32: split(&mut sums32, count * strides.sums32),
                scaled_sums: split(&mut scaled_sums, count * strides.scaled_sums),
                values: split(&mut values, count * strides.values),
            }
        })
    }

    /// The kind.
    pub fn kind(&self) -> ActivationKind {
        self.kind
    }
    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Values in a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    pub(crate) fn strides(&self) -> Strides {
        strides(self.kind, self.cols)
    }

    /// One row, as the scalar definition reads it; panics when there is no such row.
    pub fn row(&self, row: usize) -> ActivationRow<'_> {
        assert!(row < self.rows, "activation row {row} of {}", self.rows);
        let strides = self.strides();
        let qs = |cols| &self.qs[row * strides.qs..][..cols];
        match self.kind {
            ActivationKind::Q8K => ActivationRow::Q8K {
                qs: qs(self.cols),
                scales: &self.scales[row * strides.scales..][..strides.scales],
                sums: &self.sums[row * strides.sums..][..strides.sums],
            },
            ActivationKind::Q8Block32 => ActivationRow::Q8Block32 {
                qs: qs(self.cols),
                scales: &self.scales[row * strides.scales..][..self.cols / BLOCK],
                sums: &self.sums[row * strides.sums..][..self.cols / 16],
            },
            ActivationKind::F32 => ActivationRow::F32(&self.values[row * strides.values..][..self.cols]),
        }
    }
}

fn split<'a, T>(rest: &mut &'a mut [T], len: usize) -> &'a mut [T] {
    let (head, tail) = std::mem::take(rest).split_at_mut(len);
    *rest = tail;
    head
}

/// A run of rows to be written.
pub struct ActivationChunk<'a> {
    kind: ActivationKind,
    cols: usize,
    rows: usize,
    strides: Strides,
    qs: &'a mut [i8],
    scales: &'a mut [f32],
    sums: &'a mut [i16],
    sums32: &'a mut [i16],
    scaled_sums: &'a mut [f32],
    values: &'a mut [f32],
}

impl ActivationChunk<'_> {
    /// Rows of the run.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Quantises `[rows, cols]` values, row-major.
    pub fn quantize(mut self, level: Level, values: &[f32]) -> Result<(), MatmulError> {
        if values.len() != self.rows * self.cols {
            return Err(MatmulError::Range {
                what: "activation value",
                index: values.len(),
                len: self.rows * self.cols,
            });
        }
        for row in 0..self.rows {
            self.quantize_row(level, row, &values[row * self.cols..][..self.cols]);
        }
        Ok(())
    }

    /// Quantises row `row` of the run from `cols` values; panics when there is no such row or the width differs.
    pub fn quantize_row(&mut self, level: Level, row: usize, values: &[f32]) {
        assert!(
            row < self.rows && values.len() == self.cols,
            "row {row} of {}, width {}",
            self.rows,
            values.len()
        );
        match level.kind() {
            Kind::Scalar => self.quantize_inline(row, values, quantize_block),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn compiled(chunk: &mut ActivationChunk<'_>, row: usize, values: &[f32]) {
                    chunk.quantize_inline(row, values, quantize_block);
                }
                // SAFETY: a `Level` of this kind exists only where these features were detected.
                unsafe { compiled(self, row, values) }
            }
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
                fn compiled(chunk: &mut ActivationChunk<'_>, row: usize, values: &[f32]) {
                    chunk.quantize_inline(row, values, |values, quants, sums| {
                        avx512::quantize_block(values, quants, sums)
                    });
                }
                // SAFETY: a `Level` of this kind exists only where these features were detected.
                unsafe { compiled(self, row, values) }
            }
        }
    }

    #[inline(always)]
    fn quantize_inline(
        &mut self,
        row: usize,
        values: &[f32],
        quantize_block: impl Fn(&[f32; BLOCK], &mut [i8; BLOCK], &mut [i16; 2]) -> f32,
    ) {
        let strides = self.strides;
        if self.kind == ActivationKind::F32 {
            let target = &mut self.values[row * strides.values..][..strides.values];
            target[..values.len()].copy_from_slice(values);
            target[values.len()..].fill(0.0);
            return;
        }
        let qs = &mut self.qs[row * strides.qs..][..strides.qs];
        let scales = &mut self.scales[row * strides.scales..][..strides.scales];
        let sums = &mut self.sums[row * strides.sums..][..strides.sums];
        qs[values.len()..].fill(0);
        if self.kind == ActivationKind::Q8K {
            let sums32 = &mut self.sums32[row * strides.sums32..][..strides.sums32];
            let groups = values.as_chunks::<GROUP>().0.iter().zip(qs.as_chunks_mut::<GROUP>().0);
            let sums = sums.as_chunks_mut::<16>().0.iter_mut().zip(sums32.as_chunks_mut::<8>().0);
            for (((values, qs), scale), (sums, sums32)) in groups.zip(scales).zip(sums) {
                *scale = quantize_group(values, qs, sums);
                for (sum, halves) in sums32.iter_mut().zip(sums.as_chunks::<2>().0) {
                    *sum = halves[0] + halves[1];
                }
            }
            return;
        }
        let scaled_sums = &mut self.scaled_sums[row * strides.scaled_sums..][..strides.scaled_sums];
        let blocks = values.len() / BLOCK;
        scales[blocks..].fill(0.0);
        scaled_sums[blocks..].fill(0.0);
        sums[2 * blocks..].fill(0);
        let pairs = values.as_chunks::<BLOCK>().0.iter().zip(qs.as_chunks_mut::<BLOCK>().0);
        let rest = scales.iter_mut().zip(scaled_sums).zip(sums.as_chunks_mut::<2>().0);
        for ((values, qs), ((scale, scaled), sums)) in pairs.zip(rest) {
            *scale = quantize_block(values, qs, sums);
            *scaled = scaled_sum(*scale, sums);
        }
    }
}
