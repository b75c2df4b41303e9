//! The next-token block of the qwen38 seat on the cpu backend: the tokens are those that the model gives without it.

mod drafted;

use bloomery_program::{ModelFacts, Program};
use bloomery_runtime::{Backend, DraftSettings};
use drafted::{golden, same_with_drafts};

fn declare(facts: &ModelFacts) -> Program {
    seat_qwen38::declare(facts).unwrap()
}

/// Small random models: their blocks guess badly, which tries what is taken back.
#[test]
fn the_block_of_a_small_random_model_changes_no_token() {
    let Some(path) = golden("qwen4exp/tiny-qwen4exp-Q8_0.gguf") else { return };
    let own = DraftSettings { model: Some(true), adapt: false, ..DraftSettings::default() };
    same_with_drafts(declare, &path, Backend::Cpu, &[own], 8);
}
