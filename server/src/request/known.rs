//! Every request field of llama-server and of OpenAI's API that this server knows, and what it does with it. `docs/serving.md`
//! shows the table; a name that is not in it is passed over with a line in the debug log, as llama-server does.

use serde_json::{Map, Value};

use super::fields::Fields;
use crate::error::ApiError;

/// What becomes of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It does what it says.
    Honoured,
    /// It cannot change the output here; the reason.
    NoEffect(&'static str),
    /// Refused with 501 unless its value asks for nothing: null, false, 0, -1, an empty text, list or object, or one of these.
    Refused(&'static [&'static str]),
}

use Fate::{Honoured, NoEffect, Refused};

/// A field with the routes that read it.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// Its name.
    pub name: &'static str,
    /// What becomes of it.
    pub fate: Fate,
}

const fn known(name: &'static str, fate: Fate) -> Known {
    Known { name, fate }
}

const BILLING: Fate = NoEffect("about the client or its bill");
const NO_SHIFT: Fate = NoEffect("contexts are not shifted here");
const NO_GRAMMAR: Fate = NoEffect("acts on grammars only, which are refused");
const NO_TOOLS: Fate = NoEffect("acts on tools only, which are refused");

/// The fields of completion and chat requests.
pub const KNOWN: &[Known] = &[
    // The prompt.
    known("prompt", Honoured),
    known("messages", Honoured),
    known("model", NoEffect("one model is served; the answer names it")),
    known("add_generation_prompt", Honoured),
    known("continue_final_message", Honoured),
    known("chat_template_kwargs", Honoured),
    known("reasoning_effort", Honoured),
    known("cache_prompt", Honoured),
    known("id_slot", Honoured),
    // The answer.
    known("stream", Honoured),
    known("stream_options", Honoured),
    known("n_predict", Honoured),
    known("max_tokens", Honoured),
    known("max_completion_tokens", Honoured),
    known("n", Honoured),
    known("n_cmpl", Honoured),
    known("stop", Honoured),
    known("ignore_eos", Honoured),
    known("t_max_predict_ms", Honoured),
    known("n_probs", Honoured),
    known("logprobs", Honoured),
    known("top_logprobs", Honoured),
    known("post_sampling_probs", Honoured),
    known("return_tokens", Honoured),
    known("return_progress", Honoured),
    known("timings_per_token", Honoured),
    known("response_fields", Honoured),
    known("sse_ping_interval", Honoured),
    known("verbose", Honoured),
    // The sampler.
    known("seed", Honoured),
    known("temperature", Honoured),
    known("dynatemp_range", Honoured),
    known("dynatemp_exponent", Honoured),
    known("top_k", Honoured),
    known("top_p", Honoured),
    known("min_p", Honoured),
    known("top_n_sigma", Honoured),
    known("xtc_probability", Honoured),
    known("xtc_threshold", Honoured),
    known("typical_p", Honoured),
    known("repeat_last_n", Honoured),
    known("repeat_penalty", Honoured),
    known("presence_penalty", Honoured),
    known("frequency_penalty", Honoured),
    known("dry_multiplier", Honoured),
    known("dry_base", Honoured),
    known("dry_allowed_length", Honoured),
    known("dry_penalty_last_n", Honoured),
    known("dry_sequence_breakers", Honoured),
    known("mirostat", Honoured),
    known("mirostat_tau", Honoured),
    known("mirostat_eta", Honoured),
    known("adaptive_target", Honoured),
    known("adaptive_decay", Honoured),
    known("min_keep", Honoured),
    known("samplers", Honoured),
    known("logit_bias", Honoured),
    // Without effect.
    known("n_keep", NO_SHIFT),
    known("n_discard", NO_SHIFT),
    known("grammar_lazy", NO_GRAMMAR),
    known("grammar_triggers", NO_GRAMMAR),
    known("grammar_type", NO_GRAMMAR),
    known("parallel_tool_calls", NO_TOOLS),
    known("parse_tool_calls", NO_TOOLS),
    known("backend_sampling", NoEffect("where sampling happens does not change it")),
    known("prediction", NoEffect("it could only make the answer faster")),
    known("service_tier", BILLING),
    known("store", BILLING),
    known("metadata", BILLING),
    known("user", BILLING),
    known("safety_identifier", BILLING),
    known("prompt_cache_key", BILLING),
    known("prompt_cache_retention", BILLING),
    // Later.
    known("tools", Refused(&[])),
    known("tool_choice", Refused(&["none", "auto"])),
    known("functions", Refused(&[])),
    known("function_call", Refused(&["none", "auto"])),
    known("grammar", Refused(&[])),
    known("json_schema", Refused(&[])),
    known("response_format", Refused(&[])),
    known("lora", Refused(&[])),
    known("preserved_tokens", Refused(&[])),
    known("n_indent", Refused(&[])),
    known("n_cache_reuse", Refused(&[])),
    known("t_max_prompt_ms", Refused(&[])),
    known("reasoning_format", Refused(&["none", "auto"])),
    known("reasoning_budget_tokens", Refused(&[])),
    known("thinking_budget_tokens", Refused(&[])),
    known("reasoning_budget_message", Refused(&[])),
    known("reasoning_control", Refused(&[])),
    known("echo", Refused(&[])),
    known("best_of", Refused(&["1"])),
    known("suffix", Refused(&[])),
    known("audio", Refused(&[])),
    known("modalities", Refused(&["text"])),
    known("web_search_options", Refused(&[])),
    known("verbosity", Refused(&["medium"])),
];

/// Refuses what comes later, and notes what nobody knows.
///
/// # Errors
/// The first field that cannot be honoured.
pub fn check(body: &Map<String, Value>) -> Result<(), ApiError> {
    // A grammar that cannot be honoured is the client's fault where it contradicts itself.
    response_format(body)?;
    // Tools that must not be called are a matter of the template alone.
    let uncalled = body.get("tool_choice").is_some_and(|choice| choice == "none");
    for (name, value) in body {
        if name == "tools" && uncalled {
            continue;
        }
        match KNOWN.iter().find(|known| known.name == name).map(|known| known.fate) {
            None => {
                tracing::debug!(target: "bloomery_serve::request", field = %name, "passed over: unknown field")
            }
            Some(Refused(harmless)) if name != "response_format" && asks(value, harmless) => {
                return Err(ApiError::later(name));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// `response_format` may be absent or of type `text`.
fn response_format(body: &Map<String, Value>) -> Result<(), ApiError> {
    let Some(format) = Fields(body).object("response_format")? else { return Ok(()) };
    match Fields(format).text("type")? {
        None | Some("" | "text") => Ok(()),
        Some(kind @ ("json_object" | "json_schema")) => {
            for schema in
                [format.get("schema"), format.get("json_schema").and_then(|wrapper| wrapper.get("schema"))]
            {
                if schema.is_some_and(|schema| !schema.is_object() && !schema.is_boolean()) {
                    return Err(ApiError::field("response_format", "the schema must be an object"));
                }
                if let Some(kind) = schema.and_then(|schema| schema.get("type"))
                    && !is_type(kind)
                {
                    return Err(ApiError::field(
                        "response_format",
                        format_args!("a schema has no type {kind}"),
                    ));
                }
            }
            Err(ApiError::later(&format!("response_format.type = {kind}")))
        }
        Some(other) => Err(ApiError::Invalid(format!(
            "response_format type must be one of \"text\", \"json_object\" or \"json_schema\", but got: {other}"
        ))),
    }
}

/// Whether this is a type of JSON Schema, or a list of such.
fn is_type(kind: &Value) -> bool {
    const TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];
    match kind {
        Value::String(name) => TYPES.contains(&name.as_str()),
        Value::Array(list) => list.iter().all(|item| item.is_string() && is_type(item)),
        _ => false,
    }
}

/// Whether a value asks for something.
fn asks(value: &Value, harmless: &[&str]) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(yes) => *yes,
        Value::Number(number) => {
            !matches!(number.as_f64(), Some(number) if number == 0.0 || number == -1.0)
                && !harmless.contains(&number.to_string().as_str())
        }
        Value::String(text) => !text.is_empty() && !harmless.contains(&text.as_str()),
        Value::Array(list) => list.iter().any(|item| asks(item, harmless)),
        Value::Object(map) => !map.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(body: Value) -> Result<(), ApiError> {
        check(body.as_object().unwrap())
    }

    #[test]
    fn what_comes_later_is_named() {
        for (body, name) in [
            (json!({"tools": [{"type": "function"}]}), "tools"),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (json!({"grammar": "root ::= x"}), "grammar"),
            (json!({"json_schema": {"type": "object"}}), "json_schema"),
            (json!({"response_format": {"type": "json_object"}}), "response_format"),
            (json!({"echo": true}), "echo"),
            (json!({"modalities": ["text", "audio"]}), "modalities"),
            (json!({"best_of": 2}), "best_of"),
        ] {
            let error = run(body).unwrap_err();
            assert!(matches!(error, ApiError::NotSupported(_)), "{error:?}");
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn what_asks_for_nothing_passes() {
        run(json!({
            "tools": [], "tool_choice": "none", "grammar": "", "json_schema": null, "response_format": {"type": "text"},
            "echo": false, "modalities": ["text"], "lora": [], "best_of": 1, "user": "me", "whatever": {"x": 1},
            "reasoning_budget_tokens": -1,
        }))
        .unwrap();
        run(json!({"tools": [{"type": "function"}], "tool_choice": "none"})).unwrap();
    }

    #[test]
    fn names_are_listed_once() {
        for (i, known) in KNOWN.iter().enumerate() {
            assert!(!KNOWN[..i].iter().any(|other| other.name == known.name), "{}", known.name);
        }
    }
}
