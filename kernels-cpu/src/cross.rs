//! Attention of a few query rows over rows in memory: no store, no mask, no positions.

use crate::cpu::{Cpu, with_scratch};
use crate::lanes::{Lanes, WIDTH};
use crate::level::Kernel;
use crate::split::Split;
use bloomery_formats::math;

/// Multi-head attention: `queries` and `out` are `[n, heads * head]`, `keys` and `values` `[rows, heads * head]`; scores are divided by the root of
/// the head's width. Keys are visited in order, sixteen channels at a time.
///
/// # Panics
/// When lengths disagree.
pub fn cross_attention(
    cpu: &Cpu,
    heads: usize,
    width: usize,
    queries: &[f32],
    keys: &[f32],
    values: &[f32],
    out: &mut [f32],
) {
    assert!(heads > 0 && width.is_multiple_of(heads) && width > 0, "{heads} heads of {width} values");
    let (n, rows) = (queries.len() / width, keys.len() / width);
    assert!(values.len() == keys.len() && out.len() == queries.len(), "{rows} keys for {n} queries");
    let out = Split::new(out);
    let head_width = width / heads;
    cpu.pool.run(n * heads, |chunk, _| {
        let (query, head) = (chunk / heads, chunk % heads);
        let at = head * head_width;
        let start = query * width + at;
        // SAFETY: every head of every query is one chunk.
        let out = unsafe { out.part(start..start + head_width) };
        with_scratch(rows, |_, scores| {
            let query = &queries[start..start + head_width];
            cpu.level.run(Head { query, keys, values, width, at, scores, out });
        });
    });
}

/// One head of one query.
struct Head<'a> {
    query: &'a [f32],
    keys: &'a [f32],
    values: &'a [f32],
    width: usize,
    /// First channel of the head.
    at: usize,
    scores: &'a mut [f32],
    out: &'a mut [f32],
}

impl Kernel for Head<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Head { query, keys, values, width, at, scores, out } = self;
        let scale = 1.0 / (query.len() as f32).sqrt();
        let mut most = f32::NEG_INFINITY;
        for (score, key) in scores.iter_mut().zip(keys.chunks_exact(width)) {
            let mut chain = lanes.splat(0.0);
            for (q, k) in query.chunks(WIDTH).zip(key[at..at + query.len()].chunks(WIDTH)) {
                chain = lanes.fma(lanes.load_some(q), lanes.load_some(k), chain);
            }
            *score = lanes.sum(chain) * scale;
            most = if *score > most { *score } else { most };
        }
        out.fill(0.0);
        let mut sum = 0.0;
        for (score, value) in scores.iter().zip(values.chunks_exact(width)) {
            let weight = math::exp(score - most);
            sum += weight;
            let factor = lanes.splat(weight);
            for (out, v) in out.chunks_mut(WIDTH).zip(value[at..at + query.len()].chunks(WIDTH)) {
                lanes.store_some(lanes.fma(factor, lanes.load_some(v), lanes.load_some(out)), out);
            }
        }
        out.iter_mut().for_each(|v| *v /= sum);
    }
}
