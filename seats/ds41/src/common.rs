//! What both models share: the rotation of a head's last values, the experts, the chat format.

use bloomery_seat::layers::{clamp_of, feed_forward, route_of};
use bloomery_seat::prelude::*;

/// `a * b`, which must fit a row.
pub(crate) fn times(a: u32, b: u32) -> Result<u32> {
    a.checked_mul(b).ok_or_else(|| Error::refused(format!("{a} by {b} values are too wide a row")))
}

/// Rotation of the last values of heads of `head` values in a layer with one compressed row for each `ratio` tokens, 0 for
/// none; for pooled rows `group` is the ratio.
pub(crate) fn rotation(facts: &ModelFacts, head: u32, ratio: u32, inverse: bool, group: u32) -> Result<Rope> {
    let dims = facts.count("rope.dimension_count")?;
    let offset = head.checked_sub(dims).ok_or_else(|| {
        Error::refused(format!("rope.dimension_count {dims} is more than a head's {head} values"))
    })?;
    // Only layers with compressed rows are stretched; the magnitude factor is cancelled to 1.
    let yarn = match ratio > 0 && facts.has_key("rope.scaling.factor") && facts.arch == "deepseek41" {
        true => Some(Yarn {
            factor: facts.float("rope.scaling.factor")?,
            original_context: facts.int("rope.scaling.original_context_length")?,
            beta_fast: facts.float_or("rope.scaling.yarn_beta_fast", 32.0)?,
            beta_slow: facts.float_or("rope.scaling.yarn_beta_slow", 1.0)?,
            magnitude: 1.0,
        }),
        false => None,
    };
    let theta = if ratio > 0 { "attention.compress_rope_freq_base" } else { "rope.freq_base" };
    Ok(Rope {
        head,
        dims,
        offset,
        theta: facts.float(theta)?,
        pairing: Pairing::Adjacent,
        inverse,
        linear_factor: 1.0,
        yarn,
        sections: None,
        group,
    })
}

/// Routed experts and a shared one. Where the layer has a table of experts by token, `tokens` choose.
pub(crate) fn experts(
    g: &mut GraphBuilder<'_, '_>,
    x: ValueId,
    tokens: Option<ValueId>,
    layer: u32,
) -> Result<ValueId> {
    let facts = g.facts();
    let route = route_of(facts, 4, 1e-20)?;
    let ff = facts.count("expert_feed_forward_length")?;
    let sizes = (route.experts, route.used, ff);
    // A next-token block comes after the last layer, where the lists of limits end.
    let layer =
        layer.min(facts.count("block_count")?.saturating_sub(facts.int_or("nextn_predict_layers", 0)? + 1));
    let clamp = |key: &str| clamp_of(facts, key, layer);
    let logits = g.named("ffn_moe_logits").linear(x, "ffn_gate_inp", route.experts)?;
    let chosen = match tokens.filter(|_| g.has("ffn_gate_tid2eid")) {
        Some(tokens) => g.route_by_table(logits, tokens, "ffn_gate_tid2eid", route)?,
        None => g.route(logits, Some("exp_probs_b.bias"), route)?,
    };
    let routed = g.experts(x, chosen, "ffn", sizes, Function::Silu, clamp("swiglu_clamp_exp")?)?;
    let shared = feed_forward(g, x, "_shexp", ff, clamp("swiglu_clamp_shexp")?)?;
    g.named("ffn_out").add(routed, shared)
}

/// Both models think in `<think>`.
pub(crate) fn chat(tool_format: &str) -> ChatHints {
    ChatHints {
        tool_format: Some(tool_format.into()),
        thinking: Some(("<think>".into(), "</think>".into())),
        ..ChatHints::default()
    }
}
