//! The part of a row-major f32 matrix that one call writes.
//!
//! Threads that share a product split its columns (weight rows). Their parts are not slices, since a row of the output holds a piece of each;
//! an [`OutTile`] is such a part, and the constructors keep parts disjoint.

use crate::matrix::{MatmulError, check_range};
use std::marker::PhantomData;
use std::ops::Range;

/// A writable `[rows, cols]` window of a row-major f32 matrix.
pub struct OutTile<'a> {
    start: *mut f32,
    rows: usize,
    cols: usize,
    stride: usize,
    owner: PhantomData<&'a mut [f32]>,
}

// SAFETY: the tile stands for an exclusive borrow of its elements, and f32 may move between threads.
unsafe impl Send for OutTile<'_> {}

// SAFETY: through a shared reference a tile only tells its shape and hands out parts, whose callers keep them disjoint.
unsafe impl Sync for OutTile<'_> {}

impl<'a> OutTile<'a> {
    /// All of a matrix `[rows, cols]`, whose rows lie `stride` apart in `data`.
    pub fn new(data: &'a mut [f32], rows: usize, cols: usize, stride: usize) -> Result<Self, MatmulError> {
        let needed = rows.checked_sub(1).map_or(Some(0), |last| last.checked_mul(stride)?.checked_add(cols));
        match needed {
            Some(needed) if needed <= data.len() && (cols <= stride || rows <= 1) => {
                Ok(OutTile { start: data.as_mut_ptr(), rows, cols, stride, owner: PhantomData })
            }
            _ => Err(MatmulError::Range {
                what: "output element",
                index: needed.unwrap_or(usize::MAX),
                len: data.len(),
            }),
        }
    }

    /// Rows: activations.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Columns: weight rows.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Cuts into two at a column.
    pub fn split_at_column(self, column: usize) -> Result<(OutTile<'a>, OutTile<'a>), MatmulError> {
        check_range("output column", &(0..column), self.cols)?;
        // SAFETY: the two column ranges are disjoint and `self` is given up.
        unsafe { Ok((self.part(0..column), self.part(column..self.cols))) }
    }

    /// The same window for a shorter time.
    pub fn reborrow(&mut self) -> OutTile<'_> {
        OutTile {
            start: self.start,
            rows: self.rows,
            cols: self.cols,
            stride: self.stride,
            owner: PhantomData,
        }
    }

    /// Some of the columns, while the rest stays usable elsewhere. Panics when the range is outside.
    ///
    /// # Safety
    /// No two tiles with a common column are alive at once.
    pub unsafe fn part(&self, columns: Range<usize>) -> OutTile<'a> {
        assert!(
            columns.start <= columns.end && columns.end <= self.cols,
            "columns {columns:?} of {}",
            self.cols
        );
        // SAFETY: the first column of the window lies inside the matrix, or one past it where the window is empty.
        let start = unsafe { self.start.add(columns.start) };
        OutTile { start, rows: self.rows, cols: columns.len(), stride: self.stride, owner: PhantomData }
    }

    /// Some of the rows and columns, while the rest stays usable elsewhere. Panics when a range is outside.
    ///
    /// # Safety
    /// No two tiles with a common element are alive at once.
    pub unsafe fn window(&self, rows: Range<usize>, columns: Range<usize>) -> OutTile<'a> {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        // SAFETY: the caller keeps elements disjoint.
        let part = unsafe { self.part(columns) };
        // An empty window may start past the end, so it must not move the pointer.
        let offset = if rows.is_empty() { 0 } else { rows.start * self.stride };
        // SAFETY: the first row of a window that is not empty lies inside the matrix.
        let start = unsafe { part.start.add(offset) };
        OutTile { start, rows: rows.len(), ..part }
    }

    /// Row `row` of the window; panics when there is none.
    #[inline(always)]
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows, "output row {row} of {}", self.rows);
        // SAFETY: the constructor checked that all rows of the window lie inside the matrix, and the window is this tile's alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.stride), self.cols) }
    }
}
