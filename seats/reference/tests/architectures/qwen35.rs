//! `qwen35moe`, its dense sibling `qwen35`, and the decision model `clef` on the same backbone.

use bloomery_program::InputKind;
use bloomery_seat::Result;
use bloomery_seat::prelude::*;
use bloomery_seat::rope::rope_of;

/// Gated delta net of this layer: conv, recurrent rule, gated norm.
pub struct DeltaNet {
    pub key_heads: u32,
    pub value_heads: u32,
    pub head: u32,
    pub taps: u32,
    pub gate: Function,
    pub eps: f32,
}

impl DeltaNet {
    pub fn read(facts: &ModelFacts, gate: Function, eps: f32) -> Result<DeltaNet> {
        Ok(DeltaNet {
            key_heads: facts.count("ssm.group_count")?,
            value_heads: facts.count("ssm.time_step_rank")?,
            head: facts.count("ssm.state_size")?,
            taps: facts.count("ssm.conv_kernel")?,
            gate,
            eps,
        })
    }

    pub fn declare(&self, g: &mut GraphBuilder<'_, '_>, x: ValueId, width: u32) -> Result<ValueId> {
        let (keys, values) = (self.key_heads * self.head, self.value_heads * self.head);
        let joined = 2 * keys + values;
        let qkv = g.linear(x, "attn_qkv", joined)?;
        let z = g.linear(x, "attn_gate", values)?;
        let recent = g.recent_rows("conv", self.taps - 1, joined);
        let qkv = g.causal_conv(qkv, "ssm_conv1d", self.taps, 1, Some(Function::Silu), recent)?;
        let q = g.slice(qkv, joined, 0, keys)?;
        let k = g.slice(qkv, joined, keys, keys)?;
        let v = g.slice(qkv, joined, 2 * keys, values)?;
        let beta = g.linear(x, "ssm_beta", self.value_heads)?;
        let beta = g.unary(beta, Function::Sigmoid)?;
        let alpha = g.linear(x, "ssm_alpha", self.value_heads)?;
        let state = g.recurrent("delta", &[self.value_heads, self.head, self.head]);
        let delta = GatedDelta {
            key_heads: self.key_heads,
            value_heads: self.value_heads,
            key: self.head,
            value: self.head,
            decay: Decay::ScalarSoftplus {},
            scale: (self.head as f32).powf(-0.5),
            l2_eps: Some(1e-6),
            head_map: HeadMap::Tiled,
            state,
        };
        let o = g.gated_delta([q, k, v, alpha, beta], "ssm_a", "ssm_dt.bias", delta)?;
        let o = g.gated_rms_norm(o, z, "ssm_norm", self.head, self.eps, self.gate)?;
        g.linear(o, "ssm_out", width)
    }
}

/// Attention whose query projection also holds an output gate, head by head.
pub struct GatedAttention {
    pub attention: CausalAttention,
    pub rope: Rope,
    pub eps: f32,
}

impl GatedAttention {
    pub fn read(facts: &ModelFacts) -> Result<GatedAttention> {
        let key = facts.count("attention.key_length")?;
        Ok(GatedAttention {
            attention: CausalAttention {
                heads: facts.count("attention.head_count")?,
                kv_heads: facts.count("attention.head_count_kv")?,
                key,
                value: key,
                scale: (key as f32).powf(-0.5),
                window: None,
                softcap: None,
            },
            rope: rope_of(facts, key, Pairing::Halves)?,
            eps: facts.float("attention.layer_norm_rms_epsilon")?,
        })
    }

    /// Query, gate, key and value; query and key normalised and rotated.
    pub fn project(&self, g: &mut GraphBuilder<'_, '_>, x: ValueId) -> Result<[ValueId; 4]> {
        let CausalAttention { heads, kv_heads, key, .. } = self.attention;
        let both = g.linear(x, "attn_q", 2 * heads * key)?;
        let q = g.slice(both, 2 * key, 0, key)?;
        let gate = g.slice(both, 2 * key, key, key)?;
        let k = g.linear(x, "attn_k", kv_heads * key)?;
        let v = g.linear(x, "attn_v", kv_heads * key)?;
        let q = g.head_norm(q, "attn_q_norm", key, self.eps)?;
        let k = g.head_norm(k, "attn_k_norm", key, self.eps)?;
        Ok([g.rope(q, &self.rope)?, gate, g.rope(k, &self.rope)?, v])
    }

    pub fn finish(
        &self,
        g: &mut GraphBuilder<'_, '_>,
        o: ValueId,
        gate: ValueId,
        width: u32,
    ) -> Result<ValueId> {
        let gate = g.unary(gate, Function::Sigmoid)?;
        let o = g.mul(o, gate)?;
        g.linear(o, "attn_output", width)
    }
}

/// Softmax router, routed experts and one shared expert behind a sigmoid gate.
pub fn shared_experts(
    g: &mut GraphBuilder<'_, '_>,
    facts: &ModelFacts,
    x: ValueId,
    width: u32,
) -> Result<ValueId> {
    let (experts, used) = (facts.count("expert_count")?, facts.count("expert_used_count")?);
    let ff = facts.count("expert_feed_forward_length")?;
    let shared = facts.count("expert_shared_feed_forward_length")?;
    let logits = g.linear(x, "ffn_gate_inp", experts)?;
    let route = Route {
        experts,
        used,
        score: Score::Softmax,
        groups: None,
        normalize: true,
        sum_floor: 0.0,
        scale: 1.0,
    };
    let chosen = g.route(logits, None, route)?;
    let routed = g.experts(x, chosen, "ffn", (experts, used, ff), Function::Silu, None)?;
    let y = feed_forward(g, x, "_shexp", shared, width)?;
    let gate = g.linear(x, "ffn_gate_inp_shexp", 1)?;
    let gate = g.unary(gate, Function::Sigmoid)?;
    let y = g.mul(y, gate)?;
    g.add(routed, y)
}

pub fn feed_forward(
    g: &mut GraphBuilder<'_, '_>,
    x: ValueId,
    suffix: &str,
    ff: u32,
    width: u32,
) -> Result<ValueId> {
    let gate = g.linear(x, &format!("ffn_gate{suffix}"), ff)?;
    let up = g.linear(x, &format!("ffn_up{suffix}"), ff)?;
    let h = g.glu(gate, up, Function::Silu)?;
    g.linear(h, &format!("ffn_down{suffix}"), width)
}

/// The whole program; a `clef` file also gets its decision head.
pub fn declare(facts: &ModelFacts) -> Result<Program> {
    let width = facts.count("embedding_length")?;
    let eps = facts.float("attention.layer_norm_rms_epsilon")?;
    let draft_layers = facts.int_or("nextn_predict_layers", 0)?;
    let layers = facts.count("block_count")? - draft_layers;
    let interval = facts.count_or("full_attention_interval", 4)?;
    let full: Vec<bool> = match facts.has_key("attention.recurrent_layers") {
        true => facts.bools("attention.recurrent_layers")?.iter().map(|r| !r).collect(),
        false => (1..=layers).map(|l| l % interval == 0).collect(),
    };
    let delta = DeltaNet::read(facts, Function::Silu, eps)?;
    let attention = GatedAttention::read(facts)?;

    let mut program = ProgramBuilder::new("qwen35", facts);
    for name in facts.tensors.keys().filter(|n| n.starts_with(&format!("blk.{layers}."))) {
        program.ignore(name, "the drafter is not declared here");
    }
    let mut g = program.target();
    let tokens = g.tokens();
    let mut x = g.embed(tokens, "token_embd", width, 1.0)?;
    for layer in 0..layers {
        g.scope(format!("blk.{layer}"));
        let h = g.rms_norm(x, "attn_norm", eps)?;
        let a = if full[layer as usize] {
            let [q, gate, k, v] = attention.project(&mut g, h)?;
            let o = g.causal_attention(q, k, v, &attention.attention)?;
            attention.finish(&mut g, o, gate, width)?
        } else {
            delta.declare(&mut g, h, width)?
        };
        x = g.add(x, a)?;
        let h = g.rms_norm(x, "post_attention_norm", eps)?;
        let f = match facts.has_key("expert_count") {
            true => shared_experts(&mut g, facts, h, width)?,
            false => feed_forward(&mut g, h, "", facts.count("feed_forward_length")?, width)?,
        };
        x = g.named("l_out").add(x, f)?;
    }
    g.scope("");
    let x = g.named("result_norm").rms_norm(x, "output_norm", eps)?;
    if facts.has_key("decision.type") {
        let spans = g.input(InputKind::Spans {}, Shape::Spans {}, "spans");
        let op = Op::DecisionHead {
            heads: facts.count("decision.head_count")?,
            routing_blocks: facts.count("decision.routing_block_count")?,
            decoder_blocks: facts.count("decision.block_count")?,
            eps: facts.float("attention.layer_norm_epsilon")?,
        };
        let of_head = |n: &&String| {
            ["decision.", "dec.blk.", "token_types.", "output.weight"].iter().any(|p| n.starts_with(p))
        };
        let tensors: Vec<(&str, String)> = facts
            .tensors
            .keys()
            .filter(of_head)
            .map(|n| (n.strip_prefix("decision.").unwrap_or(n), n.clone()))
            .collect();
        let logits = g.decision_head(x, tokens, spans, &tensors, op)?;
        g.output(OutputKind::Decision, "", logits);
    } else {
        let head = if g.has("output") { "output" } else { "token_embd" };
        let logits = g.named("result_output").linear(x, head, facts.n_vocab()?)?;
        g.logits(logits);
    }
    g.finish();
    program.finish()
}
