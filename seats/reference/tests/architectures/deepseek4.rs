//! `deepseek4`: window attention joined with overlapping or heavily compressed rows, hash-routed first layers, own
//! hyper-connections and a head mix.

use bloomery_seat::Result;
use bloomery_seat::prelude::*;

struct Deepseek<'f> {
    facts: &'f ModelFacts,
    width: u32,
    eps: f32,
    heads: u32,
    latent: u32,
}

/// The whole program.
pub fn declare(facts: &ModelFacts) -> Result<Program> {
    let width = facts.count("embedding_length")?;
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
    };
    let mut program = ProgramBuilder::new("deepseek4", facts);
    let mut g = program.target();
    let tokens = g.tokens();
    let x = g.embed(tokens, "token_embd", width, 1.0)?;
    let mut h = g.stream_spread(x, streams)?;
    for layer in 0..facts.count("block_count")? {
        g.scope(format!("blk.{layer}"));
        for (part, name) in [("attn", "hc_attn_out"), ("ffn", "l_last")] {
            let [pre, post, comb] = g.hyper_mix(h, &format!("hc_{part}"), iterations, hyper_eps, eps)?;
            let x = g.stream_collapse(h, Some(pre))?;
            let x = g.rms_norm(x, &format!("{part}_norm"), eps)?;
            let y = match part {
                "attn" => model.attention(&mut g, x, layer)?,
                _ => model.experts(&mut g, tokens, x, layer)?,
            };
            h = g.named(name).stream_combine(h, y, post, Some(comb))?;
        }
    }
    g.scope("");
    let pre = g.hyper_head(h, "output_hc", hyper_eps, eps)?;
    let x = g.named("hc_head").stream_collapse(h, Some(pre))?;
    let x = g.named("result_norm").rms_norm(x, "output_norm", eps)?;
    let logits = g.named("result_output").linear(x, "output", facts.n_vocab()?)?;
    g.logits(logits);
    g.finish();
    program.finish()
}

impl Deepseek<'_> {
    fn rope(&self, head: u32, ratio: u32, inverse: bool, group: u32) -> Result<Rope> {
        let dims = self.facts.count("rope.dimension_count")?;
        let theta = if ratio > 0 { "attention.compress_rope_freq_base" } else { "rope.freq_base" };
        Ok(Rope {
            head,
            dims,
            offset: head - dims,
            theta: self.facts.float(theta)?,
            pairing: Pairing::Adjacent,
            inverse,
            linear_factor: 1.0,
            yarn: None,
            sections: None,
            group,
        })
    }

    fn attention(&self, g: &mut GraphBuilder<'_, '_>, x: ValueId, layer: u32) -> Result<ValueId> {
        let (facts, latent, eps) = (self.facts, self.latent, self.eps);
        let ratio = facts.ints("attention.compress_ratios")?[layer as usize];
        let window = facts.count("attention.sliding_window")?;
        let rope = self.rope(latent, ratio, false, 1)?;
        let qr = g.linear(x, "attn_q_a", facts.count("attention.q_lora_rank")?)?;
        let qr = g.rms_norm(qr, "attn_q_a_norm", eps)?;
        let q = g.linear(qr, "attn_q_b", self.heads * latent)?;
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
        let o = g.rope(o, &self.rope(latent, ratio, true, 1)?)?;
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
        let wide = g.dims(&format!("{stem}_kv"))?[1] as u32;
        let overlap = wide == 2 * width;
        let row = g.linear(x, &format!("{stem}_kv"), wide)?;
        let gate = g.linear(x, &format!("{stem}_gate"), wide)?;
        let kept = if overlap { 2 * ratio } else { ratio } - 1;
        let recent = g.recent_rows(&format!("{stem}.recent"), kept, 2 * wide);
        let bias = format!("{stem}_ape");
        let row = g.pool(row, Some(gate), Some(&bias), ratio, PoolWeights::Softmax { overlap }, recent)?;
        let row = g.rms_norm(row, &format!("{stem}_norm"), self.eps)?;
        let row = g.rope(row, &self.rope(width, ratio, false, ratio)?)?;
        let store = g.latent_store(stem, width, ratio, None);
        g.append(store, &[row])?;
        Ok(store)
    }

    fn index(&self, g: &mut GraphBuilder<'_, '_>, x: ValueId, qr: ValueId, ratio: u32) -> Result<ValueId> {
        let facts = self.facts;
        let (heads, key) =
            (facts.count("attention.indexer.head_count")?, facts.count("attention.indexer.key_length")?);
        let keys = self.compressed(g, x, "indexer_compressor", key, ratio)?;
        let q = g.linear(qr, "indexer.attn_q_b", heads * key)?;
        let q = g.rope(q, &self.rope(key, ratio, false, 1)?)?;
        let w = g.linear(x, "indexer.proj", heads)?;
        let w = g.scale(w, ((heads * key) as f32).powf(-0.5), 0.0)?;
        let scores = g.index_score(q, Some(w), heads, key, keys)?;
        g.top_rows(scores, None, facts.count("attention.indexer.top_k")?, false, false)
    }

    fn experts(
        &self,
        g: &mut GraphBuilder<'_, '_>,
        tokens: ValueId,
        x: ValueId,
        layer: u32,
    ) -> Result<ValueId> {
        let facts = self.facts;
        let (experts, used) = (facts.count("expert_count")?, facts.count("expert_used_count")?);
        let ff = facts.count("expert_feed_forward_length")?;
        let clamp = |key: &str| -> Result<Option<Clamp>> {
            let limit = facts.floats(key)?[layer as usize];
            Ok((limit > 0.0).then_some(Clamp { gate_max: limit, up_abs: limit }))
        };
        let logits = g.named("ffn_moe_logits").linear(x, "ffn_gate_inp", experts)?;
        let route = Route {
            experts,
            used,
            score: Score::SqrtSoftplus,
            groups: None,
            normalize: facts.bool("expert_weights_norm")?,
            sum_floor: 1e-20,
            scale: facts.float("expert_weights_scale")?,
        };
        let chosen = match g.has("ffn_gate_tid2eid") {
            true => g.route_by_table(logits, tokens, "ffn_gate_tid2eid", route)?,
            false => g.route(logits, Some("exp_probs_b.bias"), route)?,
        };
        let routed =
            g.experts(x, chosen, "ffn", (experts, used, ff), Function::Silu, clamp("swiglu_clamp_exp")?)?;
        let gate = g.linear(x, "ffn_gate_shexp", ff)?;
        let up = g.linear(x, "ffn_up_shexp", ff)?;
        let h = match clamp("swiglu_clamp_shexp")? {
            Some(clamp) => g.clamped_glu(gate, up, Function::Silu, clamp)?,
            None => g.glu(gate, up, Function::Silu)?,
        };
        let shared = g.linear(h, "ffn_down_shexp", self.width)?;
        g.named("ffn_out").add(routed, shared)
    }
}
