//! The block drafter of `deepseek41`, from a file of its own: three window-only blocks over a memory of the target's
//! layers, and a chain that corrects each guess by the one before.

use crate::common::{rotation, times};
use bloomery_seat::layers::{DRAFT, clamp_of, draft_facts, feed_forward, route_of};
use bloomery_seat::prelude::*;
use bloomery_seat::program::InputKind;

pub(crate) struct Block {
    facts: ModelFacts,
    /// Layers of the target whose input the drafter reads.
    pub(crate) taps: Vec<u32>,
    layers: u32,
    width: u32,
    latent: u32,
    window: u32,
    eps: f32,
}

impl Block {
    /// What the drafter's file says; `None` when the host was given none.
    pub(crate) fn read(target: &ModelFacts) -> Result<Option<Block>> {
        let Some(facts) = draft_facts(target) else { return Ok(None) };
        if facts.arch != "dflash" {
            return Err(Error::refused(format!(
                "the drafter's file is of architecture {}, not dflash",
                facts.arch
            )));
        }
        let width = facts.count("embedding_length")?;
        if width != target.count("embedding_length")? {
            return Err(Error::refused(format!("the drafter's embedding_length {width} is not the model's")));
        }
        let taps = facts.ints("target_layers")?;
        let (layers, all) = (facts.count("block_count")?, target.count("block_count")?);
        if let Some(tap) = taps.iter().find(|tap| **tap >= all) {
            return Err(Error::refused(format!("target_layers names layer {tap}, the model has {all}")));
        }
        Ok(Some(Block {
            taps,
            layers,
            width,
            latent: facts.count("attention.key_length")?,
            window: facts.count("attention.sliding_window")?,
            eps: facts.float("attention.layer_norm_rms_epsilon")?,
            facts,
        }))
    }

    pub(crate) fn declare(&self, program: &mut ProgramBuilder<'_>) -> Result<()> {
        let rope = rotation(&self.facts, self.latent, 0, false, 1)?;
        // The memory: one row of every block's window for each committed token.
        let mut g = program.graph(Role::Observe {});
        let mut taps = vec![];
        for tap in &self.taps {
            let name = format!("tap.{tap}");
            let kind = InputKind::TargetHidden { name: name.clone(), same_position: true };
            taps.push(g.input(kind, Shape::Rows { width: self.width }, &name));
        }
        g.scope("draft");
        let x = g.concat(&taps)?;
        let x = g.linear(x, "/draft/fc", self.width)?;
        let main = g.rms_norm(x, "/draft/enc.output_norm", self.eps)?;
        let mut rings = vec![];
        for layer in 0..self.layers {
            g.scope(format!("{DRAFT}blk.{layer}"));
            let kv = g.linear(main, "attn_kv", self.latent)?;
            let kv = g.rms_norm(kv, "attn_kv_a_norm", self.eps)?;
            let kv = g.rope(kv, &rope)?;
            let ring = g.latent_store("window", self.latent, 1, Some(self.window));
            g.append(ring, &[kv])?;
            rings.push(ring);
        }
        g.finish();

        let depth = self.facts.count("block_size")?;
        let mask = self.facts.int("tokenizer.ggml.mask_token_id")?;
        let mut g = program.graph(Role::Draft { depth, chain: false, mask_token: Some(mask) });
        let tokens = g.tokens();
        let x = g.embed(tokens, "/token_embd", self.width, 1.0)?;
        let streams = self.facts.count("hyper_connection.count")?;
        let iterations = self.facts.count("hyper_connection.sinkhorn_iterations")?;
        let hyper_eps = self.facts.float("hyper_connection.epsilon")?;
        let mut h = g.stream_spread(x, streams)?;
        let mut pre = None;
        for (layer, ring) in (0..self.layers).zip(rings) {
            g.scope(format!("{DRAFT}blk.{layer}"));
            for part in ["attn", "ffn"] {
                let [next, post, comb] =
                    g.hyper_mix(h, &format!("hc_{part}"), iterations, hyper_eps, self.eps)?;
                let x = match pre {
                    Some(pre) => g.stream_collapse(h, Some(pre))?,
                    None => g.slice(h, times(streams, self.width)?, 0, self.width)?,
                };
                let x = g.rms_norm(x, &format!("{part}_norm"), self.eps)?;
                let y = match part {
                    "attn" => self.attention(&mut g, x, ring)?,
                    _ => self.experts(&mut g, x, layer)?,
                };
                h = g.stream_combine(h, y, post, Some(comb))?;
                pre = Some(next);
            }
        }
        g.scope("draft");
        let hidden = g.stream_collapse(h, pre)?;
        let x = g.rms_norm(hidden, "/draft/output_norm", self.eps)?;
        let n_vocab = g.facts().n_vocab()?;
        let base = g.linear(x, "/output", n_vocab)?;
        let rank = g.dims("/draft/markov_w1")?.first().and_then(|n| u32::try_from(*n).ok()).unwrap_or(0);
        let (w1, w2) = ("/draft/markov_w1", "/draft/markov_w2");
        let (logits, confidence) =
            g.markov_chain((base, hidden, tokens), w1, w2, "/draft/conf_proj", rank)?;
        g.logits(logits);
        g.output(OutputKind::Confidence, "", confidence);
        g.finish();
        Ok(())
    }

    /// Every row of the block sees the window before the block and the whole block.
    fn attention(&self, g: &mut GraphBuilder<'_, '_>, x: ValueId, ring: StateId) -> Result<ValueId> {
        let (facts, latent, eps) = (&self.facts, self.latent, self.eps);
        let heads = facts.count("attention.head_count")?;
        let rope = rotation(facts, latent, 0, false, 1)?;
        let qr = g.linear(x, "attn_q_a", facts.count("attention.q_lora_rank")?)?;
        let qr = g.rms_norm(qr, "attn_q_a_norm", eps)?;
        let q = g.linear(qr, "attn_q_b", times(heads, latent)?)?;
        let q = g.rope(q, &rope)?;
        let kv = g.linear(x, "attn_kv", latent)?;
        let kv = g.rms_norm(kv, "attn_kv_a_norm", eps)?;
        let kv = g.rope(kv, &rope)?;
        g.append(ring, &[kv])?;
        let attention = Attention {
            heads,
            kv_heads: 1,
            key: latent,
            value: latent,
            scale: (latent as f32).powf(-0.5),
            softcap: None,
            block_bidirectional: true,
            sources: vec![Source { state: ring, window: Some(self.window), selected: false }],
        };
        let o = g.attention(q, &[], attention, Some("attn_sinks"))?;
        let o = g.rope(o, &rotation(facts, latent, 0, true, 1)?)?;
        let o = g.grouped_linear(o, "attn_output_a", facts.count("attention.output_group_count")?)?;
        g.linear(o, "attn_output_b", self.width)
    }

    fn experts(&self, g: &mut GraphBuilder<'_, '_>, x: ValueId, layer: u32) -> Result<ValueId> {
        let facts = &self.facts;
        let route = route_of(facts, 4, 1e-20)?;
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
