//! adaptive-p: favours tokens whose probability is near a target, and moves that target against the running mean of
//! what was chosen.

use crate::{SamplingParams, candidates::Candidates, random::Random};

/// Half width of the favoured region around the target.
const WIDTH: f32 = 0.3;
/// Logit of a token exactly at the target.
const PEAK: f32 = 5.0;
/// How steeply logits fall with the distance.
const SHARPNESS: f32 = 10.0;

/// The running mean, as decayed sums.
#[derive(Debug, Clone)]
pub(crate) struct Adaptive {
    target: f32,
    decay: f32,
    weighted_sum: f32,
    total_weight: f32,
}

impl Adaptive {
    /// `None` when the target is negative. The history starts as if the target had always been met.
    pub fn new(params: &SamplingParams) -> Option<Self> {
        let (target, decay) = (params.adaptive_target, params.adaptive_decay);
        (target >= 0.0).then_some(Self {
            target,
            decay,
            weighted_sum: target / (1.0 - decay),
            total_weight: 1.0 / (1.0 - decay),
        })
    }

    /// Draws from the reshaped distribution; returns the index in the list. `p` of the candidates is the reshaped one.
    pub fn draw(&mut self, candidates: &mut Candidates, random: &mut Random) -> usize {
        candidates.softmax();
        let target = self.adapted_target();
        let original: Vec<f32> = candidates.as_slice().iter().map(|candidate| candidate.p).collect();
        for candidate in candidates.list() {
            candidate.logit = if candidate.p > 0.0 { reshaped(candidate.p, target) } else { f32::MIN };
        }
        candidates.forget_order();
        candidates.softmax();
        let index = random.draw(candidates.as_slice());
        self.learn(original.get(index).copied().unwrap_or(self.target));
        index
    }

    fn adapted_target(&self) -> f32 {
        (2.0 * self.target - self.weighted_sum / self.total_weight).clamp(0.0, 1.0)
    }

    fn learn(&mut self, probability: f32) {
        self.weighted_sum = probability + self.decay * self.weighted_sum;
        self.total_weight = 1.0 + self.decay * self.total_weight;
    }
}

/// Quadratic near the target, linear far from it.
fn reshaped(p: f32, target: f32) -> f32 {
    let distance = (p - target).abs() / WIDTH;
    PEAK - SHARPNESS * distance * distance / (1.0 + distance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_has_known_values() {
        assert_eq!(reshaped(0.5, 0.5), 5.0);
        // One width away: 5 - 10 * 1 / 2.
        assert!(reshaped(0.8, 0.5).abs() < 1e-5);
        // Two widths away: 5 - 10 * 4 / 3.
        assert!((reshaped(0.0, 0.6) + 25.0 / 3.0).abs() < 1e-4);
    }

    #[test]
    fn the_target_moves_against_the_mean() {
        let params = SamplingParams { adaptive_target: 0.4, adaptive_decay: 0.5, ..Default::default() };
        let mut adaptive = Adaptive::new(&params).unwrap();
        assert!((adaptive.adapted_target() - 0.4).abs() < 1e-6);
        // Sums 0.8 and 2 become 1 + 0.4 = 1.4 and 2: mean 0.7, target 0.8 - 0.7.
        adaptive.learn(1.0);
        assert!((adaptive.adapted_target() - 0.1).abs() < 1e-6);
        adaptive.learn(1.0);
        assert_eq!(adaptive.adapted_target(), 0.0, "clamped");
        assert!(Adaptive::new(&SamplingParams::default()).is_none());
    }

    #[test]
    fn the_token_near_the_target_wins() {
        let row: Vec<f32> = [0.6f32, 0.3, 0.1].iter().map(|p| p.ln()).collect();
        let params = SamplingParams { adaptive_target: 0.3, ..Default::default() };
        let mut candidates = Candidates::default();
        candidates.load(&row).unwrap();
        Adaptive::new(&params).unwrap().draw(&mut candidates, &mut Random::new(1));
        let p: Vec<f32> = candidates.as_slice().iter().map(|candidate| candidate.p).collect();
        // Logits 0, 5 and 5 - 10 * (4/9) / (5/3) = 2.333: probabilities 0.0063, 0.9292, 0.0645.
        assert!((p[1] - 0.9292).abs() < 1e-3 && (p[0] - 0.0063).abs() < 1e-3, "{p:?}");
    }
}
