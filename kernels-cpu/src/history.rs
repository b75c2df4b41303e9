//! The last rows of a value, kept between steps: oldest first, zeros before the text's start.

use crate::kv::{CacheType, Run, round};
use crate::pool::Pool;
use crate::rows::for_rows;

/// `x` `[rows, width]` as a store of this type would give it back.
pub fn as_stored(pool: &Pool, cache: CacheType, rows: usize, width: usize, x: &[f32], out: &mut [f32]) {
    let x = &x[..rows * width];
    for_rows(pool, rows, width, out, |range, out| {
        out.copy_from_slice(&x[range.start * width..range.end * width]);
        out.chunks_exact_mut(width).for_each(|row| round(cache, row));
    });
}

/// Moves a history `[kept, width]` on to a run's end; `x` is `[rows of the step, width]`.
///
/// # Panics
/// When the step has fewer rows.
pub fn move_on(history: &mut [f32], width: usize, run: &Run<'_>, x: &[f32]) {
    let x = &x[run.first_row * width..(run.first_row + run.rows) * width];
    remember(history, width, run.rows, |row, to| to.copy_from_slice(&x[row * width..][..width]));
}

/// Moves a history `[kept, width]` on by `rows` rows; `row(i, to)` writes the i-th of them.
pub(crate) fn remember(history: &mut [f32], width: usize, rows: usize, row: impl Fn(usize, &mut [f32])) {
    let kept = history.len() / width.max(1);
    let new = rows.min(kept);
    history.copy_within(new * width.., 0);
    let (_, places) = history.split_at_mut((kept - new) * width);
    for (i, to) in places.chunks_exact_mut(width.max(1)).enumerate() {
        row(rows - new + i, to);
    }
}

/// The row that lies `back` rows (at least 1) before the first row of a step.
#[inline(always)]
pub(crate) fn before(history: &[f32], width: usize, back: usize) -> &[f32] {
    let end = history.len() - (back - 1) * width;
    &history[end - width..end]
}
