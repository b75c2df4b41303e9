//! Repeat, presence and frequency penalties over a window of the last tokens.

use std::collections::{HashMap, VecDeque};

use crate::{SamplingParams, candidates::Candidates};

/// Counts of the tokens in the window, kept up to date token by token.
#[derive(Debug)]
pub(crate) struct Penalties {
    repeat: f32,
    presence: f32,
    frequency: f32,
    /// Tokens in the window; `None` is all of them.
    last_n: Option<usize>,
    window: VecDeque<u32>,
    counts: HashMap<u32, u32>,
}

impl Penalties {
    /// `None` when the settings leave every logit as it is.
    pub fn new(params: &SamplingParams) -> Option<Self> {
        let neutral =
            params.repeat_penalty == 1.0 && params.presence_penalty == 0.0 && params.frequency_penalty == 0.0;
        if neutral || params.repeat_last_n == 0 {
            return None;
        }
        Some(Self {
            repeat: params.repeat_penalty,
            presence: params.presence_penalty,
            frequency: params.frequency_penalty,
            last_n: usize::try_from(params.repeat_last_n).ok(),
            window: VecDeque::new(),
            counts: HashMap::new(),
        })
    }

    pub fn accept(&mut self, token: u32) {
        *self.counts.entry(token).or_insert(0) += 1;
        let Some(last_n) = self.last_n else { return };
        self.window.push_back(token);
        if self.window.len() > last_n
            && let Some(old) = self.window.pop_front()
            && let Some(count) = self.counts.get_mut(&old)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&old);
            }
        }
    }

    /// A positive logit is divided by the repeat penalty, any other multiplied; then
    /// `count * frequency + presence` is subtracted.
    pub fn apply(&self, candidates: &mut Candidates) {
        candidates.edit(&self.counts, |logit, count| {
            let scaled = if logit > 0.0 { logit / self.repeat } else { logit * self.repeat };
            scaled - (count as f32 * self.frequency + self.presence)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(params: &SamplingParams, history: &[u32]) -> Vec<f32> {
        let mut penalties = Penalties::new(params).unwrap();
        history.iter().for_each(|&token| penalties.accept(token));
        let mut candidates = Candidates::default();
        candidates.load(&[2.0, -2.0, 1.0, 0.0]).unwrap();
        penalties.apply(&mut candidates);
        candidates.list().iter().map(|candidate| candidate.logit).collect()
    }

    #[test]
    fn repeat_pushes_towards_minus_infinity_on_both_sides_of_zero() {
        let params = SamplingParams { repeat_penalty: 2.0, ..Default::default() };
        assert_eq!(logits(&params, &[0, 1, 3]), [1.0, -4.0, 1.0, 0.0]);
    }

    #[test]
    fn presence_counts_once_and_frequency_each_time() {
        let params = SamplingParams { presence_penalty: 0.5, frequency_penalty: 0.25, ..Default::default() };
        assert_eq!(logits(&params, &[0, 0, 0, 1]), [0.75, -2.75, 1.0, 0.0]);
    }

    #[test]
    fn the_window_forgets() {
        let mut params = SamplingParams { presence_penalty: 1.0, repeat_last_n: 2, ..Default::default() };
        assert_eq!(logits(&params, &[0, 0, 1, 2]), [2.0, -3.0, 0.0, 0.0]);
        params.repeat_last_n = -1;
        assert_eq!(logits(&params, &[0, 0, 1, 2]), [1.0, -3.0, 0.0, 0.0]);
        params.repeat_last_n = 0;
        assert!(Penalties::new(&params).is_none());
    }
}
