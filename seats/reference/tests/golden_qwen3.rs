//! The qwen3 seat against logits of other programs.

mod support;

use bloomery_seat::abi::SeatRef;
use support::{check_golden, check_oracle, check_quantised};

fn seat() -> SeatRef {
    seat_qwen3::bloomery_seat_table()
}

/// Names of intermediate results, as the files name them and as the program does.
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
    check_golden("qwen3moe", &layers, seat());
}

#[test]
fn qwen3moe_oracle() {
    check_oracle("q3moe", seat());
}

#[test]
fn qwen35moe_golden() {
    check_golden("qwen35moe", LAYERS, seat());
}

#[test]
fn qwen35moe_oracle() {
    check_oracle("q35moe", seat());
}

#[test]
fn qwen35_dense_oracle() {
    check_oracle("q35", seat());
}

#[test]
fn quantised_files_with_f32_activations() {
    let types =
        ["IQ2_XS", "IQ3_XXS", "IQ4_XS", "MXFP4_MOE", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0"];
    for ty in types {
        check_quantised("qwen3moe", ty, seat());
    }
    check_quantised("qwen35moe", "Q4_K_M", seat());
}

#[test]
fn held_out_text_costs_what_it_costs_another_program() {
    for (ty, windows) in [("Q8_0", 2), ("Q4_K_M", 1), ("MXFP4_MOE", 1)] {
        support::check_held_out("qwen3moe", ty, windows, seat());
    }
}
