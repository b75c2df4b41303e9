//! Drafts over real models, in this process: random prompts, depths and mixes give the tokens that they give without.

use bloomery_gguf::GgufFile;
use bloomery_program::check;
use bloomery_runtime::{
    Backend, DraftSettings, Engine, Event, Generate, Model, OpenOptions, Ticket, model::model_facts,
    request::Done,
};
use bloomery_sampler::SamplingParams;
use bloomery_seat_host::Checked;
use bloomery_tests::demo_model;
use bloomery_tokenizer::Tokenizer;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

fn open(path: &Path, backend: Backend, draft: DraftSettings) -> (Engine, Arc<Tokenizer>) {
    let facts = model_facts(&GgufFile::open(path).unwrap()).unwrap();
    let program = seat_qwen3::declare(&facts).unwrap();
    let summary = check(&program, &facts).unwrap();
    let mut options = OpenOptions::new(path);
    (options.n_ctx, options.threads, options.n_slots, options.read_ahead) = (2048, Some(2), Some(3), false);
    (options.draft, options.backend) = (draft, backend);
    let model = Model::open_declared(&options, Checked { program, summary }, &mut |_| {}).unwrap();
    let tokenizer = model.tokenizer().clone();
    (Engine::start(model).unwrap(), tokenizer)
}

/// Requests of all kinds, from a fixed stream of numbers.
fn requests(tokenizer: &Tokenizer, seed: u64) -> Vec<Generate> {
    let mut state = seed;
    let mut below = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let words = ["the", "river", "and", "a", "stone", "over", "fn", "let", "mut", "love", "of", "king"];
    let mut one = |index: usize| {
        let phrase: Vec<&str> = (0..3 + below(4)).map(|_| words[below(words.len())]).collect();
        let text = match below(3) {
            0 => format!(
                "<|im_start|>user\nCount from {} to 40.<|im_end|>\n<|im_start|>assistant\n",
                1 + below(20)
            ),
            1 => format!("{} ", phrase.join(" ").repeat(1 + below(8))),
            _ => format!("Once upon a time {} and", phrase.join(" ")),
        };
        let sampled = index % 3 == 2;
        let temperature = if sampled { 0.7 } else { 0.0 };
        let repeat_penalty = if below(3) == 0 { 1.2 } else { 1.0 };
        let seed = below(1000) as u32;
        Generate {
            prompt: tokenizer.encode(&text, true, true),
            sampling: SamplingParams { temperature, repeat_penalty, seed, ..SamplingParams::default() },
            n_predict: Some(20 + below(40)),
            stop: if below(4) == 0 { vec!["1, 2".to_owned(), "ing".to_owned()] } else { vec![] },
            ignore_eos: below(2) == 0,
            cache_prompt: below(3) > 0,
            slot: None,
            n_probs: below(2) * 3,
            post_sampling_probs: false,
            return_progress: false,
            render_special: false,
            t_max_predict_ms: None,
        }
    };
    (0..9).map(&mut one).collect()
}

type Answer = (String, Vec<(u32, Option<u32>)>, Done);

fn answer(mut ticket: Ticket) -> Answer {
    let (mut text, mut ids) = (String::new(), Vec::new());
    while let Some(event) = ticket.events.blocking_recv() {
        match event {
            Event::Token(token) => {
                text.push_str(&token.text);
                ids.push((token.id, token.probs.map(|probs| probs.chosen.logprob.to_bits())));
            }
            Event::Done(done) => {
                text.push_str(&done.text);
                return (text, ids, done);
            }
            Event::Progress(_) => {}
            Event::Failed(error) => panic!("{error}"),
        }
    }
    panic!("the engine left without a word");
}

/// The same requests without drafts, one after the other, and with each kind of drafts, all at once.
fn same_with_drafts(path: &Path, backend: Backend, drafts: &[DraftSettings], seed: u64) {
    let (plain, tokenizer) = open(path, backend, DraftSettings::default());
    let requests = requests(&tokenizer, seed);
    let expected: Vec<Answer> =
        requests.iter().map(|request| answer(plain.submit(request.clone()))).collect();
    plain.shutdown();
    for draft in drafts {
        let (engine, _) = open(path, backend, draft.clone());
        let tickets: Vec<Ticket> = requests.iter().map(|request| engine.submit(request.clone())).collect();
        let (mut drafted, mut accepted, mut tokens) = (0, 0, 0);
        for (ticket, (text, ids, done)) in tickets.into_iter().zip(&expected) {
            let got = answer(ticket);
            assert_eq!((&got.0, &got.1), (text, ids), "{draft:?}");
            assert_eq!((got.2.stop, got.2.n_past), (done.stop, done.n_past));
            drafted += got.2.n_drafted;
            accepted += got.2.n_accepted;
            tokens += got.1.len();
        }
        println!("{draft:?}: {tokens} tokens, {drafted} drafted, {accepted} accepted");
        assert!(draft.adapt || (accepted > 0 && accepted < drafted));
        engine.shutdown();
    }
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

fn golden(name: &str) -> Option<PathBuf> {
    let kit = std::env::var_os("BLOOMERY_GOLDEN").map(PathBuf::from);
    if kit.is_none() {
        println!("skipped: no golden kit");
    }
    Some(kit?.join(name)).filter(|path| path.exists())
}

#[test]
fn lookups_change_no_token_of_the_demo_model() {
    same_with_drafts(&demo_model(), Backend::Cpu, &lookups(), 1);
}

/// A recurrent state is taken back to its mark and what was right is run again.
#[test]
fn lookups_change_no_token_of_a_recurrent_model() {
    let Some(path) = golden("ember/ember-qwen35moe-mtp-15m-Q4_K_M.gguf") else { return };
    same_with_drafts(&path, Backend::Cpu, &lookups()[1..2], 2);
}

/// Greedy answers of the trained model with its next-token block, against the accepted counts of another implementation.
fn the_models_own_block_drafts(backend: Backend) {
    let Some(path) = golden("ember/ember-qwen35moe-mtp-15m-Q4_K_M.gguf") else { return };
    let own = DraftSettings { model: Some(true), adapt: false, ..DraftSettings::default() };
    let (plain, tokenizer) = open(&path, backend, DraftSettings::default());
    let (engine, _) = open(&path, backend, own);
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
    same_with_drafts(&path, Backend::Reference, &[own.clone()], 5);
    let one = DraftSettings { lookup: None, n_model: 1, ..own.clone() };
    let adapts = DraftSettings { adapt: true, ..own.clone() };
    same_with_drafts(&path, Backend::Cpu, &[own, one, adapts], 6);
}
