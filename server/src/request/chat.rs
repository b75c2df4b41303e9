//! Chats: from the `messages` of a body to a prompt.

use serde_json::{Map, Value};

use super::fields::Fields;
use crate::{
    error::ApiError,
    settings::ServerSettings,
    template::{Chat, ChatTemplate, Continue, Rendered},
};

/// Renders the chat of a body.
///
/// # Errors
/// Messages that are none, a part that is no text, contradicting wishes, or what the template says.
pub fn render(
    body: &Map<String, Value>,
    settings: &ServerSettings,
    template: &ChatTemplate,
) -> Result<Rendered, ApiError> {
    let fields = Fields(body);
    let messages = messages(body)?;
    let invalid = |message: &str| Err(ApiError::Invalid(message.to_owned()));
    let mut add_generation_prompt = fields.flag("add_generation_prompt")?.unwrap_or(true);
    let mut continue_last = continuation(fields)?;
    let role_from_end = |n: usize| messages.iter().rev().nth(n).and_then(|message| message["role"].as_str());
    if continue_last.is_none() && settings.prefill_assistant && role_from_end(0) == Some("assistant") {
        if role_from_end(1) == Some("assistant") {
            return invalid("Cannot have 2 or more assistant messages at the end of the list.");
        }
        continue_last = Some(Continue::Auto);
        add_generation_prompt = false;
    }
    if continue_last.is_some() {
        if add_generation_prompt {
            return invalid("Cannot set both add_generation_prompt and continue_final_message to true.");
        }
        match messages.last() {
            Some(last) if last["role"] == "assistant" => {
                if last["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty()) {
                    return invalid("Cannot continue an assistant message that contains tool calls.");
                }
            }
            Some(_) => {}
            None => return invalid("continue_final_message needs a message to go on with"),
        }
    }
    let mut variables = settings.template_variables.clone();
    if let Some(more) = fields.object("chat_template_kwargs")? {
        variables.extend(more.clone());
    }
    let mut enable_thinking = settings.enable_thinking;
    match variables.remove("enable_thinking") {
        None => {}
        Some(Value::Bool(wish)) => enable_thinking = wish,
        Some(_) => {
            return invalid("chat_template_kwargs: invalid type for \"enable_thinking\" (expected boolean)");
        }
    }
    match fields.text("reasoning_effort")? {
        None | Some("") => {}
        Some("none") => {
            enable_thinking = false;
            variables.remove("reasoning_effort");
        }
        Some(level) => _ = variables.insert("reasoning_effort".to_owned(), Value::String(level.to_owned())),
    }
    let tools = match fields.get("tools") {
        None => None,
        Some(Value::Array(list)) if list.is_empty() => None,
        Some(list @ Value::Array(_)) => Some(list.clone()),
        Some(_) => return Err(ApiError::field("tools", "must be an array")),
    };
    template.render(&Chat {
        messages,
        tools,
        variables,
        enable_thinking,
        add_generation_prompt,
        continue_last,
    })
}

/// The messages, each checked.
fn messages(body: &Map<String, Value>) -> Result<Vec<Value>, ApiError> {
    let invalid = |message: String| Err(ApiError::Invalid(message));
    let Some(value) = body.get("messages") else { return invalid("'messages' is required".to_owned()) };
    let Some(list) = value.as_array() else {
        return invalid("Expected 'messages' to be an array".to_owned());
    };
    for message in list {
        let Some(message) = message.as_object() else {
            return invalid("Expected each message to be an object".to_owned());
        };
        let role = match message.get("role") {
            Some(Value::String(role)) => role.as_str(),
            Some(_) => return invalid("Expected 'role' of a message to be a string".to_owned()),
            None => return invalid("Missing 'role' in a message".to_owned()),
        };
        match message.get("content") {
            None if role != "assistant" => {
                return invalid("All non-assistant messages must contain 'content'".to_owned());
            }
            None if !message.contains_key("tool_calls") => {
                return invalid(
                    "Assistant message must contain either 'content' or 'tool_calls'!".to_owned(),
                );
            }
            None | Some(Value::Null | Value::String(_)) => {}
            Some(Value::Array(parts)) => parts.iter().try_for_each(part)?,
            Some(_) => return invalid("Expected 'content' to be a string or an array".to_owned()),
        }
        if message.get("tool_calls").is_some_and(|calls| !calls.is_array() && !calls.is_null()) {
            return invalid("Expected 'tool_calls' to be an array".to_owned());
        }
    }
    Ok(list.clone())
}

/// A part must be a text; the other known kinds come later.
fn part(part: &Value) -> Result<(), ApiError> {
    match part.get("type").and_then(Value::as_str) {
        Some("text") if part.get("text").is_some_and(Value::is_string) => Ok(()),
        Some("text") => {
            Err(ApiError::Invalid("a content part of type text needs a string 'text'".to_owned()))
        }
        Some(kind @ ("image_url" | "input_audio" | "input_video" | "video_url" | "file" | "input_image")) => {
            Err(ApiError::later(&format!("content part of type {kind}")))
        }
        Some(kind) => Err(ApiError::Invalid(format!("unsupported content[].type: {kind}"))),
        None => Err(ApiError::Invalid("a content part needs a 'type'".to_owned())),
    }
}

fn continuation(fields: Fields<'_>) -> Result<Option<Continue>, ApiError> {
    Ok(match fields.get("continue_final_message") {
        None | Some(Value::Bool(false)) => None,
        Some(Value::Bool(true)) => Some(Continue::Auto),
        Some(Value::String(part)) if part == "content" => Some(Continue::Content),
        Some(Value::String(part)) if part == "reasoning_content" => Some(Continue::Reasoning),
        Some(_) => {
            return Err(ApiError::field(
                "continue_final_message",
                "must be true, false, \"content\" or \"reasoning_content\"",
            ));
        }
    })
}
