//! Causal attention over the paged store: grouped queries, window, soft cap, sinks.
//!
//! One rule for every row, alone or in a batch, in prefill or decode: keys are taken in blocks of [`PAGE_TOKENS`] aligned to
//! absolute positions; a score is the fma chain over the key's channels, times the scale; the running maximum, sum and
//! accumulator follow the online softmax (Milakov and Gimelshein 2018) block by block; values are added by one fma chain in order of
//! position. Rows and heads that share a block are computed side by side, which changes no chain.

mod tile;
mod union;

pub use union::{RowsIn, SeenRows, UnionSpec, attention_over_union};

use crate::kv::{PAGE_TOKENS, PageStore, PartIndex, Run, check_runs};
use crate::level::{Kernel, Level};
use crate::pool::Pool;
use crate::split::Split;
use std::cell::RefCell;
use tile::Block;

/// Constants of attention over one store.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionSpec<'a> {
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a key.
    pub key: usize,
    /// Width of a value.
    pub value: usize,
    /// Factor on the products.
    pub scale: f32,
    /// `softcap * tanh(s / softcap)` on the scaled products.
    pub softcap: Option<f32>,
    /// Only the last so many tokens, the query's own included.
    pub window: Option<usize>,
    /// `[heads]`: one more score a head, without a value.
    pub sinks: Option<&'a [f32]>,
    /// The part of the keys, by channel.
    pub keys: PartIndex,
    /// The part of the values, by token.
    pub values: PartIndex,
}

/// Most rows of a run that one chunk takes.
const TILE_ROWS: usize = 32;

/// Where a running maximum starts: below every score, but finite, so that a block without visible keys changes nothing.
const LOWEST: f32 = -1e30;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

#[derive(Default)]
struct Scratch {
    keys: Vec<f32>,
    values: Vec<f32>,
    state: Vec<f32>,
}

/// Attends: `q` is `[rows, heads*key]`, `out` `[rows, heads*value]`; the store already holds the rows' own keys and values.
///
/// # Panics
/// When a length disagrees with the constants or a run's table is too short.
pub fn attention(
    pool: &Pool,
    level: Level,
    store: &PageStore,
    spec: &AttentionSpec<'_>,
    runs: &[Run<'_>],
    q: &[f32],
    out: &mut [f32],
) {
    let group = spec.heads / spec.kv_heads.max(1);
    assert!(
        group * spec.kv_heads == spec.heads && spec.heads > 0,
        "{} heads over {}",
        spec.heads,
        spec.kv_heads
    );
    let (q_width, out_width) = (spec.heads * spec.key, spec.heads * spec.value);
    check_runs(runs);
    for run in runs {
        let rows = run.first_row + run.rows;
        assert!(rows * q_width <= q.len() && rows * out_width <= out.len(), "rows {rows} of attention");
    }
    let tiles: usize = runs.iter().map(|r| r.rows.div_ceil(TILE_ROWS)).sum();
    // Few tiles (decode): split the heads that share keys, so that every thread finds work.
    let wanted = (2 * pool.threads()).div_ceil((tiles * spec.kv_heads).max(1));
    let parts = if pool.threads() == 1 { 1 } else { wanted.clamp(1, group) };
    let per_part = group.div_ceil(parts);
    let parts = group.div_ceil(per_part);
    let out = Split::new(out);
    let chunks = tiles * spec.kv_heads * parts;
    pool.run(chunks, |chunk, _| {
        // Last tiles first: they see the most keys.
        let chunk = chunks - 1 - chunk;
        let (part, rest) = (chunk % parts, chunk / parts);
        let (kv_head, mut tile) = (rest % spec.kv_heads, rest / spec.kv_heads);
        let Some(run) = runs.iter().find(|r| {
            let n = r.rows.div_ceil(TILE_ROWS);
            let here = tile < n;
            if !here {
                tile -= n;
            }
            here
        }) else {
            return;
        };
        let first = tile * TILE_ROWS;
        let heads = part * per_part..group.min((part + 1) * per_part);
        SCRATCH.with_borrow_mut(|scratch| {
            level.run(Attend {
                store,
                spec,
                run,
                rows: first..run.rows.min(first + TILE_ROWS),
                heads: kv_head * group + heads.start..kv_head * group + heads.end,
                kv_head,
                q,
                out: &out,
                scratch,
            });
        });
    });
}

/// One tile: some rows of a run, some heads that share one key head.
struct Attend<'a> {
    store: &'a PageStore,
    spec: &'a AttentionSpec<'a>,
    run: &'a Run<'a>,
    rows: std::ops::Range<usize>,
    heads: std::ops::Range<usize>,
    kv_head: usize,
    q: &'a [f32],
    out: &'a Split<'a, f32>,
    scratch: &'a mut Scratch,
}

impl Kernel for Attend<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: crate::lanes::Lanes>(self, lanes: L) {
        let spec = self.spec;
        let (key, value) = (spec.key, spec.value);
        let stride = value.next_multiple_of(crate::lanes::WIDTH);
        let heads = self.heads.len();
        let pairs = self.rows.len() * heads;
        let Scratch { keys, values, state } = self.scratch;
        keys.resize(key * PAGE_TOKENS, 0.0);
        values.resize(stride * PAGE_TOKENS, 0.0);
        state.clear();
        state.resize(pairs * (2 + stride), 0.0);
        let (extremes, accumulators) = state.split_at_mut(2 * pairs);
        let (maxima, sums) = extremes.split_at_mut(pairs);
        maxima.fill(LOWEST);

        let first_position = self.run.position + self.rows.start;
        let last_position = self.run.position + self.rows.end - 1;
        let oldest = |position: usize| spec.window.map_or(0, |w| (position + 1).saturating_sub(w));
        for block in oldest(first_position) / PAGE_TOKENS..=last_position / PAGE_TOKENS {
            let page = self.run.pages[block];
            let base = block * PAGE_TOKENS;
            let tokens = (last_position + 1 - base).min(PAGE_TOKENS);
            self.store.read_channels(lanes, page, spec.keys, self.kv_head * key, keys);
            let read = &mut values[..tokens * stride];
            self.store.read_tokens(lanes, page, spec.values, self.kv_head * value, value, stride, read);
            let mut pair = 0;
            while pair < pairs {
                // A row's visible keys in this block.
                let visible = |pair: usize| {
                    let position = first_position + pair / heads;
                    let from = oldest(position).saturating_sub(base).min(PAGE_TOKENS);
                    (from, (position + 1).saturating_sub(base).min(PAGE_TOKENS))
                };
                let query = |pair: usize| {
                    let row = self.run.first_row + self.rows.start + pair / heads;
                    let head = self.heads.start + pair % heads;
                    &self.q[(row * spec.heads + head) * key..][..key]
                };
                macro_rules! side_by_side {
                    ($n:literal) => {{
                        let block = Block {
                            keys,
                            values,
                            stride,
                            scale: spec.scale,
                            softcap: spec.softcap,
                            visible: std::array::from_fn::<_, $n, _>(|i| visible(pair + i)),
                            queries: std::array::from_fn::<_, $n, _>(|i| query(pair + i)),
                        };
                        block.add(
                            lanes,
                            &mut maxima[pair..][..$n],
                            &mut sums[pair..][..$n],
                            &mut accumulators[pair * stride..][..$n * stride],
                        );
                        pair += $n;
                    }};
                }
                match pairs - pair {
                    1 => side_by_side!(1),
                    2 => side_by_side!(2),
                    3 => side_by_side!(3),
                    _ => side_by_side!(4),
                }
            }
        }
        for pair in 0..pairs {
            let row = self.run.first_row + self.rows.start + pair / heads;
            let head = self.heads.start + pair % heads;
            let at = (row * spec.heads + head) * value;
            // SAFETY: every (row, head) belongs to exactly one chunk.
            let out = unsafe { self.out.part(at..at + value) };
            let sink = spec.sinks.and_then(|s| s.get(head)).copied();
            finish(maxima[pair], sums[pair], sink, &accumulators[pair * stride..][..value], out);
        }
    }
}

/// A head's result from its running maximum, sum and accumulator.
#[inline(always)]
fn finish(maximum: f32, mut sum: f32, sink: Option<f32>, accumulator: &[f32], out: &mut [f32]) {
    let mut factor = 1.0;
    if let Some(sink) = sink {
        let highest = if sink > maximum { sink } else { maximum };
        factor = bloomery_formats::math::exp(maximum - highest);
        sum = sum * factor + bloomery_formats::math::exp(sink - highest);
    }
    let inverse = if sum == 0.0 { 0.0 } else { factor / sum };
    for (out, a) in out.iter_mut().zip(accumulator) {
        // The addition turns -0 into +0: which zero it was depends on keys that the row does not see.
        *out = a * inverse + 0.0;
    }
}
