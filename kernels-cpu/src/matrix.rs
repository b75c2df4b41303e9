//! A weight matrix as it lies in the file, and the errors of the matrix functions.

use bloomery_formats::{ActivationKind, WeightType};
use std::ops::Range;

/// Why a matrix operation was refused. Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MatmulError {
    /// The type holds data, not weights.
    #[error("{ty} is no weight type: it cannot be multiplied")]
    NotWeights {
        /// The type.
        ty: WeightType,
    },
    /// A row is no whole number of blocks.
    #[error("a row of {cols} values is no whole number of {ty} blocks of {}", ty.block_len())]
    Width {
        /// The type.
        ty: WeightType,
        /// Values in a row.
        cols: usize,
    },
    /// Fewer or more bytes than the shape needs.
    #[error("{rows} rows of {cols} {ty} values need {expected} bytes, not {found}")]
    Bytes {
        /// The type.
        ty: WeightType,
        /// Rows.
        rows: usize,
        /// Values in a row.
        cols: usize,
        /// Bytes that the shape needs; `usize::MAX` where it overflows.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// Activations that do not fit the matrix.
    #[error(
        "{ty} weights of width {cols} need {expected:?} activations of that width, not {found:?} of width {width}"
    )]
    Activations {
        /// The weights' type.
        ty: WeightType,
        /// The weights' width.
        cols: usize,
        /// The kind that the type needs.
        expected: ActivationKind,
        /// The kind given.
        found: ActivationKind,
        /// The width given.
        width: usize,
    },
    /// A width that the kind of activation cannot quantise.
    #[error("{kind:?} activations come in multiples of {multiple}, not {cols} values")]
    ActivationWidth {
        /// The kind.
        kind: ActivationKind,
        /// What the width must be a multiple of.
        multiple: usize,
        /// The width asked for.
        cols: usize,
    },
    /// An index or a range beyond its end.
    #[error("{what} {index} is beyond the end, {len}")]
    Range {
        /// What was addressed.
        what: &'static str,
        /// The first address that is too large.
        index: usize,
        /// How many there are.
        len: usize,
    },
    /// An output of another shape than the operation writes.
    #[error("the output is {found_rows} x {found_cols}, the operation writes {rows} x {cols}")]
    Output {
        /// Rows that the operation writes.
        rows: usize,
        /// Columns that it writes.
        cols: usize,
        /// Rows of the output.
        found_rows: usize,
        /// Columns of the output.
        found_cols: usize,
    },
}

/// A weight matrix `[rows, cols]`, row-major, in the file's own bytes. Cheap to copy.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    ty: WeightType,
    kind: ActivationKind,
    data: &'a [u8],
    rows: usize,
    cols: usize,
    row_bytes: usize,
}

impl<'a> Matrix<'a> {
    /// A matrix over exactly the bytes that its shape needs.
    pub fn new(ty: WeightType, data: &'a [u8], rows: usize, cols: usize) -> Result<Self, MatmulError> {
        let kind = ty.activation_kind().ok_or(MatmulError::NotWeights { ty })?;
        let row_bytes = ty.row_bytes(cols).ok_or(MatmulError::Width { ty, cols })?;
        let expected = row_bytes.saturating_mul(rows);
        if data.len() != expected {
            return Err(MatmulError::Bytes { ty, rows, cols, expected, found: data.len() });
        }
        Ok(Matrix { ty, kind, data, rows, cols, row_bytes })
    }

    /// The weights' type.
    pub fn ty(&self) -> WeightType {
        self.ty
    }
    /// The activations that the type needs.
    pub fn activation_kind(&self) -> ActivationKind {
        self.kind
    }
    /// Rows: outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Columns: the width of the activations.
    pub fn cols(&self) -> usize {
        self.cols
    }
    /// All bytes.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }
    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The matrix of some of the rows, as of one expert of a stack.
    pub fn slice_rows(&self, rows: Range<usize>) -> Result<Matrix<'a>, MatmulError> {
        check_range("row", &rows, self.rows)?;
        let data = &self.data[rows.start * self.row_bytes..rows.end * self.row_bytes];
        Ok(Matrix { data, rows: rows.len(), ..*self })
    }

    /// The bytes of row `row`; panics when there is no such row.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> &'a [u8] {
        &self.data[row * self.row_bytes..][..self.row_bytes]
    }
}

/// Checks that a range runs forward and ends inside `len`.
pub(crate) fn check_range(what: &'static str, range: &Range<usize>, len: usize) -> Result<(), MatmulError> {
    if range.start > range.end || range.end > len {
        return Err(MatmulError::Range { what, index: range.start.max(range.end), len });
    }
    Ok(())
}
