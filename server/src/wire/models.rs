//! `/v1/models`.

use serde_json::{Value, json};

use crate::engine::Facts;

/// The list with the one model that is served.
#[must_use]
pub fn list(facts: &Facts, name: &str, aliases: &[String], tags: &[String], created: u64) -> Value {
    json!({
        "models": [{
            "name": name, "model": name, "modified_at": "", "size": "", "digest": "", "type": "model",
            "description": "", "tags": [""], "capabilities": ["completion"], "parameters": "",
            "details": {
                "parent_model": "", "format": "gguf", "family": "", "families": [""],
                "parameter_size": "", "quantization_level": "",
            },
        }],
        "object": "list",
        "data": [{
            "id": name,
            "aliases": aliases,
            "tags": tags,
            "object": "model",
            "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
            "created": created,
            "owned_by": "llamacpp",
            "meta": {
                "vocab_type": facts.vocab_type,
                "n_vocab": facts.n_vocab,
                "n_ctx": facts.n_ctx_slot,
                "n_ctx_train": facts.n_ctx_train,
                "n_embd": facts.n_embd,
                "n_params": facts.n_params,
                "size": facts.size_bytes,
                "ftype": facts.file_type,
            },
        }],
    })
}
