//! Attention over rows of several stores in one softmax: windows, all rows, or rows that were selected for each query.
//!
//! A query's visible rows are numbered through, sources in order and rows in order, and taken in blocks of [`PAGE_TOKENS`] of that
//! numbering; inside a block everything follows the rule of [`attention`](super::attention()). So a row's result depends on its own
//! visible rows only.

use super::tile::Block;
use super::{LOWEST, SCRATCH, Scratch, finish};
use crate::history::before;
use crate::kv::{CacheType, Order, PAGE_TOKENS, PageStore, PartIndex, PartSpec, Run, check_runs};
use crate::lanes::{Lanes, WIDTH};
use crate::level::{Kernel, Level};
use crate::pool::Pool;
use crate::selection::Selection;
use crate::split::Split;

/// Where rows lie.
#[derive(Debug, Clone)]
pub enum RowsIn<'a> {
    /// In the store's pages.
    Pages {
        /// The part of the keys.
        keys: PartIndex,
        /// The part of the values; the part of the keys itself where a row is both: then a head's values are its key's first ones.
        values: PartIndex,
    },
    /// The last rows before the step in each sequence's block, oldest first, and the step's own rows beside it. A row is key and value at once.
    Ring {
        /// `[rows of the step, width]`.
        rows: &'a [f32],
        /// Values of a row.
        width: usize,
        /// `[kept, width]` in a block.
        place: std::ops::Range<usize>,
    },
}

/// Rows of a store that a query sees.
#[derive(Debug, Clone)]
pub struct SeenRows<'a> {
    /// Where they lie.
    pub rows: RowsIn<'a>,
    /// Only rows whose last token is among the last so many, the query's own included.
    pub window: Option<usize>,
    /// Only these.
    pub selected: Option<Selection<'a>>,
}

/// Constants of attention over several stores.
#[derive(Debug, Clone)]
pub struct UnionSpec<'a> {
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
    /// `[heads]`: one more score a head, without a value.
    pub sinks: Option<&'a [f32]>,
    /// The stores in order.
    pub sources: &'a [SeenRows<'a>],
    /// The runs' blocks, for rings; none are needed without.
    pub blocks: &'a [&'a [f32]],
}

/// Attends: `q` is `[rows, heads*key]`, `out` `[rows, heads*value]`; the stores already hold the rows' own keys and values.
///
/// # Panics
/// When a length disagrees with the constants or a run's table is too short.
pub fn attention_over_union(
    pool: &Pool,
    level: Level,
    store: &PageStore,
    spec: &UnionSpec<'_>,
    runs: &[Run<'_>],
    q: &[f32],
    out: &mut [f32],
) {
    let group = spec.heads / spec.kv_heads.max(1);
    let whole = group * spec.kv_heads == spec.heads && spec.heads > 0;
    assert!(whole, "{} heads over {}", spec.heads, spec.kv_heads);
    let (q_width, out_width) = (spec.heads * spec.key, spec.heads * spec.value);
    check_runs(runs);
    let mut rows = 0;
    for run in runs {
        let end = run.first_row + run.rows;
        assert!(end * q_width <= q.len() && end * out_width <= out.len(), "rows {end} of attention");
        rows += run.rows;
    }
    for source in spec.sources {
        let fits = match source.rows {
            RowsIn::Pages { keys, values } => [(keys, spec.key), (values, spec.value)]
                .iter()
                .all(|(part, width)| store.layout().part(*part).0.width >= spec.kv_heads * width),
            RowsIn::Ring { rows: own, width, .. } => {
                let reach = source.window.is_some_and(|w| w > 0) && spec.blocks.len() == runs.len();
                reach && own.len() >= rows * width && width >= spec.kv_heads * spec.key.max(spec.value)
            }
        };
        assert!(fits, "a store's rows do not fit the heads");
    }
    // Few rows (decode): split the heads that share keys, so that every thread finds work.
    let wanted = (2 * pool.threads()).div_ceil((rows * spec.kv_heads).max(1));
    let parts = if pool.threads() == 1 { 1 } else { wanted.clamp(1, group.div_ceil(4)) };
    let per_part = group.div_ceil(parts);
    let parts = group.div_ceil(per_part);
    let out = Split::new(out);
    let chunks = rows * spec.kv_heads * parts;
    pool.run(chunks, |chunk, _| {
        // Last rows first: they see the most keys.
        let chunk = chunks - 1 - chunk;
        let (part, rest) = (chunk % parts, chunk / parts);
        let (kv_head, mut row) = (rest % spec.kv_heads, rest / spec.kv_heads);
        let found = runs.iter().position(|r| {
            let here = row < r.rows;
            if !here {
                row -= r.rows;
            }
            here
        });
        let Some(number) = found else { return };
        let (run, block) = (&runs[number], spec.blocks.get(number).copied().unwrap_or(&[]));
        let heads = part * per_part..group.min((part + 1) * per_part);
        SCRATCH.with_borrow_mut(|scratch| {
            level.run(AttendRow {
                store,
                spec,
                run,
                block,
                row,
                heads: kv_head * group + heads.start..kv_head * group + heads.end,
                kv_head,
                q,
                out: &out,
                scratch,
            });
        });
    });
}

/// A ring has a row for every token.
const EACH_TOKEN: PartSpec = PartSpec { width: 0, cache: CacheType::F32, order: Order::ByToken, every: 1 };

/// One row, some heads that share one key head.
struct AttendRow<'a> {
    store: &'a PageStore,
    spec: &'a UnionSpec<'a>,
    run: &'a Run<'a>,
    /// The sequence's block.
    block: &'a [f32],
    /// In the run.
    row: usize,
    heads: std::ops::Range<usize>,
    kv_head: usize,
    q: &'a [f32],
    out: &'a Split<'a, f32>,
    scratch: &'a mut Scratch,
}

impl Kernel for AttendRow<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let spec = self.spec;
        let (key, value) = (spec.key, spec.value);
        let stride = key.max(value).next_multiple_of(WIDTH);
        let heads = self.heads.len();
        let step_row = self.run.first_row + self.row;
        let tokens = self.run.position + self.row + 1;
        let Scratch { keys, values, state } = self.scratch;
        keys.resize(key * PAGE_TOKENS, 0.0);
        values.resize(stride * PAGE_TOKENS, 0.0);
        state.clear();
        state.resize(heads * (2 + stride), 0.0);
        let (extremes, accumulators) = state.split_at_mut(2 * heads);
        let (maxima, sums) = extremes.split_at_mut(heads);
        maxima.fill(LOWEST);

        let queries = &self.q[step_row * spec.heads * key..][self.heads.start * key..][..heads * key];
        let mut running = Running { spec, stride, queries, maxima, sums, accumulators };
        let mut filled = 0;
        for source in spec.sources {
            let part = match source.rows {
                RowsIn::Pages { keys, .. } => self.store.layout().part(keys).0,
                RowsIn::Ring { .. } => EACH_TOKEN,
            };
            let from = source.window.map_or(0, |w| part.complete(tokens.saturating_sub(w)));
            let visible = from..part.complete(tokens);
            let chosen = source.selected.map(|s| s.row(step_row));
            for i in 0..chosen.map_or(visible.len(), <[u32]>::len) {
                let row = chosen.map_or(visible.start + i, |rows| rows[i] as usize);
                if !visible.contains(&row) {
                    continue;
                }
                let to = &mut values[filled * stride..][..stride];
                let (number, place) = part.place(row);
                match &source.rows {
                    RowsIn::Pages { keys, .. } => {
                        let page = self.run.pages[number];
                        self.store.read_row(lanes, page, *keys, place, self.kv_head * key, &mut to[..key]);
                    }
                    RowsIn::Ring { rows, width, place } => {
                        let from = match row.checked_sub(self.run.position) {
                            Some(own) => &rows[(self.run.first_row + own) * width..][..*width],
                            None => before(&self.block[place.clone()], *width, self.run.position - row),
                        };
                        to[..key].copy_from_slice(&from[self.kv_head * key..][..key]);
                    }
                }
                for (channel, v) in to[..key].iter().enumerate() {
                    keys[channel * PAGE_TOKENS + filled] = *v;
                }
                if let RowsIn::Pages { keys, values } = source.rows
                    && keys != values
                {
                    let page = self.run.pages[number];
                    let to = &mut to[..value];
                    self.store.read_row(lanes, page, values, place, self.kv_head * value, to);
                }
                filled += 1;
                if filled == PAGE_TOKENS {
                    running.add(lanes, keys, values, filled);
                    filled = 0;
                }
            }
        }
        if filled > 0 {
            running.add(lanes, keys, values, filled);
        }
        for head in 0..heads {
            let at = (step_row * spec.heads + self.heads.start + head) * value;
            // SAFETY: every (row, head) belongs to exactly one chunk.
            let out = unsafe { self.out.part(at..at + value) };
            let sink = spec.sinks.and_then(|s| s.get(self.heads.start + head)).copied();
            finish(
                running.maxima[head],
                running.sums[head],
                sink,
                &running.accumulators[head * stride..][..value],
                out,
            );
        }
    }
}

/// The running softmax of some heads of a row.
struct Running<'a> {
    spec: &'a UnionSpec<'a>,
    stride: usize,
    /// `[heads, key]`.
    queries: &'a [f32],
    /// `[heads]`.
    maxima: &'a mut [f32],
    /// `[heads]`.
    sums: &'a mut [f32],
    /// `[heads, stride]`.
    accumulators: &'a mut [f32],
}

impl Running<'_> {
    /// Takes the first `n` rows of `keys` `[key, PAGE_TOKENS]` and `values` `[PAGE_TOKENS, stride]`.
    #[inline(always)]
    fn add<L: Lanes>(&mut self, lanes: L, keys: &[f32], values: &[f32], n: usize) {
        let (heads, key, stride) = (self.maxima.len(), self.spec.key, self.stride);
        let mut head = 0;
        macro_rules! side_by_side {
            ($n:literal) => {{
                let block = Block {
                    keys,
                    values,
                    stride,
                    scale: self.spec.scale,
                    softcap: self.spec.softcap,
                    visible: [(0, n); $n],
                    queries: std::array::from_fn::<_, $n, _>(|i| &self.queries[(head + i) * key..][..key]),
                };
                block.add(
                    lanes,
                    &mut self.maxima[head..][..$n],
                    &mut self.sums[head..][..$n],
                    &mut self.accumulators[head * stride..][..$n * stride],
                );
                head += $n;
            }};
        }
        while head < heads {
            match heads - head {
                1 => side_by_side!(1),
                2 => side_by_side!(2),
                3 => side_by_side!(3),
                _ => side_by_side!(4),
            }
        }
    }
}
