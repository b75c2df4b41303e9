//! The glm seat on the cpu backend, against the kit and its oracle.

mod golden;

use bloomery_program::{ModelFacts, Program};
use bloomery_runtime::cpu::CacheType;
use bloomery_tests::data;
use golden::{
    Model, check_cuts, check_every_cut, check_exact, check_f32, check_held_out, check_layers,
    check_quantised, logits,
};

fn declare(facts: &ModelFacts) -> Program {
    seat_glm::declare(facts).unwrap()
}

#[test]
fn f32_logits_and_greedy_text() {
    check_f32("glm5-next", declare);
}

#[test]
fn named_results() {
    let layers = [
        ("hc_attn_post", "l{}.hc_attn_out"),
        ("l_out", "l{}.l_last"),
        ("ffn_moe_topk", "l{}.ffn_moe_topk"),
        ("result_norm", "result_norm"),
    ];
    check_layers("glm5-next", &layers, declare);
}

#[test]
fn quantised() {
    check_quantised("glm5-next", "Q8_0", declare);
    check_held_out("glm5-next", "Q8_0", 2, declare);
}

#[test]
fn exact_and_goes_on_after_a_cut() {
    let Some((folder, tokens)) = golden::long_prompt("glm5-next") else { return };
    let model = Model::open(&folder.join("tiny-glm5-next-Q8_0.gguf"), declare, false);
    check_exact(&model, &tokens, CacheType::Q8_0);
    check_cuts(&model, &tokens, &[1, 15, 16, 32, 100, 241, 299]);
    check_every_cut(&model, &tokens, 6);
}

#[test]
fn oracle() {
    let model = Model::open(&data("oracle/glm.gguf"), declare, false);
    let ids = golden::ids_of(&data("oracle/glm.npz"));
    let found = logits(&mut model.executor(|_| {}), &ids, 512, |_| true);
    let expected = golden::logits_of(&data("oracle/glm.npz"));
    let difference = golden::largest_difference(&found, &expected);
    println!("glm oracle: largest difference of a logit {difference:e}");
    assert!(difference < 1e-3, "{difference}");
    check_exact(&model, &ids, CacheType::F16);
    check_cuts(&model, &ids, &[1, 3, 4, 17]);
}
