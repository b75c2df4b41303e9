//! The tokens that are still in play, with their logits.
//!
//! A chain starts dense (one logit a token, as the model gave it) and becomes a list at the first sampler that cuts.
//! Order is always by logit, best first, and by lower token id where logits are equal, so that nothing depends on how a
//! selection algorithm shuffles. A list is sorted only as far as somebody asked.

use std::{cmp::Ordering, collections::HashMap};

use crate::SampleError;

/// A token in play.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Token id.
    pub id: u32,
    /// Present logit, finite.
    pub logit: f32,
    /// Probability among the candidates, after [`Candidates::softmax`].
    pub p: f32,
}

/// Best first; ties by id.
pub(crate) fn better(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}

/// The set of candidates; its buffers are reused from token to token.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    row: Vec<f32>,
    list: Vec<Candidate>,
    dense: bool,
    /// This many at the list's front are the best ones in order.
    n_sorted: usize,
}

/// Best finite logit of a row, lowest id at ties.
///
/// # Errors
/// The row holds a NaN or +inf, or nothing above -inf.
pub(crate) fn argmax(row: &[f32]) -> Result<u32, SampleError> {
    check_row(row)?;
    let mut best = (0, f32::NEG_INFINITY);
    for (id, &logit) in row.iter().enumerate() {
        if logit > best.1 {
            best = (id, logit);
        }
    }
    if best.1 == f32::NEG_INFINITY { Err(SampleError::NothingPossible) } else { Ok(best.0 as u32) }
}

/// -inf is a forbidden token; any other non-finite logit is a fault of the computation.
pub(crate) fn check_row(row: &[f32]) -> Result<(), SampleError> {
    let broken = |logit: f32| logit.is_nan() || logit == f32::INFINITY;
    // A fold without early exit: the compiler turns it into wide compares.
    if !row.iter().fold(false, |seen, &logit| seen | broken(logit)) {
        return Ok(());
    }
    let index = row.iter().position(|&logit| broken(logit)).unwrap_or(0);
    Err(SampleError::BrokenRow { index, value: row.get(index).copied().unwrap_or(f32::NAN) })
}

impl Candidates {
    pub fn load(&mut self, row: &[f32]) -> Result<(), SampleError> {
        check_row(row)?;
        self.row.clear();
        self.row.extend_from_slice(row);
        self.list.clear();
        self.dense = true;
        self.n_sorted = 0;
        Ok(())
    }

    /// Only this token is left.
    pub fn set_single(&mut self, id: u32) {
        self.list.clear();
        self.list.push(Candidate { id, logit: 0.0, p: 1.0 });
        self.dense = false;
        self.n_sorted = 1;
    }

    /// Adds `bias` to one token; -inf removes it.
    pub fn bias(&mut self, id: u32, bias: f32) {
        if self.dense
            && let Some(logit) = self.row.get_mut(id as usize)
        {
            *logit = if bias == f32::NEG_INFINITY { bias } else { finite(*logit + bias, *logit) };
        }
    }

    /// Rewrites the logits of the tokens that `edits` names.
    pub fn edit<T: Copy>(&mut self, edits: &HashMap<u32, T>, mut new_logit: impl FnMut(f32, T) -> f32) {
        if self.dense {
            for (&id, &value) in edits {
                if let Some(logit) = self.row.get_mut(id as usize) {
                    *logit = finite(new_logit(*logit, value), *logit);
                }
            }
        } else {
            for candidate in &mut self.list {
                if let Some(&value) = edits.get(&candidate.id) {
                    candidate.logit = finite(new_logit(candidate.logit, value), candidate.logit);
                }
            }
            self.n_sorted = 0;
        }
    }

    pub fn argmax(&self) -> Result<u32, SampleError> {
        if self.dense {
            argmax(&self.row)
        } else {
            self.list
                .iter()
                .min_by(|a, b| better(a, b))
                .map(|best| best.id)
                .ok_or(SampleError::NothingPossible)
        }
    }

    pub fn max_logit(&self) -> f32 {
        if self.dense {
            self.row.iter().copied().fold(f32::NEG_INFINITY, f32::max)
        } else {
            self.list.iter().map(|candidate| candidate.logit).fold(f32::NEG_INFINITY, f32::max)
        }
    }

    /// The candidates as a list; forbidden tokens are not in it.
    pub fn list(&mut self) -> &mut Vec<Candidate> {
        self.keep_at_least(f32::MIN);
        &mut self.list
    }

    /// The list, where there is one.
    pub fn as_slice(&self) -> &[Candidate] {
        &self.list
    }

    /// Drops what is below `threshold`.
    pub fn keep_at_least(&mut self, threshold: f32) {
        if self.dense {
            self.list.clear();
            let enumerated = self.row.iter().enumerate().filter(|(_, logit)| **logit >= threshold);
            self.list.extend(enumerated.map(|(id, &logit)| Candidate { id: id as u32, logit, p: 0.0 }));
            self.dense = false;
            self.n_sorted = 0;
        } else if threshold > f32::MIN {
            self.list.retain(|candidate| candidate.logit >= threshold);
            self.n_sorted = self.n_sorted.min(self.list.len());
        }
    }

    /// Keeps the `k` best, sorted. A dense row is scanned once against a rising threshold; it is never sorted.
    pub fn keep_best(&mut self, k: usize) {
        if self.dense {
            let k = k.min(self.row.len());
            let full = (2 * k).max(128);
            let mut threshold = f32::NEG_INFINITY;
            self.list.clear();
            for (id, &logit) in self.row.iter().enumerate() {
                if logit > threshold {
                    self.list.push(Candidate { id: id as u32, logit, p: 0.0 });
                    if self.list.len() == full && k > 0 {
                        self.list.select_nth_unstable_by(k - 1, better);
                        self.list.truncate(k);
                        threshold = self.list.last().map_or(threshold, |worst| worst.logit);
                    }
                }
            }
            self.dense = false;
            self.n_sorted = 0;
        }
        self.sort_front(k);
        self.list.truncate(k);
        self.n_sorted = self.n_sorted.min(k);
    }

    /// Brings the `k` best to the front, in order.
    pub fn sort_front(&mut self, k: usize) {
        let k = k.min(self.list().len());
        let done = self.n_sorted;
        if k <= done {
            return;
        }
        let rest = &mut self.list[done..];
        if k - done < rest.len() {
            rest.select_nth_unstable_by(k - done - 1, better);
        }
        rest[..k - done].sort_unstable_by(better);
        self.n_sorted = k;
    }

    /// Somebody reordered the list.
    pub fn forget_order(&mut self) {
        self.n_sorted = 0;
    }

    /// Sets `p` of every candidate.
    pub fn softmax(&mut self) {
        let max = self.list().iter().map(|candidate| candidate.logit).fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        for candidate in &mut self.list {
            candidate.p = (candidate.logit - max).exp();
            sum += f64::from(candidate.p);
        }
        let scale = (1.0 / sum) as f32;
        for candidate in &mut self.list {
            candidate.p *= scale;
        }
    }
}

/// Huge penalties and biases saturate, so that a candidate's logit is finite whatever the settings. Forbidden stays forbidden.
fn finite(new: f32, old: f32) -> f32 {
    if old == f32::NEG_INFINITY { old } else { new.clamp(f32::MIN, f32::MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(candidates: &Candidates) -> Vec<u32> {
        candidates.as_slice().iter().map(|candidate| candidate.id).collect()
    }

    #[test]
    fn a_broken_row_names_the_place() {
        assert_eq!(
            argmax(&[0.0, f32::INFINITY]),
            Err(SampleError::BrokenRow { index: 1, value: f32::INFINITY })
        );
        assert!(matches!(argmax(&[0.0, 1.0, f32::NAN]), Err(SampleError::BrokenRow { index: 2, .. })));
        assert_eq!(argmax(&[f32::NEG_INFINITY; 3]), Err(SampleError::NothingPossible));
        assert_eq!(argmax(&[]), Err(SampleError::NothingPossible));
    }

    #[test]
    fn ties_go_to_the_lower_id() {
        assert_eq!(argmax(&[0.0, 2.0, 2.0, -0.0]), Ok(1));
        let mut candidates = Candidates::default();
        candidates.load(&[1.0, 5.0, 5.0, 5.0, 0.0]).unwrap();
        candidates.keep_best(2);
        assert_eq!(ids(&candidates), [1, 2]);
    }

    #[test]
    fn the_scan_equals_a_full_sort() {
        // 5000 logits in a scrambled order with many ties.
        let row: Vec<f32> =
            (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as f32 / 16.0).collect();
        for k in [1, 2, 40, 128, 129, 1000, 5000, 9000] {
            let mut candidates = Candidates::default();
            candidates.load(&row).unwrap();
            candidates.keep_best(k);
            let mut sorted: Vec<u32> = (0..5000).collect();
            sorted.sort_by(|&a, &b| row[b as usize].partial_cmp(&row[a as usize]).unwrap().then(a.cmp(&b)));
            sorted.truncate(k);
            assert_eq!(ids(&candidates), sorted, "k = {k}");
        }
    }

    #[test]
    fn a_partly_sorted_list_sorts_on_from_there() {
        let mut candidates = Candidates::default();
        candidates.load(&[3.0, 9.0, 1.0, 7.0, 5.0]).unwrap();
        candidates.sort_front(2);
        assert_eq!(ids(&candidates)[..2], [1, 3]);
        candidates.sort_front(4);
        assert_eq!(ids(&candidates), [1, 3, 4, 0, 2]);
    }

    #[test]
    fn edits_saturate_and_never_revive_a_forbidden_token() {
        let mut candidates = Candidates::default();
        candidates.load(&[1.0, f32::NEG_INFINITY]).unwrap();
        let edits = HashMap::from([(0, f32::INFINITY), (1, f32::INFINITY)]);
        candidates.edit(&edits, |logit, value| logit - value);
        assert_eq!(candidates.list().as_slice(), [Candidate { id: 0, logit: f32::MIN, p: 0.0 }]);
    }
}
