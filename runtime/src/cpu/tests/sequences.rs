//! Prefixes, cuts, saved states and refusals.

use super::against_reference::{executor, options, rows, text};
use super::small::model;
use crate::cpu::CpuExecutor;
use crate::executor::{Executor, Row, SequenceError, SequenceId, StepError};

fn last_logits(executor: &mut CpuExecutor, sequence: SequenceId, tokens: &[u32]) -> Vec<f32> {
    let first = executor.len(sequence).unwrap();
    let out = executor.run(&rows(tokens, first, sequence)).unwrap();
    out.logits[out.logits.len() - super::small::VOCABULARY as usize..].to_vec()
}

#[test]
fn a_shared_prefix_is_copied_before_it_is_written() {
    let model = model(0);
    let mut e = executor(&model, &model.tensors, &options(2, true));
    let tokens = text(1, 100);
    let alone = e.create().unwrap();
    let expected = last_logits(&mut e, alone, &tokens);
    e.drop_sequence(alone);

    let a = e.create().unwrap();
    last_logits(&mut e, a, &tokens[..70]);
    let free = e.capacity().pages_free;
    let b = e.create().unwrap();
    e.copy_prefix(a, b, 45).unwrap();
    assert_eq!(e.capacity().pages_free, free, "a prefix takes no page");
    assert_eq!(e.pages_to_grow(b, 1).unwrap(), 1, "the half-filled page must be copied");
    // Both go on: b with other words first, then cut back to the common text.
    last_logits(&mut e, b, &text(9, 20));
    e.truncate(b, 45).unwrap();
    assert_eq!(last_logits(&mut e, b, &tokens[45..]), expected);
    assert_eq!(last_logits(&mut e, a, &tokens[70..]), expected);
    e.drop_sequence(a);
    e.drop_sequence(a);
    e.drop_sequence(b);
    let capacity = e.capacity();
    assert_eq!(capacity.pages_free, capacity.pages_total);
}

#[test]
fn saved_states_come_back_and_damaged_ones_do_not() {
    let model = model(3);
    let mut e = executor(&model, &model.tensors, &options(1, true));
    let tokens = text(2, 80);
    let a = e.create().unwrap();
    last_logits(&mut e, a, &tokens[..50]);
    let saved = e.save(a).unwrap();
    let expected = last_logits(&mut e, a, &tokens[50..]);
    let mut other = executor(&model, &model.tensors, &options(2, true));
    let b = other.restore(&saved).unwrap();
    assert_eq!(other.len(b).unwrap(), 50);
    assert_eq!(last_logits(&mut other, b, &tokens[50..]), expected);
    let free = other.capacity().pages_free;
    for cut in [0, 7, 8, 16, 23, 24, saved.len() - 1] {
        assert!(matches!(other.restore(&saved[..cut]), Err(SequenceError::BadState(_))), "cut at {cut}");
    }
    for (at, value) in [(0, b'X'), (9, 0xff), (17, 1), (16, 0xff)] {
        let mut damaged = saved.clone();
        damaged[at] = value;
        assert!(other.restore(&damaged).is_err(), "byte {at}");
    }
    assert_eq!(other.capacity().pages_free, free, "a refused state keeps no page");
    // Another cache type is another layout.
    let mut f16 = options(1, true);
    f16.cache_key = crate::cpu::CacheType::F16;
    assert!(matches!(
        executor(&model, &model.tensors, &f16).restore(&saved),
        Err(SequenceError::BadState(_))
    ));
}

#[test]
fn a_refused_step_changes_nothing() {
    let model = model(2);
    let mut small = options(1, true);
    (small.store_tokens, small.max_rows, small.max_tokens) = (64, 40, 50);
    let mut e = executor(&model, &model.tensors, &small);
    let (a, b) = (e.create().unwrap(), e.create().unwrap());
    last_logits(&mut e, a, &text(1, 30));
    let row = Row { token: 1, position: 30, sequence: a, wants_logits: true, wants_hidden: false };
    let sequence_fault = |result: Result<_, StepError>| match result {
        Err(StepError::Sequence { error, .. }) => error,
        Err(other) => panic!("{other}"),
        Ok(()) => panic!("it ran"),
    };
    let mut run = |rows: &[Row]| e.run(rows).map(|_| ());
    let position = sequence_fault(run(&[Row { position: 29, ..row }]));
    assert_eq!(position, SequenceError::Position { position: 29, expected: 30 });
    let unknown = sequence_fault(run(&[Row { sequence: SequenceId(77), ..row }]));
    assert_eq!(unknown, SequenceError::Unknown(SequenceId(77)));
    assert!(matches!(
        sequence_fault(run(&[Row { token: 50, ..row }])),
        SequenceError::Token { token: 50, .. }
    ));
    let long: Vec<Row> = (30..51).map(|position| Row { position, ..row }).collect();
    assert!(matches!(sequence_fault(run(&long)), SequenceError::TooLong { asked: 51, .. }));
    let many: Vec<Row> = (0..41).map(|position| Row { position, sequence: b, ..row }).collect();
    assert!(matches!(run(&many), Err(StepError::Malformed(_))));
    // a holds one page and fills it with two more rows; the second page is the last.
    let mut both: Vec<Row> = (30..34).map(|position| Row { position, ..row }).collect();
    both.push(Row { position: 0, sequence: b, ..row });
    let full = sequence_fault(run(&both));
    assert_eq!(full, SequenceError::NoRoom { needed: 1, free: 0 });
    assert_eq!((e.len(a), e.len(b)), (Ok(30), Ok(0)));
    assert_eq!(e.capacity().pages_free, 1);
    assert!(e.run(&[row]).is_ok());
    assert!(e.run(&[]).is_ok_and(|out| out.logits.is_empty()));
    e.reset().unwrap();
    assert_eq!(e.len(a), Err(SequenceError::Unknown(a)));
    assert_eq!(e.capacity().pages_free, 2);
}
