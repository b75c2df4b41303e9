//! Parts of a layer that several families share, said once: the gated delta net, attention behind an output gate, routers
//! with a shared expert, and the input of a next-token block.
//!
//! They declare and nothing else: each is a handful of operators under the tensor names that files use for them.

use crate::builder::{CausalAttention, GraphBuilder};
use crate::error::{Error, Result};
use crate::facts::ReadFacts;
use crate::rope::rope_of;
use bloomery_program::graph::{InputKind, Role};
use bloomery_program::op::{Clamp, Decay, Function, GatedDelta, HeadMap, Pairing, Rope, Route, Score};
use bloomery_program::{Meta, ModelFacts, Op, Shape, TensorFacts, ValueId};

/// Keys of a drafter's own file stand in the facts behind this prefix (`draft/general.architecture`), its tensors too
/// (`draft/blk.0.attn_norm.weight`). The host puts them there when it is given such a file.
pub const DRAFT: &str = "draft/";

/// Facts of the drafter's own file, with its names as they stand there; `None` when the host was given none.
pub fn draft_facts(facts: &ModelFacts) -> Option<ModelFacts> {
    let Some(Meta::Str(arch)) = facts.meta.get("draft/general.architecture") else { return None };
    let own = |name: &String| name.strip_prefix(DRAFT).map(str::to_string);
    let meta = facts.meta.iter().filter_map(|(k, v)| Some((own(k)?, v.clone()))).collect();
    let tensors: std::collections::BTreeMap<String, TensorFacts> =
        facts.tensors.iter().filter_map(|(k, v)| Some((own(k)?, v.clone()))).collect();
    Some(ModelFacts { arch: arch.clone(), meta, tensors })
}

/// Layers of the model itself and, after them, next-token blocks: `block_count` less `nextn_predict_layers`, and that.
///
/// # Errors
/// A key of another kind, no layer left, or more than one next-token block.
pub fn layers_of(facts: &ModelFacts) -> Result<(u32, u32)> {
    let (all, draft) = (facts.count("block_count")?, facts.int_or("nextn_predict_layers", 0)?);
    if draft > 1 {
        return Err(Error::refused(format!("nextn_predict_layers is {draft}; one block at most can be run")));
    }
    if draft >= all {
        return Err(Error::refused(format!(
            "block_count {all} leaves no layer beside nextn_predict_layers {draft}"
        )));
    }
    Ok((all - draft, draft))
}

/// Which layers attend; the others are recurrent. From `attention.recurrent_layers`, else every
/// `full_attention_interval`-th.
///
/// # Errors
/// A key of another kind, or a list shorter than the layers.
pub fn attending_layers(facts: &ModelFacts, layers: u32) -> Result<Vec<bool>> {
    let key = "attention.recurrent_layers";
    if facts.has_key(key) {
        let mut recurrent = facts.bools(key)?;
        // A next-token block may have an entry of its own, or not.
        if recurrent.len() < layers as usize {
            return Err(Error::refused(format!("{key} has {} entries for {layers} layers", recurrent.len())));
        }
        recurrent.truncate(layers as usize);
        return Ok(recurrent.iter().map(|r| !r).collect());
    }
    let interval = facts.count_or("full_attention_interval", 4)?;
    Ok((1..=layers).map(|l| l % interval == 0).collect())
}

/// A product of two counts that must fit a row.
fn times(a: u32, b: u32) -> Result<u32> {
    a.checked_mul(b).ok_or_else(|| Error::refused(format!("{a} heads of {b} values are too wide a row")))
}

/// Gated delta net: convolution, recurrent rule, gated norm.
pub struct DeltaNet {
    key_heads: u32,
    value_heads: u32,
    head: u32,
    taps: u32,
    gate: Function,
    eps: f32,
}

impl DeltaNet {
    /// From the `ssm.*` keys; `gate` is the function of the output gate.
    ///
    /// # Errors
    /// A key that is missing or no count.
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

    /// Tensors `attn_qkv`, `attn_gate`, `ssm_*`; rows `[width]` in and out.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn declare(&self, g: &mut GraphBuilder<'_, '_>, x: ValueId, width: u32) -> Result<ValueId> {
        let (keys, values) = (times(self.key_heads, self.head)?, times(self.value_heads, self.head)?);
        let joined =
            times(keys, 2)?.checked_add(values).ok_or_else(|| Error::refused("heads are too wide"))?;
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
    /// Its constants.
    pub attention: CausalAttention,
    /// Rotation of query and key.
    pub rope: Rope,
    /// Of the query's and key's norms.
    pub eps: f32,
}

impl GatedAttention {
    /// From the `attention.*` and `rope.*` keys.
    ///
    /// # Errors
    /// A key that is missing or of another kind.
    pub fn read(facts: &ModelFacts) -> Result<GatedAttention> {
        let key = facts.count("attention.key_length")?;
        let value = facts.count_or("attention.value_length", key)?;
        if value != key {
            return Err(Error::refused(format!(
                "attention.value_length {value} is not attention.key_length {key}"
            )));
        }
        Ok(GatedAttention {
            attention: CausalAttention {
                heads: facts.count("attention.head_count")?,
                kv_heads: facts.count("attention.head_count_kv")?,
                key,
                value,
                scale: (key as f32).powf(-0.5),
                window: None,
                softcap: None,
            },
            rope: rope_of(facts, key, Pairing::Halves)?,
            eps: facts.float("attention.layer_norm_rms_epsilon")?,
        })
    }

    /// Query, gate, key and value; query and key normalised and rotated.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn project(&self, g: &mut GraphBuilder<'_, '_>, x: ValueId) -> Result<[ValueId; 4]> {
        let CausalAttention { heads, kv_heads, key, .. } = self.attention;
        let both = g.linear(x, "attn_q", times(times(2, heads)?, key)?)?;
        let q = g.slice(both, 2 * key, 0, key)?;
        let gate = g.slice(both, 2 * key, key, key)?;
        let k = g.linear(x, "attn_k", times(kv_heads, key)?)?;
        let v = g.linear(x, "attn_v", times(kv_heads, key)?)?;
        let q = g.head_norm(q, "attn_q_norm", key, self.eps)?;
        let k = g.head_norm(k, "attn_k_norm", key, self.eps)?;
        Ok([g.rope(q, &self.rope)?, gate, g.rope(k, &self.rope)?, v])
    }

    /// The attention's result `o` behind its gate, through `attn_output`.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
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

    /// The whole of it over a store of the layer's own.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn dense(&self, g: &mut GraphBuilder<'_, '_>, x: ValueId, width: u32) -> Result<ValueId> {
        let [q, gate, k, v] = self.project(g, x)?;
        let o = g.causal_attention(q, k, v, &self.attention)?;
        self.finish(g, o, gate, width)
    }
}

/// `down(silu(gate) * up)`, tensors `ffn_gate`, `ffn_up`, `ffn_down` with a suffix (`_shexp`).
///
/// # Errors
/// As [`GraphBuilder::node`].
pub fn feed_forward(
    g: &mut GraphBuilder<'_, '_>,
    x: ValueId,
    suffix: &str,
    ff: u32,
    clamp: Option<Clamp>,
) -> Result<ValueId> {
    let width = g.width(x)?;
    let gate = g.linear(x, &format!("ffn_gate{suffix}"), ff)?;
    let up = g.linear(x, &format!("ffn_up{suffix}"), ff)?;
    let h = match clamp {
        Some(clamp) => g.clamped_glu(gate, up, Function::Silu, clamp)?,
        None => g.glu(gate, up, Function::Silu)?,
    };
    g.linear(h, &format!("ffn_down{suffix}"), width)
}

/// The limit of a layer's activations from a `swiglu_clamp_*` list; no limit where it is 0 or the key is missing.
///
/// # Errors
/// The key is no list of numbers or too short.
pub fn clamp_of(facts: &ModelFacts, key: &str, layer: u32) -> Result<Option<Clamp>> {
    if !facts.has_key(key) {
        return Ok(None);
    }
    let limits = facts.floats(key)?;
    let limit = limits.get(layer as usize).ok_or_else(|| {
        Error::refused(format!("key {key} has {} entries, none for layer {layer}", limits.len()))
    })?;
    Ok((*limit > 0.0).then_some(Clamp { gate_max: *limit, up_abs: *limit }))
}

/// A router's constants from the `expert_*` keys.
///
/// # Errors
/// A key of another kind, or a gating function other than `gating` (1 softmax, 2 sigmoid, 4 square root of softplus).
pub fn route_of(facts: &ModelFacts, gating: u32, sum_floor: f32) -> Result<Route> {
    let score = match gating {
        1 => Score::Softmax,
        2 => Score::Sigmoid,
        _ => Score::SqrtSoftplus,
    };
    let found = facts.int_or("expert_gating_func", gating)?;
    if found != gating {
        return Err(Error::refused(format!(
            "expert_gating_func is {found}, this family's router is {gating}"
        )));
    }
    Ok(Route {
        experts: facts.count("expert_count")?,
        used: facts.count("expert_used_count")?,
        score,
        groups: None,
        normalize: facts.bool_or("expert_weights_norm", true)?,
        sum_floor,
        scale: facts.float_or("expert_weights_scale", 1.0)?,
    })
}

/// Softmax router, routed experts and one shared expert behind a sigmoid gate.
///
/// # Errors
/// As [`GraphBuilder::node`], and a key that is missing.
pub fn gated_shared_experts(g: &mut GraphBuilder<'_, '_>, x: ValueId) -> Result<ValueId> {
    let facts = g.facts();
    let route = route_of(facts, 1, 0.0)?;
    let sizes = (route.experts, route.used, facts.count("expert_feed_forward_length")?);
    let logits = g.linear(x, "ffn_gate_inp", route.experts)?;
    let chosen = g.route(logits, None, route)?;
    let routed = g.experts(x, chosen, "ffn", sizes, Function::Silu, None)?;
    let y = feed_forward(g, x, "_shexp", facts.count("expert_shared_feed_forward_length")?, None)?;
    let gate = g.linear(x, "ffn_gate_inp_shexp", 1)?;
    let gate = g.unary(gate, Function::Sigmoid)?;
    let y = g.mul(y, gate)?;
    g.add(routed, y)
}

/// Name of the target's rows that a next-token block continues from.
pub const NEXTN_HIDDEN: &str = "h_nextn";

/// The role of a next-token block: one token a pass, on its own rows for more.
pub const NEXTN_ROLE: Role = Role::Draft { depth: 1, chain: true, mask_token: None };

/// Input of a next-token block in the current scope: `eh_proj . [rms(embedding) ; rms(h)]`, h the target's rows
/// [`NEXTN_HIDDEN`] one position before. With `streams` above 1 the rows hold that many streams, each is joined with the
/// embedding, and the result has as many; `hnorm` may then be one weight for all or one for each.
///
/// # Errors
/// As [`GraphBuilder::node`].
pub fn nextn_input(
    g: &mut GraphBuilder<'_, '_>,
    tokens: ValueId,
    width: u32,
    streams: u32,
    eps: f32,
) -> Result<ValueId> {
    let table = if g.has("nextn.embed_tokens") { "nextn.embed_tokens" } else { "/token_embd" };
    let e = g.embed(tokens, table, width, 1.0)?;
    let e = g.rms_norm(e, "nextn.enorm", eps)?;
    if streams == 1 {
        let h = g.target_hidden(NEXTN_HIDDEN, width);
        let h = g.rms_norm(h, "nextn.hnorm", eps)?;
        let joined = g.concat(&[e, h])?;
        return g.linear(joined, "nextn.eh_proj", width);
    }
    let kind = InputKind::TargetHidden { name: NEXTN_HIDDEN.into(), same_position: false };
    let h = g.input(kind, Shape::Streams { streams, width }, NEXTN_HIDDEN);
    let norm = g.tensor("nextn.hnorm")?;
    let h = g.node(Op::RmsNorm { eps, group: width }, &[h], &[("weight", norm)], &["nextn.hnorm"])?;
    let h = *h.first().ok_or_else(|| Error::refused("rms_norm gave no value"))?;
    let all = times(streams, width)?;
    let mut rows = Vec::new();
    for stream in 0..streams {
        let h = g.slice(h, all, stream * width, width)?;
        let joined = g.concat(&[e, h])?;
        rows.push(g.linear(joined, "nextn.eh_proj", width)?);
    }
    let rows = g.concat(&rows)?;
    g.reshape(rows, streams)
}

/// Logits of a next-token block: its own norm and head where the file has them, else the target's.
///
/// # Errors
/// As [`GraphBuilder::node`].
pub fn nextn_head(g: &mut GraphBuilder<'_, '_>, x: ValueId, norm: Option<f32>) -> Result<ValueId> {
    let x = match norm {
        Some(eps) => {
            let own = g.has("nextn.shared_head_norm");
            g.rms_norm(x, if own { "nextn.shared_head_norm" } else { "/output_norm" }, eps)?
        }
        None => x,
    };
    let head =
        ["nextn.shared_head_head", "/output"].into_iter().find(|head| g.has(head)).unwrap_or("/token_embd");
    let n_vocab = g.facts().n_vocab()?;
    g.linear(x, head, n_vocab)
}

/// The trunk of the plain hybrid family (`qwen35moe`, dense `qwen35` and what stands on them): gated delta net and gated
/// attention in turn, then one network or experts with a shared one.
pub struct HybridTrunk {
    width: u32,
    eps: f32,
    full: Vec<bool>,
    delta: DeltaNet,
    attention: GatedAttention,
}

impl HybridTrunk {
    /// From the file's keys.
    ///
    /// # Errors
    /// A key that is missing or of another kind.
    pub fn read(facts: &ModelFacts) -> Result<HybridTrunk> {
        let (layers, _) = layers_of(facts)?;
        let eps = facts.float("attention.layer_norm_rms_epsilon")?;
        Ok(HybridTrunk {
            width: facts.count("embedding_length")?,
            eps,
            full: attending_layers(facts, layers)?,
            delta: DeltaNet::read(facts, Function::Silu, eps)?,
            attention: GatedAttention::read(facts)?,
        })
    }

    /// From token ids to rows after `output_norm`.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn declare(&self, g: &mut GraphBuilder<'_, '_>, tokens: ValueId) -> Result<ValueId> {
        let mut x = g.embed(tokens, "token_embd", self.width, 1.0)?;
        for (layer, full) in self.full.iter().enumerate() {
            g.scope(format!("blk.{layer}"));
            x = self.layer(g, x, *full)?;
        }
        g.scope("");
        g.named("result_norm").rms_norm(x, "output_norm", self.eps)
    }

    fn layer(&self, g: &mut GraphBuilder<'_, '_>, x: ValueId, full: bool) -> Result<ValueId> {
        let h = g.rms_norm(x, "attn_norm", self.eps)?;
        let a = match full {
            true => self.attention.dense(g, h, self.width)?,
            false => self.delta.declare(g, h, self.width)?,
        };
        let x = g.add(x, a)?;
        let h = g.rms_norm(x, "post_attention_norm", self.eps)?;
        let f = match g.facts().has_key("expert_count") {
            true => gated_shared_experts(g, h)?,
            false => feed_forward(g, h, "", g.facts().count("feed_forward_length")?, None)?,
        };
        g.named("l_out").add(x, f)
    }

    /// Logits of the file's head, tied to the token table where it has none.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn head(&self, g: &mut GraphBuilder<'_, '_>, x: ValueId) -> Result<ValueId> {
        let head = if g.has("output") { "output" } else { "token_embd" };
        let n_vocab = g.facts().n_vocab()?;
        g.named("result_output").linear(x, head, n_vocab)
    }

    /// The next-token block after the last layer: a graph of its own, which reads the target's [`NEXTN_HIDDEN`].
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn draft(&self, g: &mut GraphBuilder<'_, '_>) -> Result<()> {
        let tokens = g.tokens();
        g.scope(format!("blk.{}", self.full.len()));
        let x = nextn_input(g, tokens, self.width, 1, self.eps)?;
        let x = self.layer(g, x, true)?;
        let own = g.has("nextn.shared_head_norm");
        let x = g.rms_norm(x, if own { "nextn.shared_head_norm" } else { "/output_norm" }, self.eps)?;
        g.hidden(NEXTN_HIDDEN, x);
        let logits = nextn_head(g, x, None)?;
        g.logits(logits);
        Ok(())
    }
}
