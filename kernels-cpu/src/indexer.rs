//! Sparse selection: scores of a store's rows for each query, and the choice of the best rows or blocks of rows.
//!
//! A score is `sum over heads of weight * max(q . key, 0)`: for every row one fma chain over the key's channels a head, then one fma
//! chain over the heads. A row has a lane of its own, so neither its neighbours nor other queries touch the score, and the choice,
//! which compares scores exactly, is the same in any company.

use crate::cpu::Cpu;
use crate::kv::{PAGE_TOKENS, PageStore, PartIndex, Run, check_runs};
use crate::lanes::{Lanes, WIDTH};
use crate::level::Kernel;
use crate::selection::Selection;
use crate::split::Split;
use std::cell::RefCell;
use std::cmp::Ordering;

/// Constants of the scores.
#[derive(Debug, Clone, Copy)]
pub struct IndexSpec {
    /// Heads of the index query.
    pub heads: usize,
    /// Width of a key.
    pub key: usize,
    /// The keys, `key` values a row.
    pub part: PartIndex,
}

/// What is chosen from a query's scores.
#[derive(Debug, Clone, Copy)]
pub enum Choice<'a> {
    /// The best rows, ties to the lower one.
    TopRows {
        /// How many.
        top_k: usize,
        /// Only these.
        within: Option<Selection<'a>>,
        /// Give the tokens that the rows stand for.
        expand: bool,
        /// After expansion add the tokens that no row stands for yet.
        tail: bool,
    },
    /// The rows of the best blocks by their largest score, ties to the lower block; the newest block is the best of all.
    Blocks {
        /// Rows in a block.
        block: usize,
        /// Blocks kept.
        keep: usize,
    },
}

impl Choice<'_> {
    /// Most numbers that it gives for a query that `tokens` tokens precede, itself included, where a row stands for `every`.
    pub fn most(&self, every: usize, tokens: usize) -> usize {
        let rows = tokens / every.max(1);
        match *self {
            Choice::TopRows { top_k, expand: false, .. } => top_k.min(rows),
            Choice::TopRows { top_k, expand: true, tail, .. } => {
                top_k.min(rows).saturating_mul(every) + if tail { every - 1 } else { 0 }
            }
            Choice::Blocks { block, keep } => keep.saturating_mul(block).min(rows),
        }
    }
}

/// A choice and where it goes.
pub struct Chosen<'a> {
    /// What to choose.
    pub choice: Choice<'a>,
    /// `[rows, 1 + most]`, see [`Selection`].
    pub out: &'a mut [u32],
    /// Most numbers of a query.
    pub most: usize,
}

/// Scores that are held at once, in values.
const SCORES: usize = 1 << 21;

/// Query rows that share a block of keys.
const TILE_ROWS: usize = 16;

thread_local! {
    static SCRATCH: RefCell<(Vec<f32>, Vec<u32>)> = RefCell::default();
}

/// Scores the visible rows for every query (`q` is `[rows, heads*key]`, `weights` `[rows, heads]`, all 1 without them) and chooses.
/// `scores` is memory that is kept between calls.
///
/// # Panics
/// When a length disagrees with the constants, or a choice does not fit its output.
#[allow(clippy::too_many_arguments, reason = "a fat operator")]
pub fn choose(
    cpu: &Cpu,
    store: &PageStore,
    spec: &IndexSpec,
    runs: &[Run<'_>],
    q: &[f32],
    weights: Option<&[f32]>,
    scores: &mut Vec<f32>,
    chosen: &mut [Chosen<'_>],
) {
    check_runs(runs);
    let (part, _) = store.layout().part(spec.part);
    assert!(part.width == spec.key && spec.heads > 0, "index keys of {} values", part.width);
    for run in runs {
        let end = run.first_row + run.rows;
        let fits =
            q.len() >= end * spec.heads * spec.key && weights.is_none_or(|w| w.len() >= end * spec.heads);
        assert!(fits && chosen.iter().all(|c| c.out.len() >= end * (1 + c.most)), "{end} rows of an index");
    }
    let outs: Vec<(Choice<'_>, usize, Split<'_, u32>)> =
        chosen.iter_mut().map(|c| (c.choice, c.most, Split::new(&mut *c.out))).collect();
    for run in runs {
        let stride = part.complete(run.position + run.rows).next_multiple_of(PAGE_TOKENS);
        let at_once = SCORES.checked_div(stride).unwrap_or(run.rows).clamp(1, run.rows.max(1));
        for first in (0..run.rows).step_by(at_once) {
            let rows = first..run.rows.min(first + at_once);
            if scores.len() < rows.len() * stride {
                scores.resize(rows.len() * stride, 0.0);
            }
            fill(cpu, store, spec, run, rows.clone(), q, weights, stride, scores);
            let scores = &scores[..];
            cpu.pool.run(rows.len(), |i, _| {
                let row = run.first_row + rows.start + i;
                let tokens = run.position + rows.start + i + 1;
                let visible = &scores[i * stride..][..part.complete(tokens)];
                for (choice, most, out) in &outs {
                    // SAFETY: every row belongs to one chunk.
                    let out = unsafe { out.part(row * (1 + most)..(row + 1) * (1 + most)) };
                    SCRATCH.with_borrow_mut(|scratch| {
                        choice.take(visible, row, tokens, part.every, scratch, out)
                    });
                }
            });
        }
    }
}

/// Scores of some rows of a run, `[rows, stride]`.
#[allow(clippy::too_many_arguments, reason = "the parts of one operator")]
fn fill(
    cpu: &Cpu,
    store: &PageStore,
    spec: &IndexSpec,
    run: &Run<'_>,
    rows: std::ops::Range<usize>,
    q: &[f32],
    weights: Option<&[f32]>,
    stride: usize,
    scores: &mut [f32],
) {
    let (tiles, blocks) = (rows.len().div_ceil(TILE_ROWS), stride / PAGE_TOKENS);
    let out = Split::new(scores);
    cpu.pool.run(tiles * blocks, |chunk, _| {
        let (tile, block) = (chunk / blocks, chunk % blocks);
        let first = rows.start + tile * TILE_ROWS;
        let tile = first..rows.end.min(first + TILE_ROWS);
        SCRATCH.with_borrow_mut(|(keys, _)| {
            let out = &out;
            cpu.level.run(Scores {
                store,
                spec,
                run,
                rows: tile,
                base: rows.start,
                block,
                q,
                weights,
                stride,
                out,
                keys,
            });
        });
    });
}

/// A block of stored rows for some query rows.
struct Scores<'a> {
    store: &'a PageStore,
    spec: &'a IndexSpec,
    run: &'a Run<'a>,
    /// In the run.
    rows: std::ops::Range<usize>,
    /// The run's row that the first row of scores is for.
    base: usize,
    block: usize,
    q: &'a [f32],
    weights: Option<&'a [f32]>,
    stride: usize,
    out: &'a Split<'a, f32>,
    /// `[key, PAGE_TOKENS]`.
    keys: &'a mut Vec<f32>,
}

impl Kernel for Scores<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Scores { store, spec, run, rows, base, block, q, weights, stride, out, keys } = self;
        let (part, _) = store.layout().part(spec.part);
        let first = block * PAGE_TOKENS;
        let last = part.complete(run.position + rows.end).min(first + PAGE_TOKENS);
        if last <= first {
            return;
        }
        // A row behind the keys serves as the place where a key is read to.
        keys.resize(spec.key * (PAGE_TOKENS + 1), 0.0);
        let (keys, key) = keys.split_at_mut(spec.key * PAGE_TOKENS);
        for row in first..last {
            let (number, place) = part.place(row);
            store.read_row(lanes, run.pages[number], spec.part, place, 0, key);
            for (channel, v) in key.iter().enumerate() {
                keys[channel * PAGE_TOKENS + row - first] = *v;
            }
        }
        let keys = &keys.as_chunks::<PAGE_TOKENS>().0[..spec.key];
        let zero = lanes.splat(0.0);
        for row in rows {
            let step_row = run.first_row + row;
            let q = &q[step_row * spec.heads * spec.key..][..spec.heads * spec.key];
            let weights = weights.map(|w| &w[step_row * spec.heads..][..spec.heads]);
            let mut sums = [zero; 2];
            let mut head = 0;
            while head < spec.heads {
                if head + 4 <= spec.heads {
                    add_heads::<L, 4>(lanes, keys, q, weights, head, &mut sums);
                    head += 4;
                } else {
                    add_heads::<L, 1>(lanes, keys, q, weights, head, &mut sums);
                    head += 1;
                }
            }
            let at = (row - base) * stride + first;
            // SAFETY: every (row, block) belongs to one chunk, and a row of scores holds whole blocks.
            let out = unsafe { out.part(at..at + PAGE_TOKENS) };
            let (low, high) = out.split_at_mut(WIDTH);
            lanes.store_some(sums[0], low);
            lanes.store_some(sums[1], high);
        }
    }
}

/// Adds the terms of heads `head .. head + N` in order.
#[inline(always)]
fn add_heads<L: Lanes, const N: usize>(
    lanes: L,
    keys: &[[f32; PAGE_TOKENS]],
    q: &[f32],
    weights: Option<&[f32]>,
    head: usize,
    sums: &mut [L::V; 2],
) {
    let zero = lanes.splat(0.0);
    let queries: [&[f32]; N] = std::array::from_fn(|i| &q[(head + i) * keys.len()..][..keys.len()]);
    let mut dots = [[zero; 2]; N];
    for (channel, key) in keys.iter().enumerate() {
        let (low, high) = key.split_at(WIDTH);
        let (low, high) = (lanes.load_some(low), lanes.load_some(high));
        for i in 0..N {
            let q = lanes.splat(queries[i][channel]);
            dots[i][0] = lanes.fma(q, low, dots[i][0]);
            dots[i][1] = lanes.fma(q, high, dots[i][1]);
        }
    }
    for (i, dots) in dots.into_iter().enumerate() {
        let weight = lanes.splat(weights.map_or(1.0, |w| w[head + i]));
        for (sum, dot) in sums.iter_mut().zip(dots) {
            // The dot stands second: a NaN becomes the score's, not zero.
            *sum = lanes.fma(weight, lanes.max(zero, dot), *sum);
        }
    }
}

/// Larger first, equal ones (either zero too) by number.
fn better(scores: &[f32], a: u32, b: u32) -> Ordering {
    let value = |i: u32| scores[i as usize] + 0.0;
    value(b).total_cmp(&value(a)).then(a.cmp(&b))
}

/// Leaves the `count` best numbers in `order`, ascending.
fn keep_best(scores: &[f32], order: &mut Vec<u32>, count: usize) {
    if count < order.len() {
        if count > 0 {
            order.select_nth_unstable_by(count - 1, |a, b| better(scores, *a, *b));
        }
        order.truncate(count);
        order.sort_unstable();
    }
}

impl Choice<'_> {
    /// Chooses among the visible scores of one row; `out` is `[1 + most]`.
    fn take(
        &self,
        scores: &[f32],
        row: usize,
        tokens: usize,
        every: usize,
        (best, order): &mut (Vec<f32>, Vec<u32>),
        out: &mut [u32],
    ) {
        let (count, out) = out.split_first_mut().expect("a count before the numbers");
        let mut n = 0;
        let mut give = |number: usize| {
            out[n] = number as u32;
            n += 1;
        };
        order.clear();
        match *self {
            Choice::TopRows { top_k, within, expand, tail } => {
                match within {
                    None => order.extend(0..scores.len() as u32),
                    Some(within) => {
                        order.extend(within.row(row).iter().filter(|r| (**r as usize) < scores.len()));
                    }
                }
                keep_best(scores, order, top_k);
                if expand {
                    let members = |r: &u32| *r as usize * every..(*r as usize + 1) * every;
                    order.iter().flat_map(members).for_each(&mut give);
                } else {
                    order.iter().for_each(|r| give(*r as usize));
                }
                if expand && tail {
                    (tokens / every * every..tokens).for_each(&mut give);
                }
            }
            Choice::Blocks { block, keep } => {
                let largest = |s: &[f32]| s.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                best.clear();
                best.extend(scores.chunks(block).map(largest));
                if let Some(newest) = best.last_mut() {
                    *newest = f32::INFINITY;
                }
                order.extend(0..best.len() as u32);
                keep_best(best, order, keep);
                let members = |b: &u32| *b as usize * block..((*b as usize + 1) * block).min(scores.len());
                order.iter().flat_map(members).for_each(&mut give);
            }
        }
        *count = n as u32;
    }
}
