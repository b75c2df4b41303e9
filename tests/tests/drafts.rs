//! Drafts over real models, in this process: random prompts, depths and mixes give the tokens that they give without.

mod drafted;

use bloomery_program::{ModelFacts, Program};
use bloomery_runtime::{Backend, DraftSettings, Generate};
use bloomery_sampler::SamplingParams;
use bloomery_tests::demo_model;
use drafted::{answer, golden, open, requests, same_with_drafts};

fn declare(facts: &ModelFacts) -> Program {
    seat_qwen3::declare(facts).unwrap()
}

fn lookups() -> Vec<DraftSettings> {
    let lookup = |n_match, n_max, adapt| DraftSettings {
        lookup: Some(n_match),
        n_max,
        adapt,
        ..DraftSettings::default()
    };
    vec![lookup(1, 7, false), lookup(2, 16, false), lookup(3, 48, true)]
}

#[test]
fn lookups_change_no_token_of_the_demo_model() {
    same_with_drafts(declare, &demo_model(), Backend::Cpu, &lookups(), 1);
}

/// A recurrent state is taken back to its mark and what was right is run again.
#[test]
fn lookups_change_no_token_of_a_recurrent_model() {
    let Some(path) = golden("ember/ember-qwen35moe-mtp-15m-Q4_K_M.gguf") else { return };
    same_with_drafts(declare, &path, Backend::Cpu, &lookups()[1..2], 2);
}

/// Greedy answers of the trained model with its next-token block, against the accepted counts of another implementation.
fn the_models_own_block_drafts(backend: Backend) {
    let Some(path) = golden("ember/ember-qwen35moe-mtp-15m-Q4_K_M.gguf") else { return };
    let own = DraftSettings { model: Some(true), adapt: false, ..DraftSettings::default() };
    let (plain, tokenizer) = open(declare, &path, backend, DraftSettings::default());
    let (engine, _) = open(declare, &path, backend, own);
    let chat = |text: &str| format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n");
    let prompts = [
        (chat("Hello! Who are you?"), 64, 17.0 / 36.0),
        (chat("Count from 3 to 20."), 64, 17.0 / 24.0),
        (chat("Who wrote this: \"To be, or not to be\"?"), 64, 1.0),
        ("It was a very fine morning, and the".to_owned(), 120, 61.0 / 171.0),
    ];
    for (text, n_predict, theirs) in prompts {
        let request = Generate {
            prompt: tokenizer.encode(&text, true, true),
            n_predict: Some(n_predict),
            ..requests(&tokenizer, 1).swap_remove(0)
        };
        let request = Generate { stop: vec![], ignore_eos: false, sampling: greedy(), ..request };
        let expected = answer(plain.submit(request.clone()));
        let got = answer(engine.submit(request));
        assert_eq!((&got.0, &got.1), (&expected.0, &expected.1));
        let (drafted, accepted) = (got.2.n_drafted, got.2.n_accepted);
        let share = accepted as f64 / drafted as f64;
        println!(
            "{text:?}: {} tokens, {drafted} drafted, {accepted} accepted ({share:.2}, theirs {theirs:.2})",
            got.1.len()
        );
        assert!(share > theirs - 0.2, "{share} of the drafted tokens were accepted, elsewhere {theirs}");
    }
    engine.shutdown();
    plain.shutdown();
}

#[test]
fn the_models_own_block_drafts_by_its_definition() {
    the_models_own_block_drafts(Backend::Reference);
}

#[test]
fn the_models_own_block_drafts_on_the_processor() {
    the_models_own_block_drafts(Backend::Cpu);
}

fn greedy() -> SamplingParams {
    SamplingParams { temperature: 0.0, ..SamplingParams::default() }
}

#[test]
fn the_models_own_block_changes_no_token() {
    let Some(path) = golden("ember/ember-qwen35moe-mtp-15m-Q4_K_M.gguf") else { return };
    let own = DraftSettings {
        model: Some(true),
        lookup: Some(3),
        n_model: 5,
        adapt: false,
        ..DraftSettings::default()
    };
    same_with_drafts(declare, &path, Backend::Reference, std::slice::from_ref(&own), 5);
    let one = DraftSettings { lookup: None, n_model: 1, ..own.clone() };
    let adapts = DraftSettings { adapt: true, ..own.clone() };
    same_with_drafts(declare, &path, Backend::Cpu, &[own, one, adapts], 6);
}

/// Small random models: their blocks guess badly, which tries what is taken back.
#[test]
fn the_block_of_a_small_random_model_changes_no_token() {
    let Some(path) = golden("qwen35moe/tiny-qwen35moe-Q8_0.gguf") else { return };
    let own = DraftSettings { model: Some(true), adapt: false, ..DraftSettings::default() };
    same_with_drafts(declare, &path, Backend::Cpu, &[own], 7);
}
