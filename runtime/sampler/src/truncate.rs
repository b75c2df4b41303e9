//! The samplers that drop candidates: top_n_sigma, top_k, typical, top_p, min_p, XTC.

use crate::{
    candidates::{Candidate, Candidates, front_with_mass},
    random::Random,
};

/// Keeps logits of at least `max - n * sigma`, sigma being the standard deviation of all logits in play.
pub(crate) fn top_n_sigma(candidates: &mut Candidates, n: f32) {
    let list = candidates.list();
    if list.len() < 2 {
        return;
    }
    let count = list.len() as f64;
    let mean = list.iter().map(|candidate| f64::from(candidate.logit)).sum::<f64>() / count;
    let variance =
        list.iter().map(|candidate| (f64::from(candidate.logit) - mean).powi(2)).sum::<f64>() / count;
    let threshold = candidates.max_logit() - n * variance.sqrt() as f32;
    candidates.keep_at_least(threshold.max(f32::MIN));
}

/// Keeps the smallest set of best tokens whose probability reaches `p`.
pub(crate) fn top_p(candidates: &mut Candidates, p: f32, min_keep: usize) {
    candidates.softmax();
    candidates.keep_mass(p, min_keep);
}

/// Keeps tokens whose probability is at least `p` times the best one's; never fewer than `min_keep`.
pub(crate) fn min_p(candidates: &mut Candidates, p: f32, min_keep: usize) {
    let max = candidates.max_logit();
    let threshold = (max + p.ln()).min(max);
    if min_keep > 1
        && candidates.list().iter().filter(|candidate| candidate.logit >= threshold).count() < min_keep
    {
        candidates.keep_best(min_keep);
    } else {
        candidates.keep_at_least(threshold);
    }
}

/// Locally typical sampling (Meister et al. 2022): keeps the tokens whose surprise is closest to the entropy until
/// their probability exceeds `p`.
pub(crate) fn typical(candidates: &mut Candidates, p: f32, min_keep: usize) {
    candidates.softmax();
    candidates.forget_order();
    let entropy = entropy(candidates);
    let list = candidates.list();
    let distance = |candidate: &Candidate| (-candidate.p.ln() - entropy).abs();
    let mut ranked: Vec<(f32, Candidate)> =
        list.iter().map(|candidate| (distance(candidate), *candidate)).collect();
    let order = |a: &(f32, Candidate), b: &(f32, Candidate)| a.0.total_cmp(&b.0).then(a.1.id.cmp(&b.1.id));
    let kept = front_with_mass(&mut ranked, f64::from(p), true, min_keep, |ranked| ranked.1.p, order);
    list.clear();
    list.extend(ranked.into_iter().take(kept.max(1)).map(|ranked| ranked.1));
}

/// "Exclude top choices": with the given chance, of all tokens at or above `threshold` only the least likely stays.
pub(crate) fn xtc(
    candidates: &mut Candidates,
    probability: f32,
    threshold: f32,
    min_keep: usize,
    random: &mut Random,
) {
    if candidates.list().len() < 2 || random.uniform() as f32 > probability {
        return;
    }
    candidates.softmax();
    let n_above = candidates.as_slice().iter().filter(|candidate| candidate.p >= threshold).count();
    if n_above < 2 {
        return;
    }
    candidates.sort_front(n_above);
    let n_dropped = n_above - 1;
    if candidates.as_slice().len() - n_dropped >= min_keep.max(1) {
        candidates.list().drain(..n_dropped);
        candidates.forget_order();
    }
}

/// Entropy of the candidates' probabilities in nats.
pub(crate) fn entropy(candidates: &Candidates) -> f32 {
    candidates
        .as_slice()
        .iter()
        .filter(|candidate| candidate.p > 0.0)
        .map(|candidate| -candidate.p * candidate.p.ln())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logits that give these probabilities.
    fn of(probabilities: &[f32]) -> Candidates {
        let row: Vec<f32> = probabilities.iter().map(|p| p.ln()).collect();
        let mut candidates = Candidates::default();
        candidates.load(&row).unwrap();
        candidates
    }

    fn ids(mut candidates: Candidates) -> Vec<u32> {
        let mut ids: Vec<u32> = candidates.list().iter().map(|candidate| candidate.id).collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn top_k_keeps_the_best() {
        let mut candidates = of(&[0.1, 0.2, 0.3, 0.4]);
        candidates.keep_best(3);
        assert_eq!(ids(candidates), [1, 2, 3]);
    }

    #[test]
    fn top_p_counts_the_token_that_crosses() {
        for (p, kept) in [
            (0.0, vec![3]),
            (0.39, vec![3]),
            (0.41, vec![2, 3]),
            (0.71, vec![1, 2, 3]),
            (0.95, vec![0, 1, 2, 3]),
        ] {
            let mut candidates = of(&[0.1, 0.2, 0.3, 0.4]);
            top_p(&mut candidates, p, 0);
            assert_eq!(ids(candidates), kept, "p = {p}");
        }
        let mut candidates = of(&[0.1, 0.2, 0.3, 0.4]);
        top_p(&mut candidates, 0.1, 3);
        assert_eq!(ids(candidates), [1, 2, 3], "min_keep");
    }

    #[test]
    fn top_p_goes_past_its_first_sorted_block() {
        let mut candidates = of(&[0.001; 1000]);
        top_p(&mut candidates, 0.4995, 0);
        assert_eq!(ids(candidates), (0..500).collect::<Vec<_>>());
    }

    #[test]
    fn min_p_is_relative_to_the_best() {
        for (p, kept) in [
            (0.26, vec![1, 2, 3]),
            (0.49, vec![1, 2, 3]),
            (0.51, vec![2, 3]),
            (0.74, vec![2, 3]),
            (0.76, vec![3]),
            (1.0, vec![3]),
        ] {
            let mut candidates = of(&[0.1, 0.2, 0.3, 0.4]);
            min_p(&mut candidates, p, 0);
            assert_eq!(ids(candidates), kept, "p = {p}");
        }
        let mut candidates = of(&[0.1, 0.2, 0.3, 0.4]);
        min_p(&mut candidates, 0.76, 2);
        assert_eq!(ids(candidates), [2, 3], "min_keep");
        let mut candidates = of(&[0.1, 0.2, 0.3, 0.4]);
        min_p(&mut candidates, 2.0, 0);
        assert_eq!(ids(candidates), [3], "above 1 the best still stays");
    }

    #[test]
    fn typical_prefers_average_surprise() {
        // Surprises: 0.97 has 0.03, the three 0.01 have 4.6; entropy 0.168 lies next to the first.
        let mut candidates = of(&[0.97, 0.01, 0.01, 0.01]);
        typical(&mut candidates, 0.5, 0);
        assert_eq!(ids(candidates), [0]);
        // Entropy of (0.4, 0.2, 0.2, 0.2) is 1.332: 0.2 (1.609, off by 0.277) is closer than 0.4 (0.916, off by 0.416).
        let mut candidates = of(&[0.4, 0.2, 0.2, 0.2]);
        typical(&mut candidates, 0.5, 0);
        assert_eq!(ids(candidates), [1, 2, 3]);
    }

    #[test]
    fn top_n_sigma_measures_from_the_best() {
        // Mean 2, variance (4 + 1 + 0 + 1 + 4) / 5 = 2, sigma 1.414.
        for (n, kept) in [(0.5, vec![4]), (1.0, vec![3, 4]), (1.5, vec![2, 3, 4]), (3.0, vec![0, 1, 2, 3, 4])]
        {
            let mut candidates = Candidates::default();
            candidates.load(&[0.0, 1.0, 2.0, 3.0, 4.0, f32::NEG_INFINITY]).unwrap();
            top_n_sigma(&mut candidates, n);
            assert_eq!(ids(candidates), kept, "n = {n}");
        }
    }

    #[test]
    fn xtc_leaves_the_least_of_the_likely() {
        let cut = |threshold, min_keep| {
            let mut candidates = of(&[0.4, 0.3, 0.2, 0.1]);
            xtc(&mut candidates, 1.0, threshold, min_keep, &mut Random::new(1));
            ids(candidates)
        };
        assert_eq!(cut(0.09, 0), [3]);
        assert_eq!(cut(0.15, 0), [2, 3]);
        assert_eq!(cut(0.25, 0), [1, 2, 3]);
        assert_eq!(cut(0.35, 0), [0, 1, 2, 3], "a single likely token stays");
        assert_eq!(cut(0.09, 2), [0, 1, 2, 3], "would leave too few");
        let mut never = of(&[0.4, 0.3, 0.2, 0.1]);
        xtc(&mut never, 0.0, 0.09, 0, &mut Random::new(1));
        assert_eq!(ids(never), [0, 1, 2, 3]);
    }
}
