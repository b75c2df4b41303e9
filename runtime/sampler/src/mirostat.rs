//! Mirostat (Basu et al. 2020): keeps the surprise of the text near `tau` bits by feedback on `mu`.

use crate::{SamplingParams, candidates::Candidates, random::Random};

/// Ranks from which version 1 estimates the Zipf exponent.
const RANKS: usize = 100;

/// The feedback state.
#[derive(Debug, Clone)]
pub(crate) struct Mirostat {
    version: u8,
    tau: f32,
    eta: f32,
    mu: f32,
    n_vocab: usize,
}

impl Mirostat {
    /// `None` when the settings switch it off.
    pub fn new(params: &SamplingParams, n_vocab: usize) -> Option<Self> {
        (params.mirostat > 0).then_some(Self {
            version: params.mirostat,
            tau: params.mirostat_tau,
            eta: params.mirostat_eta,
            mu: 2.0 * params.mirostat_tau,
            n_vocab,
        })
    }

    /// Cuts the candidates, draws one and learns from its surprise; returns its index in the list.
    pub fn draw(&mut self, candidates: &mut Candidates, random: &mut Random) -> usize {
        candidates.softmax();
        let keep = if self.version == 1 { self.rank_cut(candidates) } else { self.surprise_cut(candidates) };
        candidates.keep_best(keep.max(1));
        candidates.softmax();
        let index = random.draw(candidates.as_slice());
        let surprise = candidates.as_slice().get(index).map_or(0.0, |candidate| -candidate.p.log2());
        self.learn(surprise);
        index
    }

    fn learn(&mut self, surprise: f32) {
        let next = self.mu - self.eta * (surprise - self.tau);
        // Absurd settings could run away; they start over.
        self.mu = if next.is_finite() { next } else { 2.0 * self.tau };
    }

    /// Version 1: the k at which a Zipf law with the estimated exponent has surprise `mu`.
    fn rank_cut(&self, candidates: &mut Candidates) -> usize {
        candidates.sort_front(RANKS);
        let list = candidates.as_slice();
        let (mut numerator, mut denominator) = (0.0, 0.0);
        for (rank, pair) in list.windows(2).take(RANKS - 1).enumerate() {
            let (Some(one), Some(two)) = (pair.first(), pair.get(1)) else { break };
            let step = ((rank + 2) as f32 / (rank + 1) as f32).ln();
            numerator += step * (one.logit - two.logit);
            denominator += step * step;
        }
        let exponent: f32 = numerator / denominator;
        let excess = exponent - 1.0;
        let k = (excess * self.mu.exp2() / (1.0 - (self.n_vocab as f32).powf(-excess))).powf(1.0 / exponent);
        // A NaN or negative k casts to 0, an infinite one to the maximum.
        k as usize
    }

    /// Version 2: the tokens with a surprise of at most `mu`.
    fn surprise_cut(&self, candidates: &Candidates) -> usize {
        candidates.as_slice().iter().filter(|candidate| -candidate.p.log2() <= self.mu).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(probabilities: &[f32]) -> Candidates {
        let row: Vec<f32> = probabilities.iter().map(|p| p.ln()).collect();
        let mut candidates = Candidates::default();
        candidates.load(&row).unwrap();
        candidates
    }

    fn state(version: u8, mu: f32, n_vocab: usize) -> Mirostat {
        Mirostat { version, tau: 3.0, eta: 0.1, mu, n_vocab }
    }

    #[test]
    fn version_2_cuts_at_the_surprise() {
        // Surprises in bits: 1, 2, 3, 3.
        for (mu, kept) in [(0.5, 1), (1.5, 1), (2.5, 2), (3.5, 4)] {
            let mut candidates = of(&[0.5, 0.25, 0.125, 0.125]);
            state(2, mu, 4).draw(&mut candidates, &mut Random::new(1));
            assert_eq!(candidates.as_slice().len(), kept, "mu = {mu}");
        }
    }

    #[test]
    fn version_1_recovers_a_zipf_exponent() {
        // p(rank) ~ rank^-2 exactly: exponent 2, excess 1, so k = sqrt(2^mu / (1 - 1/n)).
        let probabilities: Vec<f32> = (1..=200).map(|rank| 1.0 / (rank * rank) as f32).collect();
        let mut candidates = of(&probabilities);
        candidates.softmax();
        // sqrt(2^5 / 0.995) = 5.67.
        assert_eq!(state(1, 5.0, 200).rank_cut(&mut candidates), 5);
        // sqrt(2^8 / 0.995) = 16.04.
        assert_eq!(state(1, 8.0, 200).rank_cut(&mut candidates), 16);
    }

    #[test]
    fn feedback_moves_mu_against_the_error() {
        let mut mirostat = state(2, 6.0, 4);
        mirostat.learn(5.0);
        assert!((mirostat.mu - 5.8).abs() < 1e-6);
        mirostat.learn(1.0);
        assert!((mirostat.mu - 6.0).abs() < 1e-6);
        mirostat.learn(f32::INFINITY);
        assert_eq!(mirostat.mu, 6.0, "starts over at 2 tau");
    }

    #[test]
    fn a_single_candidate_is_drawn() {
        for version in [1, 2] {
            let mut candidates = of(&[1.0]);
            assert_eq!(state(version, 6.0, 1).draw(&mut candidates, &mut Random::new(1)), 0);
        }
    }

    #[test]
    fn the_surprise_settles_at_tau() {
        // 64 tokens falling off slowly: about 5.5 bits; tau = 3 is reached by cutting.
        let probabilities: Vec<f32> = (1..=64).map(|rank| 1.0 / rank as f32).collect();
        for version in [1, 2] {
            let mut mirostat = state(version, 6.0, 64);
            let mut random = Random::new(3);
            let mut sum = 0.0;
            for step in 0..2000 {
                let mut candidates = of(&probabilities);
                let index = mirostat.draw(&mut candidates, &mut random);
                if step >= 1000 {
                    sum += -candidates.as_slice()[index].p.log2();
                }
            }
            assert!((sum / 1000.0 - 3.0).abs() < 0.3, "version {version}: {}", sum / 1000.0);
        }
    }
}
