//! A seat for `llama`: Llama 2 and 3, SmolLM2, Mistral and every other file of this architecture with dense layers.

use bloomery_seat::prelude::*;
use bloomery_seat::rope::rope_of;

/// The program of a file.
///
/// # Errors
/// A key or tensor that is missing or does not fit, by name.
pub fn declare(facts: &ModelFacts) -> Result<Program> {
    let layers = facts.count("block_count")?;
    let width = facts.count("embedding_length")?;
    let ff = facts.int("feed_forward_length")?;
    let eps = facts.float("attention.layer_norm_rms_epsilon")?;
    let heads = facts.count("attention.head_count")?;
    let kv_heads = facts.count_or("attention.head_count_kv", heads)?;
    let key = facts.count_or("attention.key_length", width / heads)?;
    let value = facts.count_or("attention.value_length", key)?;
    let scale = facts.float_or("attention.scale", (key as f32).powf(-0.5))?;
    let rope = rope_of(facts, key, Pairing::Adjacent)?;
    if facts.int_or("expert_count", 0)? != 0 {
        return Err(Error::refused("llama.expert_count is not 0: this seat declares dense layers only"));
    }
    let attention = CausalAttention { heads, kv_heads, key, value, scale, window: None, softcap: None };

    let mut program = ProgramBuilder::new("llama", facts);
    let mut g = program.target();
    let tokens = g.tokens();
    let mut x = g.embed(tokens, "token_embd", width, 1.0)?;
    for layer in 0..layers {
        g.scope(format!("blk.{layer}"));
        let h = g.rms_norm(x, "attn_norm", eps)?;
        let q = g.linear(h, "attn_q", heads * key)?;
        let k = g.linear(h, "attn_k", kv_heads * key)?;
        let v = g.linear(h, "attn_v", kv_heads * value)?;
        let (q, k) = (rotate(&mut g, q, &rope)?, rotate(&mut g, k, &rope)?);
        let a = g.causal_attention(q, k, v, &attention)?;
        let a = g.linear(a, "attn_output", width)?;
        x = g.named("ffn_inp").add(x, a)?;

        let h = g.rms_norm(x, "ffn_norm", eps)?;
        let (gate, up) = (g.linear(h, "ffn_gate", ff)?, g.linear(h, "ffn_up", ff)?);
        let f = g.glu(gate, up, Function::Silu)?;
        let f = g.named("ffn_out").linear(f, "ffn_down", width)?;
        x = g.named("l_out").add(x, f)?;
    }
    g.scope("");
    let x = g.named("result_norm").rms_norm(x, "output_norm", eps)?;
    let output = if g.has("output") { "output" } else { "token_embd" };
    let logits = g.named("result_output").linear(x, output, facts.n_vocab()?)?;
    g.logits(logits);
    g.finish();
    program.finish()
}

/// Llama 3 files carry a factor for each frequency, the same for all layers.
fn rotate(g: &mut GraphBuilder<'_, '_>, x: ValueId, rope: &Rope) -> Result<ValueId> {
    if g.has("/rope_freqs") { g.rope_with_factors(x, rope, "/rope_freqs") } else { g.rope(x, rope) }
}

bloomery_seat::export_seat! { name: "llama", architectures: ["llama"], declare: declare }
