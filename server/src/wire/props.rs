//! `/props`.

use bloomery_sampler::SamplingParams;
use serde_json::{Value, json};

use super::{FINGERPRINT, settings::Settings};
use crate::{engine::Facts, template::Capabilities};

/// What the answer needs beside the model's facts.
#[derive(Debug)]
pub struct Props<'a> {
    /// Name of the model on the wire.
    pub name: &'a str,
    /// The server's default settings.
    pub defaults: &'a SamplingParams,
    /// Where drafts come from.
    pub spec_types: &'a str,
    /// `/slots` is served.
    pub slots: bool,
    /// POST /props is accepted.
    pub props: bool,
    /// `/metrics` is served.
    pub metrics: bool,
    /// The template in use.
    pub template: &'a str,
    /// What it can do.
    pub capabilities: Capabilities,
}

/// The answer of GET /props.
#[must_use]
pub fn props(facts: &Facts, props: &Props<'_>) -> Value {
    let c = props.capabilities;
    let spec_types = props.spec_types.to_owned();
    let params = Settings { spec_types, ..Settings::of_defaults(props.defaults.clone()) };
    json!({
        "default_generation_settings": {
            "params": params.to_json(true),
            "n_ctx": facts.n_ctx_slot,
        },
        "total_slots": facts.n_slots,
        "model_alias": props.name,
        "model_ftype": facts.file_type,
        "model_path": facts.path,
        "modalities": {"vision": false, "video": false, "audio": false},
        "media_marker": "",
        "endpoint_slots": props.slots,
        "endpoint_props": props.props,
        "endpoint_metrics": props.metrics,
        "ui": false,
        "ui_settings": {},
        "chat_template": props.template,
        "chat_template_caps": {
            "supports_object_arguments": c.object_arguments,
            "supports_parallel_tool_calls": c.parallel_tool_calls,
            "supports_preserve_reasoning": c.preserve_reasoning,
            "supports_reasoning_effort": c.reasoning_effort,
            "supports_string_content": c.string_content,
            "supports_system_role": c.system_role,
            "supports_tool_calls": c.tool_calls,
            "supports_tools": c.tools,
            "supports_typed_content": c.typed_content,
        },
        "bos_token": facts.bos_text,
        "eos_token": facts.eos_text,
        "build_info": FINGERPRINT,
        "is_sleeping": false,
        "cors_proxy_enabled": false,
    })
}
