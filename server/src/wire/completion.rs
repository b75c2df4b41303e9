//! Answers of `/v1/completions`.

use serde_json::{Map, Value, json};

use super::{
    FINGERPRINT,
    answer::{Answering, Finished, Piece, usage},
    native, probs,
    timings::Timings,
};

/// A chunk of a stream.
#[must_use]
pub fn chunk(piece: &Piece, answering: &Answering, created: u64) -> Value {
    let logprobs = if piece.probs.is_empty() {
        Value::Null
    } else {
        json!({"content": probs::list(&piece.probs, answering.settings.post_sampling_probs)})
    };
    let mut map = head(
        json!([{"text": piece.text, "index": piece.index, "logprobs": logprobs, "finish_reason": null}]),
        answering,
        created,
    );
    map.insert("id".to_owned(), json!(answering.id));
    if answering.verbose {
        map.insert("__verbose".to_owned(), native::chunk(piece, answering));
    }
    if let Some(timings) = &piece.timings {
        map.insert("timings".to_owned(), timings.to_json());
    }
    if let Some(progress) = &piece.progress {
        map.insert("prompt_progress".to_owned(), native::progress_json(progress));
    }
    Value::Object(map)
}

/// The whole answer, or the last chunk of one generation in a stream.
#[must_use]
pub fn answer(all: &[Finished], answering: &Answering, created: u64, streamed: bool) -> Value {
    let choices = all
        .iter()
        .map(|finished| {
            let logprobs = if streamed || finished.probs.is_empty() {
                Value::Null
            } else {
                json!({"content": probs::list(&finished.probs, answering.settings.post_sampling_probs)})
            };
            json!({
                "text": if streamed { "" } else { finished.text.as_str() },
                "index": finished.index,
                "logprobs": logprobs,
                "finish_reason": finished.finish_reason(),
            })
        })
        .collect();
    let mut map = head(choices, answering, created);
    map.insert("usage".to_owned(), usage(all));
    map.insert("id".to_owned(), json!(answering.id));
    if let Some(first) = all.first() {
        if answering.verbose {
            map.insert("__verbose".to_owned(), native::answer(first, answering, streamed));
        }
        map.insert("timings".to_owned(), Timings::of(&first.done).to_json());
    }
    Value::Object(map)
}

fn head(choices: Value, answering: &Answering, created: u64) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("choices".to_owned(), choices);
    map.insert("created".to_owned(), json!(created));
    map.insert("model".to_owned(), json!(answering.model));
    map.insert("system_fingerprint".to_owned(), json!(FINGERPRINT));
    map.insert("object".to_owned(), json!("text_completion"));
    map
}
