//! Requests with and without drafts, side by side.

#![allow(dead_code, reason = "each test binary takes its part")]

use bloomery_gguf::GgufFile;
use bloomery_program::{ModelFacts, Program, check};
use bloomery_runtime::{
    Backend, DraftSettings, Engine, Event, Generate, Model, OpenOptions, Ticket, model::model_facts,
    request::Done,
};
use bloomery_sampler::SamplingParams;
use bloomery_seat_host::Checked;
use bloomery_tokenizer::Tokenizer;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// A seat's own function.
pub type Declare = fn(&ModelFacts) -> Program;

pub fn open(
    declare: Declare,
    path: &Path,
    backend: Backend,
    draft: DraftSettings,
) -> (Engine, Arc<Tokenizer>) {
    let facts = model_facts(&GgufFile::open(path).unwrap()).unwrap();
    let program = declare(&facts);
    let summary = check(&program, &facts).unwrap();
    let mut options = OpenOptions::new(path);
    (options.n_ctx, options.threads, options.n_slots, options.read_ahead) = (2048, Some(2), Some(3), false);
    (options.draft, options.backend) = (draft, backend);
    let model = Model::open_declared(&options, Checked { program, summary }, &mut |_| {}).unwrap();
    let tokenizer = model.tokenizer().clone();
    (Engine::start(model).unwrap(), tokenizer)
}

/// Requests of all kinds, from a fixed stream of numbers.
pub fn requests(tokenizer: &Tokenizer, seed: u64) -> Vec<Generate> {
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

pub type Answer = (String, Vec<(u32, Option<u32>)>, Done);

pub fn answer(mut ticket: Ticket) -> Answer {
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
pub fn same_with_drafts(
    declare: Declare,
    path: &Path,
    backend: Backend,
    drafts: &[DraftSettings],
    seed: u64,
) {
    let (plain, tokenizer) = open(declare, path, backend, DraftSettings::default());
    let requests = requests(&tokenizer, seed);
    let expected: Vec<Answer> =
        requests.iter().map(|request| answer(plain.submit(request.clone()))).collect();
    plain.shutdown();
    for draft in drafts {
        let (engine, _) = open(declare, path, backend, draft.clone());
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
        assert!(draft.adapt || (drafted > 0 && accepted < drafted));
        engine.shutdown();
    }
}

pub fn golden(name: &str) -> Option<PathBuf> {
    let kit = std::env::var_os("BLOOMERY_GOLDEN").map(PathBuf::from);
    if kit.is_none() {
        println!("skipped: no golden kit");
    }
    Some(kit?.join(name)).filter(|path| path.exists())
}
