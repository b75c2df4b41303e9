//! `deepseek41`: latent window attention joined with selected compressed rows, lagged hyper-connections, n-gram memory.

use crate::block::Block;
use crate::common::{experts, rotation, times};
use bloomery_seat::layers::layers_of;
use bloomery_seat::prelude::*;

struct Deepseek<'f> {
    facts: &'f ModelFacts,
    width: u32,
    eps: f32,
    heads: u32,
    latent: u32,
    n_vocab: u32,
}

/// What a layer takes over from the layers before it.
#[derive(Default, Clone, Copy)]
struct Shared {
    compressed: Option<StateId>,
    index: Option<StateId>,
    selection: Option<ValueId>,
    candidates: Option<ValueId>,
}

/// The whole program. The layers that a block drafter reads also give their input, the mean of the streams, as a hidden
/// output `tap.N`.
pub(crate) fn declare(facts: &ModelFacts) -> Result<Program> {
    let width = facts.count("embedding_length")?;
    let (layers, _) = layers_of(facts)?;
    let block = Block::read(facts)?;
    let ratios = facts.ints("attention.compress_ratios")?;
    if ratios.len() < layers as usize {
        return Err(Error::refused(format!(
            "attention.compress_ratios has {} entries for {layers} layers",
            ratios.len()
        )));
    }
    let eps = facts.float("attention.layer_norm_rms_epsilon")?;
    let streams = facts.count("hyper_connection.count")?;
    let iterations = facts.count("hyper_connection.sinkhorn_iterations")?;
    let hyper_eps = facts.float("hyper_connection.epsilon")?;
    let model = Deepseek {
        facts,
        width,
        eps,
        heads: facts.count("attention.head_count")?,
        latent: facts.count("attention.key_length")?,
        n_vocab: facts.n_vocab()?,
    };
    let mut program = ProgramBuilder::new("ds41", facts);
    let mut g = program.target();
    let tokens = g.tokens();
    let x = g.embed(tokens, "token_embd", width, 1.0)?;
    let mut h = g.stream_spread(x, streams)?;
    // The first sub-block takes stream 0; every later one the weights that the sub-block before it computed.
    let mut pre = None;
    let mut shared = Shared::default();
    let mut taps = Vec::new();
    for (layer, ratio) in (0..layers).zip(ratios) {
        g.scope(format!("blk.{layer}"));
        if g.has("engram_embd") {
            h = model.engram(&mut g, tokens, h)?;
        }
        if block.as_ref().is_some_and(|block| block.taps.contains(&layer)) {
            taps.push((layer, g.named("tap").stream_collapse(h, None)?));
        }
        for part in ["attn", "ffn"] {
            let [next, post, comb] = g.hyper_mix(h, &format!("hc_{part}"), iterations, hyper_eps, eps)?;
            let x = match pre {
                Some(pre) => g.stream_collapse(h, Some(pre))?,
                None => g.slice(h, streams * width, 0, width)?,
            };
            let x = g.rms_norm(x, &format!("{part}_norm"), eps)?;
            let y = match part {
                "attn" => model.attention(&mut g, x, (layer, ratio), &mut shared)?,
                _ => experts(&mut g, x, None, layer)?,
            };
            let name = if part == "attn" { "hc_attn_out" } else { "l_last" };
            h = g.named(name).stream_combine(h, y, post, Some(comb))?;
            pre = Some(next);
        }
    }
    g.scope("");
    let x = g.stream_collapse(h, pre)?;
    let x = g.named("result_norm").rms_norm(x, "output_norm", eps)?;
    let logits = g.named("result_output").linear(x, "output", model.n_vocab)?;
    g.logits(logits);
    for (layer, tap) in taps {
        g.hidden(&format!("tap.{layer}"), tap);
    }
    g.finish();
    if let Some(block) = block {
        block.declare(&mut program)?;
    }
    for name in facts.tensors.keys().filter(|n| n.ends_with(".exp_probs_b_vl.bias")) {
        program.ignore(name, "the router's bias for image tokens");
    }
    program.chat(crate::common::chat("dsml"));
    program.finish()
}

impl Deepseek<'_> {
    fn engram(&self, g: &mut GraphBuilder<'_, '_>, tokens: ValueId, h: ValueId) -> Result<ValueId> {
        let facts = self.facts;
        let Shape::Streams { streams, width } = g.shape(h)? else {
            return Err(Error::refused("no streams"));
        };
        let (heads, max_ngram) = (facts.count("engram.head_count")?, facts.count("engram.max_ngram_size")?);
        // Which of the memory layers this one is: their constants stand one after the other.
        let scope = g.tensor("engram_embd")?;
        let layer: u32 = scope.split('.').nth(1).and_then(|l| l.parse().ok()).unwrap_or(0);
        let place = facts.ints("engram.layer_ids")?.iter().position(|l| *l == layer).ok_or_else(|| {
            Error::refused(format!("layer {layer} has a memory and no place in engram.layer_ids"))
        })?;
        let part = |key: &str, n: u32| -> Result<Vec<u64>> {
            let (all, n) = (facts.longs(key)?, n as usize);
            let found = all.get(place * n..(place + 1) * n).map(<[u64]>::to_vec);
            found.ok_or_else(|| {
                Error::refused(format!("{key} has {} entries, too few for memory {place}", all.len()))
            })
        };
        let rows = times(max_ngram - 1, heads)?;
        let (map, pad) = (facts.longs("engram.token_map")?, facts.int("engram.pad_id")?);
        let fill = *map
            .get(pad as usize)
            .ok_or_else(|| Error::refused(format!("engram.token_map ends before {pad}")))?;
        let op = Op::NgramEmbed {
            max_ngram,
            heads,
            multipliers: part("engram.multipliers", max_ngram)?,
            moduli: part("engram.primes", rows)?,
            offsets: part("engram.offsets", rows)?,
            fill,
            cut: vec![],
            token_map: Some(format!("{}.engram.token_map", facts.arch)),
            state: g.last_tokens("ids", max_ngram - 1),
        };
        let e = g.ngram_embed(tokens, "engram_embd", op)?;
        let all = (streams + 1) * width;
        let kv = g.linear(e, "engram_wkv", all)?;
        let key = g.slice(kv, all, 0, streams * width)?;
        let value = g.slice(kv, all, streams * width, width)?;
        let gate = g.memory_gate(h, key, "engram_q", "engram_k", self.eps)?;
        let gated = g.stream_scale(value, gate)?;
        g.named("engram_out").add(h, gated)
    }

    fn attention(
        &self,
        g: &mut GraphBuilder<'_, '_>,
        x: ValueId,
        (layer, ratio): (u32, u32),
        shared: &mut Shared,
    ) -> Result<ValueId> {
        let (facts, latent) = (self.facts, self.latent);
        let window = facts.count("attention.sliding_window")?;
        let rope = rotation(self.facts, latent, ratio, false, 1)?;
        let rank = facts.count("attention.q_lora_rank")?;
        let qr = g.linear(x, "attn_q_a", rank)?;
        let qr = g.rms_norm(qr, "attn_q_a_norm", self.eps)?;
        let q = g.linear(qr, "attn_q_b", times(self.heads, latent)?)?;
        let q = g.rope(q, &rope)?;
        let kv = g.linear(x, "attn_kv", latent)?;
        let kv = g.rms_norm(kv, "attn_kv_a_norm", self.eps)?;
        let kv = g.rope(kv, &rope)?;
        let ring = g.latent_store("window", latent, 1, Some(window));
        g.append(ring, &[kv])?;
        let mut sources = vec![Source { state: ring, window: Some(window), selected: false }];
        let mut selections = Vec::new();
        if ratio > 0 {
            if g.has("attn_compressor_kv") {
                self.compress(g, x, ratio, shared)?;
            }
            if g.has("indexer.proj") {
                self.index(g, x, qr, layer, ratio, shared)?;
            }
            let missing = || Error::refused("no layer before this one compresses");
            sources.push(Source {
                state: shared.compressed.ok_or_else(missing)?,
                window: None,
                selected: true,
            });
            selections.push(shared.selection.ok_or_else(missing)?);
        }
        let attention = Attention {
            heads: self.heads,
            kv_heads: 1,
            key: latent,
            value: latent,
            scale: (latent as f32).powf(-0.5),
            softcap: None,
            block_bidirectional: false,
            sources,
        };
        let o = g.attention(q, &selections, attention, Some("attn_sinks"))?;
        let o = g.rope(o, &rotation(self.facts, latent, ratio, true, 1)?)?;
        let o = g.grouped_linear(o, "attn_output_a", facts.count("attention.output_group_count")?)?;
        g.linear(o, "attn_output_b", self.width)
    }

    /// Compressed rows and index keys, one for each group of `ratio` tokens.
    fn compress(
        &self,
        g: &mut GraphBuilder<'_, '_>,
        x: ValueId,
        ratio: u32,
        shared: &mut Shared,
    ) -> Result<()> {
        let latent = self.latent;
        let mut row = g.linear(x, "attn_compressor_kv", latent)?;
        if ratio > 1 {
            let gate = g.linear(x, "attn_compressor_gate", latent)?;
            let recent = g.recent_rows("compressor", ratio - 1, 2 * latent);
            let weights = PoolWeights::Softmax { overlap: false };
            row = g.pool(row, Some(gate), None, ratio, weights, recent)?;
        }
        let row = g.rms_norm(row, "attn_compressor_norm", self.eps)?;
        let key = self.facts.count("attention.indexer.key_length")?;
        let index_key = g.linear(row, "indexer.attn_k", key)?;
        let index_key = g.rms_norm(index_key, "indexer.k_norm", self.eps)?;
        let index_key = g.rope(index_key, &rotation(self.facts, key, ratio, false, ratio)?)?;
        let index = g.latent_store("index", key, ratio, None);
        g.append(index, &[index_key])?;
        let row = g.rope(row, &rotation(self.facts, latent, ratio, false, ratio)?)?;
        let compressed = g.latent_store("compressed", latent, ratio, None);
        g.append(compressed, &[row])?;
        shared.index = Some(index);
        shared.compressed = Some(compressed);
        Ok(())
    }

    /// Chooses compressed rows for this layer and those after it.
    fn index(
        &self,
        g: &mut GraphBuilder<'_, '_>,
        x: ValueId,
        qr: ValueId,
        layer: u32,
        ratio: u32,
        shared: &mut Shared,
    ) -> Result<()> {
        let facts = self.facts;
        let (heads, key) =
            (facts.count("attention.indexer.head_count")?, facts.count("attention.indexer.key_length")?);
        let q = g.linear(qr, "indexer.attn_q_b", times(heads, key)?)?;
        let q = g.rope(q, &rotation(self.facts, key, ratio, false, 1)?)?;
        let w = g.linear(x, "indexer.proj", heads)?;
        let w = g.scale(w, (times(heads, key)? as f32).powf(-0.5), 0.0)?;
        let store = shared.index.ok_or_else(|| Error::refused("no index keys"))?;
        let scores = g.index_score(q, Some(w), heads, key, store)?;
        if facts.has_key("attention.candidate_source_layer_id")
            && facts.int("attention.candidate_source_layer_id")? == layer
        {
            let block = facts.count("attention.candidate_block_size")?;
            let keep = facts.count("attention.candidate_topk_blocks")?;
            shared.candidates = Some(g.candidate_blocks(scores, block, keep)?);
            // The source layer itself chooses among all rows.
            let top_k = facts.count("attention.indexer.top_k")?;
            shared.selection = Some(g.top_rows(scores, None, top_k, false, false)?);
            return Ok(());
        }
        let top_k = facts.count("attention.indexer.top_k")?;
        shared.selection = Some(g.top_rows(scores, shared.candidates, top_k, false, false)?);
        Ok(())
    }
}
