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
    /// Probability among the candidates, once a sampler or the draw has asked for it.
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
    let max = max_of(row);
    if max == f32::NEG_INFINITY {
        return Err(SampleError::NothingPossible);
    }
    row.iter().position(|&logit| logit == max).map(|id| id as u32).ok_or(SampleError::NothingPossible)
}

/// The largest value; -inf for an empty row. Sixteen lanes, which the compiler turns into wide maxima.
pub(crate) fn max_of(row: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (chunks, rest) = row.as_chunks::<16>();
    let mut lanes = [f32::NEG_INFINITY; 16];
    for chunk in chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, logit);
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |max, &logit| larger(max, logit))
}

/// Lists of this length are sorted rather than searched.
const SHORT: usize = 64;

/// Number of items that hold `mass` together when taken in `order`, at least `min_keep`: they are brought to the front,
/// sorted only around the last of them. `strict` asks for more than `mass` in place of at least it. Linear time: the
/// half that holds the end is searched on.
pub(crate) fn front_with_mass<T>(
    items: &mut [T],
    mass: f64,
    strict: bool,
    min_keep: usize,
    weight: impl Fn(&T) -> f32,
    order: impl Fn(&T, &T) -> Ordering,
) -> usize {
    let reached = |sum: f64| if strict { sum > mass } else { sum >= mass };
    let (mut from, mut to, mut before) = (0, items.len(), 0.0);
    while to - from > SHORT {
        let half = (to - from) / 2;
        let range = &mut items[from..to];
        range.select_nth_unstable_by(half, &order);
        let sum: f64 = before + range[..half].iter().map(|item| f64::from(weight(item))).sum::<f64>();
        if reached(sum) && from + half >= min_keep {
            to = from + half;
        } else {
            (from, before) = (from + half, sum);
        }
    }
    let range = &mut items[from..to];
    range.sort_unstable_by(&order);
    for (index, item) in range.iter().enumerate() {
        before += f64::from(weight(item));
        if reached(before) && from + index + 1 >= min_keep {
            return from + index + 1;
        }
    }
    to
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
            max_of(&self.row)
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

    /// Keeps the smallest set of best candidates whose `p` together reaches `mass`, and at least `min_keep`.
    pub fn keep_mass(&mut self, mass: f32, min_keep: usize) {
        // A short list comes out sorted as a whole, a long one only around its end.
        let short = self.list().len() <= SHORT;
        let kept = front_with_mass(
            &mut self.list,
            f64::from(mass),
            false,
            min_keep,
            |candidate| candidate.p,
            better,
        );
        self.list.truncate(kept.max(1));
        self.n_sorted = if short { self.list.len() } else { 0 };
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
    fn the_front_with_a_mass_equals_the_one_of_a_full_sort() {
        // Weights of 1 and 2 thirds of a thousandth, in a scrambled order: sums are exact enough to compare.
        let items: Vec<(u32, f32)> = (0..3000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 8, if i % 3 == 0 { 0.25 } else { 0.5 }))
            .collect();
        let total: f64 = items.iter().map(|item| f64::from(item.1)).sum();
        let mut sorted = items.clone();
        sorted.sort_by_key(|item| item.0);
        for strict in [false, true] {
            for (share, min_keep) in
                [(0.0, 0), (0.1, 0), (0.5, 700), (0.5, 2000), (0.999, 0), (1.0, 0), (2.0, 0), (0.1, 9000)]
            {
                let mass = (total * share * 4.0).floor() / 4.0;
                let reached = |sum: f64| if strict { sum > mass } else { sum >= mass };
                let mut sum = 0.0;
                let end = sorted.iter().enumerate().position(|(index, item)| {
                    sum += f64::from(item.1);
                    reached(sum) && index + 1 >= min_keep
                });
                let expected = end.map_or(items.len(), |end| end + 1);
                let mut front = items.clone();
                let kept =
                    front_with_mass(&mut front, mass, strict, min_keep, |item| item.1, |a, b| a.0.cmp(&b.0));
                assert_eq!(kept, expected, "{share} of the mass, {min_keep} at least, strict: {strict}");
                let mut front: Vec<u32> = front[..kept].iter().map(|item| item.0).collect();
                front.sort_unstable();
                assert!(front.iter().eq(sorted[..kept].iter().map(|item| &item.0)));
            }
        }
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
