//! Whole architectures, written in the program language and run by the reference executor against logits of other
//! programs: the proof that the language can say them.

mod support;

use support::{check_golden, check_oracle};

/// Names of intermediate results that every family shares.
const LAYERS: &[(&str, &str)] = &[("l_out", "l{}.l_out"), ("result_norm", "result_norm")];

#[test]
fn qwen3moe_golden() {
    let mut layers = LAYERS.to_vec();
    layers.extend([
        ("ffn_inp", "l{}.ffn_inp"),
        ("ffn_moe_logits", "l{}.ffn_moe_logits"),
        ("ffn_moe_topk", "l{}.ffn_moe_topk"),
        ("ffn_moe_weights_norm", "l{}.ffn_moe_weights_norm"),
        ("ffn_moe_out", "l{}.ffn_moe_out"),
    ]);
    check_golden("qwen3moe", &layers, seat_qwen3::declare);
}

#[test]
fn qwen3moe_oracle() {
    check_oracle("q3moe", seat_qwen3::declare);
}
