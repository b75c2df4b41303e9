//! Attention of few rows on the simulated grid, against the definition in f64 and against itself under other divisions of the work.

use bloomery_formats::half::f32_to_f16;
use bloomery_kernels_device::run_entry;

const PAGE: usize = 32;
const SPAN: usize = 128;

struct Random(u64);
impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Cache {
    F32 = 1,
    F16 = 2,
    Q80 = 3,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    heads: usize,
    kv_heads: usize,
    key: usize,
    value: usize,
    cache: Cache,
    window: usize,
    softcap: f32,
    sinks: bool,
}

/// One sequence's keys and values, as numbers and as pages of a store whose pages lie in disorder.
struct Store {
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
    bytes: Vec<u128>,
    table: Vec<u32>,
    page_bytes: usize,
    values_at: usize,
}

fn part_bytes(cache: Cache, width: usize) -> usize {
    let row = match cache {
        Cache::F32 => 4 * width,
        Cache::F16 => 2 * width,
        Cache::Q80 => width / 32 * 34,
    };
    (row * PAGE).next_multiple_of(256)
}

impl Store {
    fn new(case: &Case, tokens: usize, random: &mut Random) -> Store {
        let (k_width, v_width) = (case.kv_heads * case.key, case.kv_heads * case.value);
        let values_at = part_bytes(case.cache, k_width);
        let page_bytes = values_at + part_bytes(case.cache, v_width);
        let pages = tokens.div_ceil(PAGE);
        let table: Vec<u32> = (0..pages).map(|p| (pages + 3 - p) as u32).collect();
        let mut store = Store {
            keys: vec![vec![0.0; k_width]; tokens],
            values: vec![vec![0.0; v_width]; tokens],
            // What nobody wrote must not matter: NaN in every format.
            bytes: vec![u128::MAX; (pages + 5) * page_bytes / 16],
            table,
            page_bytes,
            values_at,
        };
        for token in 0..tokens {
            let k: Vec<f32> = (0..k_width).map(|_| random.next()).collect();
            let v: Vec<f32> = (0..v_width).map(|_| random.next()).collect();
            store.put(case.cache, token, &k, true);
            store.put(case.cache, token, &v, false);
        }
        store
    }

    fn put(&mut self, cache: Cache, token: usize, row: &[f32], is_key: bool) {
        let page =
            self.table[token / PAGE] as usize * self.page_bytes + if is_key { 0 } else { self.values_at };
        let t = token % PAGE;
        let width = row.len();
        let bytes: &mut [u8] = {
            let length = self.bytes.len() * 16;
            // SAFETY: the vector's own memory.
            unsafe { std::slice::from_raw_parts_mut(self.bytes.as_mut_ptr().cast(), length) }
        };
        let mut kept = vec![0.0; width];
        for (c, v) in row.iter().enumerate() {
            let at = if is_key { c * PAGE + t } else { t * width + c };
            match cache {
                Cache::F32 => {
                    bytes[page + 4 * at..][..4].copy_from_slice(&v.to_le_bytes());
                    kept[c] = *v;
                }
                Cache::F16 => {
                    let half = f32_to_f16(*v);
                    bytes[page + 2 * at..][..2].copy_from_slice(&half.to_le_bytes());
                    kept[c] = bloomery_formats::half::f16_to_f32(half);
                }
                Cache::Q80 => {
                    let block = c / 32;
                    let scale = f32_to_f16(1.0 / 127.0);
                    let quant = (v * 127.0).round() as i8;
                    let (d, q) = match is_key {
                        true => (block * 34 * PAGE + 2 * t, block * 34 * PAGE + (2 + c % 32) * PAGE + t),
                        false => {
                            let start = t * (width / 32 * 34) + block * 34;
                            (start, start + 2 + c % 32)
                        }
                    };
                    bytes[page + d..][..2].copy_from_slice(&scale.to_le_bytes());
                    bytes[page + q] = quant as u8;
                    kept[c] = bloomery_formats::half::f16_to_f32(scale) * quant as f32;
                }
            }
        }
        if is_key {
            self.keys[token] = kept;
        } else {
            self.values[token] = kept;
        }
    }
}

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

fn expected(case: &Case, store: &Store, q: &[f32], position: usize) -> Vec<f64> {
    let oldest = if case.window > 0 { (position + 1).saturating_sub(case.window) } else { 0 };
    let mut out = Vec::new();
    for head in 0..case.heads {
        let kv = head / (case.heads / case.kv_heads);
        let query = &q[head * case.key..][..case.key];
        let scores: Vec<f64> = (oldest..=position)
            .map(|t| {
                let key = &store.keys[t][kv * case.key..][..case.key];
                let dot: f64 = query.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                let s = dot / (case.key as f64).sqrt();
                match case.softcap {
                    0.0 => s,
                    cap => f64::from(cap) * (s / f64::from(cap)).tanh(),
                }
            })
            .collect();
        let sink = case.sinks.then_some(head as f64 * 0.3 - 0.5);
        let sum: f64 = scores.iter().map(|s| s.exp()).sum::<f64>() + sink.map_or(0.0, f64::exp);
        for c in 0..case.value {
            let v = |t: usize| f64::from(store.values[t][kv * case.value + c]);
            out.push(scores.iter().enumerate().map(|(i, s)| s.exp() * v(oldest + i)).sum::<f64>() / sum);
        }
    }
    out
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

const PLAIN: Case = Case {
    heads: 8,
    kv_heads: 1,
    key: 128,
    value: 128,
    cache: Cache::F16,
    window: 0,
    softcap: 0.0,
    sinks: false,
};

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
