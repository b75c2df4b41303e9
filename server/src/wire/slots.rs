//! `/slots`: the board's view of each slot.

use bloomery_runtime::board::{Board, SlotView};
use serde_json::{Map, Value, json};

use super::settings::Settings;

/// What the HTTP side remembers of the request behind a task, for the fields that the engine does not know.
pub trait Requests {
    /// The settings object of a task, if it is still known.
    fn settings_of(&self, task: u64) -> Option<Value>;
}

/// The list of all slots.
#[must_use]
pub fn list(board: &Board, requests: &dyn Requests) -> Value {
    board.slots.iter().map(|slot| one(slot, board.is_drafting, requests)).collect()
}

fn one(slot: &SlotView, is_drafting: bool, requests: &dyn Requests) -> Value {
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| {
        map.insert(key.to_owned(), value);
    };
    put("id", json!(slot.id));
    put("n_ctx", json!(slot.n_ctx));
    put("speculative", json!(is_drafting));
    put("is_processing", json!(slot.is_processing));
    if let Some(task) = slot.task {
        put("id_task", json!(task));
        put(
            "n_prompt_tokens",
            json!(if slot.is_processing { slot.n_past.max(slot.n_prompt) } else { slot.n_past }),
        );
        let (processed, cached) =
            if slot.is_processing { (slot.n_prompt_processed, slot.n_prompt_cached) } else { (0, 0) };
        put("n_prompt_tokens_processed", json!(processed));
        put("n_prompt_tokens_cache", json!(cached));
        put("params", requests.settings_of(task).unwrap_or_else(|| settings(slot).to_json(true)));
        // The budget of a finished task must not leak into an idle slot.
        let (n_decoded, n_remain) = match (slot.is_processing, slot.n_predict) {
            (true, Some(limit)) => (slot.n_decoded, limit.saturating_sub(slot.n_decoded) as i64),
            (true, None) => (slot.n_decoded, -1),
            (false, _) => (0, -1),
        };
        put(
            "next_token",
            json!([{
                "has_next_token": slot.is_processing,
                "has_new_line": false,
                "n_remain": n_remain,
                "n_decoded": n_decoded,
            }]),
        );
    }
    Value::Object(map)
}

fn settings(slot: &SlotView) -> Settings {
    Settings {
        stop: slot.stop.clone(),
        n_predict: slot.n_predict.map_or(-1, |limit| limit as i64),
        ..Settings::of_defaults(slot.sampling.clone().unwrap_or_default())
    }
}
