//! Answers to decision requests.

use bloomery_runtime::{executor::QuestionKind, request::Decided};
use serde_json::{Map, Value, json};

use crate::request::decide::{Asked, Named};

/// What `confidence` means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Confidence {
    /// How far the answer is from an even one, 0 to 1: llama.cpp's.
    #[default]
    Margin,
    /// The probability of the likeliest option: the vendor's.
    Top,
}

/// The answer.
#[must_use]
pub fn answer(model: &str, asked: &Asked, decided: &Decided, confidence: Confidence) -> Value {
    let mut answers = Map::new();
    let mut rest = decided.logits.as_slice();
    for named in &asked.questions {
        // A head that gave too few logits shows as an answer without probabilities, never as a panic.
        let (own, others) = rest.split_at(named.options.len().min(rest.len()));
        rest = others;
        answers.insert(named.id.clone(), one(named, &probabilities(named, own), confidence));
    }
    let n_prompt = asked.decide.prompt.len();
    let mut usage = json!({"input_tokens": n_prompt, "output_tokens": 0});
    if asked.n_truncated > 0 {
        usage["truncated_state_tokens"] = json!(asked.n_truncated);
    }
    json!({
        "model": model,
        "answers": answers,
        "usage": usage,
        "timings": {
            "prompt_n": n_prompt, "prompt_ms": decided.prompt_ms, "head_ms": decided.head_ms, "cache_n": 0,
        },
    })
}

/// Softmax over a question's options, back in the order of the request.
fn probabilities(named: &Named, logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = logits.iter().map(|logit| f64::from(logit - most).exp()).collect();
    let sum: f64 = powers.iter().sum();
    named.places.iter().map(|&place| powers.get(place).map_or(0.0, |power| power / sum)).collect()
}

fn one(named: &Named, p: &[f64], confidence: Confidence) -> Value {
    let by_key =
        || -> Value { named.options.iter().zip(p).map(|((key, _), p)| (key.clone(), json!(p))).collect() };
    // The first of equals.
    let best = (0..p.len()).fold(0, |best, i| if p[i] > p[best] { i } else { best });
    let top = p.get(best).copied().unwrap_or(0.0);
    let n = p.len() as f64;
    match named.kind {
        QuestionKind::Noul => json!({"type": "noul", "noul": p.first()}),
        QuestionKind::Choice => {
            let confidence = match confidence {
                Confidence::Top => top,
                Confidence::Margin => ((top - 1.0 / n) / (1.0 - 1.0 / n)).max(0.0),
            };
            let choice = named.options.get(best).map(|(key, _)| key);
            json!({"type": "choice", "choice": choice, "probabilities": by_key(), "confidence": confidence})
        }
        QuestionKind::Score => {
            let score: f64 = p.iter().enumerate().map(|(level, p)| level as f64 * p).sum();
            let distance = |from: usize| {
                p.iter().enumerate().map(move |(i, p)| i.abs_diff(from) as f64 * p).sum::<f64>()
            };
            // An even answer is this far from its middle level.
            let even = (p.len() / 2 * p.len().div_ceil(2)) as f64 / n;
            let confidence = match confidence {
                Confidence::Top => top,
                Confidence::Margin => (1.0 - distance(best) / even).max(0.0),
            };
            let legend: Map<String, Value> = named.options.iter().cloned().collect();
            json!({
                "type": "score", "score": score, "legend": legend, "probabilities": by_key(), "confidence": confidence,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(kind: QuestionKind, keys: &[&str], places: &[usize]) -> Named {
        let options = keys.iter().map(|key| ((*key).to_owned(), Value::Null)).collect();
        Named { id: "q".to_owned(), kind, instructions: String::new(), options, places: places.to_vec() }
    }

    #[test]
    fn options_come_back_in_the_order_of_the_request() {
        let named = asked(QuestionKind::Choice, &["tech", "billing"], &[1, 0]);
        let p = probabilities(&named, &[0.0, 3.0_f32.ln()]);
        let answer = one(&named, &p, Confidence::Top);
        assert_eq!(
            (&answer["choice"], &answer["confidence"]),
            (&json!("tech"), &answer["probabilities"]["tech"])
        );
        assert!((answer["probabilities"]["tech"].as_f64().unwrap() - 0.75).abs() < 1e-7, "{answer}");
        let margin = one(&named, &p, Confidence::Margin)["confidence"].as_f64().unwrap();
        assert!((margin - 0.5).abs() < 1e-7);
    }

    #[test]
    fn scores_are_expected_levels() {
        let named = asked(QuestionKind::Score, &["0", "1", "2", "3"], &[0, 1, 2, 3]);
        let sure = one(&named, &[0.0, 0.0, 1.0, 0.0], Confidence::Margin);
        assert_eq!((&sure["score"], &sure["confidence"]), (&json!(2.0), &json!(1.0)));
        let even = one(&named, &[0.25; 4], Confidence::Margin);
        assert_eq!((&even["score"], &even["confidence"]), (&json!(1.5), &json!(0.0)));
    }
}
