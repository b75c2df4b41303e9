//! DRY: a token that would prolong a repetition of earlier text loses `multiplier * base^(length - allowed_length)`.

use std::collections::HashMap;

use crate::{SamplingParams, candidates::Candidates};

/// DRY's settings, and the tokens it has seen.
#[derive(Debug)]
pub(crate) struct Dry {
    multiplier: f32,
    base: f32,
    allowed_length: usize,
    last_n: usize,
    /// Token sequences that hold a breaker, by first token; the rest of each sequence in order.
    breakers: HashMap<u32, Vec<Vec<u32>>>,
    history: Vec<u32>,
    reversed: Vec<u32>,
    matches: Vec<usize>,
}

impl Dry {
    /// `None` when the settings switch it off. `sequences` gives the token sequences in which a breaker string can occur.
    pub fn new(params: &SamplingParams, sequences: &mut dyn FnMut(&str) -> Vec<Vec<u32>>) -> Option<Self> {
        if params.dry_multiplier == 0.0 || params.dry_base < 1.0 || params.dry_penalty_last_n == 0 {
            return None;
        }
        let mut breakers: HashMap<u32, Vec<Vec<u32>>> = HashMap::new();
        for text in params.dry_sequence_breakers.iter().filter(|text| !text.is_empty()) {
            for sequence in sequences(text) {
                if let Some((&first, rest)) = sequence.split_first() {
                    breakers.entry(first).or_default().push(rest.to_vec());
                }
            }
        }
        Some(Self {
            multiplier: params.dry_multiplier,
            base: params.dry_base,
            allowed_length: usize::try_from(params.dry_allowed_length).unwrap_or(0),
            last_n: usize::try_from(params.dry_penalty_last_n).unwrap_or(usize::MAX),
            breakers,
            history: Vec::new(),
            reversed: Vec::new(),
            matches: Vec::new(),
        })
    }

    pub fn accept(&mut self, token: u32) {
        self.history.push(token);
    }

    pub fn apply(&mut self, candidates: &mut Candidates) {
        let window = self.history.len().min(self.last_n);
        self.reversed.clear();
        self.reversed.extend(self.history.iter().rev().take(window));
        let limit = self.run_since_breaker();
        if window <= self.allowed_length || limit < self.allowed_length {
            return;
        }
        prefix_matches(&self.reversed, &mut self.matches);
        // The match at distance `i` ends just before the token at distance `i - 1`: that one would prolong it.
        let mut longest: HashMap<u32, usize> = HashMap::new();
        for (&length, &follower) in self.matches.iter().skip(1).zip(&self.reversed) {
            let length = length.min(limit);
            if length >= self.allowed_length {
                let entry = longest.entry(follower).or_insert(length);
                *entry = (*entry).max(length);
            }
        }
        // Above this exponent the power leaves f32.
        let cap = if self.base > 1.000_001 { f32::MAX.ln() / self.base.ln() } else { f32::INFINITY };
        candidates.edit(&longest, |logit, length| {
            let exponent = ((length - self.allowed_length) as f32).min(cap.floor());
            logit - self.multiplier * self.base.powf(exponent)
        });
    }

    /// Tokens at the end that stand after the latest breaker.
    fn run_since_breaker(&self) -> usize {
        for (distance, token) in self.reversed.iter().enumerate() {
            let Some(rests) = self.breakers.get(token) else { continue };
            // `rest` must follow the token: at the distances below it, going towards the end.
            let longest = rests
                .iter()
                .filter(|rest| {
                    rest.len() <= distance
                        && rest
                            .iter()
                            .enumerate()
                            .all(|(i, token)| self.reversed.get(distance - 1 - i) == Some(token))
                })
                .map(Vec::len)
                .max();
            if let Some(length) = longest {
                return distance - length;
            }
        }
        self.reversed.len()
    }
}

/// The Z function: `out[i]` is the length of the longest common prefix of `text` and `text[i..]`; linear time.
fn prefix_matches(text: &[u32], out: &mut Vec<usize>) {
    out.clear();
    out.resize(text.len(), 0);
    let (mut left, mut right) = (0, 0);
    for i in 1..text.len() {
        let mut length = if i < right { out[i - left].min(right - i) } else { 0 };
        while i + length < text.len() && text[length] == text[i + length] {
            length += 1;
        }
        if i + length > right {
            (left, right) = (i, i + length);
        }
        out[i] = length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn penalties(params: &SamplingParams, history: &[u32]) -> Vec<f32> {
        // Breakers: token 9 alone, or 7 followed by 8.
        let mut dry = Dry::new(params, &mut |text| match text {
            "nine" => vec![vec![9]],
            "seven eight" => vec![vec![7, 8]],
            _ => vec![],
        })
        .unwrap();
        history.iter().for_each(|&token| dry.accept(token));
        let mut candidates = Candidates::default();
        candidates.load(&[0.0; 10]).unwrap();
        dry.apply(&mut candidates);
        candidates.list().iter().map(|candidate| -candidate.logit).collect()
    }

    fn settings() -> SamplingParams {
        SamplingParams {
            dry_multiplier: 1.0,
            dry_base: 2.0,
            dry_allowed_length: 2,
            dry_penalty_last_n: -1,
            dry_sequence_breakers: vec!["nine".into(), "seven eight".into()],
            ..Default::default()
        }
    }

    #[test]
    fn matches_equal_the_definition() {
        let text: Vec<u32> = "abacabadabacaba-abac".bytes().map(u32::from).collect();
        let mut found = Vec::new();
        prefix_matches(&text, &mut found);
        for i in 1..text.len() {
            let expected = text.iter().zip(&text[i..]).take_while(|(a, b)| a == b).count();
            assert_eq!(found[i], expected, "at {i}");
        }
    }

    #[test]
    fn the_follower_of_a_repetition_is_penalised() {
        // 1 2 3 ... 1 2: the next 3 would make it a repetition of length 2, which costs 2^0.
        assert_eq!(penalties(&settings(), &[1, 2, 3, 4, 1, 2]), [0., 0., 0., 1., 0., 0., 0., 0., 0., 0.]);
        // Length 3: 2^1.
        assert_eq!(penalties(&settings(), &[1, 2, 3, 4, 5, 1, 2, 3])[4], 2.0);
        // The longest of several counts: "1 2" -> 3 and "0 1 2" -> 3.
        assert_eq!(penalties(&settings(), &[1, 2, 3, 0, 1, 2, 3, 5, 0, 1, 2])[3], 2.0);
        // Too short.
        assert_eq!(penalties(&settings(), &[1, 2, 3, 4, 2]), [0.0; 10]);
    }

    #[test]
    fn breakers_cut_the_repetition() {
        // Without the breaker "2 9 3" would be a match of 3 (penalty 2); after it only "3" counts, which is too short.
        assert_eq!(penalties(&settings(), &[2, 9, 3, 4, 2, 9, 3]), [0.0; 10]);
        assert_eq!(penalties(&settings(), &[2, 7, 8, 3, 4, 2, 7, 8, 3]), [0.0; 10]);
        // 7 alone is no breaker.
        assert_eq!(penalties(&settings(), &[2, 7, 3, 4, 2, 7, 3])[4], 2.0);
        // Two tokens after the breaker count.
        assert_eq!(penalties(&settings(), &[9, 1, 2, 3, 4, 9, 1, 2])[3], 1.0);
    }

    #[test]
    fn the_window_and_huge_repetitions_are_bounded() {
        let short = SamplingParams { dry_penalty_last_n: 4, ..settings() };
        assert_eq!(penalties(&short, &[1, 2, 3, 4, 1, 2]), [0.0; 10]);
        let long = penalties(&settings(), &[1; 3000]);
        assert!(long[1].is_finite() && long[1] > 1e30);
    }

    #[test]
    fn off_is_off() {
        for params in [
            SamplingParams { dry_multiplier: 0.0, ..settings() },
            SamplingParams { dry_base: 0.5, ..settings() },
            SamplingParams { dry_penalty_last_n: 0, ..settings() },
        ] {
            assert!(Dry::new(&params, &mut |_| vec![]).is_none());
        }
    }
}
