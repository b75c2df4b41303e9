//! What stands between the projections and attention: head norms, rotation, append. One pass over the rows.

use crate::kv::{PAGE_TOKENS, PageStore, PartIndex, Run, check_runs};
use crate::lanes::Lanes;
use crate::level::{Kernel, Level};
use crate::norm::rms_norm_in_place;
use crate::pool::Pool;
use crate::rope::{RopeSpec, RopeTable, rotate_row};
use crate::split::Split;
use std::ops::Range;

/// RMS norm of every head.
#[derive(Debug, Clone, Copy)]
pub struct HeadNorm<'a> {
    /// `[head]`, or `[heads*head]` where heads differ; `None` for a norm without weights.
    pub weight: Option<&'a [f32]>,
    /// Added to the mean square.
    pub eps: f32,
}

/// What happens to the heads of a row, in this order.
#[derive(Debug, Clone, Copy)]
pub struct HeadSteps<'a> {
    /// Width of a head.
    pub head: usize,
    /// Norm.
    pub norm: Option<HeadNorm<'a>>,
    /// Rotation, with the table of this step's rows.
    pub rope: Option<(&'a RopeSpec, &'a RopeTable)>,
}

/// Rows `[rows, width]` that are changed in place.
pub struct HeadRows<'a> {
    /// Values.
    pub values: &'a mut [f32],
    /// Values in a row.
    pub width: usize,
    /// What to do with them.
    pub steps: HeadSteps<'a>,
}

/// Rows `[rows, width]` for a part of the store.
#[derive(Clone, Copy)]
pub struct AppendRows<'a> {
    /// Which part.
    pub part: PartIndex,
    /// `[rows, width]`, or the `usize`-th of the changed rows.
    pub from: AppendFrom<'a>,
}

/// Most values that are changed at once: queries and keys.
const MOST: usize = 2;

/// Where appended rows come from.
#[derive(Clone, Copy)]
pub enum AppendFrom<'a> {
    /// The changed rows of this number.
    Changed(usize),
    /// Other rows.
    Rows(&'a [f32]),
}

/// Normalises and rotates `changed`, then appends rows to the store.
///
/// # Panics
/// When lengths disagree, or the runs' tables share a page that is written.
pub fn prepare(
    pool: &Pool,
    level: Level,
    store: &mut PageStore,
    runs: &[Run<'_>],
    changed: &mut [HeadRows<'_>],
    appended: &[AppendRows<'_>],
) {
    if !appended.is_empty() {
        store.claim_for_writing(runs);
    }
    let rows = runs.iter().map(|r| r.first_row + r.rows).max().unwrap_or(0);
    let widths: usize = changed.iter().map(|c| c.width).sum();
    assert!(changed.len() <= MOST, "at most {MOST} values are changed at once");
    check_runs(runs);
    let nothing = HeadSteps { head: 1, norm: None, rope: None };
    let mut steps = [(nothing, 0); MOST];
    let mut values: [Split<'_, f32>; MOST] = std::array::from_fn(|_| Split::new(&mut []));
    for ((c, steps), values) in changed.iter_mut().zip(&mut steps).zip(&mut values) {
        assert!(c.values.len() >= rows * c.width && c.steps.head > 0, "{rows} rows of {}", c.width);
        *steps = (c.steps, c.width);
        *values = Split::new(c.values);
    }
    // Chunks end at page edges, so that two threads seldom write one cache line of keys.
    let pieces = |run: &Run<'_>| match run.rows {
        0 => 0,
        n => (run.position + n - 1) / PAGE_TOKENS - run.position / PAGE_TOKENS + 1,
    };
    let chunks: usize = runs.iter().map(pieces).sum();
    let work = |chunk: usize| {
        let mut piece = chunk;
        for run in runs {
            let n = pieces(run);
            if piece >= n {
                piece -= n;
                continue;
            }
            let page = run.position / PAGE_TOKENS + piece;
            let start = (page * PAGE_TOKENS).max(run.position);
            let end = ((page + 1) * PAGE_TOKENS).min(run.position + run.rows);
            level.run(Rows { store, run, positions: start..end, steps: &steps, values: &values, appended });
            return;
        }
    };
    if rows * widths < 16 * 1024 {
        (0..chunks).for_each(work);
    } else {
        pool.run(chunks, |chunk, _| work(chunk));
    }
}

/// Rotates every head of `[rows, width]` in place, without any store.
///
/// # Panics
/// When lengths disagree.
pub fn rotate(
    cpu: &crate::cpu::Cpu,
    spec: &RopeSpec,
    table: &RopeTable,
    rows: usize,
    width: usize,
    head: usize,
    values: &mut [f32],
) {
    struct Part<'a>(&'a RopeSpec, &'a RopeTable, Range<usize>, usize, usize, &'a mut [f32]);
    impl Kernel for Part<'_> {
        type Out = ();
        #[inline(always)]
        fn run<L: Lanes>(self, _: L) {
            let Part(spec, table, rows, width, head, values) = self;
            for (row, values) in rows.zip(values.chunks_exact_mut(width)) {
                rotate_row(spec, table, row, head, values);
            }
        }
    }
    crate::rows::for_rows(&cpu.pool, rows, width, values, |range, values| {
        cpu.level.run(Part(spec, table, range, width, head, values));
    });
}

struct Rows<'a> {
    store: &'a PageStore,
    run: &'a Run<'a>,
    positions: Range<usize>,
    steps: &'a [(HeadSteps<'a>, usize)],
    values: &'a [Split<'a, f32>],
    appended: &'a [AppendRows<'a>],
}

impl Kernel for Rows<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        for position in self.positions {
            let row = self.run.first_row + position - self.run.position;
            for (values, (steps, width)) in self.values.iter().zip(self.steps) {
                // SAFETY: every row belongs to one chunk, and this is its only live part.
                let values = unsafe { values.part(row * width..(row + 1) * width) };
                if let Some(norm) = steps.norm {
                    for (h, head) in values.chunks_exact_mut(steps.head).enumerate() {
                        let weight = norm.weight.map(|w| &w[h * steps.head % w.len().max(1)..][..steps.head]);
                        rms_norm_in_place(lanes, head, weight, norm.eps);
                    }
                }
                if let Some((spec, table)) = steps.rope {
                    rotate_row(spec, table, row, steps.head, values);
                }
            }
            let page = self.run.pages[position / PAGE_TOKENS];
            for append in self.appended {
                let spec = self.store.layout().part(append.part).0;
                // A row is written with the last token that it stands for.
                if !(position + 1).is_multiple_of(spec.every) {
                    continue;
                }
                let (width, (_, place)) = (spec.width, spec.place((position + 1) / spec.every - 1));
                let values: &[f32] = match append.from {
                    AppendFrom::Rows(rows) => &rows[row * width..(row + 1) * width],
                    // SAFETY: the same row of the same chunk; the mutable part above is dead.
                    AppendFrom::Changed(i) => unsafe { self.values[i].part(row * width..(row + 1) * width) },
                };
                // SAFETY: `claim_for_writing` saw that the page belongs to this run alone, `prepare` holds the store
                // exclusively, and every position belongs to one chunk.
                unsafe { self.store.write_row(lanes, page, append.part, place, values) };
            }
        }
    }
}
