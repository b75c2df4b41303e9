//! Softmax attention of one query row over rows of stores.

use super::linear::dot;
use bloomery_program::op::Attention;

/// A key and a value row that a query sees, `[kv_heads * key]` and `[kv_heads * value]`; a latent store gives the same
/// row twice.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// Keys.
    pub key: &'a [f32],
    /// Values.
    pub value: &'a [f32],
    /// Distance between the values of two heads: the value's width, or the key's where values are the keys' beginnings.
    pub value_stride: usize,
}

/// `out[h] = sum_t softmax_t(scale * q[h] . k[t]) * v[t]` over all rows seen, with an optional sink logit per head that
/// only enters the denominator, and an optional soft cap.
pub fn attention(a: &Attention, q: &[f32], seen: &[Seen<'_>], sinks: Option<&[f32]>, out: &mut [f32]) {
    let (key, value) = (a.key as usize, a.value as usize);
    let heads_per_kv = (a.heads / a.kv_heads) as usize;
    out.fill(0.0);
    for (head, out) in out.chunks_exact_mut(value).enumerate() {
        let q = &q[head * key..(head + 1) * key];
        let kv_head = head / heads_per_kv;
        // 1. Scores.
        let mut scores: Vec<f32> = seen
            .iter()
            .map(|s| {
                let score = a.scale * dot(q, &s.key[kv_head * key..(kv_head + 1) * key]);
                a.softcap.map_or(score, |cap| cap * (score / cap).tanh())
            })
            .collect();
        // 2. Softmax; the sink is one more logit without a value.
        let sink = sinks.map(|s| s[head]);
        let most = scores.iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
        let mut sum = sink.map_or(0.0, |s| (s - most).exp());
        for score in &mut scores {
            *score = (*score - most).exp();
            sum += *score;
        }
        // 3. Weighted values.
        for (score, s) in scores.iter().zip(seen) {
            let first = kv_head * s.value_stride;
            for (out, v) in out.iter_mut().zip(&s.value[first..first + value]) {
                *out += score / sum * v;
            }
        }
    }
}
