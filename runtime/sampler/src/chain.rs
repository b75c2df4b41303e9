//! The chain of one generation: its settings, its history and its draws.

use crate::{
    Candidate, ParamError, RANDOM_SEED, SamplerKind, SamplingParams,
    adaptive::Adaptive,
    candidates::{Candidates, argmax},
    dry::Dry,
    mirostat::Mirostat,
    penalties::Penalties,
    random::Random,
    temperature, truncate,
};

/// Why no token could be drawn from a row. It concerns one sequence only.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// A NaN or +inf: the computation before the sampler went wrong.
    #[error("the model returned a broken logit ({value}) for token {index}")]
    BrokenRow {
        /// Token id of the first such logit.
        index: usize,
        /// Its value.
        value: f32,
    },
    /// Every token is forbidden.
    #[error("no token is possible: every logit is -inf; check logit_bias")]
    NothingPossible,
    /// The row is not one of this vocabulary.
    #[error("a row of {got} logits for a vocabulary of {expected}")]
    Width {
        /// Size of the vocabulary.
        expected: usize,
        /// Logits in the row.
        got: usize,
    },
}

/// A sampler chain with the state of one generation. Give it the prompt's tokens through `accept`, then alternate
/// `sample` and `accept`.
#[derive(Debug)]
pub struct Sampler {
    params: SamplingParams,
    seed: u32,
    n_vocab: usize,
    /// The members that do something under these settings.
    active: Vec<SamplerKind>,
    /// The token is the argmax after the edits: nothing need be sorted.
    greedy: bool,
    penalties: Option<Penalties>,
    dry: Option<Dry>,
    mirostat: Option<Mirostat>,
    adaptive: Option<Adaptive>,
    random: Random,
    candidates: Candidates,
}

impl Sampler {
    /// A fresh chain. `breaker_sequences` gives, for a sequence-breaker string of DRY, every token sequence in which it
    /// can occur; it is only called when DRY is on.
    ///
    /// # Errors
    /// Settings outside their range, or no random seed to be had.
    pub fn new(
        params: SamplingParams,
        n_vocab: usize,
        breaker_sequences: &mut dyn FnMut(&str) -> Vec<Vec<u32>>,
    ) -> Result<Self, ParamError> {
        params.validate(n_vocab)?;
        let seed = if params.seed == RANDOM_SEED { random_seed()? } else { params.seed };
        let listed = |kind| params.mirostat == 0 && params.samplers.contains(&kind);
        let penalties = Penalties::new(&params).filter(|_| listed(SamplerKind::Penalties));
        let dry = if listed(SamplerKind::Dry) { Dry::new(&params, breaker_sequences) } else { None };
        let adaptive = Adaptive::new(&params).filter(|_| listed(SamplerKind::AdaptiveP));
        let mirostat = Mirostat::new(&params, n_vocab);
        let active: Vec<SamplerKind> = params
            .samplers
            .iter()
            .copied()
            .filter(|kind| match kind {
                SamplerKind::Penalties => penalties.is_some(),
                SamplerKind::Dry => dry.is_some(),
                SamplerKind::TopNSigma => params.top_n_sigma > 0.0,
                SamplerKind::TopK => params.top_k > 0,
                SamplerKind::TypicalP => params.typical_p < 1.0,
                SamplerKind::TopP => params.top_p < 1.0,
                SamplerKind::MinP => params.min_p > 0.0,
                SamplerKind::Xtc => params.xtc_probability > 0.0 && params.xtc_threshold <= 0.5,
                SamplerKind::Temperature => params.temperature != 1.0 || params.dynatemp_range > 0.0,
                SamplerKind::AdaptiveP => false,
            })
            .collect();
        let greedy = mirostat.is_none() && is_greedy(&params, &active);
        let random = Random::new(seed);
        let candidates = Candidates::default();
        Ok(Self {
            params,
            seed,
            n_vocab,
            active,
            greedy,
            penalties,
            dry,
            mirostat,
            adaptive,
            random,
            candidates,
        })
    }

    /// The seed in use: the one asked for, or the one drawn.
    #[must_use]
    pub fn seed(&self) -> u32 {
        self.seed
    }

    /// The settings.
    #[must_use]
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Takes a token of the prompt or of the generated text into the history.
    pub fn accept(&mut self, token: u32) {
        if let Some(penalties) = &mut self.penalties {
            penalties.accept(token);
        }
        if let Some(dry) = &mut self.dry {
            dry.accept(token);
        }
    }

    /// Draws a token from a row of logits. Its logit is finite and it is not forbidden.
    ///
    /// # Errors
    /// See [`SampleError`].
    pub fn sample(&mut self, row: &[f32]) -> Result<u32, SampleError> {
        if row.len() != self.n_vocab {
            return Err(SampleError::Width { expected: self.n_vocab, got: row.len() });
        }
        if self.greedy {
            let best = self.greedy_token(row)?;
            self.candidates.set_single(best);
            return Ok(best);
        }
        self.candidates.load(row)?;
        self.apply_bias();
        if self.candidates.max_logit() == f32::NEG_INFINITY {
            return Err(SampleError::NothingPossible);
        }
        let index = if self.mirostat.is_some() { self.draw_mirostat()? } else { self.draw_chain()? };
        self.candidates.as_slice().get(index).map(|chosen| chosen.id).ok_or(SampleError::NothingPossible)
    }

    /// What the last draw chose from, with the probabilities it used; in no particular order.
    #[must_use]
    pub fn last_candidates(&self) -> &[Candidate] {
        self.candidates.as_slice()
    }

    fn apply_bias(&mut self) {
        for &(token, bias) in &self.params.logit_bias {
            self.candidates.bias(token, bias);
        }
    }

    fn greedy_token(&mut self, row: &[f32]) -> Result<u32, SampleError> {
        if self.params.logit_bias.is_empty() && self.penalties.is_none() && self.dry.is_none() {
            return argmax(row);
        }
        self.candidates.load(row)?;
        self.apply_bias();
        if self.candidates.max_logit() == f32::NEG_INFINITY {
            return Err(SampleError::NothingPossible);
        }
        for kind in &self.active {
            match (kind, &mut self.penalties, &mut self.dry) {
                (SamplerKind::Penalties, Some(penalties), _) => penalties.apply(&mut self.candidates),
                (SamplerKind::Dry, _, Some(dry)) => dry.apply(&mut self.candidates),
                (SamplerKind::Temperature, ..) => break,
                _ => {}
            }
        }
        self.candidates.argmax()
    }

    fn draw_mirostat(&mut self) -> Result<usize, SampleError> {
        temperature::scale(&mut self.candidates, self.params.temperature)?;
        let mirostat = self.mirostat.as_mut().ok_or(SampleError::NothingPossible)?;
        Ok(mirostat.draw(&mut self.candidates, &mut self.random))
    }

    fn draw_chain(&mut self) -> Result<usize, SampleError> {
        let (params, candidates) = (&self.params, &mut self.candidates);
        let min_keep = params.min_keep;
        for kind in &self.active {
            match kind {
                SamplerKind::Penalties => {
                    self.penalties.iter().for_each(|penalties| penalties.apply(candidates))
                }
                SamplerKind::Dry => self.dry.iter_mut().for_each(|dry| dry.apply(candidates)),
                SamplerKind::TopNSigma => truncate::top_n_sigma(candidates, params.top_n_sigma),
                SamplerKind::TopK => {
                    candidates.keep_best(usize::try_from(params.top_k).unwrap_or(usize::MAX))
                }
                SamplerKind::TypicalP => truncate::typical(candidates, params.typical_p, min_keep),
                SamplerKind::TopP => truncate::top_p(candidates, params.top_p, min_keep),
                SamplerKind::MinP => truncate::min_p(candidates, params.min_p, min_keep),
                SamplerKind::Xtc => {
                    let (chance, threshold) = (params.xtc_probability, params.xtc_threshold);
                    truncate::xtc(candidates, chance, threshold, min_keep, &mut self.random);
                }
                SamplerKind::Temperature => temperature::temperature(candidates, params)?,
                SamplerKind::AdaptiveP => {}
            }
        }
        if let Some(adaptive) = &mut self.adaptive {
            return Ok(adaptive.draw(candidates, &mut self.random));
        }
        candidates.softmax();
        Ok(self.random.draw(candidates.as_slice()))
    }
}

/// Up to the greedy temperature only edits, then only cuts that leave the best in: the result is the argmax.
fn is_greedy(params: &SamplingParams, active: &[SamplerKind]) -> bool {
    let Some(end) = active.iter().position(|kind| *kind == SamplerKind::Temperature) else { return false };
    let is_edit = |kind: &&SamplerKind| matches!(kind, SamplerKind::Penalties | SamplerKind::Dry);
    params.temperature <= 0.0
        && params.dynatemp_range <= 0.0
        && active.iter().take(end).skip_while(is_edit).all(|kind| {
            matches!(kind, SamplerKind::TopNSigma | SamplerKind::TopK | SamplerKind::TopP | SamplerKind::MinP)
        })
}

fn random_seed() -> Result<u32, ParamError> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).map_err(|_| ParamError::NoEntropy)?;
    // The value that means "random" is not a seed.
    Ok(u32::from_le_bytes(bytes).min(RANDOM_SEED - 1))
}
