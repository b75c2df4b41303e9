//! Attention over rows of several stores in one softmax: windows, all rows, or rows that were selected for each query.
//!
//! Sources are visited in order. Rows of a source that all queries see alike are taken in blocks of [`PAGE_TOKENS`] aligned to the store's
//! own numbers, selected ones in blocks of the selection; inside a block everything follows the rule of [`attention`](super::attention()). So
//! a row's result depends on its own visible rows only, and neighbours may share what is read.

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
    // Few tiles (decode): split the heads that share keys, so that every thread finds work.
    let tiles: usize = runs.iter().map(|r| r.rows.div_ceil(TILE_ROWS)).sum();
    let wanted = (2 * pool.threads()).div_ceil((tiles * spec.kv_heads).max(1));
    let parts = if pool.threads() == 1 { 1 } else { wanted.clamp(1, group.div_ceil(4)) };
    let per_part = group.div_ceil(parts);
    let parts = group.div_ceil(per_part);
    let out = Split::new(out);
    let chunks = tiles * spec.kv_heads * parts;
    pool.run(chunks, |chunk, _| {
        // Last tiles first: they see the most keys.
        let chunk = chunks - 1 - chunk;
        let (part, rest) = (chunk % parts, chunk / parts);
        let (kv_head, mut tile) = (rest % spec.kv_heads, rest / spec.kv_heads);
        let found = runs.iter().position(|r| {
            let n = r.rows.div_ceil(TILE_ROWS);
            let here = tile < n;
            if !here {
                tile -= n;
            }
            here
        });
        let Some(number) = found else { return };
        let (run, block) = (&runs[number], spec.blocks.get(number).copied().unwrap_or(&[]));
        let first = tile * TILE_ROWS;
        let heads = part * per_part..group.min((part + 1) * per_part);
        SCRATCH.with_borrow_mut(|scratch| {
            level.run(AttendTile {
                level,
                from: Stored { store, run, block, kv_head, key: spec.key, value: spec.value },
                spec,
                rows: first..run.rows.min(first + TILE_ROWS),
                heads: kv_head * group + heads.start..kv_head * group + heads.end,
                q,
                out: &out,
                scratch,
            });
        });
    });
}

/// Most rows of a run that one chunk takes.
const TILE_ROWS: usize = 8;

/// A ring has a row for every token.
const EACH_TOKEN: PartSpec = PartSpec { width: 0, cache: CacheType::F32, order: Order::ByToken, every: 1 };

/// Where a sequence's rows come from, for one key head.
struct Stored<'a> {
    store: &'a PageStore,
    run: &'a Run<'a>,
    /// The sequence's block.
    block: &'a [f32],
    kv_head: usize,
    key: usize,
    value: usize,
}

impl Stored<'_> {
    /// Reads row `row` of a source: its key into column `place` of `keys` `[key, PAGE_TOKENS]`, its value into row `place` of `values`
    /// `[PAGE_TOKENS, stride]`.
    #[inline(always)]
    #[allow(clippy::too_many_arguments, reason = "a row and its place")]
    fn read<L: Lanes>(
        &self,
        lanes: L,
        source: &RowsIn<'_>,
        part: PartSpec,
        row: usize,
        place: usize,
        stride: usize,
        keys: &mut [f32],
        values: &mut [f32],
    ) {
        let Stored { store, run, kv_head, key, value, .. } = *self;
        let to = &mut values[place * stride..][..stride];
        let (number, at) = part.place(row);
        match source {
            RowsIn::Pages { keys, .. } => {
                store.read_row(lanes, run.pages[number], *keys, at, kv_head * key, &mut to[..key]);
            }
            RowsIn::Ring { rows, width, place } => {
                let from = match row.checked_sub(run.position) {
                    Some(own) => &rows[(run.first_row + own) * width..][..*width],
                    None => before(&self.block[place.clone()], *width, run.position - row),
                };
                to[..key].copy_from_slice(&from[kv_head * key..][..key]);
            }
        }
        for (channel, v) in to[..key].iter().enumerate() {
            keys[channel * PAGE_TOKENS + place] = *v;
        }
        if let RowsIn::Pages { keys, values } = source
            && keys != values
        {
            store.read_row(lanes, run.pages[number], *values, at, kv_head * value, &mut to[..value]);
        }
    }
}

/// A tile: some rows of a run, some heads that share one key head.
struct AttendTile<'a> {
    level: Level,
    from: Stored<'a>,
    spec: &'a UnionSpec<'a>,
    /// In the run.
    rows: std::ops::Range<usize>,
    heads: std::ops::Range<usize>,
    q: &'a [f32],
    out: &'a Split<'a, f32>,
    scratch: &'a mut Scratch,
}

impl Kernel for AttendTile<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let AttendTile { level, from, spec, rows, heads, q, out, scratch } = self;
        let (key, value) = (spec.key, spec.value);
        let stride = key.max(value).next_multiple_of(WIDTH);
        let n = heads.len();
        let pairs = rows.len() * n;
        let first_row = from.run.first_row + rows.start;
        // Tokens up to and with the tile's first row.
        let tokens = from.run.position + rows.start + 1;
        let Scratch { keys, values, state } = scratch;
        keys.resize(key * PAGE_TOKENS, 0.0);
        values.resize(stride * PAGE_TOKENS, 0.0);
        state.clear();
        state.resize(pairs * (2 + stride), 0.0);
        let (extremes, accumulators) = state.split_at_mut(2 * pairs);
        let (maxima, sums) = extremes.split_at_mut(pairs);
        maxima.fill(LOWEST);
        let queries = &q[first_row * spec.heads * key..];
        let mut running =
            Running { level, spec, stride, queries, first_head: heads.start, n, maxima, sums, accumulators };
        for source in spec.sources {
            let part = match source.rows {
                RowsIn::Pages { keys, .. } => from.store.layout().part(keys).0,
                RowsIn::Ring { .. } => EACH_TOKEN,
            };
            // What each row of the tile may see.
            let mut visible = [(0, 0); TILE_ROWS];
            for (row, visible) in visible.iter_mut().enumerate().take(rows.len()) {
                let oldest = source.window.map_or(0, |w| part.complete((tokens + row).saturating_sub(w)));
                *visible = (oldest, part.complete(tokens + row));
            }
            let Some(selected) = source.selected else {
                // Later rows see later keys: the tile's first and last rows bound them all.
                let (oldest, newest) = (visible[0].0, visible[rows.len() - 1].1);
                for base in (oldest / PAGE_TOKENS * PAGE_TOKENS..newest).step_by(PAGE_TOKENS) {
                    for row in base.max(oldest)..newest.min(base + PAGE_TOKENS) {
                        from.read(lanes, &source.rows, part, row, row - base, stride, keys, values);
                    }
                    let inside = visible.map(|(a, b)| {
                        (a.saturating_sub(base).min(PAGE_TOKENS), b.saturating_sub(base).min(PAGE_TOKENS))
                    });
                    running.add(keys, values, 0..pairs, &inside);
                }
                continue;
            };
            for (row, (oldest, newest)) in visible.into_iter().enumerate().take(rows.len()) {
                let mut filled = 0;
                let own = row * n..(row + 1) * n;
                for number in selected.row(first_row + row) {
                    let number = *number as usize;
                    if number < oldest || number >= newest {
                        continue;
                    }
                    from.read(lanes, &source.rows, part, number, filled, stride, keys, values);
                    filled += 1;
                    if filled == PAGE_TOKENS {
                        running.add(keys, values, own.clone(), &[(0, filled); TILE_ROWS]);
                        filled = 0;
                    }
                }
                if filled > 0 {
                    running.add(keys, values, own, &[(0, filled); TILE_ROWS]);
                }
            }
        }
        for pair in 0..pairs {
            let head = heads.start + pair % n;
            let at = ((first_row + pair / n) * spec.heads + head) * value;
            // SAFETY: every (row, head) belongs to exactly one chunk.
            let out = unsafe { out.part(at..at + value) };
            let sink = spec.sinks.and_then(|s| s.get(head)).copied();
            let accumulator = &running.accumulators[pair * stride..][..value];
            finish(running.maxima[pair], running.sums[pair], sink, accumulator, out);
        }
    }
}

/// The running softmax of the (row, head) pairs of a tile, rows slowest.
struct Running<'a> {
    level: Level,
    spec: &'a UnionSpec<'a>,
    stride: usize,
    /// `[rows, all heads, key]`.
    queries: &'a [f32],
    first_head: usize,
    /// Heads of a row.
    n: usize,
    /// `[pairs]`.
    maxima: &'a mut [f32],
    /// `[pairs]`.
    sums: &'a mut [f32],
    /// `[pairs, stride]`.
    accumulators: &'a mut [f32],
}

impl Running<'_> {
    /// Lets some pairs look at a block of `keys` `[key, PAGE_TOKENS]` and `values` `[PAGE_TOKENS, stride]`; every row of the tile sees its own
    /// part of it.
    fn add(
        &mut self,
        keys: &[f32],
        values: &[f32],
        pairs: std::ops::Range<usize>,
        visible: &[(usize, usize); TILE_ROWS],
    ) {
        // A kernel of its own, so that it is compiled once for all callers.
        self.level.run(AddBlock { running: self, keys, values, pairs, visible });
    }
}

/// What [`Running::add`] computes.
struct AddBlock<'a, 'b> {
    running: &'a mut Running<'b>,
    keys: &'a [f32],
    values: &'a [f32],
    pairs: std::ops::Range<usize>,
    visible: &'a [(usize, usize); TILE_ROWS],
}

impl Kernel for AddBlock<'_, '_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let AddBlock { running, keys, values, pairs, visible } = self;
        let (key, stride, n) = (running.spec.key, running.stride, running.n);
        let mut pair = pairs.start;
        macro_rules! side_by_side {
            ($n:literal) => {{
                let block = Block {
                    keys,
                    values,
                    stride,
                    scale: running.spec.scale,
                    softcap: running.spec.softcap,
                    visible: std::array::from_fn::<_, $n, _>(|i| visible[(pair + i) / n]),
                    queries: std::array::from_fn::<_, $n, _>(|i| {
                        let head = (pair + i) / n * running.spec.heads + running.first_head + (pair + i) % n;
                        &running.queries[head * key..][..key]
                    }),
                };
                block.add(
                    lanes,
                    &mut running.maxima[pair..][..$n],
                    &mut running.sums[pair..][..$n],
                    &mut running.accumulators[pair * stride..][..$n * stride],
                );
                pair += $n;
            }};
        }
        while pair < pairs.end {
            match pairs.end - pair {
                1 => side_by_side!(1),
                2 => side_by_side!(2),
                3 => side_by_side!(3),
                _ => side_by_side!(4),
            }
        }
    }
}
