//! Seat for Qwen3 (`qwen3`, dense, and `qwen3moe`, mixture of experts) and Qwen3.5 and 3.6 (`qwen35`, `qwen35moe`).
//!
//! The first two are the plain pre-norm transformer with grouped-query attention and one difference: every query and key head is
//! normalised before its rotary embedding. The mixture-of-experts form replaces the feed-forward network of each layer.
//! The other two take turns between a gated delta net and gated attention: see `hybrid`.

#![forbid(unsafe_code)]

mod feed_forward;
mod hybrid;

use bloomery_seat::prelude::*;
use bloomery_seat::rope::rope_of;
use feed_forward::FeedForward;

/// The program of a Qwen3 file.
///
/// # Errors
/// A key that is missing or out of range, a tensor that is missing or has another shape, a rotary scaling that Qwen3 does
/// not use, or tensors that belong to no part of Qwen3: each by name.
pub fn declare(facts: &ModelFacts) -> Result<Program> {
    if facts.arch.starts_with("qwen35") { hybrid::declare(facts) } else { plain(facts) }
}

fn plain(facts: &ModelFacts) -> Result<Program> {
    let layers = facts.count("block_count")?;
    let width = facts.count("embedding_length")?;
    let eps = facts.float("attention.layer_norm_rms_epsilon")?;
    let heads = facts.count("attention.head_count")?;
    let kv_heads = facts.count_or("attention.head_count_kv", heads)?;
    let key = facts.count_or("attention.key_length", width / heads)?;
    let value = facts.count_or("attention.value_length", key)?;
    let rope = rope_of(facts, key, Pairing::Halves)?;
    let attention = CausalAttention {
        heads,
        kv_heads,
        key,
        value,
        scale: (key as f32).powf(-0.5),
        window: None,
        softcap: None,
    };
    let feed_forward = FeedForward::read(facts)?;

    let mut program = ProgramBuilder::new("qwen3", facts);
    let mut g = program.target();
    let tokens = g.tokens();
    let mut x = g.embed(tokens, "token_embd", width, 1.0)?;
    for layer in 0..layers {
        g.scope(format!("blk.{layer}"));
        let h = g.rms_norm(x, "attn_norm", eps)?;
        let q = g.linear(h, "attn_q", heads * key)?;
        let k = g.linear(h, "attn_k", kv_heads * key)?;
        let v = g.linear(h, "attn_v", kv_heads * value)?;
        let q = g.head_norm(q, "attn_q_norm", key, eps)?;
        let k = g.head_norm(k, "attn_k_norm", key, eps)?;
        let (q, k) = (g.rope(q, &rope)?, g.rope(k, &rope)?);
        let a = g.causal_attention(q, k, v, &attention)?;
        let a = g.linear(a, "attn_output", width)?;
        x = g.named("ffn_inp").add(x, a)?;
        let h = g.rms_norm(x, "ffn_norm", eps)?;
        let f = feed_forward.declare(&mut g, h, width)?;
        x = g.named("l_out").add(x, f)?;
    }
    g.scope("");
    let x = g.named("result_norm").rms_norm(x, "output_norm", eps)?;
    let output = if g.has("output") { "output" } else { "token_embd" };
    let logits = g.named("result_output").linear(x, output, facts.n_vocab()?)?;
    g.logits(logits);
    g.finish();
    program.chat(chat(facts));
    program.finish()
}

/// Qwen3's tool calls are JSON in `<tool_call>` tags; the thinking models' template speaks of `<think>`.
fn chat(facts: &ModelFacts) -> ChatHints {
    let thinks = facts.string_or("tokenizer.chat_template", "").is_ok_and(|t| t.contains("<think>"));
    ChatHints {
        tool_format: Some("hermes_json".into()),
        thinking: thinks.then(|| ("<think>".into(), "</think>".into())),
        ..ChatHints::default()
    }
}

bloomery_seat::export_seat! { name: "qwen3", architectures: ["qwen3moe", "qwen3", "qwen35moe", "qwen35"], declare: declare }
