//! Seat for GLM 5.3 Flash, `glm5next` and `glm5-next`, two spellings of one architecture: delta layers with a decay for
//! every key channel, latent attention over the best pools of tokens, and four residual streams joined by Sinkhorn weights.

#![forbid(unsafe_code)]

use bloomery_seat::layers::{
    NEXTN_HIDDEN, NEXTN_ROLE, clamp_of, feed_forward, layers_of, nextn_head, nextn_input, route_of,
};
use bloomery_seat::prelude::*;

struct Glm<'f> {
    facts: &'f ModelFacts,
    width: u32,
    eps: f32,
    heads: u32,
}

/// The program of a file.
///
/// # Errors
/// A key that is missing or out of range, a tensor that is missing, has another shape or is read by nothing: by name.
pub fn declare(facts: &ModelFacts) -> Result<Program> {
    let width = facts.count("embedding_length")?;
    let eps = facts.float("attention.layer_norm_rms_epsilon")?;
    let (layers, draft) = layers_of(facts)?;
    let drafts = draft > 0 && facts.has_tensor(&format!("blk.{layers}.nextn.eh_proj.weight"));
    let kv_heads = facts.ints("attention.head_count_kv")?;
    if kv_heads.len() < layers as usize {
        return Err(Error::refused(format!(
            "attention.head_count_kv has {} entries for {layers} layers",
            kv_heads.len()
        )));
    }
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
    for (layer, kv_heads) in (0..layers).zip(kv_heads) {
        g.scope(format!("blk.{layer}"));
        for (part, name) in [("attn", "hc_attn_out"), ("ffn", "l_last")] {
            let [pre, post, comb] = g.hyper_mix(h, &format!("hc_{part}"), iterations, hyper_eps, eps)?;
            let x = g.stream_collapse(h, Some(pre))?;
            let x = g.rms_norm(x, &format!("{part}_norm"), eps)?;
            let y = match (part, kv_heads > 0) {
                ("attn", true) => model.latent(&mut g, x)?,
                ("attn", false) => model.delta(&mut g, x)?,
                _ if layer < dense => {
                    let clamp = clamp_of(facts, "swiglu_clamp_shexp", layer)?;
                    feed_forward(&mut g, x, "", facts.count("feed_forward_length")?, clamp)?
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
    if drafts {
        g.hidden(NEXTN_HIDDEN, x);
    }
    g.finish();
    if drafts {
        let mut g = program.graph(NEXTN_ROLE);
        model.draft(&mut g, layers)?;
        g.finish();
    }
    program.chat(ChatHints {
        tool_format: Some("glm_xml".into()),
        thinking: Some(("<think>".into(), "</think>".into())),
        stop_tokens: ["<|user|>", "<|observation|>"].map(String::from).to_vec(),
        ..ChatHints::default()
    });
    program.finish()
}

impl Glm<'_> {
    /// The next-token block: plain residual, latent attention, experts.
    fn draft(&self, g: &mut GraphBuilder<'_, '_>, layer: u32) -> Result<()> {
        let tokens = g.tokens();
        g.scope(format!("blk.{layer}"));
        let x = nextn_input(g, tokens, self.width, 1, self.eps)?;
        let h = g.rms_norm(x, "attn_norm", self.eps)?;
        let a = self.latent(g, h)?;
        let x = g.add(x, a)?;
        let h = g.rms_norm(x, "ffn_norm", self.eps)?;
        // The lists of limits may end before this block; then the last layer's holds.
        let f = self.experts(g, h, layer - 1)?;
        let x = g.add(x, f)?;
        let x = g.rms_norm(x, "nextn.shared_head_norm", self.eps)?;
        g.hidden(NEXTN_HIDDEN, x);
        let logits = nextn_head(g, x, None)?;
        g.logits(logits);
        Ok(())
    }

    fn delta(&self, g: &mut GraphBuilder<'_, '_>, x: ValueId) -> Result<ValueId> {
        let head = self.facts.count("kda.head_dim")?;
        let taps = self.facts.count("ssm.conv_kernel")?;
        let all = times(self.heads, head)?;
        let mut qkv = Vec::new();
        for part in ["q", "k", "v"] {
            let p = g.linear(x, &format!("attn_{part}"), all)?;
            let recent = g.recent_rows(&format!("conv_{part}"), taps - 1, all);
            let silu = Some(Function::Silu);
            qkv.push(g.causal_conv(p, &format!("ssm_conv1d_{part}"), taps, 1, silu, recent)?);
        }
        let rank = columns(g, "ssm_f_a")?;
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
        let rank = columns(g, "ssm_g_a")?;
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
        let q = g.linear(qr, "attn_q_b", times(self.heads, head)?)?;
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
        let q = g.linear(qr, "indexer.attn_q_b", times(heads, key)?)?;
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
        let w = g.scale(w, (times(heads, key)? as f32).powf(-0.5), 0.0)?;
        let scores = g.index_score(q, Some(w), heads, key, keys)?;
        g.top_rows(scores, None, top_k / pool, true, true)
    }

    fn experts(&self, g: &mut GraphBuilder<'_, '_>, x: ValueId, layer: u32) -> Result<ValueId> {
        let facts = self.facts;
        let route = route_of(facts, 2, 6.1035e-5)?;
        let ff = facts.count("expert_feed_forward_length")?;
        let sizes = (route.experts, route.used, ff);
        let logits = g.linear(x, "ffn_gate_inp", route.experts)?;
        let chosen = g.route(logits, Some("exp_probs_b.bias"), route)?;
        let clamp = clamp_of(facts, "swiglu_clamp_exp", layer)?;
        let routed = g.experts(x, chosen, "ffn", sizes, Function::Silu, clamp)?;
        let shared = feed_forward(g, x, "_shexp", ff, clamp_of(facts, "swiglu_clamp_shexp", layer)?)?;
        g.add(routed, shared)
    }
}

/// `a * b`, which must fit a row.
fn times(a: u32, b: u32) -> Result<u32> {
    a.checked_mul(b).ok_or_else(|| Error::refused(format!("{a} heads of {b} values are too wide a row")))
}

/// The second dimension of a matrix.
fn columns(g: &GraphBuilder<'_, '_>, tensor: &str) -> Result<u32> {
    let found = g.dims(tensor)?.get(1).and_then(|n| u32::try_from(*n).ok());
    found.ok_or_else(|| Error::refused(format!("tensor {tensor} is no matrix")))
}

bloomery_seat::export_seat! { name: "glm", architectures: ["glm5-next", "glm5next"], declare: declare }
