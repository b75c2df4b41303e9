//! Keys and values of a sequence in pages, and attention by its definition.
#![allow(dead_code)]

use bloomery_formats::half::f32_to_f16;

pub const PAGE: usize = 32;

pub struct Random(pub u64);
impl Random {
    pub fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Cache {
    F32 = 1,
    F16 = 2,
    Q80 = 3,
}

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub heads: usize,
    pub kv_heads: usize,
    pub key: usize,
    pub value: usize,
    pub cache: Cache,
    pub window: usize,
    pub softcap: f32,
    pub sinks: bool,
}

/// One sequence's keys and values, as numbers and as pages of a store whose pages lie in disorder.
pub struct Store {
    pub keys: Vec<Vec<f32>>,
    pub values: Vec<Vec<f32>>,
    pub bytes: Vec<u128>,
    pub table: Vec<u32>,
    pub page_bytes: usize,
    pub values_at: usize,
}

pub fn part_bytes(cache: Cache, width: usize) -> usize {
    let row = match cache {
        Cache::F32 => 4 * width,
        Cache::F16 => 2 * width,
        Cache::Q80 => width / 32 * 34,
    };
    (row * PAGE).next_multiple_of(256)
}

impl Store {
    pub fn new(case: &Case, tokens: usize, random: &mut Random) -> Store {
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

pub fn expected(case: &Case, store: &Store, q: &[f32], position: usize) -> Vec<f64> {
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

pub const PLAIN: Case = Case {
    heads: 8,
    kv_heads: 1,
    key: 128,
    value: 128,
    cache: Cache::F16,
    window: 0,
    softcap: 0.0,
    sinks: false,
};
