//! The last rows of a value, kept between steps: oldest first, zeros before the text's start.

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
