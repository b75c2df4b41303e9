//! The names of the samplers, as they stand in `samplers` lists and in `--sampling-seq`.

use std::{fmt, str::FromStr};

/// A member of the configurable part of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SamplerKind {
    /// Repeat, presence and frequency penalties.
    Penalties,
    /// Penalty on tokens that would prolong a repetition ("don't repeat yourself").
    Dry,
    /// Keep logits within n standard deviations of the best.
    TopNSigma,
    /// Keep the k best.
    TopK,
    /// Keep the tokens whose surprise is closest to the entropy.
    TypicalP,
    /// Keep the smallest set that holds probability p.
    TopP,
    /// Keep tokens with at least p times the best probability.
    MinP,
    /// With a chance, drop all but the least likely of the tokens above a threshold.
    Xtc,
    /// Divide by the temperature (dynamic when a range is set).
    Temperature,
    /// Draw tokens near a target probability; takes the place of the plain draw at the chain's end.
    AdaptiveP,
}

/// A sampler name that this chain does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown sampler \"{name}\"; known are penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc, temperature, adaptive_p"
)]
pub struct UnknownSampler {
    /// The name as given.
    pub name: String,
}

impl SamplerKind {
    /// llama-server's default order.
    pub const DEFAULT_ORDER: [Self; 9] = [
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::TopK,
        Self::TypicalP,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
        Self::Temperature,
    ];

    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Penalties => "penalties",
            Self::Dry => "dry",
            Self::TopNSigma => "top_n_sigma",
            Self::TopK => "top_k",
            Self::TypicalP => "typ_p",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::Xtc => "xtc",
            Self::Temperature => "temperature",
            Self::AdaptiveP => "adaptive_p",
        }
    }

    /// Reads a sequence of one-letter names such as `edskypmxt` (`--sampling-seq`, or `samplers` given as a string).
    ///
    /// # Errors
    /// The first letter that names no sampler.
    pub fn parse_sequence(letters: &str) -> Result<Vec<Self>, UnknownSampler> {
        letters
            .chars()
            .map(|letter| {
                Ok(match letter {
                    'e' => Self::Penalties,
                    'd' => Self::Dry,
                    's' => Self::TopNSigma,
                    'k' => Self::TopK,
                    'y' => Self::TypicalP,
                    'p' => Self::TopP,
                    'm' => Self::MinP,
                    'x' => Self::Xtc,
                    't' => Self::Temperature,
                    'a' => Self::AdaptiveP,
                    _ => return Err(UnknownSampler { name: letter.to_string() }),
                })
            })
            .collect()
    }
}

impl fmt::Display for SamplerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SamplerKind {
    type Err = UnknownSampler;

    /// Accepts the wire names and the spellings that llama.cpp's command line takes as well.
    fn from_str(name: &str) -> Result<Self, UnknownSampler> {
        Ok(match name {
            "penalties" => Self::Penalties,
            "dry" => Self::Dry,
            "top_n_sigma" | "top-n-sigma" => Self::TopNSigma,
            "top_k" | "top-k" => Self::TopK,
            "typ_p" | "typ-p" | "typical" | "typical-p" | "typical_p" | "typ" => Self::TypicalP,
            "top_p" | "top-p" | "nucleus" => Self::TopP,
            "min_p" | "min-p" => Self::MinP,
            "xtc" => Self::Xtc,
            "temperature" | "temp" => Self::Temperature,
            "adaptive_p" | "adaptive-p" => Self::AdaptiveP,
            _ => return Err(UnknownSampler { name: name.to_owned() }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_letters_give_the_default_order() {
        assert_eq!(SamplerKind::parse_sequence("edskypmxt").unwrap(), SamplerKind::DEFAULT_ORDER);
        for kind in SamplerKind::DEFAULT_ORDER {
            assert_eq!(kind.name().parse::<SamplerKind>().unwrap(), kind);
        }
    }

    #[test]
    fn what_is_not_there_is_refused_by_name() {
        assert_eq!("infill".parse::<SamplerKind>().unwrap_err().name, "infill");
        assert_eq!(SamplerKind::parse_sequence("kiz").unwrap_err().name, "i");
    }
}
