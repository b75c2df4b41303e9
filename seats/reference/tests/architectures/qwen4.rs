//! `qwen4exp`: gated delta net, block-indexed gated attention, gated low-rank streams, hashed n-gram memory.

use crate::qwen35::{DeltaNet, GatedAttention, shared_experts};
use bloomery_seat::Result;
use bloomery_seat::prelude::*;

/// The whole program.
pub fn declare(facts: &ModelFacts) -> Result<Program> {
    let width = facts.count("embedding_length")?;
    let eps = facts.float("attention.layer_norm_rms_epsilon")?;
    let draft_layers = facts.int_or("nextn_predict_layers", 0)?;
    let layers = facts.count("block_count")? - draft_layers;
    let streams = facts.count("hyper_connection.count")?;
    let ratios = facts.ints("attention.compress_ratios")?;
    let interval = facts.count_or("full_attention_interval", 4)?;
    let full: Vec<bool> = match facts.has_key("attention.recurrent_layers") {
        true => facts.bools("attention.recurrent_layers")?.iter().map(|r| !r).collect(),
        false => (1..=layers).map(|l| l % interval == 0).collect(),
    };
    let memory_layers = facts.ints("ple.layers")?;
    let delta = DeltaNet::read(facts, Function::Sigmoid, eps)?;
    let attention = GatedAttention::read(facts)?;

    let mut program = ProgramBuilder::new("qwen4", facts);
    for name in facts.tensors.keys().filter(|n| n.starts_with(&format!("blk.{layers}."))) {
        program.ignore(name, "the drafter is not declared here");
    }
    let mut g = program.target();
    let tokens = g.tokens();
    let x = g.embed(tokens, "token_embd", width, 1.0)?;
    let mut h = g.stream_spread(x, streams)?;
    for layer in 0..layers {
        g.scope(format!("blk.{layer}"));
        if memory_layers.contains(&layer) {
            h = memory(&mut g, facts, tokens, h, eps)?;
        }
        for (part, name) in [("attn", "hc_attn_out"), ("ffn", "l_last")] {
            let stem = format!("hc_{part}");
            let tensor = |s: &str| format!("{stem}_{s}");
            let inject = tensor("inject");
            let (x, post) =
                g.low_rank_mix(h, &tensor("norm"), &tensor("down"), &tensor("up"), Some(&inject), eps)?;
            let y = match part {
                "ffn" => shared_experts(&mut g, facts, x, width)?,
                _ if full[layer as usize] => {
                    let [q, gate, k, v] = attention.project(&mut g, x)?;
                    let o = match ratios[layer as usize] {
                        0 => g.causal_attention(q, k, v, &attention.attention)?,
                        ratio => sparse(&mut g, facts, x, [q, k, v], &attention, ratio)?,
                    };
                    attention.finish(&mut g, o, gate, width)?
                }
                _ => delta.declare(&mut g, x, width)?,
            };
            let post = post.ok_or_else(|| Error::refused("no inject"))?;
            h = g.named(name).stream_combine(h, y, post, None)?;
        }
    }
    g.scope("");
    let (x, _) = g.low_rank_mix(h, "output_hc_norm", "output_hc_down", "output_hc_up", None, eps)?;
    let logits = g.named("result_output").linear(x, "output", facts.n_vocab()?)?;
    g.logits(logits);
    g.finish();
    program.finish()
}

/// Attention over the tokens of the best blocks and the incomplete tail.
fn sparse(
    g: &mut GraphBuilder<'_, '_>,
    facts: &ModelFacts,
    x: ValueId,
    [q, k, v]: [ValueId; 3],
    full: &GatedAttention,
    ratio: u32,
) -> Result<ValueId> {
    let (heads, key) =
        (facts.count("attention.indexer.head_count")?, facts.count("attention.indexer.key_length")?);
    let top_k = facts.count("attention.indexer.top_k")?;
    let rope = Rope { head: key, ..full.rope.clone() };
    // Block keys: the mean of the raw rows, normalised, at the block's first position.
    let raw = g.linear(x, "indexer.k_proj", key)?;
    let recent = g.recent_rows("block", ratio - 1, key);
    let block = g.pool(raw, None, None, ratio, PoolWeights::Mean {}, recent)?;
    let block = g.head_norm(block, "indexer.k_norm", key, full.eps)?;
    let block = g.rope(block, &Rope { group: ratio, ..rope.clone() })?;
    let keys = g.latent_store("index", key, ratio, None);
    g.append(keys, &[block])?;
    let iq = g.linear(x, "indexer.q_proj", heads * key)?;
    let iq = g.head_norm(iq, "indexer.q_norm", key, full.eps)?;
    let iq = g.rope(iq, &rope)?;
    let scores = g.index_score(iq, None, heads, key, keys)?;
    let selection = g.top_rows(scores, None, top_k / ratio, true, true)?;
    let a = full.attention;
    let store = g.key_value_store("kv", a.kv_heads * a.key, a.kv_heads * a.value, None);
    g.append(store, &[k, v])?;
    let attention = Attention {
        heads: a.heads,
        kv_heads: a.kv_heads,
        key: a.key,
        value: a.value,
        scale: a.scale,
        softcap: None,
        block_bidirectional: false,
        sources: vec![Source { state: store, window: None, selected: true }],
    };
    g.attention(q, &[selection], attention, None)
}

/// Hashed n-gram rows, gated into every stream, and a dilated convolution of what they add.
fn memory(
    g: &mut GraphBuilder<'_, '_>,
    facts: &ModelFacts,
    tokens: ValueId,
    h: ValueId,
    eps: f32,
) -> Result<ValueId> {
    let Shape::Streams { streams, width } = g.shape(h)? else {
        return Err(Error::refused("no streams"));
    };
    let max_ngram = facts.count("ple.ngram_size")?;
    let eos = facts.int("ple.eos_token_id")?;
    let state = g.last_tokens("ids", max_ngram - 1);
    let op = Op::NgramEmbed {
        max_ngram,
        heads: facts.count("ple.heads_per_ngram")?,
        multipliers: facts.longs("ple.layer_multipliers")?,
        moduli: facts.longs("ple.head_vocab_sizes")?,
        offsets: facts.longs("ple.head_offsets")?,
        fill: eos.into(),
        cut: vec![eos],
        token_map: None,
        state,
    };
    let e = g.ngram_embed(tokens, "/per_layer_token_embd", op)?;
    let key = g.linear(e, "ple_key", streams * width)?;
    let value = g.linear(e, "ple_value", width)?;
    let gate = g.memory_gate(h, key, "ple_norm_query", "ple_norm_key", eps)?;
    let gated = g.stream_scale(value, gate)?;
    let norm = g.tensor("ple_norm_conv")?;
    let normed =
        g.node(Op::RmsNorm { eps, group: width }, &[gated], &[("weight", norm)], &["ple_norm_conv"])?[0];
    let (taps, dilation) = (facts.count("ple.conv_kernel")?, max_ngram);
    let recent = g.recent_rows("ple_conv", (taps - 1) * dilation, streams * width);
    let conv = g.causal_conv(normed, "ple_conv1d", taps, dilation, Some(Function::Silu), recent)?;
    let h = g.add(h, gated)?;
    g.add(h, conv)
}
