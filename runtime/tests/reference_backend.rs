//! The reference backend behind the executor trait: a file's own bytes in, another program's logits out, and sequences
//! that can be copied, cut, saved and restored.

#[path = "../../seats/reference/tests/support/mod.rs"]
mod support;

use bloomery_gguf::GgufFile;
use bloomery_program::{ModelFacts, Program};
use bloomery_runtime::executor::{Executor, Rollback, Row, SequenceError, SequenceId, StepError};
use bloomery_runtime::reference::{CacheType, ReferenceExecutor, ReferenceSettings};
use std::path::Path;
use std::sync::Arc;

fn open(
    path: &Path,
    declare: impl Fn(&ModelFacts) -> bloomery_seat::Result<Program>,
    settings: ReferenceSettings,
) -> ReferenceExecutor {
    let file = Arc::new(GgufFile::open(path).unwrap());
    let facts = support::facts(&file);
    let program = declare(&facts).unwrap();
    ReferenceExecutor::new(file, &facts, program, settings).unwrap()
}

fn settings() -> ReferenceSettings {
    ReferenceSettings {
        max_rows: 64,
        max_tokens: 128,
        total_tokens: 512,
        cache: CacheType::F32,
        draft: false,
    }
}

fn oracle(name: &str) -> (ReferenceExecutor, Vec<u32>, Vec<Vec<f32>>) {
    let path = support::data(&format!("oracle/{name}.gguf"));
    let executor = open(&path, seat_qwen3::declare, settings());
    let (ids, logits) = support::oracle(name);
    (executor, ids, logits)
}

fn rows(sequence: SequenceId, ids: &[u32], from: usize, to: usize) -> Vec<Row> {
    let row = |position: usize| Row {
        token: ids[position],
        position,
        sequence,
        wants_logits: true,
        wants_hidden: false,
    };
    (from..to).map(row).collect()
}

fn logits(executor: &mut ReferenceExecutor, rows: &[Row]) -> Vec<Vec<f32>> {
    let n_vocab = executor.shape().n_vocab;
    executor.run(rows).unwrap().logits.chunks(n_vocab).map(<[f32]>::to_vec).collect()
}

#[test]
fn logits_are_the_oracles() {
    for name in ["q3moe", "q35moe"] {
        let (mut executor, ids, expected) = oracle(name);
        let sequence = executor.create().unwrap();
        let found = logits(&mut executor, &rows(sequence, &ids, 0, ids.len()));
        assert!(support::difference(&found, &expected) < 1e-3, "{name}");
        assert_eq!(executor.len(sequence), Ok(ids.len()));
    }
}

#[test]
fn only_wanted_rows_come_back_in_order() {
    let (mut executor, ids, expected) = oracle("q3moe");
    let (a, b) = (executor.create().unwrap(), executor.create().unwrap());
    let mut step: Vec<Row> = Vec::new();
    for (x, y) in rows(a, &ids, 0, 6).into_iter().zip(rows(b, &ids[3..], 0, 6)) {
        step.extend([x, y]);
    }
    for (i, row) in step.iter_mut().enumerate() {
        row.wants_logits = [2, 4, 8].contains(&i);
    }
    // Rows 1, 2 and 4 of the first sequence, whatever stands between them.
    let found = logits(&mut executor, &step);
    let expected = [1, 2, 4].map(|r| expected[r].clone());
    assert!(support::difference(&found, &expected) < 1e-3);
}

#[test]
fn rows_alone_can_be_cut_anywhere() {
    let (mut executor, ids, expected) = oracle("q3moe");
    assert_eq!(executor.shape().rollback, Rollback::Truncate);
    let (a, b) = (executor.create().unwrap(), executor.create().unwrap());
    logits(&mut executor, &rows(a, &ids, 0, 20));
    assert_eq!(executor.resumable(a, 7), Ok(7));
    executor.copy_prefix(a, b, 7).unwrap();
    executor.truncate(a, 11).unwrap();
    for (sequence, from) in [(b, 7), (a, 11)] {
        let found = logits(&mut executor, &rows(sequence, &ids, from, 30));
        assert!(support::difference(&found, &expected[from..30]) < 1e-3);
    }
    // A copy goes into an empty sequence only.
    assert!(matches!(executor.copy_prefix(a, b, 3), Err(SequenceError::Failed(_))));
}

#[test]
fn recurrent_states_go_back_to_checkpoints() {
    let (mut executor, ids, expected) = oracle("q35moe");
    assert_eq!(executor.shape().rollback, Rollback::Checkpoints);
    let a = executor.create().unwrap();
    logits(&mut executor, &rows(a, &ids, 0, 9));
    executor.checkpoint(a).unwrap();
    logits(&mut executor, &rows(a, &ids, 9, 20));
    assert_eq!(executor.resumable(a, 15), Ok(9));
    assert_eq!(executor.truncate(a, 15), Err(SequenceError::NotResumable { asked: 15, nearest: 9 }));
    assert_eq!(executor.len(a), Ok(20));
    let bytes = executor.save(a).unwrap();
    let restored = executor.restore(&bytes).unwrap();
    executor.drop_sequence(a);
    executor.truncate(restored, 9).unwrap();
    let found = logits(&mut executor, &rows(restored, &ids, 9, 40));
    assert!(support::difference(&found, &expected[9..]) < 1e-3);
    // Another program's bytes are refused.
    let (mut other, _, _) = oracle("q3moe");
    assert!(matches!(other.restore(&bytes), Err(SequenceError::BadState(_))));
    assert!(matches!(other.restore(&bytes[..7]), Err(SequenceError::BadState(_))));
    assert_ne!(other.shape().state_fingerprint, executor.shape().state_fingerprint);
}

#[test]
fn pages_are_counted_and_a_full_store_is_refused() {
    let path = support::data("oracle/q3moe.gguf");
    let tight = ReferenceSettings {
        max_rows: 64,
        max_tokens: 64,
        total_tokens: 96,
        cache: CacheType::F16,
        draft: false,
    };
    let mut executor = open(&path, seat_qwen3::declare, tight);
    let ids = support::oracle("q3moe").0;
    let ids: Vec<u32> = ids.iter().chain(&ids).copied().collect();
    let (a, b) = (executor.create().unwrap(), executor.create().unwrap());
    assert_eq!(executor.capacity().pages_total, 3);
    assert_eq!(executor.pages_to_grow(a, 33), Ok(2));
    executor.run(&rows(a, &ids, 0, 60)).unwrap();
    assert_eq!(executor.capacity().pages_free, 1);
    assert_eq!(executor.pages_to_grow(a, 4), Ok(0));
    let refused = |result: Result<_, StepError>| match result {
        Err(StepError::Sequence { sequence, error }) => (sequence, error),
        other => panic!("{other:?}"),
    };
    let full = refused(executor.run(&rows(b, &ids, 0, 40)).map(|_| ()));
    assert_eq!(full, (b, SequenceError::NoRoom { needed: 1, free: 1 }));
    let long = refused(executor.run(&rows(a, &ids, 60, 65)).map(|_| ()));
    assert_eq!(long, (a, SequenceError::TooLong { asked: 65, max_tokens: 64 }));
    // Nothing has changed, and the other sequence still runs.
    assert_eq!((executor.len(a), executor.len(b)), (Ok(60), Ok(0)));
    executor.run(&rows(b, &ids, 0, 32)).unwrap();
    executor.drop_sequence(a);
    executor.drop_sequence(a);
    assert_eq!(executor.capacity().pages_free, 2);
    executor.reset().unwrap();
    assert_eq!(executor.capacity().pages_free, 3);
    assert_eq!(executor.len(b), Err(SequenceError::Unknown(b)));
}

#[test]
fn rows_that_cannot_run_are_refused_by_name() {
    let (mut executor, ids, _) = oracle("q3moe");
    let a = executor.create().unwrap();
    let row = Row { token: 1, position: 0, sequence: a, wants_logits: true, wants_hidden: false };
    let mut refuse = |rows: &[Row]| executor.run(rows).map(|_| ()).unwrap_err();
    let error = |error| StepError::Sequence { sequence: a, error };
    assert_eq!(
        refuse(&[Row { position: 3, ..row }]),
        error(SequenceError::Position { position: 3, expected: 0 })
    );
    assert_eq!(
        refuse(&[Row { token: 256, ..row }]),
        error(SequenceError::Token { token: 256, n_vocab: 256 })
    );
    let hidden = refuse(&[Row { wants_hidden: true, ..row }]);
    assert!(matches!(hidden, StepError::Sequence { error: SequenceError::Failed(_), .. }));
    let stranger = SequenceId(99);
    assert_eq!(
        refuse(&[Row { sequence: stranger, ..row }]),
        StepError::Sequence { sequence: stranger, error: SequenceError::Unknown(stranger) }
    );
    let many: Vec<u32> = ids.iter().cycle().take(65).copied().collect();
    assert!(matches!(refuse(&rows(a, &many, 0, 65)), StepError::Malformed(_)));
    assert!(executor.run(&[]).unwrap().logits.is_empty());
}
