//! Messages as a template wants them: some take a text where others take parts, some know no system role.

use serde_json::{Map, Value, json};

use super::Capabilities;

/// Which part of the last message the answer goes on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Continue {
    /// Its text; its thought, where there is no text.
    Auto,
    /// Its text.
    Content,
    /// Its thought.
    Reasoning,
}

/// The text of a content: itself, or its text parts joined.
#[must_use]
pub fn content_text(content: Option<&Value>, joint: &str) -> String {
    match content {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts: Vec<&str> = parts
                .iter()
                .filter_map(|part| part.get("text")?.as_str())
                .filter(|text| !text.is_empty())
                .collect();
            texts.join(joint)
        }
        _ => String::new(),
    }
}

/// The text that an answer goes on from.
pub fn continuation(message: &Value, part: Continue) -> String {
    let content = content_text(message.get("content"), "\n\n");
    let reasoning = message.get("reasoning_content").and_then(Value::as_str).unwrap_or_default();
    match part {
        Continue::Auto if content.is_empty() && !reasoning.is_empty() => reasoning.to_owned(),
        Continue::Reasoning => reasoning.to_owned(),
        Continue::Auto | Continue::Content => content,
    }
}

/// Messages in the forms that the template can take.
pub fn adapt(messages: &[Value], capabilities: Capabilities, source: &str) -> Vec<Value> {
    let mut list: Vec<Value> = messages.to_vec();
    for message in list.iter_mut().filter_map(Value::as_object_mut) {
        // The one family whose templates know developers marks channels.
        if message.get("role").is_some_and(|role| role == "developer") && !source.contains("<|channel|>") {
            message.insert("role".to_owned(), json!("system"));
        }
        content(message, capabilities);
        if capabilities.tool_calls && message.get("content").is_none_or(Value::is_null) {
            message.insert("content".to_owned(), json!(""));
        }
        if capabilities.object_arguments {
            arguments(message);
        }
    }
    if capabilities.system_role { list } else { without_system(list) }
}

/// Text to parts or parts to text, where the template takes only one of them.
fn content(message: &mut Map<String, Value>, capabilities: Capabilities) {
    let Some(content) = message.get_mut("content") else { return };
    match (&*content, capabilities.string_content, capabilities.typed_content) {
        (Value::Array(_), true, false) => *content = Value::String(content_text(Some(content), "\n")),
        (Value::String(text), false, true) => *content = json!([{"type": "text", "text": text}]),
        _ => {}
    }
}

/// OpenAI sends a call's arguments as JSON text; templates that can take an object get one.
fn arguments(message: &mut Map<String, Value>) {
    let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) else { return };
    for call in calls {
        let Some(arguments) = call.get_mut("function").and_then(|function| function.get_mut("arguments"))
        else {
            continue;
        };
        if let Some(parsed) =
            arguments.as_str().and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok())
        {
            *arguments = Value::Object(parsed);
        }
    }
}

/// Puts a system text in front of the next message.
fn without_system(list: Vec<Value>) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::with_capacity(list.len());
    let mut held: Option<String> = None;
    for mut message in list {
        let text = content_text(message.get("content"), "\n");
        if message.get("role").is_some_and(|role| role == "system") {
            held = Some(held.map_or_else(|| text.clone(), |held| format!("{held}\n{text}")));
            continue;
        }
        if let (Some(system), Some(message)) = (held.take(), message.as_object_mut()) {
            message.insert("content".to_owned(), Value::String(format!("{system}\n{text}")));
        }
        out.push(message);
    }
    if let Some(system) = held {
        out.push(json!({"role": "user", "content": system}));
    }
    out
}
