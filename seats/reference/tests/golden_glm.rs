//! The glm seat against logits of other programs.

mod support;

use seat_glm::bloomery_seat_table as seat;
use support::{check_golden, check_oracle};

#[test]
fn glm_golden() {
    let layers = [
        ("hc_attn_post", "l{}.hc_attn_out"),
        ("l_out", "l{}.l_last"),
        ("ffn_moe_topk", "l{}.ffn_moe_topk"),
        ("result_norm", "result_norm"),
    ];
    check_golden("glm5-next", &layers, seat());
}

#[test]
fn glm_oracle() {
    check_oracle("glm", seat());
}
