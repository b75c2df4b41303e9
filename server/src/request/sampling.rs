//! The sampler's fields, with llama-server's names, bounds and leniency.

use bloomery_sampler::{RANDOM_SEED, SamplerKind, SamplingParams};
use bloomery_tokenizer::Tokenizer;
use serde_json::Value;

use super::fields::{Fields, whole};
use crate::error::ApiError;

/// Reads the sampler's settings over the server's defaults.
///
/// # Errors
/// The first field that cannot be honoured, by name.
pub fn sampling(
    fields: Fields<'_>,
    defaults: &SamplingParams,
    tokenizer: &Tokenizer,
) -> Result<SamplingParams, ApiError> {
    let mut p = defaults.clone();
    let int = i64::from(i32::MAX);
    let float = |target: &mut f32, value: Option<f32>| {
        if let Some(value) = value {
            *target = value;
        }
    };
    let small = |target: &mut i32, value: Option<i64>| {
        if let Some(value) = value {
            *target = i32::try_from(value).unwrap_or(i32::MAX);
        }
    };
    if let Some(seed) = fields.integer(&["seed"], i64::MIN, i64::MAX)? {
        // Seeds are 32 bits; -1 and its unsigned twin ask for a random one.
        p.seed = seed as u32;
    }
    float(&mut p.temperature, fields.clamped("temperature", 0.0, f32::MAX)?);
    float(&mut p.dynatemp_range, fields.number("dynatemp_range")?);
    float(&mut p.dynatemp_exponent, fields.number("dynatemp_exponent")?);
    small(&mut p.top_k, fields.clamped_integer("top_k", 0, int)?);
    float(&mut p.top_p, fields.clamped("top_p", 0.0, 1.0)?);
    float(&mut p.min_p, fields.clamped("min_p", 0.0, 1.0)?);
    float(&mut p.top_n_sigma, fields.number("top_n_sigma")?);
    float(&mut p.xtc_probability, fields.clamped("xtc_probability", 0.0, 1.0)?);
    float(&mut p.xtc_threshold, fields.clamped("xtc_threshold", 0.0, 1.0)?);
    float(&mut p.typical_p, fields.number("typical_p")?);
    small(&mut p.repeat_last_n, fields.integer(&["repeat_last_n"], -1, int)?);
    float(&mut p.repeat_penalty, fields.number("repeat_penalty")?);
    float(&mut p.presence_penalty, fields.number("presence_penalty")?);
    float(&mut p.frequency_penalty, fields.number("frequency_penalty")?);
    float(&mut p.dry_multiplier, fields.number("dry_multiplier")?);
    // A base below 1 would reward repetition; llama-server takes its default then.
    float(&mut p.dry_base, fields.number("dry_base")?.filter(|base| *base >= 1.0));
    small(&mut p.dry_allowed_length, fields.integer(&["dry_allowed_length"], 0, int)?);
    small(&mut p.dry_penalty_last_n, fields.integer(&["dry_penalty_last_n"], -1, int)?);
    if let Some(breakers) = fields.texts("dry_sequence_breakers")? {
        if breakers.is_empty() {
            return Err(ApiError::field("dry_sequence_breakers", "must be a non-empty array of strings"));
        }
        p.dry_sequence_breakers = breakers;
    }
    if let Some(mirostat) = fields.clamped_integer("mirostat", 0, 2)? {
        p.mirostat = u8::try_from(mirostat).unwrap_or(0);
    }
    float(&mut p.mirostat_tau, fields.number("mirostat_tau")?);
    float(&mut p.mirostat_eta, fields.number("mirostat_eta")?);
    float(&mut p.adaptive_target, fields.clamped("adaptive_target", f32::MIN, 1.0)?);
    float(&mut p.adaptive_decay, fields.number("adaptive_decay")?);
    if let Some(keep) = fields.integer(&["min_keep"], 0, int)? {
        p.min_keep = usize::try_from(keep).unwrap_or(0);
    }
    if let Some(samplers) = fields.get("samplers") {
        p.samplers = chain(samplers)?;
    }
    if let Some(bias) = fields.get("logit_bias") {
        p.logit_bias = logit_bias(bias, tokenizer)?;
    }
    if fields.flag("ignore_eos")? == Some(true) {
        forbid_end(&mut p, tokenizer);
    }
    p.validate(tokenizer.len()).map_err(|error| ApiError::Invalid(error.to_string()))?;
    Ok(p)
}

/// Gives every end-of-generation token a bias of minus infinity.
pub fn forbid_end(params: &mut SamplingParams, tokenizer: &Tokenizer) {
    for token in tokenizer.end_of_generation() {
        if !params.logit_bias.iter().any(|&(id, bias)| id == token && bias == f32::NEG_INFINITY) {
            params.logit_bias.push((token, f32::NEG_INFINITY));
        }
    }
}

/// The seed of one of several answers to the same request: each differs, and a fixed seed gives fixed seeds.
#[must_use]
pub fn seed_of(seed: u32, index: usize) -> u32 {
    if seed == RANDOM_SEED { seed } else { seed.wrapping_add(u32::try_from(index).unwrap_or(u32::MAX)) }
}

/// `samplers`: a list of names, or a word of letters.
fn chain(value: &Value) -> Result<Vec<SamplerKind>, ApiError> {
    let bad = |error: &dyn std::fmt::Display| ApiError::field("samplers", error);
    match value {
        Value::String(letters) => SamplerKind::parse_sequence(letters).map_err(|error| bad(&error)),
        Value::Array(names) => names
            .iter()
            .map(|name| {
                let name = name.as_str().ok_or_else(|| bad(&"must be an array of names"))?;
                name.parse().map_err(|error| bad(&error))
            })
            .collect(),
        _ => Err(bad(&"must be an array of names or a string of letters")),
    }
}

/// `logit_bias`: pairs of token and bias, or an object. A token is an id or a text (each of its tokens then); `false` forbids.
fn logit_bias(value: &Value, tokenizer: &Tokenizer) -> Result<Vec<(u32, f32)>, ApiError> {
    let bad = |problem: &str| ApiError::field("logit_bias", problem);
    let bias_of = |value: &Value| match value {
        Value::Bool(false) => Ok(f32::NEG_INFINITY),
        Value::Number(number) => {
            let bias = number.as_f64().unwrap_or(f64::NAN) as f32;
            if bias.is_finite() { Ok(bias) } else { Err(bad("a bias is too large")) }
        }
        _ => Err(bad("a bias must be a number or false")),
    };
    let id_of = |id: i64| {
        u32::try_from(id)
            .ok()
            .filter(|id| (*id as usize) < tokenizer.len())
            .ok_or_else(|| bad(&format!("token {id} is outside the vocabulary of {}", tokenizer.len())))
    };
    let of_text = |text: &str, bias: f32| {
        tokenizer.encode(text, false, false).into_iter().map(move |token| (token, bias))
    };
    let mut out = Vec::new();
    match value {
        Value::Array(pairs) => {
            for pair in pairs {
                let Some([token, bias]) = pair.as_array().map(Vec::as_slice) else {
                    return Err(bad("must be an array of [token, bias] pairs, or an object"));
                };
                let bias = bias_of(bias)?;
                match (token, whole(token)) {
                    (Value::String(text), _) => out.extend(of_text(text, bias)),
                    (_, Some(id)) => out.push((id_of(id)?, bias)),
                    _ => return Err(bad("a token must be an id or a string")),
                }
            }
        }
        Value::Object(map) => {
            for (token, bias) in map {
                let bias = bias_of(bias)?;
                match token.parse::<i64>() {
                    Ok(id) => out.push((id_of(id)?, bias)),
                    Err(_) => out.extend(of_text(token, bias)),
                }
            }
        }
        _ => return Err(bad("must be an array of [token, bias] pairs, or an object")),
    }
    Ok(out)
}
