//! The engine with its thread: tickets, slot files, shutdown.

use super::*;
use crate::{
    engine::{Engine, Ticket},
    slot_file::SlotFileError,
};

fn engine(toy: Toy, model_fingerprint: u64) -> Engine {
    let settings =
        EngineSettings { n_slots: 2, n_ctx_slot: 256, model_fingerprint, ..EngineSettings::default() };
    Engine::start_with(Box::new(toy), Arc::new(ToyVocabulary), settings).unwrap()
}

fn toy() -> Toy {
    Toy::new(Rollback::Checkpoints, 16, 8, 400)
}

fn wait(mut ticket: Ticket) -> (Vec<u32>, Result<Done, RequestError>) {
    let mut ids = Vec::new();
    while let Some(event) = ticket.events.blocking_recv() {
        match event {
            Event::Token(token) => ids.push(token.id),
            Event::Done(done) => return (ids, Ok(done)),
            Event::Failed(error) => return (ids, Err(error)),
            Event::Progress(_) => {}
        }
    }
    panic!("the engine left without a word");
}

#[test]
fn many_threads_get_their_own_answers() {
    let engine = engine(toy(), 1);
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let engine = engine.clone();
            scope.spawn(move || {
                let (ids, done) = wait(engine.submit(request(&prompt(seed, 30))));
                let solo = Bench::roomy(Rollback::Truncate, 1).ask(request(&prompt(seed, 30)));
                assert_eq!(ids, solo.ids());
                done.unwrap();
            });
        }
    });
    engine.shutdown();
    assert!(matches!(wait(engine.submit(request(&[1]))).1, Err(RequestError::ShuttingDown)));
    engine.shutdown();
    assert!(matches!(engine.slot_erase(0).blocking_recv().unwrap(), Err(RequestError::ShuttingDown)));
}

#[test]
fn shutdown_ends_what_runs_and_what_waits() {
    let engine = engine(toy(), 1);
    let tickets: Vec<Ticket> = (0..5)
        .map(|seed| {
            engine.submit(Generate { n_predict: Some(200), ignore_eos: true, ..request(&prompt(seed, 30)) })
        })
        .collect();
    engine.shutdown();
    let ends: Vec<_> = tickets.into_iter().map(|ticket| wait(ticket).1).collect();
    assert!(ends.iter().all(|end| matches!(end, Ok(_) | Err(RequestError::ShuttingDown))));
}

#[test]
fn a_slot_survives_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slot.bin");
    let first = engine(toy(), 1);
    let (ids, done) = wait(first.submit(request(&prompt(1, 30))));
    let slot = done.unwrap().slot;
    let saved = first.slot_save(slot, &path).blocking_recv().unwrap().unwrap();
    assert_eq!(
        (saved.slot, saved.n_tokens, saved.n_bytes),
        (slot, 30 + ids.len() - 1, path.metadata().unwrap().len())
    );
    assert_eq!(first.slot_erase(slot).blocking_recv().unwrap().unwrap().n_tokens, saved.n_tokens);
    assert_eq!(first.board().slots[slot].n_past, 0);
    first.shutdown();

    // Another process, another slot: the next turn finds all of it, and the same turn its checkpoint.
    let second = engine(toy(), 1);
    let restored = second.slot_restore(1, &path).blocking_recv().unwrap().unwrap();
    assert_eq!((restored.n_tokens, restored.n_bytes), (saved.n_tokens, saved.n_bytes));
    let (again, done) = wait(second.submit(request(&prompt(1, 30))));
    assert_eq!((&again, done.unwrap().n_cached), (&ids, 29));

    let refused = |engine: &Engine| match engine.slot_restore(0, &path).blocking_recv().unwrap() {
        Err(RequestError::SlotFile(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&engine(toy(), 2)), SlotFileError::OtherModel);
    assert!(matches!(second.slot_restore(7, &path).blocking_recv().unwrap(), Err(RequestError::Invalid(_))));
    let small =
        EngineSettings { n_slots: 1, n_ctx_slot: 16, model_fingerprint: 1, ..EngineSettings::default() };
    let small = Engine::start_with(Box::new(toy()), Arc::new(ToyVocabulary), small).unwrap();
    assert_eq!(refused(&small), SlotFileError::TooLong { n_tokens: saved.n_tokens, n_ctx: 16 });

    // A well-formed file with a hostile state inside.
    let (mut state, _) = crate::slot_file::SlotState::read(&path).unwrap();
    state.tokens.pop();
    state.write(&path).unwrap();
    assert!(matches!(refused(&second), SlotFileError::Refused(_)), "a state of another length");
    state.state.truncate(11);
    state.write(&path).unwrap();
    assert!(matches!(refused(&second), SlotFileError::Refused(_)));
    assert_eq!(wait(second.submit(request(&prompt(1, 30)))).0, ids, "the engine goes on");
}

#[test]
fn an_engine_without_callers_finishes_its_work() {
    let mut ticket = {
        let engine = engine(toy(), 1);
        engine.submit(request(&prompt(1, 30)))
    };
    let mut last = None;
    while let Some(event) = ticket.events.blocking_recv() {
        last = Some(event);
    }
    assert!(matches!(last, Some(Event::Done(_))));
}
