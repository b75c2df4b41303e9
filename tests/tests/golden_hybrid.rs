//! The hybrids of the qwen3 seat on the cpu backend: `qwen35moe` against the kit, it and the dense `qwen35` against their oracles.

mod golden;

use bloomery_program::{ModelFacts, Program};
use bloomery_runtime::cpu::CacheType;
use bloomery_tests::data;
use golden::{
    Model, check_cuts, check_exact, check_f32, check_layers, check_quantised, largest_difference, logits,
};

fn declare(facts: &ModelFacts) -> Program {
    seat_qwen3::declare(facts).unwrap()
}

#[test]
fn f32_logits_and_greedy_text() {
    check_f32("qwen35moe", declare);
}

#[test]
fn named_results() {
    check_layers("qwen35moe", &[("l_out", "l{}.l_out"), ("result_norm", "result_norm")], declare);
}

#[test]
fn quantised() {
    for ty in ["Q8_0", "Q4_K_M"] {
        check_quantised("qwen35moe", ty, declare);
    }
}

#[test]
fn exact_and_goes_on_after_a_cut() {
    let Some((folder, tokens)) = golden::long_prompt("qwen35moe") else { return };
    for (ty, cache) in [("Q8_0", CacheType::Q8_0), ("Q4_K_M", CacheType::F16)] {
        let model = Model::open(&folder.join(format!("tiny-qwen35moe-{ty}.gguf")), declare, false);
        check_exact(&model, &tokens, cache);
        check_cuts(&model, &tokens, &[1, 2, 3, 4, 31, 32, 33, 150, 255, 298]);
    }
}

#[test]
fn oracles() {
    for name in ["q35moe", "q35"] {
        let model = Model::open(&data(&format!("oracle/{name}.gguf")), declare, false);
        let npz = data(&format!("oracle/{name}.npz"));
        let ids = golden::ids_of(&npz);
        let found = logits(&mut model.executor(|_| {}), &ids, 512, |_| true);
        let difference = largest_difference(&found, &golden::logits_of(&npz));
        println!("{name} oracle: largest difference of a logit {difference:e}");
        assert!(difference < 1e-3, "{name}: {difference}");
        check_exact(&model, &ids, CacheType::F16);
        check_cuts(&model, &ids, &[1, 3, 17]);
    }
}
