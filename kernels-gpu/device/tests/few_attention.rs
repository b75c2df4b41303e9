//! Attention of few rows on the simulated grid, against the definition in f64 and against itself under other divisions of the work.

mod store;

use bloomery_kernels_device::run_entry;
use store::{Cache, Case, PAGE, PLAIN, Random, Store, expected};

const SPAN: usize = 128;

/// Bits of the rows' results, and of their quantised forms.
fn run(
    case: &Case,
    store: &Store,
    q: &[f32],
    positions: &[u32],
    spans: usize,
    turns: u32,
    tile: usize,
) -> (Vec<f32>, Vec<u8>) {
    let rows = positions.len();
    let group = case.heads / case.kv_heads;
    let width = case.heads * case.value;
    let sinks: Vec<f32> = (0..case.heads).map(|h| h as f32 * 0.3 - 0.5).collect();
    let table_of_row = vec![0u32; rows];
    let mut partial = vec![f32::NAN; rows * case.heads * spans * (2 + case.value)];
    let mut out = vec![f32::NAN; rows * width];
    let groups = width.div_ceil(256);
    let (mut qs, mut scales, mut sums) =
        (vec![0i8; rows * groups * 256], vec![0f32; rows * groups], vec![0i16; rows * groups * 16]);
    let key_bytes = match case.cache {
        Cache::F32 => 128 * case.key,
        Cache::F16 => 64 * case.key,
        Cache::Q80 => 1088 * (case.key / 32 + 2),
    };
    let value_bytes = match case.cache {
        Cache::F32 => 4 * case.value,
        Cache::F16 => 2 * case.value,
        Cache::Q80 => 34 * (case.value / 32 + 2),
    };
    let shared = 32 * case.key + tile * (1024 + 32 + key_bytes + PAGE * value_bytes.next_multiple_of(16));
    let channels = [1, 2, 4].into_iter().find(|n| case.value <= 128 * n).unwrap();
    let scale = 1.0 / (case.key as f32).sqrt();
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
        f(scale),
        f(case.softcap),
        case.window as u64,
        0,
        case.cache as u64,
        store.values_at as u64,
        case.cache as u64,
        0,
        q.as_ptr() as u64,
        partial.as_mut_ptr() as u64,
        spans as u64,
        u64::from(turns),
        tile as u64,
    ];
    let grid = [rows as u32, (case.kv_heads * group.div_ceil(8)) as u32, turns];
    // SAFETY: every address is of memory of this function of the right size.
    assert!(unsafe { run_entry(&format!("attend_few_{channels}"), grid, 256, shared as u32, &words) });
    let met = (255 / case.value + 2).min(case.heads);
    let words = [
        positions.as_ptr() as u64,
        0,
        case.heads as u64,
        case.value as u64,
        case.window as u64,
        if case.sinks { sinks.as_ptr() as u64 } else { 0 },
        partial.as_ptr() as u64,
        spans as u64,
        out.as_mut_ptr() as u64,
        0,
        if width.is_multiple_of(256) { qs.as_mut_ptr() as u64 } else { 0 },
        scales.as_mut_ptr() as u64,
        sums.as_mut_ptr() as u64,
        0,
        0,
        0,
    ];
    let grid = [groups as u32, rows as u32, 1];
    // SAFETY: as above.
    assert!(unsafe { run_entry("merge_few", grid, 256, 4 * (256 + 4 * met * 64) as u32, &words) });
    let mut bytes: Vec<u8> = qs.iter().map(|q| *q as u8).collect();
    bytes.extend(scales.iter().flat_map(|s| s.to_le_bytes()));
    bytes.extend(sums.iter().flat_map(|s| s.to_le_bytes()));
    (out, bytes)
}

fn check(case: Case, positions: &[u32]) {
    let mut random = Random(17 + case.key as u64 * 3 + case.heads as u64);
    let tokens = *positions.iter().max().unwrap() as usize + 1;
    let store = Store::new(&case, tokens, &mut random);
    let q: Vec<f32> = (0..positions.len() * case.heads * case.key).map(|_| 2.0 * random.next()).collect();
    let spans = tokens.div_ceil(SPAN);
    let tile = if case.value > 128 { 1 } else { 4 };
    let (together, quantized) = run(&case, &store, &q, positions, spans, spans as u32, tile);
    let width = case.heads * case.value;
    for (row, position) in positions.iter().enumerate() {
        let q = &q[row * case.heads * case.key..][..case.heads * case.key];
        let expected = expected(&case, &store, q, *position as usize);
        let found = &together[row * width..][..width];
        for (i, (e, f)) in expected.iter().zip(found).enumerate() {
            assert!((e - f64::from(*f)).abs() < 2e-5, "{case:?} row {row} at {position}, value {i}: {e} {f}");
        }
        // Alone, with more room for spans, in one turn, page by page: the same bits.
        let (alone, _) = run(&case, &store, q, &[*position], spans + 3, 1, 1);
        let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&alone), bits(found), "{case:?} row {row}");
    }
    let (again, other) = run(&case, &store, &q, positions, spans, 2.min(spans as u32), 2.min(tile));
    assert_eq!(together, again);
    assert_eq!(quantized, other);
}

#[test]
fn head_sizes_and_storage_types() {
    for size in [64, 80, 96, 128, 256, 512] {
        for cache in [Cache::F32, Cache::F16, Cache::Q80] {
            if cache == Cache::Q80 && size == 80 {
                // Rows of two heads of 80 are whole blocks of 32, a head is not.
                check(Case { heads: 4, kv_heads: 2, key: 80, value: 80, cache, ..PLAIN }, &[70, 200]);
                continue;
            }
            check(Case { heads: 4, kv_heads: 2, key: size, value: size, cache, ..PLAIN }, &[140]);
        }
    }
    check(Case { heads: 6, kv_heads: 3, key: 36, value: 20, cache: Cache::F16, ..PLAIN }, &[150]);
    check(Case { heads: 3, kv_heads: 3, key: 7, value: 5, cache: Cache::F32, ..PLAIN }, &[33]);
    check(Case { heads: 2, kv_heads: 1, key: 192, value: 128, ..PLAIN }, &[130]);
}

#[test]
fn several_rows_at_several_depths() {
    for rows in [1usize, 2, 7] {
        let positions: Vec<u32> = (0..rows).map(|r| [127, 0, 31, 128, 300, 255, 96][r]).collect();
        check(PLAIN, &positions);
        check(Case { heads: 10, kv_heads: 2, key: 64, value: 64, ..PLAIN }, &positions);
    }
    // Many spans: more than the joining kernel holds at a time.
    check(Case { heads: 2, kv_heads: 1, key: 32, value: 32, ..PLAIN }, &[128 * 70 + 5]);
}

#[test]
fn windows_sinks_and_soft_caps() {
    check(Case { window: 100, sinks: true, ..PLAIN }, &[99, 260, 430]);
    check(Case { window: 33, softcap: 5.0, heads: 12, kv_heads: 1, key: 64, value: 64, ..PLAIN }, &[10, 290]);
    check(Case { sinks: true, softcap: 3.0, cache: Cache::Q80, ..PLAIN }, &[200]);
    check(Case { heads: 32, kv_heads: 1, key: 64, value: 64, sinks: true, ..PLAIN }, &[140]);
}
