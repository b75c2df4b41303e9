//! The chain at the end of a block drafter: each row's choice shifts the next row's logits.

use super::linear::multiply;
use super::pointwise::sigmoid;
use crate::weights::Tensor;

/// Corrects the logits of a block in place, left to right, and says how sure each row is.
///
/// `prev_0` is the first row's token; `logits_i += w2 . w1[prev_i]`; `prev_{i+1} = argmax logits_i`;
/// `confidence_i = sigmoid(confidence . [hidden_i ; w1[prev_i]])`.
///
/// # Errors
/// A row of a weight cannot be read.
pub fn markov_chain(
    first: u32,
    logits: &mut [&mut [f32]],
    hidden: &[&[f32]],
    w1: &dyn Tensor,
    w2: &dyn Tensor,
    confidence: &dyn Tensor,
) -> Result<Vec<f32>, String> {
    let (mut scratch, mut scratch2) = (Vec::new(), Vec::new());
    let mut previous = first as usize;
    let mut sure = Vec::with_capacity(logits.len());
    for (logits, hidden) in logits.iter_mut().zip(hidden) {
        let token = w1.row(previous, &mut scratch)?;
        let joined: Vec<f32> = hidden.iter().chain(token).copied().collect();
        multiply(w2, 0, logits.len(), &[token], |_, o, v| logits[o] += v)?;
        sure.push(sigmoid(super::linear::dot(confidence.row(0, &mut scratch2)?, &joined)));
        previous = best(logits);
    }
    Ok(sure)
}

/// The place of the largest value, the first one among equals.
fn best(x: &[f32]) -> usize {
    let mut best = 0;
    for (i, v) in x.iter().enumerate() {
        if *v > x[best] {
            best = i;
        }
    }
    best
}
