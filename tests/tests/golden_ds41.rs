//! The ds41 seat on the cpu backend: `deepseek4` against the kit, `deepseek41` against its oracle.

mod golden;

use bloomery_program::{ModelFacts, Program};
use bloomery_runtime::cpu::CacheType;
use bloomery_tests::{data, read_f32};
use golden::{
    Model, check_answers, check_cuts, check_every_cut, check_exact, check_f32, check_held_out, check_layers,
    check_quantised, largest_difference, logits,
};

fn declare(facts: &ModelFacts) -> Program {
    seat_ds41::declare(facts).unwrap()
}

#[test]
fn deepseek4_f32_logits_and_greedy_text() {
    check_f32("deepseek4", declare);
}

#[test]
fn deepseek4_named_results() {
    let layers = [
        ("hc_attn_post", "l{}.hc_attn_out"),
        ("l_last", "l{}.l_last"),
        ("attn_out", "l{}.attn_out"),
        ("ffn_moe_topk", "l{}.ffn_moe_topk"),
        ("ffn_out", "l{}.ffn_out"),
        ("hc_head", "hc_head"),
        ("result_norm", "result_norm"),
    ];
    check_layers("deepseek4", &layers, declare);
}

#[test]
fn deepseek4_quantised() {
    for ty in ["Q8_0", "Q4_K_M"] {
        check_quantised("deepseek4", ty, declare);
        check_held_out("deepseek4", ty, 2, declare);
    }
}

#[test]
fn deepseek4_is_exact_and_goes_on_after_a_cut() {
    let Some((folder, tokens)) = golden::long_prompt("deepseek4") else { return };
    let model = Model::open(&folder.join("tiny-deepseek4-Q4_K_M.gguf"), declare, false);
    check_exact(&model, &tokens, CacheType::F16);
    check_cuts(&model, &tokens, &[1, 31, 32, 127, 128, 130, 255, 299]);
    check_every_cut(&model, &tokens, 6);
}

#[test]
fn deepseek41_oracle() {
    // The oracle's own logits break ties of index scores otherwise; this fixture is its script's with the lower row first.
    let expected =
        read_f32(&bloomery_tests::repository().join("seats/reference/tests/fixtures/ds41_ties.logits.bin"))
            .unwrap();
    let model = Model::open(&data("oracle/ds41.gguf"), declare, false);
    let ids: Vec<u32> = golden::ids_of(&data("oracle/ds41.npz"));
    let mut executor = model.executor(|_| {});
    let found = logits(&mut executor, &ids, 512, |_| true);
    let difference = largest_difference(&found, &expected);
    println!("deepseek41 F32: largest difference of a logit {difference:e}");
    assert!(difference < 1e-3, "{difference}");
    check_exact(&model, &ids, CacheType::F16);
    check_cuts(&model, &ids, &[1, 2, 17, 33]);
}

#[test]
fn a_trained_deepseek4_answers_as_elsewhere() {
    check_answers("ember-deepseek4-14m-Q4_K_M.gguf", declare);
}
