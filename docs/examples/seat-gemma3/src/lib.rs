//! A seat for `gemma3`: norms on both sides of each half layer, five windowed layers for each full one.

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
    // Full layers: the file's base and scaling. Windowed layers: a base of their own, never scaled.
    facts.float("rope.freq_base")?;
    let full = rope_of(facts, key, Pairing::Halves)?;
    let local_base = facts.float_or("rope.freq_base_swa", 10_000.0)?;
    let local = Rope { theta: local_base, linear_factor: 1.0, yarn: None, ..full.clone() };
    // The 27B model, alone of its family, scales by the width of a head as it would be without `key_length`.
    let per_head = if layers == 62 { width / heads } else { key };
    let scale = (per_head as f32).powf(-0.5);
    let windows = windows(facts, layers)?;

    let mut program = ProgramBuilder::new("gemma3", facts);
    let mut g = program.target();
    let tokens = g.tokens();
    let mut x = g.embed(tokens, "token_embd", width, (width as f32).sqrt())?;
    for (layer, window) in windows.into_iter().enumerate() {
        let rope = if window.is_some() { &local } else { &full };
        g.scope(format!("blk.{layer}"));
        let h = g.rms_norm(x, "attn_norm", eps)?;
        let q = g.linear(h, "attn_q", heads * key)?;
        let k = g.linear(h, "attn_k", kv_heads * key)?;
        let v = g.linear(h, "attn_v", kv_heads * value)?;
        let q = g.head_norm(q, "attn_q_norm", key, eps)?;
        let k = g.head_norm(k, "attn_k_norm", key, eps)?;
        let (q, k) = (g.rope(q, rope)?, g.rope(k, rope)?);
        let attention = CausalAttention { heads, kv_heads, key, value, scale, window, softcap: None };
        let a = g.causal_attention(q, k, v, &attention)?;
        let a = g.linear(a, "attn_output", width)?;
        let a = g.named("attn_post_norm").rms_norm(a, "post_attention_norm", eps)?;
        x = g.named("sa_out").add(x, a)?;

        let h = g.rms_norm(x, "ffn_norm", eps)?;
        let (gate, up) = (g.linear(h, "ffn_gate", ff)?, g.linear(h, "ffn_up", ff)?);
        let f = g.glu(gate, up, Function::GeluTanh)?;
        let f = g.named("ffn_out").linear(f, "ffn_down", width)?;
        let f = g.named("ffn_post_norm").rms_norm(f, "post_ffw_norm", eps)?;
        x = g.named("l_out").add(x, f)?;
    }
    g.scope("");
    let x = g.named("result_norm").rms_norm(x, "output_norm", eps)?;
    let output = if g.has("output") { "output" } else { "token_embd" };
    let mut logits = g.named("result_output").linear(x, output, facts.n_vocab()?)?;
    let cap = facts.float_or("final_logit_softcapping", 0.0)?;
    if cap != 0.0 {
        let small = g.scale(logits, 1.0 / cap, 0.0)?;
        let limited = g.unary(small, Function::Tanh)?;
        logits = g.scale(limited, cap, 0.0)?;
    }
    g.logits(logits);
    g.finish();
    program.finish()
}

/// Tokens that each layer sees back, `None` for all of them.
fn windows(facts: &ModelFacts, layers: u32) -> Result<Vec<Option<u32>>> {
    let window = facts.int_or("attention.sliding_window", 0)?;
    if window == 0 {
        return Ok(vec![None; layers as usize]);
    }
    const PATTERN: &str = "attention.sliding_window_pattern";
    let windowed = match facts.bools(PATTERN) {
        Ok(_) => facts.bools_per_layer(PATTERN, layers)?,
        // A number n: every n-th layer is a full one.
        Err(_) => {
            let every = facts.count_or(PATTERN, 6)?;
            (1..=layers).map(|layer| layer % every != 0).collect()
        }
    };
    Ok(windowed.into_iter().map(|windowed| windowed.then_some(window)).collect())
}

bloomery_seat::export_seat! { name: "gemma3", architectures: ["gemma3"], declare: declare }
