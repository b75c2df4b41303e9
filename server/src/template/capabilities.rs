//! What a template can do, found by rendering small chats: the rules are the template's own, so it is asked.

use serde_json::{Map, Value, json};

use super::{Chat, ChatTemplate};

/// What a template can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field on the wire")]
pub struct Capabilities {
    /// A content may be a text.
    pub string_content: bool,
    /// A content may be a list of parts.
    pub typed_content: bool,
    /// There may be a system message.
    pub system_role: bool,
    /// It shows tools.
    pub tools: bool,
    /// It shows calls of tools.
    pub tool_calls: bool,
    /// Several in one message.
    pub parallel_tool_calls: bool,
    /// Arguments of calls may be objects.
    pub object_arguments: bool,
    /// It can be asked to keep earlier thoughts.
    pub preserve_reasoning: bool,
    /// It takes a reasoning effort.
    pub reasoning_effort: bool,
}

impl Capabilities {
    /// Everything: messages go through as they are.
    pub const ALL: Self = Self {
        string_content: true,
        typed_content: true,
        system_role: true,
        tools: true,
        tool_calls: true,
        parallel_tool_calls: true,
        object_arguments: true,
        preserve_reasoning: true,
        reasoning_effort: true,
    };

    /// Asks a template.
    pub(super) fn probe(template: &ChatTemplate) -> Self {
        let render = |messages: Value, tools: Option<Value>, with: (&str, Value)| -> Option<String> {
            let Value::Array(messages) = messages else { return None };
            let mut variables = Map::new();
            variables.insert(with.0.to_owned(), with.1);
            let chat = Chat {
                messages,
                tools,
                variables,
                enable_thinking: true,
                add_generation_prompt: true,
                continue_last: None,
            };
            template.direct(&chat.messages.clone(), &chat, true).ok()
        };
        let nothing = || ("bloomery_probe", Value::Null);
        let shows = |text: Option<String>, words: &[&str]| {
            text.is_some_and(|text| words.iter().all(|word| text.contains(word)))
        };
        let user = || json!({"role": "user", "content": "PROBE-USER"});
        let parts = json!([{"role": "user", "content": [{"type": "text", "text": "PROBE-PART"}]}]);
        let parts = render(parts, None, nothing());
        let string_content = shows(render(json!([user()]), None, nothing()), &["PROBE-USER"]);
        // A list that was printed as such still shows its keys.
        let typed_content =
            parts.as_ref().is_some_and(|text| text.contains("PROBE-PART") && !text.contains("type"));
        let wrap = |content: &str| {
            if string_content { json!(content) } else { json!([{"type": "text", "text": content}]) }
        };
        let user = || json!({"role": "user", "content": wrap("PROBE-USER")});
        let system = json!([{"role": "system", "content": wrap("PROBE-SYSTEM")}, user()]);
        let tool = json!([{"type": "function", "function": {
            "name": "probe_tool", "description": "d", "parameters": {"type": "object", "properties": {}},
        }}]);
        let call = |name: &str, id: &str, arguments: Value| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        let talk = |calls: Value| {
            json!([
                user(),
                {"role": "assistant", "content": "", "tool_calls": calls},
                {"role": "tool", "tool_call_id": "call00001", "name": "probe_first", "content": wrap("PROBE-RESULT")},
                user(),
            ])
        };
        let one = |arguments: Value| talk(json!([call("probe_first", "call00001", arguments)]));
        let with_object = render(one(json!({"key": "PROBE-VALUE"})), Some(tool.clone()), nothing());
        let with_text = render(one(json!("{\"key\": \"PROBE-VALUE\"}")), Some(tool.clone()), nothing());
        let object_arguments = shows(with_object, &["probe_first", "PROBE-VALUE"]);
        let tool_calls = object_arguments || shows(with_text, &["probe_first", "PROBE-VALUE"]);
        let both = json!([
            call("probe_first", "call00001", json!({"key": "1"})),
            call("probe_second", "call00002", json!({"key": "2"})),
        ]);
        let effort = |level: &str| render(json!([user()]), None, ("reasoning_effort", json!(level)));
        let source = template.source();
        Self {
            string_content,
            typed_content,
            system_role: shows(render(system, None, nothing()), &["PROBE-SYSTEM"]),
            tools: shows(render(json!([user()]), Some(tool.clone()), nothing()), &["probe_tool"]),
            tool_calls,
            parallel_tool_calls: tool_calls
                && shows(render(talk(both), Some(tool), nothing()), &["probe_first", "probe_second"]),
            object_arguments,
            preserve_reasoning: source.contains("preserve_reasoning"),
            reasoning_effort: source.contains("reasoning_effort") && effort("low") != effort("high"),
        }
    }
}
