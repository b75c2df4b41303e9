//! Attention and append against a literal softmax, and bit for bit between levels, threads and splits into steps.

use bloomery_kernels_cpu::attention::{AttentionSpec, attention};
use bloomery_kernels_cpu::kv::{
    CacheType, Order, PAGE_TOKENS, PageId, PageLayout, PageStore, PartIndex, PartSpec, Run,
};
use bloomery_kernels_cpu::level::Level;
use bloomery_kernels_cpu::pool::Pool;
use bloomery_kernels_cpu::prepare::{AppendFrom, AppendRows, HeadNorm, HeadRows, HeadSteps, prepare};
use bloomery_kernels_cpu::rope::{RopeSpec, RopeTable, frequencies};

struct Case {
    heads: usize,
    kv_heads: usize,
    key: usize,
    value: usize,
    softcap: Option<f32>,
    window: Option<usize>,
    sinks: Option<Vec<f32>>,
    cache: CacheType,
    tokens: usize,
}

fn random(seed: &mut u64) -> f32 {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    ((*seed >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 4.0
}

fn values(seed: u64, n: usize) -> Vec<f32> {
    let mut seed = seed;
    (0..n).map(|_| random(&mut seed)).collect()
}

fn cases() -> Vec<Case> {
    let base = || Case {
        heads: 6,
        kv_heads: 2,
        key: 32,
        value: 64,
        softcap: None,
        window: None,
        sinks: None,
        cache: CacheType::F32,
        tokens: 131,
    };
    vec![
        base(),
        Case { cache: CacheType::F16, window: Some(33), heads: 8, kv_heads: 8, key: 64, value: 64, ..base() },
        Case { cache: CacheType::Q8_0, softcap: Some(5.0), heads: 7, kv_heads: 1, tokens: 70, ..base() },
        Case {
            sinks: Some(vec![0.5, -1.0, 3.0, 0.0, 9.0]),
            heads: 5,
            kv_heads: 5,
            key: 24,
            value: 40,
            ..base()
        },
        Case {
            cache: CacheType::F16,
            heads: 3,
            kv_heads: 1,
            key: 5,
            value: 3,
            tokens: 40,
            window: Some(1),
            ..base()
        },
    ]
}

/// Splits a sequence of `tokens` into steps and returns all rows' results.
fn run(case: &Case, level: Level, pool: &Pool, chunk: usize, other_rows: usize) -> Vec<f32> {
    let (kw, vw, qw) = (case.kv_heads * case.key, case.kv_heads * case.value, case.heads * case.key);
    let layout = PageLayout::new(&[
        PartSpec { width: 48, cache: CacheType::F16, order: Order::ByChannel, every: 1 },
        PartSpec { width: kw, cache: case.cache, order: Order::ByChannel, every: 1 },
        PartSpec { width: vw, cache: case.cache, order: Order::ByToken, every: 1 },
    ])
    .unwrap();
    let mut store = PageStore::new(layout, 64);
    let pages: Vec<PageId> = (0..case.tokens.div_ceil(PAGE_TOKENS)).map(|_| store.take().unwrap()).collect();
    let others: Vec<PageId> = (0..other_rows.div_ceil(PAGE_TOKENS)).map(|_| store.take().unwrap()).collect();
    let (q, k, v) = (values(1, case.tokens * qw), values(2, case.tokens * kw), values(3, case.tokens * vw));
    let rope = RopeSpec {
        dims: case.key / 2 * 2,
        offset: 0,
        halves: true,
        inverse: false,
        frequencies: frequencies(case.key / 2 * 2, 10_000.0, 1.0, None, None),
        magnitude: 1.0,
        group: 1,
    };
    let weight = values(4, case.key);
    let spec = AttentionSpec {
        heads: case.heads,
        kv_heads: case.kv_heads,
        key: case.key,
        value: case.value,
        scale: 0.3,
        softcap: case.softcap,
        window: case.window,
        sinks: case.sinks.as_deref(),
        keys: PartIndex(1),
        values: PartIndex(2),
    };
    let mut result = Vec::new();
    let mut position = 0;
    while position < case.tokens {
        let rows = chunk.min(case.tokens - position);
        // Rows of another sequence stand first in the step.
        let total = other_rows + rows;
        let join = |part: &[f32], width: usize| {
            let mut all = values(99, other_rows * width);
            all.extend_from_slice(&part[position * width..(position + rows) * width]);
            all
        };
        let (mut q, mut k, v) = (join(&q, qw), join(&k, kw), join(&v, vw));
        let runs = [
            Run { first_row: 0, rows: other_rows, position: 0, pages: &others },
            Run { first_row: other_rows, rows, position, pages: &pages },
        ];
        let mut table = RopeTable::default();
        table.fill(&rope, (0..other_rows).chain(position..position + rows));
        let steps = HeadSteps {
            head: case.key,
            norm: Some(HeadNorm { weight: Some(&weight), eps: 1e-6 }),
            rope: Some((&rope, &table)),
        };
        let mut changed =
            [HeadRows { values: &mut q, width: qw, steps }, HeadRows { values: &mut k, width: kw, steps }];
        let appended = [
            AppendRows { part: PartIndex(1), from: AppendFrom::Changed(1) },
            AppendRows { part: PartIndex(2), from: AppendFrom::Rows(&v) },
        ];
        prepare(pool, level, &mut store, &runs, &mut changed, &appended);
        let mut out = vec![f32::NAN; total * case.heads * case.value];
        attention(pool, level, &store, &spec, &runs, &q, &mut out);
        result.extend_from_slice(&out[other_rows * case.heads * case.value..]);
        position += rows;
    }
    result
}

fn reference(case: &Case) -> Vec<f32> {
    let (kw, vw, qw) = (case.kv_heads * case.key, case.kv_heads * case.value, case.heads * case.key);
    let (mut q, mut k, v) =
        (values(1, case.tokens * qw), values(2, case.tokens * kw), values(3, case.tokens * vw));
    let weight = values(4, case.key);
    let dims = case.key / 2 * 2;
    for (rows, width) in [(&mut q, qw), (&mut k, kw)] {
        for (position, row) in rows.chunks_mut(width).enumerate() {
            for head in row.chunks_mut(case.key) {
                let mean = head.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / case.key as f64;
                for (x, w) in head.iter_mut().zip(&weight) {
                    *x = (f64::from(*x) / (mean + 1e-6).sqrt() * f64::from(*w)) as f32;
                }
                for i in 0..dims / 2 {
                    let angle = position as f64 * 10_000f64.powf(-2.0 * i as f64 / dims as f64);
                    let (a, b) = (f64::from(head[i]), f64::from(head[i + dims / 2]));
                    head[i] = (a * angle.cos() - b * angle.sin()) as f32;
                    head[i + dims / 2] = (a * angle.sin() + b * angle.cos()) as f32;
                }
            }
        }
    }
    let group = case.heads / case.kv_heads;
    let mut out = Vec::new();
    for t in 0..case.tokens {
        for h in 0..case.heads {
            let first = case.window.map_or(0, |w| (t + 1).saturating_sub(w));
            let scores: Vec<f64> = (first..=t)
                .map(|j| {
                    let q = &q[t * qw + h * case.key..][..case.key];
                    let k = &k[j * kw + h / group * case.key..][..case.key];
                    let s = q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() * 0.3;
                    case.softcap.map_or(s, |c| f64::from(c) * (s / f64::from(c)).tanh())
                })
                .collect();
            let sink = case.sinks.as_ref().map(|s| f64::from(s[h]));
            let top = scores.iter().copied().chain(sink).fold(f64::MIN, f64::max);
            let total = scores.iter().copied().chain(sink).map(|s| (s - top).exp()).sum::<f64>();
            for d in 0..case.value {
                let sum: f64 = (first..=t)
                    .zip(&scores)
                    .map(|(j, s)| (s - top).exp() * f64::from(v[j * vw + h / group * case.value + d]))
                    .sum();
                out.push((sum / total) as f32);
            }
        }
    }
    out
}

#[test]
fn equals_a_literal_softmax() {
    let pool = Pool::new(Some(2));
    for (i, case) in cases().iter().enumerate() {
        let found = run(case, Level::best(), &pool, 64, 3);
        let tolerance = match case.cache {
            CacheType::F32 => 2e-5,
            CacheType::F16 => 1e-2,
            CacheType::Q8_0 => 5e-2,
        };
        for (j, (a, b)) in found.iter().zip(&reference(case)).enumerate() {
            assert!((a - b).abs() < tolerance, "case {i}, value {j}: {a} against {b}");
        }
    }
}

#[test]
fn no_bit_depends_on_level_threads_or_steps() {
    let (one, two) = (Pool::new(Some(1)), Pool::new(Some(3)));
    for (i, case) in cases().iter().enumerate() {
        let whole = run(case, Level::SCALAR, &one, case.tokens, 0);
        for &level in Level::available() {
            for (pool, chunk, others) in
                [(&one, 1, 0), (&two, 1, 5), (&two, 7, 1), (&one, 64, 40), (&two, 1000, 33)]
            {
                let found = run(case, level, pool, chunk, others);
                let same = whole.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same && whole.len() == found.len(), "case {i}, {}, chunks of {chunk}", level.name());
            }
        }
    }
}

#[test]
fn pages_are_shared_copied_and_carried_as_bytes() {
    let layout = PageLayout::new(&[
        PartSpec { width: 32, cache: CacheType::Q8_0, order: Order::ByChannel, every: 1 },
        PartSpec { width: 32, cache: CacheType::F16, order: Order::ByToken, every: 1 },
    ])
    .unwrap();
    let mut store = PageStore::new(layout, 2);
    let a = store.take().unwrap();
    store.share(a);
    assert!(store.is_shared(a) && store.pages_free() == 1);
    let pool = Pool::new(Some(1));
    let rows = values(5, 20 * 32);
    let append = [AppendRows { part: PartIndex(1), from: AppendFrom::Rows(&rows) }];
    let pages = [a];
    let runs = [Run { first_row: 0, rows: 20, position: 0, pages: &pages }];
    let shared = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        prepare(&pool, Level::best(), &mut store, &runs, &mut [], &append);
    }));
    assert!(shared.is_err(), "a shared page must not be written");
    store.release(a);
    prepare(&pool, Level::best(), &mut store, &runs, &mut [], &append);
    let b = store.copy(a).unwrap();
    assert!(store.take().is_none());
    let (mut all, mut some) = (Vec::new(), Vec::new());
    store.export(a, 0, PAGE_TOKENS, &mut all);
    store.export(b, 0, 7, &mut some);
    assert_eq!(all.len(), store.layout().page_bytes());
    assert_ne!(all, some);
    // 32 channels of q8_0 by channel are untouched zeros; seven tokens of 64 bytes remain.
    let start = 34 * PAGE_TOKENS;
    assert_eq!(all[start..start + 7 * 64], some[start..start + 7 * 64]);
    assert!(some[start + 7 * 64..].iter().all(|b| *b == 0));
    assert!(store.import(a, &some));
    let mut again = Vec::new();
    store.export(a, 0, PAGE_TOKENS, &mut again);
    assert_eq!(again, some);
    assert!(!store.import(a, &some[1..]));
    store.release(a);
    store.release(b);
    assert_eq!(store.pages_free(), 2);
}
