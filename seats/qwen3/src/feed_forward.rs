//! The feed-forward half of a layer: one network, or a router and its experts.

use bloomery_seat::prelude::*;

/// Constants of the feed-forward half, the same in every layer.
pub(crate) enum FeedForward {
    /// `down(silu(gate) * up)`.
    Dense { ff: u32 },
    /// The same network many times over, a few of them for each token.
    Experts { route: Route, ff: u32 },
}

impl FeedForward {
    pub(crate) fn read(facts: &ModelFacts) -> Result<Self> {
        if facts.arch != "qwen3moe" {
            return Ok(FeedForward::Dense { ff: facts.int("feed_forward_length")? });
        }
        let used = facts.count("expert_used_count")?;
        // Files from before the key was made give the width of all chosen experts together.
        let older = facts.has_key("feed_forward_length") && !facts.has_key("expert_feed_forward_length");
        let ff = if older {
            facts.int("feed_forward_length")? / used
        } else {
            facts.count("expert_feed_forward_length")?
        };
        // Keys that Qwen3's own files leave out: another value would be another router.
        refuse_unless(facts.int_or("expert_gating_func", 1)? == 1, "expert_gating_func is not 1 (softmax)")?;
        refuse_unless(facts.bool_or("expert_weights_norm", true)?, "expert_weights_norm is false")?;
        refuse_unless(facts.int_or("expert_shared_count", 0)? == 0, "expert_shared_count is not 0")?;
        let scale = match facts.float_or("expert_weights_scale", 1.0)? {
            0.0 => 1.0,
            scale => scale,
        };
        let route = Route {
            experts: facts.count("expert_count")?,
            used,
            score: Score::Softmax,
            groups: None,
            normalize: true,
            sum_floor: 0.0,
            scale,
        };
        Ok(FeedForward::Experts { route, ff })
    }

    pub(crate) fn declare(&self, g: &mut GraphBuilder<'_, '_>, h: ValueId, width: u32) -> Result<ValueId> {
        match self {
            FeedForward::Dense { ff } => {
                let (gate, up) = (g.linear(h, "ffn_gate", *ff)?, g.linear(h, "ffn_up", *ff)?);
                let f = g.glu(gate, up, Function::Silu)?;
                g.named("ffn_out").linear(f, "ffn_down", width)
            }
            FeedForward::Experts { route, ff } => {
                let logits = g.named("ffn_moe_logits").linear(h, "ffn_gate_inp", route.experts)?;
                let chosen = g.route(logits, None, route.clone())?;
                g.experts(h, chosen, "ffn", (route.experts, route.used, *ff), Function::Silu, None)
            }
        }
    }
}

fn refuse_unless(holds: bool, what: &str) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::refused(format!("this is no Qwen3 router: {what}"))) }
}
