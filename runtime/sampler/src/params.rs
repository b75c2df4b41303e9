//! The settings of a chain, under llama-server's names and with its defaults.

use crate::SamplerKind;

/// The seed that asks for a random one (-1 on the wire).
pub const RANDOM_SEED: u32 = u32::MAX;

/// Settings of the chain; the defaults are llama-server's.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Seed of the draws; [`RANDOM_SEED`] draws one and the chain reports it.
    pub seed: u32,
    /// Divides the logits; at most 0 means greedy.
    pub temperature: f32,
    /// Half width of the dynamic temperature; 0 is off.
    pub dynatemp_range: f32,
    /// Exponent of the normalised entropy in the dynamic temperature.
    pub dynatemp_exponent: f32,
    /// Keep the k best; at most 0 is off.
    pub top_k: i32,
    /// Keep the smallest set with this probability; 1 is off.
    pub top_p: f32,
    /// Keep tokens with this fraction of the best probability; 0 is off.
    pub min_p: f32,
    /// Keep logits within this many standard deviations of the best; at most 0 is off.
    pub top_n_sigma: f32,
    /// Chance of an XTC cut; 0 is off.
    pub xtc_probability: f32,
    /// XTC's threshold; above 0.5 is off.
    pub xtc_threshold: f32,
    /// Locally typical sampling; 1 is off.
    pub typical_p: f32,
    /// Tokens that the penalties look back on; 0 is off, -1 the whole context.
    pub repeat_last_n: i32,
    /// Divides the logits of repeated tokens (multiplies negative ones); 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted once from tokens that occurred; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted for each occurrence; 0 is off.
    pub frequency_penalty: f32,
    /// DRY's factor; 0 is off.
    pub dry_multiplier: f32,
    /// DRY's base; below 1 is off.
    pub dry_base: f32,
    /// Repetitions shorter than this go free.
    pub dry_allowed_length: i32,
    /// Tokens that DRY looks back on; 0 is off, -1 the whole context.
    pub dry_penalty_last_n: i32,
    /// Strings over which DRY finds no repetition.
    pub dry_sequence_breakers: Vec<String>,
    /// 0 off, 1 Mirostat, 2 Mirostat 2.0. When on, only logit bias and temperature apply beside it.
    pub mirostat: u8,
    /// Mirostat's target surprise, bits.
    pub mirostat_tau: f32,
    /// Mirostat's learning rate.
    pub mirostat_eta: f32,
    /// adaptive-p's target probability; negative is off.
    pub adaptive_target: f32,
    /// adaptive-p's decay, 0 to 0.99.
    pub adaptive_decay: f32,
    /// Truncating samplers leave at least this many candidates (top_k excepted).
    pub min_keep: usize,
    /// The chain, in order. A sampler that is not listed does not run.
    pub samplers: Vec<SamplerKind>,
    /// Added to logits before anything else; `-inf` forbids a token. Pairs of token id and bias.
    pub logit_bias: Vec<(u32, f32)>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            seed: RANDOM_SEED,
            temperature: 0.8,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            top_n_sigma: -1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            typical_p: 1.0,
            repeat_last_n: 64,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: 64,
            dry_sequence_breakers: ["\n", ":", "\"", "*"].map(str::to_owned).to_vec(),
            mirostat: 0,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            adaptive_target: -1.0,
            adaptive_decay: 0.9,
            min_keep: 0,
            samplers: SamplerKind::DEFAULT_ORDER.to_vec(),
            logit_bias: Vec::new(),
        }
    }
}

/// A setting that no chain can honour.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ParamError {
    /// Not a number, infinite, or outside its range.
    #[error("{field} must be {expected}, got {value}")]
    OutOfRange {
        /// Name on the wire.
        field: &'static str,
        /// What would do.
        expected: &'static str,
        /// What was given.
        value: f64,
    },
    /// A bias names a token that the vocabulary lacks.
    #[error("logit_bias names token {token}, the vocabulary has {n_vocab}")]
    BiasToken {
        /// The token id.
        token: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// A bias is not a number or plus infinity.
    #[error("logit_bias of token {token} must be a number or -inf, got {value}")]
    BiasValue {
        /// The token id.
        token: u32,
        /// What was given.
        value: f32,
    },
    /// A random seed was asked for and the system gave none.
    #[error("the system gave no random seed; set one in the request")]
    NoEntropy,
}

impl SamplingParams {
    /// Checks every field against its range.
    ///
    /// # Errors
    /// The first field that cannot be honoured, by name.
    pub fn validate(&self, n_vocab: usize) -> Result<(), ParamError> {
        let finite = [
            ("temperature", self.temperature),
            ("dynatemp_range", self.dynatemp_range),
            ("dynatemp_exponent", self.dynatemp_exponent),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("top_n_sigma", self.top_n_sigma),
            ("xtc_probability", self.xtc_probability),
            ("xtc_threshold", self.xtc_threshold),
            ("typical_p", self.typical_p),
            ("repeat_penalty", self.repeat_penalty),
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
            ("dry_multiplier", self.dry_multiplier),
            ("dry_base", self.dry_base),
            ("mirostat_tau", self.mirostat_tau),
            ("mirostat_eta", self.mirostat_eta),
            ("adaptive_target", self.adaptive_target),
            ("adaptive_decay", self.adaptive_decay),
        ];
        for (field, value) in finite {
            check(value.is_finite(), field, "a finite number", value)?;
        }
        check(self.repeat_penalty > 0.0, "repeat_penalty", "above 0", self.repeat_penalty)?;
        check(self.dynatemp_range >= 0.0, "dynatemp_range", "at least 0", self.dynatemp_range)?;
        check(self.repeat_last_n >= -1, "repeat_last_n", "at least -1", self.repeat_last_n as f32)?;
        check(
            self.dry_penalty_last_n >= -1,
            "dry_penalty_last_n",
            "at least -1",
            self.dry_penalty_last_n as f32,
        )?;
        check(self.mirostat <= 2, "mirostat", "0, 1 or 2", f32::from(self.mirostat))?;
        check(self.adaptive_target <= 1.0, "adaptive_target", "at most 1", self.adaptive_target)?;
        check(
            (0.0..=0.99).contains(&self.adaptive_decay),
            "adaptive_decay",
            "within 0 to 0.99",
            self.adaptive_decay,
        )?;
        for &(token, value) in &self.logit_bias {
            if token as usize >= n_vocab {
                return Err(ParamError::BiasToken { token, n_vocab });
            }
            if value.is_nan() || value == f32::INFINITY {
                return Err(ParamError::BiasValue { token, value });
            }
        }
        Ok(())
    }
}

fn check(holds: bool, field: &'static str, expected: &'static str, value: f32) -> Result<(), ParamError> {
    if holds { Ok(()) } else { Err(ParamError::OutOfRange { field, expected, value: f64::from(value) }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid() {
        SamplingParams::default().validate(10).unwrap();
    }

    #[test]
    fn each_bad_field_is_named() {
        let default = SamplingParams::default;
        let cases = [
            ("temperature", SamplingParams { temperature: f32::NAN, ..default() }),
            ("top_p", SamplingParams { top_p: f32::INFINITY, ..default() }),
            ("repeat_penalty", SamplingParams { repeat_penalty: 0.0, ..default() }),
            ("repeat_last_n", SamplingParams { repeat_last_n: -2, ..default() }),
            ("mirostat", SamplingParams { mirostat: 3, ..default() }),
            ("adaptive_decay", SamplingParams { adaptive_decay: 1.0, ..default() }),
            ("dynatemp_range", SamplingParams { dynatemp_range: -0.5, ..default() }),
        ];
        for (name, params) in cases {
            match params.validate(10) {
                Err(ParamError::OutOfRange { field, .. }) => assert_eq!(field, name),
                other => panic!("{name}: {other:?}"),
            }
        }
        let outside = SamplingParams { logit_bias: vec![(10, 0.0)], ..default() };
        assert_eq!(outside.validate(10), Err(ParamError::BiasToken { token: 10, n_vocab: 10 }));
        let positive = SamplingParams { logit_bias: vec![(1, f32::INFINITY)], ..default() };
        assert!(matches!(positive.validate(10), Err(ParamError::BiasValue { token: 1, .. })));
        let forbidden = SamplingParams { logit_bias: vec![(1, f32::NEG_INFINITY)], ..default() };
        assert_eq!(forbidden.validate(10), Ok(()));
    }
}
