//! The `rope.*` keys that most families share.

use crate::error::{Error, Result};
use crate::facts::{ReadFacts, full_name};
use bloomery_program::ModelFacts;
use bloomery_program::op::{Pairing, Rope, Yarn};

/// Rotary constants of heads of `head` values, from `rope.freq_base`, `rope.dimension_count` and `rope.scaling.*`.
///
/// Scaling of type `none`, `linear` and `yarn` is read. YaRN's magnitude is `(1 + 0.1 ln factor) * attn_factor`
/// (Peng et al. 2023, section 3.4).
///
/// # Errors
/// A key of another kind, or a scaling that is not in the list (`longrope` for example), by name.
pub fn rope_of(facts: &ModelFacts, head: u32, pairing: Pairing) -> Result<Rope> {
    let mut rope = Rope {
        head,
        dims: facts.count_or("rope.dimension_count", head)?,
        offset: 0,
        theta: facts.float_or("rope.freq_base", 10_000.0)?,
        pairing,
        inverse: false,
        linear_factor: 1.0,
        yarn: None,
        sections: None,
        group: 1,
    };
    if rope.dims > head || !rope.dims.is_multiple_of(2) {
        return Err(Error::Key {
            key: full_name(facts, "rope.dimension_count"),
            expected: format!("an even number up to the head's width {head}"),
            found: rope.dims.to_string(),
        });
    }
    // `rope.scale_linear` is the older name of the factor; 0 stands for "not scaled" in files that carry it.
    let key = if facts.has_key("rope.scaling.factor") { "rope.scaling.factor" } else { "rope.scale_linear" };
    let factor = match facts.float_or(key, 1.0)? {
        0.0 => 1.0,
        factor if factor > 0.0 => factor,
        factor => return Err(bad(facts, key, "a positive number", factor)),
    };
    let alpha = facts.float_or("rope.scaling.alpha", 0.0)?;
    if alpha != 0.0 {
        return Err(bad(facts, "rope.scaling.alpha", "0", alpha));
    }
    let attn_factor = facts.float_or("rope.scaling.attn_factor", 1.0)?;
    match facts.string_or("rope.scaling.type", "linear")? {
        "none" => {}
        "linear" => rope.linear_factor = factor,
        "yarn" => {
            // Variants of YaRN that no family here uses.
            for (key, plain) in
                [("yarn_ext_factor", 1.0), ("yarn_attn_factor", 1.0), ("yarn_log_multiplier", 0.0)]
            {
                let key = format!("rope.scaling.{key}");
                let found = facts.float_or(&key, plain)?;
                if found != plain {
                    return Err(bad(facts, &key, &format!("{plain}"), found));
                }
            }
            let context = "rope.scaling.original_context_length";
            rope.yarn = Some(Yarn {
                factor,
                original_context: facts.int(if facts.has_key(context) {
                    context
                } else {
                    "context_length"
                })?,
                beta_fast: facts.float_or("rope.scaling.yarn_beta_fast", 32.0)?,
                beta_slow: facts.float_or("rope.scaling.yarn_beta_slow", 1.0)?,
                magnitude: (1.0 + 0.1 * factor.max(1.0).ln()) * attn_factor,
            });
            return Ok(rope);
        }
        other => {
            return Err(Error::Key {
                key: full_name(facts, "rope.scaling.type"),
                expected: "`none`, `linear` or `yarn`".into(),
                found: format!("`{other}`"),
            });
        }
    }
    if attn_factor != 1.0 {
        return Err(bad(facts, "rope.scaling.attn_factor", "1 without YaRN", attn_factor));
    }
    Ok(rope)
}

fn bad(facts: &ModelFacts, key: &str, expected: &str, found: f32) -> Error {
    Error::Key { key: full_name(facts, key), expected: expected.into(), found: format!("{found:?}") }
}
