//! The qwen38 seat on the cpu backend: `qwen4exp` against the kit and its oracle.

mod golden;

use bloomery_program::{ModelFacts, Program};
use bloomery_runtime::cpu::CacheType;
use bloomery_tests::data;
use golden::{
    Model, check_cuts, check_exact, check_f32, check_layers, check_quantised, largest_difference, logits,
};

fn declare(facts: &ModelFacts) -> Program {
    seat_qwen38::declare(facts).unwrap()
}

#[test]
fn f32_logits_and_greedy_text() {
    check_f32("qwen4exp", declare);
}

#[test]
fn named_results() {
    check_layers("qwen4exp", &[("l_last", "l{}.l_last"), ("ffn_moe_topk", "l{}.ffn_moe_topk")], declare);
}

#[test]
fn quantised() {
    check_quantised("qwen4exp", "Q8_0", declare);
}

#[test]
fn exact_and_goes_on_after_a_cut() {
    let Some((folder, tokens)) = golden::long_prompt("qwen4exp") else { return };
    let model = Model::open(&folder.join("tiny-qwen4exp-Q8_0.gguf"), declare, false);
    check_exact(&model, &tokens, CacheType::F16);
    check_cuts(&model, &tokens, &[1, 2, 7, 8, 9, 31, 32, 64, 65, 150, 298]);
}

#[test]
fn oracle() {
    let model = Model::open(&data("oracle/q4.gguf"), declare, false);
    let npz = data("oracle/q4.npz");
    let ids = golden::ids_of(&npz);
    let found = logits(&mut model.executor(|_| {}), &ids, 512, |_| true);
    let difference = largest_difference(&found, &golden::logits_of(&npz));
    println!("qwen4exp oracle: largest difference of a logit {difference:e}");
    assert!(difference < 1e-3, "{difference}");
    check_exact(&model, &ids, CacheType::Q8_0);
    check_cuts(&model, &ids, &[1, 3, 4, 17]);
}
