//! Seat for Qwen3.8 Flash Next, `qwen4exp`: gated delta net and gated attention over the best blocks of tokens in turn,
//! four residual streams behind a gated low-rank mix in place of norms, and a memory of hashed n-grams.

#![forbid(unsafe_code)]

use bloomery_seat::layers::{
    DeltaNet, GatedAttention, NEXTN_HIDDEN, NEXTN_ROLE, attending_layers, draft_facts, gated_shared_experts,
    layers_of, nextn_head, nextn_input,
};
use bloomery_seat::prelude::*;

/// The program of a file.
///
/// # Errors
/// A key that is missing or out of range, a tensor that is missing, has another shape or is read by nothing: by name.
pub fn declare(facts: &ModelFacts) -> Result<Program> {
    let width = facts.count("embedding_length")?;
    let eps = facts.float("attention.layer_norm_rms_epsilon")?;
    let (layers, draft) = layers_of(facts)?;
    let streams = facts.count("hyper_connection.count")?;
    let mut ratios = facts.ints("attention.compress_ratios")?;
    if ratios.len() < layers as usize {
        return Err(Error::refused(format!(
            "attention.compress_ratios has {} entries for {layers} layers",
            ratios.len()
        )));
    }
    ratios.truncate(layers as usize);
    let full = attending_layers(facts, layers)?;
    if facts.has_key("attention.indexer.head_count") && ratios.iter().all(|r| *r == 0) {
        return Err(Error::refused(
            "attention.indexer.* keys, yet every entry of attention.compress_ratios is 0: convert the file again",
        ));
    }
    let memory_layers = facts.ints("ple.layers")?;
    let delta = DeltaNet::read(facts, Function::Sigmoid, eps)?;
    let attention = GatedAttention::read(facts)?;

    // The next-token block stands in this file, or in one of its own that the host lays beside it.
    let block = format!("blk.{layers}");
    let in_file = draft > 0 && facts.has_tensor(&format!("{block}.nextn.eh_proj.weight"));
    let beside = match draft_facts(facts) {
        Some(own) if own.arch != facts.arch => {
            return Err(Error::refused(format!("the drafter's file is of architecture {}", own.arch)));
        }
        Some(own) => layers_of(&own)?.0 == layers && own.has_tensor(&format!("{block}.nextn.eh_proj.weight")),
        None => false,
    };
    let draft_scope = match (in_file, beside) {
        (_, true) => Some(format!("draft/{block}")),
        (true, false) => Some(block),
        (false, false) => None,
    };

    let mut program = ProgramBuilder::new("qwen38", facts);
    let mut g = program.target();
    let tokens = g.tokens();
    let x = g.embed(tokens, "token_embd", width, 1.0)?;
    let mut h = g.stream_spread(x, streams)?;
    for (layer, (full, ratio)) in (0..layers).zip(full.into_iter().zip(ratios)) {
        g.scope(format!("blk.{layer}"));
        if memory_layers.contains(&layer) {
            h = memory(&mut g, facts, tokens, h, eps)?;
        }
        for (part, name) in [("attn", "hc_attn_out"), ("ffn", "l_last")] {
            let (x, post) = mix(&mut g, h, part, eps)?;
            let y = match part {
                "ffn" => gated_shared_experts(&mut g, x)?,
                _ if full && ratio > 0 => {
                    let [q, gate, k, v] = attention.project(&mut g, x)?;
                    let o = sparse(&mut g, facts, x, [q, k, v], &attention, ratio)?;
                    attention.finish(&mut g, o, gate, width)?
                }
                _ if full => attention.dense(&mut g, x, width)?,
                _ => delta.declare(&mut g, x, width)?,
            };
            h = g.named(name).stream_combine(h, y, post, None)?;
        }
    }
    g.scope("");
    let (x, _) = g.low_rank_mix(h, "output_hc_norm", "output_hc_down", "output_hc_up", None, eps)?;
    let logits = g.named("result_output").linear(x, "output", facts.n_vocab()?)?;
    g.logits(logits);
    if draft_scope.is_some() {
        g.hidden(NEXTN_HIDDEN, h);
    }
    g.finish();
    if let Some(scope) = draft_scope {
        let mut g = program.graph(NEXTN_ROLE);
        let tokens = g.tokens();
        g.scope(&scope);
        let mut h = nextn_input(&mut g, tokens, width, streams, eps)?;
        for part in ["attn", "ffn"] {
            let (x, post) = mix(&mut g, h, part, eps)?;
            let y = match part {
                "attn" => attention.dense(&mut g, x, width)?,
                _ => gated_shared_experts(&mut g, x)?,
            };
            h = g.stream_combine(h, y, post, None)?;
        }
        g.hidden(NEXTN_HIDDEN, h);
        let [norm, down, up] = ["norm", "down", "up"].map(|part| format!("nextn.hc_head_{part}"));
        let (x, _) = g.low_rank_mix(h, &norm, &down, &up, None, eps)?;
        let logits = nextn_head(&mut g, x, None)?;
        g.logits(logits);
        g.finish();
        for name in facts.tensors.keys().filter(|n| n.starts_with(&format!("{scope}.indexer."))) {
            program.ignore(name, "the next-token block attends to every token");
        }
    }
    for name in facts.tensors.keys().filter(|n| n.starts_with("draft/") && facts.has(&n["draft/".len()..])) {
        program.ignore(name, "the model's own is used");
    }
    program.chat(ChatHints {
        tool_format: Some("qwen_xml".into()),
        thinking: Some(("<think>".into(), "</think>".into())),
        ..ChatHints::default()
    });
    program.finish()
}

/// The mix before the half `part` of a layer, and the weights that put the half's result back.
fn mix(g: &mut GraphBuilder<'_, '_>, h: ValueId, part: &str, eps: f32) -> Result<(ValueId, ValueId)> {
    let [norm, down, up, inject] = ["norm", "down", "up", "inject"].map(|s| format!("hc_{part}_{s}"));
    let (x, post) = g.low_rank_mix(h, &norm, &down, &up, Some(&inject), eps)?;
    Ok((x, post.ok_or_else(|| Error::refused("low_rank_mix gave no weights"))?))
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

bloomery_seat::export_seat! { name: "qwen38", architectures: ["qwen4exp"], declare: declare }
