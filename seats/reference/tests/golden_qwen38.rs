//! The qwen38 seat against logits of other programs.

mod support;

use seat_qwen38::bloomery_seat_table as seat;
use support::{check_golden, check_oracle};

#[test]
fn qwen38_golden() {
    let layers = [("l_last", "l{}.l_last"), ("ffn_moe_topk", "l{}.ffn_moe_topk")];
    check_golden("qwen4exp", &layers, seat());
}

#[test]
fn qwen38_oracle() {
    check_oracle("q4", seat());
}
