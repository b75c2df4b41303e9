//! Answers of `/completion`.

use bloomery_runtime::request::StopKind;
use serde_json::{Map, Value, json};

use super::{
    answer::{Answering, Finished, Piece},
    probs,
    timings::Timings,
};

/// A chunk of a stream.
#[must_use]
pub fn chunk(piece: &Piece, answering: &Answering) -> Value {
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| {
        map.insert(key.to_owned(), value);
    };
    put("index", json!(piece.index));
    put("content", json!(piece.text));
    put("tokens", json!(piece.tokens));
    put("stop", json!(false));
    put("id_slot", json!(-1));
    put("tokens_predicted", json!(piece.n_predicted));
    put("tokens_evaluated", json!(piece.n_prompt));
    if let Some(timings) = &piece.timings {
        put("timings", timings.to_json());
    }
    if let Some(progress) = &piece.progress {
        put("prompt_progress", progress_json(progress));
    }
    if !piece.probs.is_empty() {
        put("completion_probabilities", probs::list(&piece.probs, answering.settings.post_sampling_probs));
    }
    Value::Object(map)
}

/// The whole answer, or the last chunk of a stream (whose text was sent before).
#[must_use]
pub fn answer(finished: &Finished, answering: &Answering, streamed: bool) -> Value {
    let done = &finished.done;
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| {
        map.insert(key.to_owned(), value);
    };
    put("index", json!(finished.index));
    put("content", if streamed { json!("") } else { json!(finished.text) });
    put("tokens", if answering.return_tokens && !streamed { json!(finished.tokens) } else { json!([]) });
    put("id_slot", json!(done.slot));
    put("stop", json!(true));
    put("model", json!(answering.model));
    put("tokens_predicted", json!(done.n_decoded));
    put("tokens_evaluated", json!(done.n_prompt));
    put("generation_settings", answering.settings.to_json(false));
    put("prompt", json!(finished.prompt));
    put("has_new_line", json!(finished.text.contains('\n')));
    put("truncated", json!(done.truncated));
    put(
        "stop_type",
        json!(match done.stop {
            StopKind::Eos => "eos",
            StopKind::Word => "word",
            StopKind::Limit => "limit",
        }),
    );
    put("stopping_word", json!(done.stopping_word));
    // The last token was never put into the state.
    put("tokens_cached", json!((done.n_prompt + done.n_decoded).saturating_sub(1)));
    put("timings", Timings::of(done).to_json());
    if !streamed && !finished.probs.is_empty() {
        put("completion_probabilities", probs::list(&finished.probs, answering.settings.post_sampling_probs));
    }
    let whole = Value::Object(map);
    if answering.response_fields.is_empty() { whole } else { select(&answering.response_fields, &whole) }
}

/// `prompt_progress`.
#[must_use]
pub fn progress_json(progress: &bloomery_runtime::request::PromptProgress) -> Value {
    json!({
        "total": progress.total, "cache": progress.cache, "processed": progress.processed, "time_ms": progress.time_ms,
    })
}

/// The fields at some paths (parts joined by '/'), under their full path as the name; missing ones are left out.
fn select(paths: &[String], whole: &Value) -> Value {
    let mut map = Map::new();
    for path in paths {
        let found = path.split('/').try_fold(whole, |value, part| value.as_object()?.get(part));
        if let Some(value) = found {
            map.insert(path.clone(), value.clone());
        }
    }
    Value::Object(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_selected_by_path() {
        let whole = json!({"a": {"b": 1, "c": 2}, "d": 3});
        let paths = ["a/b", "d", "x/y", "d/e"].map(str::to_owned);
        assert_eq!(select(&paths, &whole), json!({"a/b": 1, "d": 3}));
    }
}
