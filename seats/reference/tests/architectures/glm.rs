//! `glm5-next`: channel-gated delta layers, latent attention with a pooled indexer, Sinkhorn hyper-connections.

use bloomery_seat::Result;
use bloomery_seat::prelude::*;

struct Glm<'f> {
    facts: &'f ModelFacts,
    width: u32,
    eps: f32,
    heads: u32,
}

/// The whole program.
pub fn declare(facts: &ModelFacts) -> Result<Program> {
    let width = facts.count("embedding_length")?;
    let eps = facts.float("attention.layer_norm_rms_epsilon")?;
    let layers = facts.count("block_count")? - facts.int_or("nextn_predict_layers", 0)?;
    let kv_heads = facts.ints("attention.head_count_kv")?;
    let dense = facts.int_or("leading_dense_block_count", 0)?;
    let streams = facts.count("hyper_connection.count")?;
    let iterations = facts.count("hyper_connection.sinkhorn_iterations")?;
    let hyper_eps = facts.float("hyper_connection.epsilon")?;
    let model = Glm { facts, width, eps, heads: facts.count("attention.head_count")? };

    let mut program = ProgramBuilder::new("glm", facts);
    let mut g = program.target();
    let tokens = g.tokens();
    let x = g.embed(tokens, "token_embd", width, 1.0)?;
    let mut h = g.stream_spread(x, streams)?;
    for layer in 0..layers {
        g.scope(format!("blk.{layer}"));
        for (part, name) in [("attn", "hc_attn_out"), ("ffn", "l_last")] {
            let [pre, post, comb] = g.hyper_mix(h, &format!("hc_{part}"), iterations, hyper_eps, eps)?;
            let x = g.stream_collapse(h, Some(pre))?;
            let x = g.rms_norm(x, &format!("{part}_norm"), eps)?;
            let y = match (part, kv_heads[layer as usize] > 0) {
                ("attn", true) => model.latent(&mut g, x)?,
                ("attn", false) => model.delta(&mut g, x)?,
                _ if layer < dense => {
                    model.feed_forward(&mut g, x, "", facts.count("feed_forward_length")?, layer)?
                }
                _ => model.experts(&mut g, x, layer)?,
            };
            h = g.named(name).stream_combine(h, y, post, Some(comb))?;
        }
    }
    g.scope("");
    let x = g.stream_collapse(h, None)?;
    let x = g.named("result_norm").rms_norm(x, "output_norm", eps)?;
    let logits = g.named("result_output").linear(x, "output", facts.n_vocab()?)?;
    g.logits(logits);
    g.finish();
    program.finish()
}

impl Glm<'_> {
    fn delta(&self, g: &mut GraphBuilder<'_, '_>, x: ValueId) -> Result<ValueId> {
        let head = self.facts.count("kda.head_dim")?;
        let taps = self.facts.count("ssm.conv_kernel")?;
        let all = self.heads * head;
        let mut qkv = Vec::new();
        for part in ["q", "k", "v"] {
            let p = g.linear(x, &format!("attn_{part}"), all)?;
            let recent = g.recent_rows(&format!("conv_{part}"), taps - 1, all);
            let silu = Some(Function::Silu);
            qkv.push(g.causal_conv(p, &format!("ssm_conv1d_{part}"), taps, 1, silu, recent)?);
        }
        let rank = g.dims("ssm_f_a")?[1] as u32;
        let f = g.linear(x, "ssm_f_a", rank)?;
        let f = g.linear(f, "ssm_f_b", all)?;
        let beta = g.linear(x, "ssm_beta", self.heads)?;
        let beta = g.unary(beta, Function::Sigmoid)?;
        let decay = match self.facts.has_key("kda.gate_lower_bound") {
            true => Decay::ChannelSigmoid { lower_bound: self.facts.float("kda.gate_lower_bound")? },
            false => Decay::ChannelSoftplus {},
        };
        let state = g.recurrent("delta", &[self.heads, head, head]);
        let delta = GatedDelta {
            key_heads: self.heads,
            value_heads: self.heads,
            key: head,
            value: head,
            decay,
            scale: (head as f32).powf(-0.5),
            l2_eps: Some(1e-6),
            head_map: HeadMap::Tiled,
            state,
        };
        let o = g.gated_delta([qkv[0], qkv[1], qkv[2], f, beta], "ssm_a", "ssm_dt.bias", delta)?;
        let rank = g.dims("ssm_g_a")?[1] as u32;
        let z = g.linear(x, "ssm_g_a", rank)?;
        let z = g.linear(z, "ssm_g_b", all)?;
        let o = g.gated_rms_norm(o, z, "ssm_norm", head, self.eps, Function::Sigmoid)?;
        g.linear(o, "attn_output", self.width)
    }

    fn latent(&self, g: &mut GraphBuilder<'_, '_>, x: ValueId) -> Result<ValueId> {
        let facts = self.facts;
        let (q_rank, latent) =
            (facts.count("attention.q_lora_rank")?, facts.count("attention.kv_lora_rank")?);
        let head = facts.count("attention.key_length_mla")?;
        let qr = g.linear(x, "attn_q_a", q_rank)?;
        let qr = g.rms_norm(qr, "attn_q_a_norm", self.eps)?;
        let q = g.linear(qr, "attn_q_b", self.heads * head)?;
        let c = g.linear(x, "attn_kv_a_mqa", latent)?;
        let c = g.rms_norm(c, "attn_kv_a_norm", self.eps)?;
        let store = g.latent_store("latent", latent, 1, None);
        g.append(store, &[c])?;
        let selection = self.indexer(g, x, qr)?;
        let q = g.grouped_linear(q, "attn_k_b", self.heads)?;
        let attention = Attention {
            heads: self.heads,
            kv_heads: 1,
            key: latent,
            value: latent,
            scale: (head as f32).powf(-0.5),
            softcap: None,
            block_bidirectional: false,
            sources: vec![Source { state: store, window: None, selected: true }],
        };
        let o = g.attention(q, &[selection], attention, None)?;
        let o = g.grouped_linear(o, "attn_v_b", self.heads)?;
        g.linear(o, "attn_output", self.width)
    }

    /// The best pools of tokens, expanded, with the incomplete tail.
    fn indexer(&self, g: &mut GraphBuilder<'_, '_>, x: ValueId, qr: ValueId) -> Result<ValueId> {
        let facts = self.facts;
        let (heads, key) =
            (facts.count("attention.indexer.head_count")?, facts.count("attention.indexer.key_length")?);
        let (pool, top_k) =
            (facts.count("attention.indexer.kpool")?, facts.count("attention.indexer.top_k")?);
        let q = g.linear(qr, "indexer.attn_q_b", heads * key)?;
        let k = g.linear(x, "indexer.attn_k", key)?;
        // The layer norm's bias has the suffix `.bias` beside `.weight`; the builder binds it.
        let k = g.layer_norm(k, "indexer.k_norm", key, facts.float("attention.layer_norm_epsilon")?)?;
        let gate = g.linear(x, "indexer_compressor_gate", key)?;
        let recent = g.recent_rows("pool", pool - 1, 2 * key);
        let weights = PoolWeights::Softmax { overlap: false };
        let pooled = g.pool(k, Some(gate), Some("indexer_compressor_ape"), pool, weights, recent)?;
        let keys = g.latent_store("index", key, pool, None);
        g.append(keys, &[pooled])?;
        let w = g.linear(x, "indexer.proj", heads)?;
        let w = g.scale(w, ((heads * key) as f32).powf(-0.5), 0.0)?;
        let scores = g.index_score(q, Some(w), heads, key, keys)?;
        g.top_rows(scores, None, top_k / pool, true, true)
    }

    fn clamp(&self, key: &str, layer: u32) -> Result<Option<Clamp>> {
        let limit = self.facts.floats(key)?[layer as usize];
        Ok((limit > 0.0).then_some(Clamp { gate_max: limit, up_abs: limit }))
    }

    fn feed_forward(
        &self,
        g: &mut GraphBuilder<'_, '_>,
        x: ValueId,
        suffix: &str,
        ff: u32,
        layer: u32,
    ) -> Result<ValueId> {
        let gate = g.linear(x, &format!("ffn_gate{suffix}"), ff)?;
        let up = g.linear(x, &format!("ffn_up{suffix}"), ff)?;
        let h = match self.clamp("swiglu_clamp_shexp", layer)? {
            Some(clamp) => g.clamped_glu(gate, up, Function::Silu, clamp)?,
            None => g.glu(gate, up, Function::Silu)?,
        };
        g.linear(h, &format!("ffn_down{suffix}"), self.width)
    }

    fn experts(&self, g: &mut GraphBuilder<'_, '_>, x: ValueId, layer: u32) -> Result<ValueId> {
        let facts = self.facts;
        let (experts, used) = (facts.count("expert_count")?, facts.count("expert_used_count")?);
        let ff = facts.count("expert_feed_forward_length")?;
        let logits = g.linear(x, "ffn_gate_inp", experts)?;
        let route = Route {
            experts,
            used,
            score: Score::Sigmoid,
            groups: None,
            normalize: facts.bool("expert_weights_norm")?,
            sum_floor: 6.1035e-5,
            scale: facts.float("expert_weights_scale")?,
        };
        let chosen = g.route(logits, Some("exp_probs_b.bias"), route)?;
        let clamp = self.clamp("swiglu_clamp_exp", layer)?;
        let routed = g.experts(x, chosen, "ffn", (experts, used, ff), Function::Silu, clamp)?;
        let shared = self.feed_forward(g, x, "_shexp", ff, layer)?;
        g.add(routed, shared)
    }
}
