//! Temperature, plain and dynamic.

use crate::{SampleError, SamplingParams, candidates::Candidates, truncate::entropy};

/// Divides the logits by the temperature. With a range set the temperature follows the entropy (Zhu et al., "EDT";
/// llama.cpp's dynatemp): `low + (high - low) * (entropy / ln(count))^exponent`.
pub(crate) fn temperature(candidates: &mut Candidates, params: &SamplingParams) -> Result<(), SampleError> {
    if params.dynatemp_range <= 0.0 {
        return scale(candidates, params.temperature);
    }
    let n = candidates.list().len();
    if n < 2 {
        return Ok(());
    }
    let low = (params.temperature - params.dynatemp_range).max(0.0);
    let high = params.temperature + params.dynatemp_range;
    candidates.softmax();
    let normalised = entropy(candidates) / (n as f32).ln();
    scale(candidates, low + (high - low) * normalised.powf(params.dynatemp_exponent))
}

/// At most 0 leaves only the best.
pub(crate) fn scale(candidates: &mut Candidates, temperature: f32) -> Result<(), SampleError> {
    // A NaN temperature (0 to a negative power, say) has no meaning but greedy.
    if temperature.is_nan() || temperature <= 0.0 {
        let best = candidates.argmax()?;
        candidates.set_single(best);
        return Ok(());
    }
    if temperature == 1.0 {
        return Ok(());
    }
    let max = candidates.max_logit();
    // A tiny temperature would overflow: measure from the best then, whose logit becomes 0.
    let origin = if (max / temperature).is_finite() { 0.0 } else { max };
    for candidate in candidates.list() {
        candidate.logit = ((candidate.logit - origin) / temperature).max(f32::MIN);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(row: &[f32], params: &SamplingParams) -> Vec<f32> {
        let mut candidates = Candidates::default();
        candidates.load(row).unwrap();
        temperature(&mut candidates, params).unwrap();
        candidates.list().iter().map(|candidate| candidate.logit).collect()
    }

    #[test]
    fn plain_temperature_divides() {
        let params = SamplingParams { temperature: 0.5, ..Default::default() };
        assert_eq!(logits(&[1.0, -2.0, 3.0], &params), [2.0, -4.0, 6.0]);
        let tiny = SamplingParams { temperature: 1e-40, ..Default::default() };
        assert_eq!(logits(&[1.0, 3.0], &tiny), [f32::MIN, 0.0]);
    }

    #[test]
    fn greedy_leaves_one() {
        for temperature in [0.0, -1.0] {
            let params = SamplingParams { temperature, ..Default::default() };
            assert_eq!(logits(&[1.0, 3.0, 3.0], &params).len(), 1);
        }
    }

    #[test]
    fn the_dynamic_one_follows_the_entropy() {
        let params = SamplingParams { temperature: 1.0, dynatemp_range: 0.5, ..Default::default() };
        // Even odds: normalised entropy 1, temperature 1.5.
        assert_eq!(logits(&[3.0, 3.0], &params), [2.0, 2.0]);
        // A sure thing: entropy 0, temperature 0.5.
        let sure = logits(&[100.0, 0.0], &params);
        assert!((sure[0] - 200.0).abs() < 1e-3, "{sure:?}");
        // Odds 3 : 1: entropy 0.5623, normalised 0.8113, temperature 0.5 + 0.8113 = 1.3113; ln 3 / 1.3113 = 0.8378.
        let odds = logits(&[3.0f32.ln(), 0.0], &params);
        assert!((odds[0] - 0.8378).abs() < 1e-4, "{odds:?}");
        // Exponent 2: 0.5 + 0.6582 = 1.1582; ln 3 / 1.1582 = 0.9486.
        let squared = logits(&[3.0f32.ln(), 0.0], &SamplingParams { dynatemp_exponent: 2.0, ..params });
        assert!((squared[0] - 0.9486).abs() < 1e-4, "{squared:?}");
    }
}
