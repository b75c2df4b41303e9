//! `timings`: the counts and rates of a request.

use bloomery_runtime::request::Done;
use serde_json::{Value, json};

/// Counts and times of a request, so far or at its end.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Timings {
    /// Prompt tokens taken from a cache.
    pub n_cached: usize,
    /// Prompt tokens processed.
    pub n_prompt: usize,
    /// Milliseconds of the prompt phase.
    pub prompt_ms: f64,
    /// Tokens generated.
    pub n_predicted: usize,
    /// Milliseconds from the first generated token on.
    pub predicted_ms: f64,
    /// Tokens drafted.
    pub n_drafted: usize,
    /// Of these, the ones that became part of the answer.
    pub n_accepted: usize,
}

impl Timings {
    /// The closing report's.
    #[must_use]
    pub const fn of(done: &Done) -> Self {
        Self {
            n_cached: done.n_cached,
            n_prompt: done.n_prompt.saturating_sub(done.n_cached),
            prompt_ms: done.prompt_ms,
            n_predicted: done.n_decoded,
            predicted_ms: done.predicted_ms,
            n_drafted: done.n_drafted,
            n_accepted: done.n_accepted,
        }
    }

    /// The JSON object. The first token comes out of the prompt's last step, so rates count the others.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let steps = self.n_predicted.saturating_sub(1) as f64;
        let mut json = json!({
            "cache_n": self.n_cached,
            "prompt_n": self.n_prompt,
            "prompt_ms": self.prompt_ms,
            "prompt_per_token_ms": ratio(self.prompt_ms, self.n_prompt as f64),
            "prompt_per_second": ratio(self.n_prompt as f64 * 1e3, self.prompt_ms),
            "predicted_n": self.n_predicted,
            "predicted_ms": self.predicted_ms,
            "predicted_per_token_ms": ratio(self.predicted_ms, steps),
            "predicted_per_second": ratio(steps * 1e3, self.predicted_ms),
        });
        // llama-server shows these only where something was drafted.
        if self.n_drafted > 0 {
            json["draft_n"] = json!(self.n_drafted);
            json["draft_n_accepted"] = json!(self.n_accepted);
        }
        json
    }
}

fn ratio(a: f64, b: f64) -> f64 {
    // A rate over nothing is 0; it must never be infinite, JSON has no word for that.
    if a > 0.0 && b > 0.0 { a / b } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_a_recorded_answer() {
        let timings = Timings {
            n_cached: 0,
            n_prompt: 24,
            prompt_ms: 2831.414,
            n_predicted: 48,
            predicted_ms: 17111.6,
            ..Timings::default()
        };
        let json = timings.to_json();
        assert_eq!(json["prompt_per_token_ms"], 117.975_583_333_333_35);
        assert_eq!(json["prompt_per_second"], 8.476_330_201_093_87);
        assert_eq!(json["predicted_per_token_ms"], 364.076_595_744_680_84);
        assert_eq!(json["predicted_per_second"], 2.746_674_770_331_237_5);
        assert!(json.get("draft_n").is_none());
        let drafted = Timings { n_drafted: 36, n_accepted: 17, ..timings }.to_json();
        assert_eq!((&drafted["draft_n"], &drafted["draft_n_accepted"]), (&json!(36), &json!(17)));
    }

    #[test]
    fn nothing_is_infinite() {
        let json = Timings { n_predicted: 1, ..Timings::default() }.to_json();
        assert!(json.as_object().is_some_and(|map| map.values().all(serde_json::Value::is_number)), "{json}");
    }
}
