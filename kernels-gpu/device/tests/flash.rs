//! Attention of many rows on the simulated grid: against the definition in f64, and against itself however a prompt is cut and
//! whoever else is in the step.

// A group is a range.
#![allow(clippy::single_range_in_vec_init)]

mod store;

use bloomery_kernels_device::{FLASH_KEYS, FLASH_ROWS, FLASH_THREADS, flash_shared, run_entry};
use std::ops::Range;
use store::{Case, PAGE, PLAIN, Random, Store, expected};

/// Results `[rows, heads, value]` of groups of positions; NaN where nothing was written.
fn run(case: &Case, store: &Store, q: &[f32], groups: &[Range<usize>], wants: &[u32]) -> Vec<f32> {
    let rows: usize = groups.iter().map(ExactSizeIterator::len).sum();
    let sinks: Vec<f32> = (0..case.heads).map(|h| h as f32 * 0.3 - 0.5).collect();
    let mut out = vec![f32::NAN; rows * case.heads * case.value];
    let queries = FLASH_ROWS as usize / (case.heads / case.kv_heads);
    let counts = [rows as u32, 0, groups.len() as u32, 0];
    let mut words_of_groups: Vec<u32> = Vec::new();
    let mut positions: Vec<u32> = Vec::new();
    for group in groups {
        words_of_groups.extend([positions.len(), group.len(), group.start, 0].map(|n| n as u32));
        positions.extend(group.clone().map(|p| p as u32));
    }
    let table_of_row = vec![0u32; rows];
    // More blocks than there is work for.
    let blocks = rows.div_ceil(queries) + groups.len() + 1;
    let channels = if case.value > 192 { 128 } else { case.value };
    let f = |v: f32| u64::from(v.to_bits());
    let words = [
        positions.as_ptr() as u64,
        table_of_row.as_ptr() as u64,
        store.table.as_ptr() as u64,
        store.table.len() as u64,
        store.bytes.as_ptr() as u64,
        store.page_bytes as u64,
        case.heads as u64,
        case.kv_heads as u64,
        case.key as u64,
        case.value as u64,
        f(1.0 / (case.key as f32).sqrt()),
        f(case.softcap),
        case.window as u64,
        0,
        case.cache as u64,
        store.values_at as u64,
        case.cache as u64,
        if case.sinks { sinks.as_ptr() as u64 } else { 0 },
        counts.as_ptr() as u64,
        words_of_groups.as_ptr() as u64,
        wants.as_ptr() as u64,
        q.as_ptr() as u64,
        out.as_mut_ptr() as u64,
    ];
    let shared = flash_shared(case.key as u32, channels as u32);
    let grid = [blocks as u32, case.kv_heads as u32, (case.value / channels) as u32];
    // SAFETY: every address is of memory of this function of the right size.
    let there = unsafe { run_entry(&format!("flash_{channels}"), grid, FLASH_THREADS, shared, &words) };
    assert!(there, "flash_{channels}");
    out
}

fn queries(case: &Case, tokens: usize) -> Vec<f32> {
    let mut random = Random(5 + case.heads as u64);
    (0..tokens * case.heads * case.key).map(|_| 2.0 * random.next()).collect()
}

/// A store that ends with the last token of a step, and is the same up to there.
fn store(case: &Case, tokens: usize) -> Store {
    Store::new(case, tokens, &mut Random(17 + case.key as u64))
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The whole prompt at once, held to the definition at some rows, then cut at these places: the same bits.
fn check(case: Case, tokens: usize, rows: &[usize], cuts: &[usize]) {
    let (key, value) = (case.heads * case.key, case.heads * case.value);
    let q = queries(&case, tokens);
    let whole = run(&case, &store(&case, tokens), &q, &[0..tokens], &vec![0; tokens]);
    let all = store(&case, tokens);
    for row in rows {
        let expected = expected(&case, &all, &q[row * key..][..key], *row);
        for (i, (e, f)) in expected.iter().zip(&whole[row * value..]).enumerate() {
            assert!((e - f64::from(*f)).abs() < 4e-6, "{case:?} row {row}, value {i}: {e} {f}");
        }
    }
    let mut first = 0;
    for end in cuts.iter().copied().chain([tokens]) {
        let part = &q[first * key..end * key];
        let found = run(&case, &store(&case, end), part, &[first..end], &vec![0; end - first]);
        assert_eq!(bits(&found), bits(&whole[first * value..end * value]), "{case:?} rows {first}..{end}");
        first = end;
    }
}

#[test]
fn head_sizes_and_groups() {
    for size in [64, 80, 96, 128, 192, 256, 512] {
        check(
            Case { heads: 4, kv_heads: 2, key: size, value: size, ..PLAIN },
            70,
            &[0, 1, 63, 64, 69],
            &[33],
        );
    }
    for (heads, kv_heads) in [(1, 1), (10, 2), (12, 1), (32, 1)] {
        check(Case { heads, kv_heads, key: 64, value: 64, ..PLAIN }, 40, &[0, 17, 39], &[1, 7]);
    }
    check(Case { heads: 2, kv_heads: 1, key: 192, value: 128, ..PLAIN }, 35, &[34], &[]);
}

#[test]
fn cut_anywhere() {
    check(PLAIN, 200, &[31, 32, 127, 128, 199], &[1, 2, 34, 64, 129, 130]);
}

#[test]
fn windows_sinks_and_soft_caps() {
    let small = Case { heads: 4, kv_heads: 2, key: 64, value: 64, ..PLAIN };
    check(Case { window: 70, sinks: true, ..small }, 260, &[0, 69, 70, 200, 259], &[100, 203]);
    check(Case { window: 1, ..small }, 70, &[0, 69], &[40]);
    check(Case { window: 33, softcap: 5.0, heads: 12, kv_heads: 1, ..small }, 140, &[10, 139], &[64]);
    check(Case { sinks: true, softcap: 3.0, ..small }, 80, &[0, 79], &[]);
}

#[test]
fn several_sequences_and_rows_of_others() {
    let case = Case { heads: 4, kv_heads: 1, key: 64, value: 64, ..PLAIN };
    let (key, value) = (case.heads * case.key, case.heads * case.value);
    let store = store(&case, 150);
    let q = queries(&case, 150);
    let groups = [130..131, 0..40, 77..150, 12..13];
    let row = |p: usize| &q[p * key..][..key];
    let together: Vec<f32> = groups.iter().cloned().flatten().flat_map(row).copied().collect();
    let rows: usize = groups.iter().map(ExactSizeIterator::len).sum();
    // Single rows belong to another kernel, as does one of a prompt.
    let mut wants = vec![0; rows];
    (wants[0], wants[60], wants[rows - 1]) = (1, 1, 1);
    let found = run(&case, &store, &together, &groups, &wants);
    assert!(found[..value].iter().chain(&found[(rows - 1) * value..]).all(|v| v.is_nan()));
    let mut first = 1;
    for group in &groups[1..3] {
        let part: Vec<f32> = group.clone().flat_map(row).copied().collect();
        let alone = run(&case, &store, &part, std::slice::from_ref(group), &vec![0; group.len()]);
        assert_eq!(bits(&alone), bits(&found[first * value..][..alone.len()]), "{group:?}");
        first += group.len();
    }
    assert_eq!(FLASH_KEYS as usize, 2 * PAGE);
}
