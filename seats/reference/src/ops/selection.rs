//! Sparse attention: pooled keys, scores of store rows, the best rows.

use super::linear::dot;
use super::plain::largest;

/// Mean of the members, per channel.
pub fn pool_mean(members: &[&[f32]], out: &mut [f32]) {
    out.fill(0.0);
    for member in members {
        for (out, v) in out.iter_mut().zip(*member) {
            *out += v / members.len() as f32;
        }
    }
}

/// A member of a softmax pool: value, gate and position bias, each as wide as the result.
#[derive(Debug, Clone, Copy)]
pub struct Member<'a> {
    /// What is pooled.
    pub value: &'a [f32],
    /// Logits per channel.
    pub gate: &'a [f32],
    /// Added to the gate.
    pub bias: Option<&'a [f32]>,
}

/// `out[c] = sum_m softmax_m(gate[m][c] + bias[m][c]) * value[m][c]`.
pub fn pool_softmax(members: &[Member<'_>], out: &mut [f32]) {
    for (c, out) in out.iter_mut().enumerate() {
        let logit = |m: &Member<'_>| m.gate[c] + m.bias.map_or(0.0, |b| b[c]);
        let most = members.iter().map(logit).fold(f32::NEG_INFINITY, f32::max);
        let (mut sum, mut weighted) = (0.0, 0.0);
        for member in members {
            let weight = (logit(member) - most).exp();
            sum += weight;
            weighted += weight * member.value[c];
        }
        *out = weighted / sum;
    }
}

/// `sum_h weights[h] * relu(q[h] . key)`; without weights all heads count alike.
pub fn index_score(q: &[f32], weights: Option<&[f32]>, key: &[f32]) -> f32 {
    let heads = q.chunks_exact(key.len()).enumerate();
    heads.map(|(h, q)| weights.map_or(1.0, |w| w[h]) * dot(q, key).max(0.0)).sum()
}

/// The `top_k` best of the scores, ties to the lower row, sorted by row; with `within` only rows of that list.
pub fn top_rows(scores: &[f32], within: Option<&[usize]>, top_k: usize) -> Vec<usize> {
    let mut rows: Vec<usize> = match within {
        None => largest(scores, top_k),
        Some(within) => {
            let allowed: Vec<usize> = within.iter().copied().filter(|r| *r < scores.len()).collect();
            let candidates: Vec<f32> = allowed.iter().map(|r| scores[*r]).collect();
            largest(&candidates, top_k).into_iter().map(|i| allowed[i]).collect()
        }
    };
    rows.sort_unstable();
    rows
}

/// Token positions of rows that stand for `every` tokens each, and with `tail` those after the last complete group of
/// the `tokens` tokens.
pub fn expand(rows: &[usize], every: usize, tail: bool, tokens: usize) -> Vec<usize> {
    let mut positions: Vec<usize> = rows.iter().flat_map(|r| r * every..(r + 1) * every).collect();
    if tail {
        positions.extend(tokens / every * every..tokens);
    }
    positions
}

/// Rows of the `keep` best blocks of `block` rows, by maximum score, ties to the lower block; the newest block counts
/// as the best.
pub fn candidate_blocks(scores: &[f32], block: usize, keep: usize) -> Vec<usize> {
    let mut best: Vec<f32> =
        scores.chunks(block).map(|s| s.iter().copied().fold(f32::NEG_INFINITY, f32::max)).collect();
    if let Some(newest) = best.last_mut() {
        *newest = f32::INFINITY;
    }
    let mut blocks = largest(&best, keep);
    blocks.sort_unstable();
    blocks.into_iter().flat_map(|b| b * block..((b + 1) * block).min(scores.len())).collect()
}
