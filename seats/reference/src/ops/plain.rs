//! The plain tier: small general operators that let an unknown architecture run, slowly.

use super::linear::dot;
use bloomery_program::op::Reduction;

/// Numbers of the `top_k` largest values, best first, ties to the lower number.
pub fn largest(x: &[f32], top_k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..x.len()).collect();
    // The sort is stable, so equal values stay in order; adding zero makes -0 equal to 0; NaN sorts by its bits.
    order.sort_by(|a, b| (x[*b] + 0.0).total_cmp(&(x[*a] + 0.0)));
    order.truncate(top_k);
    order
}

/// Softmax in place.
pub fn softmax(x: &mut [f32]) {
    let most = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for v in x.iter_mut() {
        *v = (*v - most).exp();
        sum += *v;
    }
    x.iter_mut().for_each(|v| *v /= sum);
}

/// `a [m, k] . b [n, k]^T`, giving `[m, n]`.
pub fn mat_mul(a: &[f32], b: &[f32], k: usize, out: &mut [f32]) {
    let n = b.len() / k;
    for (a, out) in a.chunks_exact(k).zip(out.chunks_exact_mut(n)) {
        for (b, out) in b.chunks_exact(k).zip(out) {
            *out = dot(a, b);
        }
    }
}

/// One value from each group.
pub fn reduce(x: &[f32], by: Reduction, group: usize, out: &mut [f32]) {
    for (x, out) in x.chunks_exact(group).zip(out) {
        *out = match by {
            Reduction::Sum => x.iter().sum(),
            Reduction::Mean => x.iter().sum::<f32>() / group as f32,
            Reduction::Max => x.iter().copied().fold(f32::NEG_INFINITY, f32::max),
        };
    }
}

/// `[rows, columns] -> [columns, rows]`.
pub fn transpose(x: &[f32], columns: usize, out: &mut [f32]) {
    let rows = x.len() / columns;
    for (i, v) in x.iter().enumerate() {
        out[i % columns * rows + i / columns] = *v;
    }
}
