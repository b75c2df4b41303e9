//! Answers of `/v1/chat/completions`.

use serde_json::{Map, Value, json};

use super::{
    FINGERPRINT,
    answer::{Answering, Finished, Piece, usage},
    native, probs,
    timings::Timings,
};

/// The whole answer.
#[must_use]
pub fn answer(all: &[Finished], answering: &Answering, created: u64) -> Value {
    let choices: Value = all
        .iter()
        .map(|finished| {
            let content = format!("{}{}", finished.prefill, finished.text);
            let mut choice = json!({
                "finish_reason": finished.finish_reason(),
                "index": finished.index,
                "message": {"role": "assistant", "content": content},
            });
            if let (Some(choice), false) = (choice.as_object_mut(), finished.probs.is_empty()) {
                choice.insert("logprobs".to_owned(), logprobs(&finished.probs, answering));
            }
            choice
        })
        .collect();
    let mut map = Map::new();
    map.insert("choices".to_owned(), choices);
    map.insert("created".to_owned(), json!(created));
    map.insert("model".to_owned(), json!(answering.model));
    map.insert("system_fingerprint".to_owned(), json!(FINGERPRINT));
    map.insert("object".to_owned(), json!("chat.completion"));
    map.insert("usage".to_owned(), usage(all));
    map.insert("id".to_owned(), json!(answering.id));
    if let Some(first) = all.first() {
        if answering.verbose {
            map.insert("__verbose".to_owned(), native::answer(first, answering, false));
        }
        map.insert("timings".to_owned(), Timings::of(&first.done).to_json());
    }
    Value::Object(map)
}

/// The chunks of a stream for a piece: the role first, then text.
#[must_use]
pub fn chunks(piece: &Piece, answering: &Answering, created: u64) -> Vec<Value> {
    let mut deltas = Vec::new();
    if piece.first || piece.progress.is_some() {
        deltas.push(json!({"role": "assistant", "content": null}));
    }
    if piece.progress.is_none() {
        deltas.push(json!({"content": piece.text}));
    }
    let last = deltas.len().saturating_sub(1);
    deltas
        .into_iter()
        .enumerate()
        .map(|(i, delta)| {
            let mut choice = json!({"finish_reason": null, "index": piece.index, "delta": delta});
            let mut tail = Map::new();
            if i == last {
                if let (Some(choice), false) = (choice.as_object_mut(), piece.probs.is_empty()) {
                    choice.insert("logprobs".to_owned(), logprobs(&piece.probs, answering));
                }
                if let Some(timings) = &piece.timings {
                    tail.insert("timings".to_owned(), timings.to_json());
                }
                if let Some(progress) = &piece.progress {
                    tail.insert("prompt_progress".to_owned(), native::progress_json(progress));
                }
            }
            let mut map = head(json!([choice]), answering, created);
            map.append(&mut tail);
            Value::Object(map)
        })
        .collect()
}

/// The last chunks of one generation: the reason of its end.
#[must_use]
pub fn last_chunks(finished: &Finished, answering: &Answering, created: u64, started: bool) -> Vec<Value> {
    let mut out = Vec::new();
    if !started {
        // Nothing was generated: clients still expect a role, and what the answer began with.
        let piece =
            Piece { index: finished.index, text: finished.prefill.clone(), first: true, ..Piece::default() };
        out = chunks(&piece, answering, created);
        out.truncate(if finished.prefill.is_empty() { 1 } else { 2 });
    }
    let end = json!([{"finish_reason": finished.finish_reason(), "index": finished.index, "delta": {}}]);
    let mut map = head(end, answering, created);
    if !answering.include_usage {
        map.insert("timings".to_owned(), Timings::of(&finished.done).to_json());
    }
    if answering.verbose {
        map.insert("__verbose".to_owned(), native::answer(finished, answering, true));
    }
    out.push(Value::Object(map));
    out
}

/// The chunk that `stream_options.include_usage` asks for, at the very end.
#[must_use]
pub fn usage_chunk(all: &[Finished], answering: &Answering, created: u64) -> Value {
    let mut map = head(json!([]), answering, created);
    map.insert("usage".to_owned(), usage(all));
    if let Some(first) = all.first() {
        map.insert("timings".to_owned(), Timings::of(&first.done).to_json());
    }
    Value::Object(map)
}

fn logprobs(list: &[bloomery_runtime::request::TokenProbs], answering: &Answering) -> Value {
    json!({"content": probs::list(list, answering.settings.post_sampling_probs)})
}

fn head(choices: Value, answering: &Answering, created: u64) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("choices".to_owned(), choices);
    map.insert("created".to_owned(), json!(created));
    map.insert("id".to_owned(), json!(answering.id));
    map.insert("model".to_owned(), json!(answering.model));
    map.insert("system_fingerprint".to_owned(), json!(FINGERPRINT));
    map.insert("object".to_owned(), json!("chat.completion.chunk"));
    map
}
