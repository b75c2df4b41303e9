//! Token probabilities: `completion_probabilities` and `logprobs`.

use bloomery_runtime::request::{Prob, TokenProbs};
use serde_json::{Map, Value, json};

use super::float;

/// The list for some tokens. After the sampler chain a probability is reported as such, else as its logarithm.
#[must_use]
pub fn list(probs: &[TokenProbs], post_sampling: bool) -> Value {
    probs
        .iter()
        .map(|token| {
            let mut entry = one(&token.chosen, post_sampling);
            let top: Value = token.top.iter().map(|prob| Value::Object(one(prob, post_sampling))).collect();
            entry.insert(if post_sampling { "top_probs" } else { "top_logprobs" }.to_owned(), top);
            Value::Object(entry)
        })
        .collect()
}

fn one(prob: &Prob, post_sampling: bool) -> Map<String, Value> {
    let mut entry = Map::new();
    entry.insert("id".to_owned(), json!(prob.id));
    entry.insert("token".to_owned(), json!(whole_characters(&prob.bytes)));
    entry.insert("bytes".to_owned(), json!(prob.bytes));
    if post_sampling {
        entry.insert("prob".to_owned(), float(prob.logprob.exp()));
    } else {
        // JSON has no minus infinity.
        entry.insert("logprob".to_owned(), float(prob.logprob.max(f32::MIN)));
    }
    entry
}

/// The longest beginning that is whole characters.
fn whole_characters(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms() {
        let half = Prob { id: 7, bytes: vec![b'a', 0xE4, 0xBD], logprob: 0.5f32.ln() };
        let never = Prob { id: 8, bytes: b" x".to_vec(), logprob: f32::NEG_INFINITY };
        let token = TokenProbs { chosen: half.clone(), top: vec![half, never] };
        let plain = list(std::slice::from_ref(&token), false);
        assert_eq!(plain[0]["token"], "a");
        assert_eq!(plain[0]["bytes"], json!([97, 228, 189]));
        assert_eq!(plain[0]["top_logprobs"][1]["logprob"], json!(f64::from(f32::MIN)));
        let post = list(&[token], true);
        assert_eq!(post[0]["prob"], 0.5);
        assert_eq!(post[0]["top_probs"][1]["prob"], 0.0);
        let keys: Vec<&String> = post[0].as_object().unwrap().keys().collect();
        assert_eq!(keys, ["id", "token", "bytes", "prob", "top_probs"]);
    }
}
