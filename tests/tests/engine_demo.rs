//! The engine over the demo model, in this process: known answers, the same alone and in company, kept and restored.

use bloomery_gguf::GgufFile;
use bloomery_program::check;
use bloomery_runtime::{
    Backend, CacheType, Engine, Event, Generate, Model, OpenOptions, Ticket,
    model::model_facts,
    request::{Done, StopKind},
};
use bloomery_sampler::SamplingParams;
use bloomery_seat_host::Checked;
use bloomery_tests::demo_model;
use bloomery_tokenizer::Tokenizer;
use std::sync::Arc;

/// The seat's program, asked for in this process: no probe, no library.
fn declared() -> Checked {
    let facts = model_facts(&GgufFile::open(&demo_model()).unwrap()).unwrap();
    let program = seat_qwen3::declare(&facts).unwrap();
    let summary = check(&program, &facts).unwrap();
    Checked { program, summary }
}

fn options(change: impl FnOnce(&mut OpenOptions)) -> OpenOptions {
    let mut options = OpenOptions::new(demo_model());
    (options.n_ctx, options.threads) = (2048, Some(2));
    change(&mut options);
    options
}

fn open(change: impl FnOnce(&mut OpenOptions)) -> (Engine, Arc<Tokenizer>) {
    let options = options(change);
    let mut reports = Vec::new();
    let model = Model::open_declared(&options, declared(), &mut |progress| reports.push(progress)).unwrap();
    assert!(reports.windows(2).all(|pair| pair[0].done <= pair[1].done), "progress goes forward");
    assert!(reports.last().is_none_or(|last| last.done == last.total && last.total > 10_000_000));
    let tokenizer = model.tokenizer().clone();
    (Engine::start(model).unwrap(), tokenizer)
}

fn ask(tokenizer: &Tokenizer, question: &str) -> Generate {
    let text = format!("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n");
    Generate {
        prompt: tokenizer.encode(&text, true, true),
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        n_predict: Some(60),
        stop: vec![],
        ignore_eos: false,
        cache_prompt: true,
        slot: None,
        n_probs: 0,
        post_sampling_probs: false,
        return_progress: false,
        render_special: false,
        t_max_predict_ms: None,
    }
}

fn answer(mut ticket: Ticket) -> (String, Vec<u32>, Done) {
    let (mut text, mut ids) = (String::new(), Vec::new());
    while let Some(event) = ticket.events.blocking_recv() {
        match event {
            Event::Token(token) => {
                text.push_str(&token.text);
                ids.push(token.id);
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

const WHO: &str = "I am Ember, a small language model. I was trained on novels, plays and a book about Rust.";

#[test]
fn both_backends_give_the_known_answer() {
    for backend in [Backend::Cpu, Backend::Reference] {
        let (engine, tokenizer) = open(|options| options.backend = backend);
        let (text, _, done) = answer(engine.submit(ask(&tokenizer, "Hello! Who are you?")));
        assert_eq!((text.as_str(), done.stop), (WHO, StopKind::Eos), "{backend:?}");
        engine.shutdown();
    }
}

#[test]
fn company_and_caches_change_no_token() {
    let questions: Vec<String> = (1..9)
        .map(|n| {
            if n % 2 == 0 {
                format!("Count from {n} to {}.", n + 9)
            } else {
                format!("Who wrote this: \"{}\"?", "word ".repeat(n * 6))
            }
        })
        .collect();
    let (alone, tokenizer) = open(|options| {
        (options.n_slots, options.cache_ram_mib) = (Some(1), 0);
        options.read_ahead = false;
    });
    let expected: Vec<Vec<u32>> = questions
        .iter()
        .map(|question| answer(alone.submit(Generate { cache_prompt: false, ..ask(&tokenizer, question) })).1)
        .collect();
    alone.shutdown();
    // All at once over three slots, in small steps, twice: the second time out of the caches.
    let (engine, tokenizer) = open(|options| (options.n_slots, options.n_ubatch) = (Some(3), 24));
    for round in 0..2 {
        let tickets: Vec<Ticket> =
            questions.iter().map(|question| engine.submit(ask(&tokenizer, question))).collect();
        for (ticket, expected) in tickets.into_iter().zip(&expected) {
            let (_, ids, done) = answer(ticket);
            assert_eq!(&ids, expected, "round {round}");
            if round == 1 {
                assert!(2 * done.n_cached > done.n_prompt, "most of the prompt was there: {done:?}");
            }
        }
    }
    let board = engine.board();
    assert_eq!((board.n_processing, board.n_deferred), (0, 0));
    engine.shutdown();
}

#[test]
fn a_slot_goes_through_a_file_in_every_cache_type() {
    for cache in [CacheType::F32, CacheType::F16, CacheType::Q8_0] {
        let with = |options: &mut OpenOptions| {
            (options.cache_type_k, options.cache_type_v) = (cache, cache);
            options.read_ahead = false;
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slot.bin");
        let (first, tokenizer) = open(with);
        let question = ask(&tokenizer, "Hello! Who are you?");
        let (_, ids, done) = answer(first.submit(question.clone()));
        let saved = first.slot_save(done.slot, &path).blocking_recv().unwrap().unwrap();
        assert_eq!(saved.n_tokens, done.n_past);
        first.shutdown();
        let (second, _) = open(with);
        second.slot_restore(1, &path).blocking_recv().unwrap().unwrap();
        let (_, again, done) = answer(second.submit(question));
        assert_eq!((again, done.n_cached), (ids, done.n_prompt - 1), "{cache:?}");
        second.shutdown();
    }
}

#[test]
fn the_facts_are_the_files() {
    let model =
        Model::open_declared(&options(|options| options.n_slots = Some(2)), declared(), &mut |_| {}).unwrap();
    let facts = model.facts();
    assert_eq!((facts.n_ctx, facts.n_ctx_slot, facts.n_slots), (2048, 1024.min(facts.n_ctx_train), 2));
    assert_eq!((facts.n_vocab, facts.file_type.as_str()), (4096, "Q4_K - Medium"));
    assert!(facts.description.contains("27.8M"), "{}", facts.description);
    assert_eq!(facts.eos_text, "<|im_end|>");
    assert!(facts.chat_template.as_ref().is_some_and(|template| template.contains("im_start")));
    assert!(model.plan().fits() && model.plan().total() > facts.size_bytes);
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let refusal = |change: fn(&mut OpenOptions)| {
        Model::open_declared(&options(change), declared(), &mut |_| {}).map(drop).unwrap_err().to_string()
    };
    let too_long = refusal(|options| options.n_ctx = 1 << 40);
    for word in ["does not fit", "weights", "kv", "state", "scratch", "--ctx-size"] {
        assert!(too_long.contains(word), "{too_long}");
    }
    assert!(refusal(|options| options.model = "no-such-file.gguf".into()).contains("no-such-file.gguf"));
    assert!(refusal(|options| options.n_slots = Some(0)).contains("--parallel"));
    assert!(refusal(|options| options.threads_batch = Some(3)).contains("--threads-batch"));
    assert!(
        refusal(|options| (options.backend, options.cache_type_k) = (Backend::Reference, CacheType::Q8_0))
            .contains("--cache-type-k")
    );
}
