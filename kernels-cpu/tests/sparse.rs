//! Pools, index scores, choices and attention over several stores against their definitions, for any cut into steps, on every machine.

mod support;

use bloomery_kernels_cpu::attention::{RowsIn, SeenRows, UnionSpec, attention_over_union};
use bloomery_kernels_cpu::cpu::Cpu;
use bloomery_kernels_cpu::history::move_on;
use bloomery_kernels_cpu::indexer::{Choice, Chosen, IndexSpec, choose};
use bloomery_kernels_cpu::kv::{
    CacheType, Order, PAGE_TOKENS, PageId, PageLayout, PageStore, PartIndex, PartSpec, Run,
};
use bloomery_kernels_cpu::pooled::{PoolSpec, PoolWeights, pool_rows};
use bloomery_kernels_cpu::prepare::{AppendFrom, AppendRows, prepare};
use bloomery_kernels_cpu::selection::Selection;
use bloomery_program::StateId;
use bloomery_program::op::{Attention, Source};
use bloomery_reference::ops::{attention as plain, selection};
use support::{machines, name, same, values};

const TOKENS: usize = 150;

#[test]
fn pools_are_their_definition() {
    for (ratio, width, weights) in [
        (4, 24, PoolWeights::Softmax),
        (16, 33, PoolWeights::Softmax),
        (4, 40, PoolWeights::OverlappingSoftmax),
        (1, 16, PoolWeights::Softmax),
        (3, 8, PoolWeights::Mean),
    ] {
        let bias = values(3, ratio * width * 2, 1.0);
        let overlap = weights == PoolWeights::OverlappingSoftmax;
        let wide = if overlap { 2 * width } else { width };
        let spec = PoolSpec { ratio, width, weights, bias: (ratio > 3).then(|| &bias[..ratio * wide]) };
        let (x, gate) = (values(1, TOKENS * wide, 2.0), values(2, TOKENS * wide, 3.0));
        let gate = (weights != PoolWeights::Mean).then_some(&gate[..]);
        let mut expected = vec![0.0; TOKENS * width];
        for (last, out) in expected.chunks_exact_mut(width).enumerate() {
            if !(last + 1).is_multiple_of(ratio) {
                continue;
            }
            let Some(gate) = gate else {
                let members: Vec<&[f32]> =
                    (last + 1 - ratio..=last).map(|r| &x[r * wide..][..wide]).collect();
                selection::pool_mean(&members, out);
                continue;
            };
            let member = |row: usize, m: usize, first: usize| selection::Member {
                value: &x[row * wide + first..][..width],
                gate: &gate[row * wide + first..][..width],
                bias: spec.bias.map(|b| &b[m * wide + first..][..width]),
            };
            let mut members = Vec::new();
            if overlap && last + 1 >= 2 * ratio {
                members.extend((0..ratio).map(|m| member(last + 1 - 2 * ratio + m, m, 0)));
            }
            members.extend((0..ratio).map(|m| member(last + 1 - ratio + m, m, wide - width)));
            selection::pool_softmax(&members, out);
        }
        let mut first: Option<Vec<f32>> = None;
        for cpu in machines() {
            for chunk in [1, 7, 64, TOKENS] {
                let what = format!("{weights:?} of {ratio}, {}, steps of {chunk}", name(&cpu));
                // More rows are kept than are needed, as a wider state would.
                let joined = wide * if gate.is_some() { 2 } else { 1 };
                let mut history = vec![0.0; (spec.history() + 1) * joined];
                let mut out = vec![f32::NAN; TOKENS * width];
                for start in (0..TOKENS).step_by(chunk) {
                    let run = Run {
                        first_row: start,
                        rows: chunk.min(TOKENS - start),
                        position: start,
                        pages: &[],
                    };
                    pool_rows(&cpu, &spec, &run, &x, gate, &mut history, &mut out);
                }
                for (i, (a, b)) in out.iter().zip(&expected).enumerate() {
                    assert!((a - b).abs() < 2e-6, "{what}, {i}: {a} for {b}");
                }
                assert!(same(first.get_or_insert(out.clone()), &out), "{what}: other bits");
            }
        }
    }
}

/// A store for latent rows, index keys for every `every` tokens, and keys with values.
struct World {
    store: PageStore,
    pages: Vec<PageId>,
    latent: Vec<f32>,
    index: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    every: usize,
}

const WIDTH: usize = 40;
const INDEX: usize = 12;

fn world(cpu: &Cpu, every: usize, chunk: usize) -> World {
    let part = |width, order, every| PartSpec { width, cache: CacheType::F32, order, every };
    let layout = PageLayout::new(&[
        part(WIDTH, Order::ByToken, 1),
        part(INDEX, Order::ByToken, every),
        part(2 * WIDTH, Order::ByChannel, 1),
        part(2 * WIDTH, Order::ByToken, 1),
        part(WIDTH, Order::ByToken, every),
    ])
    .unwrap();
    let mut store = PageStore::new(layout, 16);
    let pages: Vec<PageId> = (0..TOKENS.div_ceil(PAGE_TOKENS)).map(|_| store.take().unwrap()).collect();
    let (latent, mut index) = (values(1, TOKENS * WIDTH, 1.0), values(2, TOKENS * INDEX, 1.0));
    // Equal keys: ties must go to the lower row.
    let copied = index[..INDEX].to_vec();
    for row in [4, 5, 90, 91, 92, 93] {
        index[row * INDEX..(row + 1) * INDEX].copy_from_slice(&copied);
    }
    let (keys, vals) = (values(3, TOKENS * 2 * WIDTH, 1.0), values(4, TOKENS * 2 * WIDTH, 1.0));
    for start in (0..TOKENS).step_by(chunk) {
        let rows = chunk.min(TOKENS - start);
        let run = Run { first_row: 0, rows, position: start, pages: &pages };
        let of = |v: &'_ [f32], width: usize| v[start * width..(start + rows) * width].to_vec();
        let all = [
            of(&latent, WIDTH),
            of(&index, INDEX),
            of(&keys, 2 * WIDTH),
            of(&vals, 2 * WIDTH),
            of(&latent, WIDTH),
        ];
        let appended: Vec<AppendRows<'_>> = all
            .iter()
            .enumerate()
            .map(|(i, v)| AppendRows { part: PartIndex(i), from: AppendFrom::Rows(v) })
            .collect();
        prepare(&cpu.pool, cpu.level, &mut store, &[run], &mut [], &appended);
    }
    World { store, pages, latent, index, keys, values: vals, every }
}

#[test]
fn scores_choose_the_best_rows_and_blocks() {
    let heads = 5;
    let (q, w) = (values(7, TOKENS * heads * INDEX, 1.0), values(8, TOKENS * heads, 1.0));
    for (every, top_k) in [(1, 9), (4, 3), (16, 2), (48, 1), (3, 100)] {
        let mut first: Option<Vec<Vec<u32>>> = None;
        for cpu in machines() {
            for chunk in [1, 7, TOKENS] {
                let what = format!("every {every}, {}, steps of {chunk}", name(&cpu));
                let world = world(&cpu, every, 13);
                let spec = IndexSpec { heads, key: INDEX, part: PartIndex(1) };
                let blocks = Choice::Blocks { block: 2, keep: 3 };
                let best = Choice::TopRows { top_k, within: None, expand: false, tail: false };
                let tokens = Choice::TopRows { top_k, within: None, expand: true, tail: true };
                let most = [blocks, best, tokens].map(|c| c.most(every, TOKENS));
                let mut outs: [Vec<u32>; 4] = std::array::from_fn(|i| vec![0; TOKENS * (1 + most[i.min(2)])]);
                outs[3] = vec![0; TOKENS * (1 + most[1])];
                let mut scores = Vec::new();
                for start in (0..TOKENS).step_by(chunk) {
                    let rows = chunk.min(TOKENS - start);
                    let run = Run { first_row: start, rows, position: start, pages: &world.pages };
                    let [a, b, c, d] = &mut outs;
                    let mut chosen = [
                        Chosen { choice: blocks, out: a, most: most[0] },
                        Chosen { choice: best, out: b, most: most[1] },
                        Chosen { choice: tokens, out: c, most: most[2] },
                    ];
                    choose(&cpu, &world.store, &spec, &[run], &q, Some(&w), &mut scores, &mut chosen);
                    let within = Some(Selection { numbers: a, most: most[0] });
                    let choice = Choice::TopRows { top_k, within, expand: false, tail: false };
                    let mut chosen = [Chosen { choice, out: d, most: most[1] }];
                    choose(&cpu, &world.store, &spec, &[run], &q, Some(&w), &mut scores, &mut chosen);
                }
                let widths = [most[0], most[1], most[2], most[1]];
                let found: Vec<Vec<u32>> = outs
                    .iter()
                    .zip(widths)
                    .flat_map(|(numbers, most)| {
                        (0..TOKENS).map(move |r| Selection { numbers, most }.row(r).to_vec())
                    })
                    .collect();
                if first.is_none() {
                    for row in 0..TOKENS {
                        let key = |g: usize| &world.index[((g + 1) * every - 1) * INDEX..][..INDEX];
                        let scores: Vec<f32> = (0..(row + 1) / every)
                            .map(|g| {
                                let q = &q[row * heads * INDEX..][..heads * INDEX];
                                selection::index_score(q, Some(&w[row * heads..][..heads]), key(g))
                            })
                            .collect();
                        let blocks = selection::candidate_blocks(&scores, 2, 3);
                        let best = selection::top_rows(&scores, None, top_k);
                        let tokens = selection::expand(&best, every, true, row + 1);
                        let inside = selection::top_rows(&scores, Some(&blocks), top_k);
                        for (i, expected) in [blocks, best, tokens, inside].into_iter().enumerate() {
                            let found: Vec<usize> =
                                found[i * TOKENS + row].iter().map(|r| *r as usize).collect();
                            assert_eq!(found, expected, "{what}, choice {i} of row {row}");
                        }
                    }
                }
                assert!(first.get_or_insert(found.clone()) == &found, "{what}: other rows");
            }
        }
    }
}

/// Rows of a ring: those before a query that a window of 33 shows.
const RING: usize = 32;

/// Sources, key-value heads, width of a value, sinks, soft cap.
type Case<'a> = (Vec<SeenRows<'a>>, usize, usize, Option<&'a [f32]>, Option<f32>);

#[test]
fn attention_sees_the_union_of_its_stores() {
    let heads = 6;
    let every = 4;
    let chosen: Vec<Vec<u32>> = (0..TOKENS)
        .map(|r| (0..=r as u32 / 4 + 3).filter(|g| g % 3 != 1 && (g * 7 + r as u32) % 5 > 1).collect())
        .collect();
    let most = chosen.iter().map(Vec::len).max().unwrap();
    let mut numbers = vec![0; TOKENS * (1 + most)];
    for (row, chosen) in chosen.iter().enumerate() {
        numbers[row * (1 + most)] = chosen.len() as u32;
        numbers[row * (1 + most) + 1..][..chosen.len()].copy_from_slice(chosen);
    }
    let all_rows = vec![0; TOKENS];
    let nothing = Selection { numbers: &all_rows, most: 0 };
    let selected = Some(Selection { numbers: &numbers, most });
    let (window, compressed) = (PartIndex(0), PartIndex(4));
    let latent = |part, window, selected| {
        let rows = RowsIn::Pages { keys: part, values: part };
        SeenRows { rows, window, selected }
    };
    let pairs = || {
        let rows = RowsIn::Pages { keys: PartIndex(2), values: PartIndex(3) };
        SeenRows { rows, window: None, selected }
    };
    let own = values(1, TOKENS * WIDTH, 1.0);
    // Kept beside something else in a sequence's block.
    let kept = 4..4 + RING * WIDTH;
    let ring = |window| {
        let rows = RowsIn::Ring { rows: &own, width: WIDTH, place: kept.clone() };
        SeenRows { rows, window: Some(window), selected: None }
    };
    let sinks = values(9, heads, 2.0);
    let cases: [Case<'_>; 8] = [
        (vec![latent(window, Some(33), None)], 1, WIDTH, None, None),
        (
            vec![latent(window, Some(20), None), latent(compressed, None, selected)],
            1,
            WIDTH,
            Some(&sinks),
            None,
        ),
        (vec![latent(compressed, None, None)], 1, WIDTH - 7, None, Some(3.0)),
        (vec![pairs()], 2, WIDTH, None, None),
        (vec![pairs(), latent(window, Some(1), None)], 1, WIDTH, Some(&sinks), None),
        (vec![ring(33), latent(compressed, None, selected)], 1, WIDTH, Some(&sinks), None),
        (vec![ring(1)], 1, WIDTH - 3, None, None),
        (vec![latent(compressed, None, Some(nothing))], 1, WIDTH, None, None),
    ];
    for (case, (sources, kv_heads, value, sinks, softcap)) in cases.into_iter().enumerate() {
        let q = values(10, TOKENS * heads * WIDTH, 1.0);
        let spec = UnionSpec {
            heads,
            kv_heads,
            key: WIDTH,
            value,
            scale: 0.4,
            softcap,
            sinks,
            sources: &sources,
            blocks: &[],
        };
        let mut first: Option<Vec<f32>> = None;
        for cpu in machines() {
            for chunk in [1, 7, TOKENS] {
                let what = format!("case {case}, {}, steps of {chunk}", name(&cpu));
                let world = world(&cpu, every, 31);
                let mut out = vec![f32::NAN; TOKENS * heads * value];
                let mut block = vec![0.0; kept.end];
                for start in (0..TOKENS).step_by(chunk) {
                    let rows = chunk.min(TOKENS - start);
                    let run = Run { first_row: start, rows, position: start, pages: &world.pages };
                    let blocks = [&block[..]];
                    let spec = UnionSpec { blocks: &blocks, ..spec.clone() };
                    attention_over_union(&cpu.pool, cpu.level, &world.store, &spec, &[run], &q, &mut out);
                    move_on(&mut block[kept.clone()], WIDTH, &run, &own);
                }
                if first.is_none() {
                    let expected = defined(&world, &spec, &q);
                    for (i, (a, b)) in out.iter().zip(&expected).enumerate() {
                        assert!((a - b).abs() < 3e-6, "{what}, {i}: {a} for {b}");
                    }
                }
                assert!(same(first.get_or_insert(out.clone()), &out), "{what}: other bits");
            }
        }
    }
}

fn defined(world: &World, spec: &UnionSpec<'_>, q: &[f32]) -> Vec<f32> {
    let op = Attention {
        heads: spec.heads as u32,
        kv_heads: spec.kv_heads as u32,
        key: spec.key as u32,
        value: spec.value as u32,
        scale: spec.scale,
        softcap: spec.softcap,
        block_bidirectional: false,
        sources: vec![Source { state: StateId(0), window: None, selected: false }],
    };
    let mut out = vec![0.0; TOKENS * spec.heads * spec.value];
    for (row, out) in out.chunks_exact_mut(spec.heads * spec.value).enumerate() {
        let mut seen = Vec::new();
        for source in spec.sources {
            let (latent, every) = match source.rows {
                RowsIn::Pages { keys, values } => {
                    (keys == values, if keys == PartIndex(4) { world.every } else { 1 })
                }
                RowsIn::Ring { .. } => (true, 1),
            };
            let from = source.window.map_or(0, |w| (row + 1).saturating_sub(w)) / every;
            for g in from..(row + 1) / every {
                if source.selected.is_some_and(|s| !s.row(row).contains(&(g as u32))) {
                    continue;
                }
                let token = (g + 1) * every - 1;
                let row = &world.latent[token * WIDTH..][..WIDTH];
                seen.push(match latent {
                    true => plain::Seen { key: row, value: row, value_stride: WIDTH },
                    false => plain::Seen {
                        key: &world.keys[token * 2 * WIDTH..][..2 * WIDTH],
                        value: &world.values[token * 2 * WIDTH..][..2 * WIDTH],
                        value_stride: spec.value,
                    },
                });
            }
        }
        plain::attention(&op, &q[row * spec.heads * WIDTH..][..spec.heads * WIDTH], &seen, spec.sinks, out);
    }
    out
}
