//! Matrix times rows.

use crate::weights::Tensor;

/// Inner product in eight interleaved sums, joined as a tree: more exact than one long sum, and still plain.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let (a8, b8) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = a8.remainder().iter().zip(b8.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in a8.zip(b8) {
        for i in 0..8 {
            sums[i] += x[i] * y[i];
        }
    }
    ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7])) + rest
}

/// `y[r][o] = sum_i weight[first + o][i] * x[r][i]` for `outs` rows of the weight, read one by one and used for all
/// rows of x. `give(r, o, value)` takes the results.
///
/// # Errors
/// A row of the weight cannot be read.
pub fn multiply(
    weight: &dyn Tensor,
    first: usize,
    outs: usize,
    x: &[&[f32]],
    mut give: impl FnMut(usize, usize, f32),
) -> Result<(), String> {
    let mut scratch = Vec::new();
    for o in 0..outs {
        let row = weight.row(first + o, &mut scratch)?;
        for (r, x) in x.iter().enumerate() {
            if row.len() != x.len() {
                return Err(format!("row {} has {} values, the operand {}", first + o, row.len(), x.len()));
            }
            give(r, o, dot(row, x));
        }
    }
    Ok(())
}
