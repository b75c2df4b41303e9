//! Probabilities for reports (`n_probs`): of the raw row, before any sampler.

use crate::SampleError;
use crate::candidates::{Candidates, check_row, max_of};

/// Natural logarithms of probabilities under the softmax of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct RowProbs {
    /// Of the token that was asked about.
    pub chosen: f32,
    /// The most likely tokens with theirs, best first.
    pub top: Vec<(u32, f32)>,
}

/// Log-probabilities of `chosen` and of the `n` most likely tokens of a row of logits.
///
/// # Errors
/// A broken row, or one with nothing possible.
pub fn row_probs(row: &[f32], chosen: u32, n: usize) -> Result<RowProbs, SampleError> {
    check_row(row)?;
    let max = max_of(row);
    if max == f32::NEG_INFINITY {
        return Err(SampleError::NothingPossible);
    }
    let sum: f64 = row.iter().map(|&logit| f64::from((logit - max).exp())).sum();
    let norm = max + sum.ln() as f32;
    let mut candidates = Candidates::default();
    if n > 0 {
        candidates.load(row)?;
        candidates.keep_best(n);
    }
    Ok(RowProbs {
        chosen: row.get(chosen as usize).map_or(f32::NEG_INFINITY, |&logit| logit - norm),
        top: candidates.as_slice().iter().map(|candidate| (candidate.id, candidate.logit - norm)).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_of_the_softmax() {
        let row: Vec<f32> = [0.1f32, 0.4, 0.0, 0.5].iter().map(|p| p.ln() + 3.0).collect();
        let probs = row_probs(&row, 0, 2).unwrap();
        assert!((probs.chosen - 0.1f32.ln()).abs() < 1e-5);
        assert_eq!(probs.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [3, 1]);
        assert!((probs.top[0].1 - 0.5f32.ln()).abs() < 1e-5);
        assert_eq!(row_probs(&row, 2, 9).unwrap().top.len(), 3, "a forbidden token is no alternative");
        assert_eq!(row_probs(&row, 2, 0).unwrap().chosen, f32::NEG_INFINITY);
    }
}
