//! `deepseek4`: window attention joined with overlapping or heavily compressed rows, hash-routed first layers, own
//! hyper-connections and a head mix.

use crate::common::{experts, rotation, times};
use bloomery_seat::layers::{NEXTN_HIDDEN, NEXTN_ROLE, layers_of, nextn_head, nextn_input};
use bloomery_seat::prelude::*;

struct Deepseek<'f> {
    facts: &'f ModelFacts,
    width: u32,
    eps: f32,
    heads: u32,
    latent: u32,
    iterations: u32,
    hyper_eps: f32,
}

/// The whole program.
pub(crate) fn declare(facts: &ModelFacts) -> Result<Program> {
    let width = facts.count("embedding_length")?;
    let eps = facts.float("attention.layer_norm_rms_epsilon")?;
    let streams = facts.count("hyper_connection.count")?;
    let (layers, draft) = layers_of(facts)?;
    let drafts = draft > 0 && facts.has_tensor(&format!("blk.{layers}.nextn.eh_proj.weight"));
    let ratios = facts.ints("attention.compress_ratios")?;
    if ratios.len() < layers as usize {
        return Err(Error::refused(format!(
            "attention.compress_ratios has {} entries for {layers} layers",
            ratios.len()
        )));
    }
    let model = Deepseek {
        facts,
        width,
        eps,
        heads: facts.count("attention.head_count")?,
        latent: facts.count("attention.key_length")?,
        iterations: facts.count("hyper_connection.sinkhorn_iterations")?,
        hyper_eps: facts.float("hyper_connection.epsilon")?,
    };
    let mut program = ProgramBuilder::new("ds41", facts);
    let mut g = program.target();
    let tokens = g.tokens();
    let x = g.embed(tokens, "token_embd", width, 1.0)?;
    let mut h = g.stream_spread(x, streams)?;
    for (layer, ratio) in (0..layers).zip(ratios) {
        g.scope(format!("blk.{layer}"));
        h = model.layer(&mut g, tokens, h, (layer, ratio))?;
    }
    g.scope("");
    let pre = g.hyper_head(h, "output_hc", model.hyper_eps, eps)?;
    let x = g.named("hc_head").stream_collapse(h, Some(pre))?;
    let x = g.named("result_norm").rms_norm(x, "output_norm", eps)?;
    let logits = g.named("result_output").linear(x, "output", facts.n_vocab()?)?;
    g.logits(logits);
    if drafts {
        g.hidden(NEXTN_HIDDEN, h);
    }
    g.finish();
    if drafts {
        let mut g = program.graph(NEXTN_ROLE);
        let tokens = g.tokens();
        g.scope(format!("blk.{layers}"));
        let h = nextn_input(&mut g, tokens, width, streams, eps)?;
        let h = model.layer(&mut g, tokens, h, (layers, 0))?;
        g.hidden(NEXTN_HIDDEN, h);
        let pre = g.hyper_head(h, "/output_hc", model.hyper_eps, eps)?;
        let x = g.stream_collapse(h, Some(pre))?;
        let logits = nextn_head(&mut g, x, Some(eps))?;
        g.logits(logits);
        g.finish();
    }
    program.chat(crate::common::chat("dsml"));
    program.finish()
}

impl Deepseek<'_> {
    fn layer(
        &self,
        g: &mut GraphBuilder<'_, '_>,
        tokens: ValueId,
        mut h: ValueId,
        (layer, ratio): (u32, u32),
    ) -> Result<ValueId> {
        for (part, name) in [("attn", "hc_attn_out"), ("ffn", "l_last")] {
            let stem = format!("hc_{part}");
            let [pre, post, comb] = g.hyper_mix(h, &stem, self.iterations, self.hyper_eps, self.eps)?;
            let x = g.stream_collapse(h, Some(pre))?;
            let x = g.rms_norm(x, &format!("{part}_norm"), self.eps)?;
            let y = match part {
                "attn" => self.attention(g, x, ratio)?,
                _ => experts(g, x, Some(tokens), layer)?,
            };
            h = g.named(name).stream_combine(h, y, post, Some(comb))?;
        }
        Ok(h)
    }

    fn attention(&self, g: &mut GraphBuilder<'_, '_>, x: ValueId, ratio: u32) -> Result<ValueId> {
        let (facts, latent, eps) = (self.facts, self.latent, self.eps);
        let window = facts.count("attention.sliding_window")?;
        let rope = rotation(self.facts, latent, ratio, false, 1)?;
        let qr = g.linear(x, "attn_q_a", facts.count("attention.q_lora_rank")?)?;
        let qr = g.rms_norm(qr, "attn_q_a_norm", eps)?;
        let q = g.linear(qr, "attn_q_b", times(self.heads, latent)?)?;
        let q = g.plain_rms_norm(q, latent, eps)?;
        let q = g.rope(q, &rope)?;
        let kv = g.linear(x, "attn_kv", latent)?;
        let kv = g.rms_norm(kv, "attn_kv_a_norm", eps)?;
        let kv = g.rope(kv, &rope)?;
        let ring = g.latent_store("window", latent, 1, Some(window));
        g.append(ring, &[kv])?;
        let mut sources = vec![Source { state: ring, window: Some(window), selected: false }];
        let mut selections = Vec::new();
        if ratio > 0 {
            let state = self.compressed(g, x, "attn_compressor", latent, ratio)?;
            let selected = g.has("indexer.proj");
            if selected {
                selections.push(self.index(g, x, qr, ratio)?);
            }
            sources.push(Source { state, window: None, selected });
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
        g.named("attn_out").linear(o, "attn_output_b", self.width)
    }

    /// A store with one pooled row of `width` values for each group. Where the projection is twice as wide, a group also
    /// reads the first half of the group before.
    fn compressed(
        &self,
        g: &mut GraphBuilder<'_, '_>,
        x: ValueId,
        stem: &str,
        width: u32,
        ratio: u32,
    ) -> Result<StateId> {
        // The dimensions tell the two apart; any other width is refused where the norm's weight does not fit.
        let overlap = g.dims(&format!("{stem}_kv"))?.get(1) == Some(&u64::from(2 * width));
        let wide = if overlap { 2 * width } else { width };
        let row = g.linear(x, &format!("{stem}_kv"), wide)?;
        let gate = g.linear(x, &format!("{stem}_gate"), wide)?;
        let kept = if overlap { 2 * ratio } else { ratio } - 1;
        let recent = g.recent_rows(&format!("{stem}.recent"), kept, 2 * wide);
        let bias = format!("{stem}_ape");
        let row = g.pool(row, Some(gate), Some(&bias), ratio, PoolWeights::Softmax { overlap }, recent)?;
        let row = g.rms_norm(row, &format!("{stem}_norm"), self.eps)?;
        let row = g.rope(row, &rotation(self.facts, width, ratio, false, ratio)?)?;
        let store = g.latent_store(stem, width, ratio, None);
        g.append(store, &[row])?;
        Ok(store)
    }

    fn index(&self, g: &mut GraphBuilder<'_, '_>, x: ValueId, qr: ValueId, ratio: u32) -> Result<ValueId> {
        let facts = self.facts;
        let (heads, key) =
            (facts.count("attention.indexer.head_count")?, facts.count("attention.indexer.key_length")?);
        let keys = self.compressed(g, x, "indexer_compressor", key, ratio)?;
        let q = g.linear(qr, "indexer.attn_q_b", times(heads, key)?)?;
        let q = g.rope(q, &rotation(self.facts, key, ratio, false, 1)?)?;
        let w = g.linear(x, "indexer.proj", heads)?;
        let w = g.scale(w, (times(heads, key)? as f32).powf(-0.5), 0.0)?;
        let scores = g.index_score(q, Some(w), heads, key, keys)?;
        g.top_rows(scores, None, facts.count("attention.indexer.top_k")?, false, false)
    }
}
