//! How values are named.
//!
//! A value of layer 3 is `l3.` and the field's word for it: `l3.attn_norm`, `l3.ffn_moe_topk`, `l3.l_out`. The words are
//! llama.cpp's where it has one, so a trace of one engine can be laid beside a trace of the other: [`golden_name`] turns
//! `l3.attn_norm` into `attn_norm-3`. Outside a layer the word stands alone: `result_norm`, `result_output`.
//!
//! The builder makes the name from the scope (`blk.3` gives `l3.`) and, unless [`crate::GraphBuilder::named`] says
//! otherwise, from the tensor (`attn_q`) or from the first operand and the operator (`attn_q_norm.rope`).

/// Prefix of the names of values in a scope: `blk.3` gives `l3.`, the empty scope nothing, another scope itself.
pub fn prefix(scope: &str) -> String {
    match scope.strip_prefix("blk.") {
        _ if scope.is_empty() => String::new(),
        Some(layer) if !layer.is_empty() && layer.bytes().all(|b| b.is_ascii_digit()) => format!("l{layer}."),
        _ => format!("{scope}."),
    }
}

/// The word of a value's name without its layer: `l3.attn_q` gives `attn_q`.
pub fn word(value: &str) -> &str {
    split_layer(value).map_or(value, |(_, word)| word)
}

/// llama.cpp's name of a value: `l3.attn_norm` gives `attn_norm-3`.
pub fn golden_name(value: &str) -> String {
    match split_layer(value) {
        Some((layer, word)) => format!("{word}-{layer}"),
        None => value.to_string(),
    }
}

fn split_layer(value: &str) -> Option<(&str, &str)> {
    let (layer, word) = value.strip_prefix('l')?.split_once('.')?;
    let digits = !layer.is_empty() && layer.bytes().all(|b| b.is_ascii_digit());
    (digits && !word.is_empty()).then_some((layer, word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_field() {
        assert_eq!(prefix("blk.3"), "l3.");
        assert_eq!(prefix(""), "");
        assert_eq!(prefix("mtp.0"), "mtp.0.");
        assert_eq!(prefix("blk."), "blk..");
        assert_eq!(golden_name("l12.ffn_moe_topk"), "ffn_moe_topk-12");
        assert_eq!(golden_name("l3.attn_q_norm.rope"), "attn_q_norm.rope-3");
        assert_eq!(golden_name("result_norm"), "result_norm");
        assert_eq!(golden_name("l_out.x"), "l_out.x");
        assert_eq!(word("l0.attn_q"), "attn_q");
        assert_eq!(word("token_embd"), "token_embd");
    }
}
