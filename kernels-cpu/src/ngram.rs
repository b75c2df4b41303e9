//! Table rows of hashed n-grams, read one by one out of the file.

use crate::cpu::Cpu;
use crate::kv::Run;
use crate::matrix::Matrix;
use crate::rows::for_rows;
use bloomery_formats::dequantize_row;
use std::sync::atomic::{AtomicBool, Ordering};

/// Constants of the hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NgramSpec {
    /// Longest n-gram; orders 2 to this are looked up.
    pub max_ngram: usize,
    /// Hash heads of each order.
    pub heads: usize,
    /// `[max_ngram]`.
    pub multipliers: Vec<u64>,
    /// `[orders, heads]`.
    pub moduli: Vec<u64>,
    /// `[orders, heads]`: first table rows.
    pub offsets: Vec<u64>,
    /// Hash id of a missing predecessor.
    pub fill: u64,
    /// Token ids that cut the history.
    pub cut: Vec<u32>,
    /// Token id to hash id; the id itself without a map.
    pub map: Option<Vec<u64>>,
}

/// What the table or the map lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an n-gram has no row in its table, or a token no place in the map of hash ids")]
pub struct NoRow;

impl NgramSpec {
    /// Table rows of a token.
    pub fn rows(&self) -> usize {
        self.max_ngram.saturating_sub(1) * self.heads
    }

    /// Calls `give(i, row)` for the i-th table row of the token that `back(0)` names; `back(s)` is its s-th predecessor, `None` before the
    /// sequence's start. `None` when a token has no hash id.
    fn each(&self, back: impl Fn(usize) -> Option<u32>, mut give: impl FnMut(usize, u64)) -> Option<()> {
        let mut hidden = false;
        let mut mixed = 0u64;
        for (s, multiplier) in self.multipliers.iter().enumerate() {
            let token = back(s);
            hidden |= s > 0 && token.is_none_or(|t| self.cut.contains(&t));
            let id = match (token, &self.map) {
                (Some(token), map) if !hidden => match map {
                    None => u64::from(token),
                    Some(map) => *map.get(token as usize)?,
                },
                _ => self.fill,
            };
            mixed ^= id.wrapping_mul(*multiplier);
            if s > 0 {
                for i in (s - 1) * self.heads..s * self.heads {
                    give(i, mixed.checked_rem(*self.moduli.get(i)?)?.wrapping_add(*self.offsets.get(i)?));
                }
            }
        }
        Some(())
    }
}

/// Tables of fewer bytes are in memory soon enough.
const READ_AHEAD_FROM: usize = 64 << 20;

/// Asks the system to read the rows that [`ngram_embed`] will need, where the table is a large mapped file. Does nothing elsewhere.
pub fn read_ahead(spec: &NgramSpec, table: &Matrix<'_>, run: &Run<'_>, tokens: &[u32], before: &[u32]) {
    if table.data().len() < READ_AHEAD_FROM {
        return;
    }
    let tokens = &tokens[run.first_row..run.first_row + run.rows];
    for row in 0..run.rows {
        // A row that is not there is met again, and refused, when it is read.
        let _ = spec.each(back(tokens, before, row), |_, number| {
            if let Some(bytes) = row_bytes(table, number) {
                will_need(bytes);
            }
        });
    }
}

#[cfg(target_os = "linux")]
fn will_need(bytes: &[u8]) {
    const PAGE: usize = 4096;
    let start = bytes.as_ptr().addr() / PAGE * PAGE;
    let length = bytes.as_ptr().addr() + bytes.len() - start;
    // SAFETY: advice of this kind changes no memory. The range begins with the page of the slice's first byte and ends with the slice; where
    // pages are larger the call is refused, which does no harm.
    unsafe { libc::madvise(bytes.as_ptr().with_addr(start).cast_mut().cast(), length, libc::MADV_WILLNEED) };
}

#[cfg(not(target_os = "linux"))]
fn will_need(_: &[u8]) {}

/// The bytes of a table's row.
fn row_bytes<'a>(table: &Matrix<'a>, number: u64) -> Option<&'a [u8]> {
    let start = usize::try_from(number).ok()?.checked_mul(table.row_bytes())?;
    table.data().get(start..start.checked_add(table.row_bytes())?)
}

/// Predecessors of a run's row.
fn back<'a>(tokens: &'a [u32], before: &'a [u32], row: usize) -> impl Fn(usize) -> Option<u32> + 'a {
    move |s: usize| match row.checked_sub(s) {
        Some(row) => Some(tokens[row]),
        None => before.len().checked_sub(s - row).map(|i| before[i]),
    }
}

/// The rows of every token of a run, `[rows of the step, rows of a token * width]`. `tokens` are the step's, `before` the sequence's last ids
/// before the run, oldest first.
///
/// # Errors
/// A row that is not in the table.
///
/// # Panics
/// When a length disagrees with the constants.
pub fn ngram_embed(
    cpu: &Cpu,
    spec: &NgramSpec,
    table: &Matrix<'_>,
    run: &Run<'_>,
    tokens: &[u32],
    before: &[u32],
    out: &mut [f32],
) -> Result<(), NoRow> {
    let width = table.cols();
    let all = spec.rows() * width;
    let tokens = &tokens[run.first_row..run.first_row + run.rows];
    let out = &mut out[run.first_row * all..(run.first_row + run.rows) * all];
    let broken = AtomicBool::new(false);
    for_rows(&cpu.pool, run.rows, all, out, |range, out| {
        for (row, out) in range.zip(out.chunks_exact_mut(all)) {
            let found = spec.each(back(tokens, before, row), |i, number| {
                let to = &mut out[i * width..(i + 1) * width];
                if row_bytes(table, number).is_none_or(|bytes| dequantize_row(table.ty(), bytes, to).is_err())
                {
                    broken.store(true, Ordering::Relaxed);
                }
            });
            if found.is_none() {
                broken.store(true, Ordering::Relaxed);
            }
        }
    });
    if broken.into_inner() { Err(NoRow) } else { Ok(()) }
}
