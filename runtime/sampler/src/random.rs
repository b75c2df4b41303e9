//! The draws: ChaCha with 8 rounds, so that a seed gives the same text on every machine and in every version of ours.

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{RngCore, SeedableRng},
};

use crate::candidates::Candidate;

#[derive(Debug, Clone)]
pub(crate) struct Random(ChaCha8Rng);

impl Random {
    pub fn new(seed: u32) -> Self {
        Self(ChaCha8Rng::seed_from_u64(u64::from(seed)))
    }

    /// Uniform in `[0, 1)`, 53 bits.
    pub fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 * (0.5f64).powi(53)
    }

    /// Index of a candidate, drawn by `p`. Never one with probability 0; 0 for an empty list.
    pub fn draw(&mut self, list: &[Candidate]) -> usize {
        let total: f64 = list.iter().map(|candidate| f64::from(candidate.p)).sum();
        let mut left = self.uniform() * total;
        let mut last = 0;
        for (index, candidate) in list.iter().enumerate() {
            if candidate.p > 0.0 {
                last = index;
                left -= f64::from(candidate.p);
                if left < 0.0 {
                    break;
                }
            }
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_the_probabilities() {
        let list: Vec<Candidate> =
            [0.5, 0.0, 0.3, 0.2].iter().zip(0..).map(|(&p, id)| Candidate { id, logit: 0.0, p }).collect();
        let mut random = Random::new(42);
        let mut counts = [0u32; 4];
        for _ in 0..10_000 {
            counts[random.draw(&list)] += 1;
        }
        // Three standard deviations of a binomial with n = 10000 are at most 150.
        assert_eq!(counts[1], 0);
        for (index, expected) in [(0, 5000u32), (2, 3000), (3, 2000)] {
            assert!(counts[index].abs_diff(expected) < 150, "{counts:?}");
        }
    }

    #[test]
    fn a_seed_is_a_stream() {
        let stream = |seed| {
            let mut random = Random::new(seed);
            std::array::from_fn::<f64, 4, _>(|_| random.uniform())
        };
        assert_eq!(stream(7), stream(7));
        assert_ne!(stream(7), stream(8));
    }
}
