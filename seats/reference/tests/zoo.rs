//! A program with every operator, run in different ways that must not matter.

#[path = "../../program/tests/zoo/mod.rs"]
mod zoo;

use bloomery_program::graph::OutputKind;
use bloomery_reference::{
    CacheType, CustomOperator, CustomRows, MemoryWeights, NamedOutput, Question, QuestionKind, Reference,
    ReferenceError, Row, States, Step, Value,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use zoo::{N_VOCAB, zoo};

/// The zoo's own operator: `max(x, slope * x)`.
struct Slope;

impl CustomOperator for Slope {
    fn run(
        &self,
        name: &str,
        version: u32,
        attributes: &BTreeMap<String, f64>,
        operands: &[CustomRows<'_>],
        widths: &[usize],
    ) -> Result<Vec<Vec<f32>>, String> {
        assert_eq!((name, version, widths), ("zoo.slope", 1, &[8][..]));
        let slope = attributes["slope"] as f32;
        Ok(vec![operands[0].data.iter().map(|x| x.max(slope * x)).collect()])
    }
}

/// Numbers that depend on the tensor's name and place only.
fn noise(name: &str, n: usize) -> Vec<f32> {
    let mut seed =
        name.bytes().fold(0x1234_5678_9abc_def1u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    (0..n)
        .map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 40) as f32 / (1 << 24) as f32 * 1.6 - 0.8
        })
        .collect()
}

fn reference() -> Reference<MemoryWeights> {
    let (program, facts) = zoo();
    let mut weights = MemoryWeights::default();
    for (name, tensor) in &facts.tensors {
        let n = tensor.elements().unwrap() as usize;
        let data = match name.rsplit('.').next().unwrap() {
            // Expert numbers by token.
            "table" => (0..n).map(|i| ((i * 7 + i / 3) % 4) as f32).collect(),
            "a" => vec![-0.5; n],
            "freq_factors" => vec![1.5; n],
            _ => noise(name, n),
        };
        weights.insert(name, &tensor.dims, data).unwrap();
    }
    weights.insert_integers("zoo.token_map", (0..N_VOCAB).map(|i| i * i % 17).collect());
    Reference::new(program, &facts, weights).unwrap().with_custom(Box::new(Slope))
}

fn ids(sequence: u64, n: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * i * 5 + i * 3 + sequence as usize * 11) as u64 % N_VOCAB) as u32).collect()
}

fn rows(sequence: u64, from: usize, to: usize) -> Vec<Row> {
    let all = ids(sequence, to);
    (from..to).map(|position| Row { sequence, token: all[position], position }).collect()
}

fn logits(outputs: &[NamedOutput]) -> &NamedOutput {
    outputs.iter().find(|o| o.kind == OutputKind::Logits).unwrap()
}

/// Logits of one sequence, in steps that end at these positions.
fn run(
    reference: &Reference<MemoryWeights>,
    states: &mut States,
    sequence: u64,
    ends: &[usize],
) -> Vec<Vec<f32>> {
    let mut found = Vec::new();
    let mut from = states.length(sequence).unwrap();
    for end in ends {
        let rows = rows(sequence, from, *end);
        let outputs = reference.forward(&Step { rows: &rows, ..Step::default() }, states, None).unwrap();
        found.extend(logits(&outputs).table.data.chunks(N_VOCAB as usize).map(<[f32]>::to_vec));
        from = *end;
    }
    found
}

fn fresh(reference: &Reference<MemoryWeights>, sequences: &[u64]) -> States {
    let mut states = reference.states(CacheType::F32);
    sequences.iter().for_each(|s| states.create(*s).unwrap());
    states
}

fn alone(reference: &Reference<MemoryWeights>, sequence: u64, n: usize) -> Vec<Vec<f32>> {
    run(reference, &mut fresh(reference, &[sequence]), sequence, &[n])
}

#[test]
fn every_operator_runs_and_every_value_is_finite() {
    let reference = reference();
    let mut states = fresh(&reference, &[1]);
    let mut seen = BTreeSet::new();
    let mut trace = |t: bloomery_reference::Trace<'_>| {
        seen.insert(reference.program().graphs[0].nodes[t.node].op.name());
        if let Value::Rows(table) = t.value {
            assert!(table.data.iter().all(|v| v.is_finite()), "{}", t.name);
            assert!(table.data.iter().any(|v| *v != 0.0), "{} is all zero", t.name);
        }
    };
    let rows = rows(1, 0, 13);
    reference.forward(&Step { rows: &rows, ..Step::default() }, &mut states, Some(&mut trace)).unwrap();
    let expected: BTreeSet<&str> = reference.program().graphs[0]
        .nodes
        .iter()
        .filter(|n| !n.outs.is_empty())
        .map(|n| n.op.name())
        .collect();
    assert_eq!(seen, expected);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Steps of any size give the same bits.
    #[test]
    fn step_sizes_do_not_matter(mut ends in prop::collection::btree_set(1usize..17, 0..6)) {
        let reference = reference();
        ends.insert(17);
        let ends: Vec<usize> = ends.into_iter().collect();
        let found = run(&reference, &mut fresh(&reference, &[1]), 1, &ends);
        prop_assert_eq!(found, alone(&reference, 1, 17));
    }

    /// Rows of several sequences share a step in any order; each gets what it gets alone.
    #[test]
    fn neighbours_do_not_matter(order in prop::collection::vec(1u64..4, 1..40), cuts in 1usize..9) {
        let reference = reference();
        let mut states = fresh(&reference, &[1, 2, 3]);
        let mut next = [0usize; 4];
        let mut found: [Vec<Vec<f32>>; 4] = Default::default();
        for step in order.chunks(cuts) {
            let rows: Vec<Row> = step
                .iter()
                .map(|sequence| {
                    let position = next[*sequence as usize];
                    next[*sequence as usize] += 1;
                    Row { sequence: *sequence, token: ids(*sequence, position + 1)[position], position }
                })
                .collect();
            let outputs = reference.forward(&Step { rows: &rows, ..Step::default() }, &mut states, None).unwrap();
            for (row, values) in rows.iter().zip(logits(&outputs).table.data.chunks(N_VOCAB as usize)) {
                found[row.sequence as usize].push(values.to_vec());
            }
        }
        for sequence in 1..4u64 {
            let n = next[sequence as usize];
            if n > 0 {
                prop_assert_eq!(&found[sequence as usize], &alone(&reference, sequence, n));
            }
        }
    }

    /// Only asked rows are computed above the last state, and they are the same.
    #[test]
    fn asking_for_fewer_rows_does_not_matter(wanted in prop::collection::vec(any::<bool>(), 9)) {
        let reference = reference();
        let mut states = fresh(&reference, &[1]);
        let rows = rows(1, 0, 9);
        let none = [false; 9];
        let step = Step { rows: &rows, logits: Some(&wanted), hidden: Some(&none), ..Step::default() };
        let outputs = reference.forward(&step, &mut states, None).unwrap();
        let all = alone(&reference, 1, 9);
        for (row, wanted) in wanted.iter().enumerate() {
            let found = logits(&outputs).table.row(row);
            prop_assert_eq!(found, if *wanted { all[row].as_slice() } else { &[] });
        }
        // The states moved on all the same.
        let next = run(&reference, &mut states, 1, &[11]);
        prop_assert_eq!(&next[..], &alone(&reference, 1, 11)[9..]);
    }

    /// Going back to a snapshot, copying, saving and restoring all continue as if nothing had happened.
    #[test]
    fn going_back_and_moving_states_do_not_matter(at in 0usize..8, on in 1usize..6) {
        let reference = reference();
        let expected = alone(&reference, 1, 15);
        let mut states = fresh(&reference, &[1]);
        if at > 0 {
            run(&reference, &mut states, 1, &[at]);
        }
        states.snapshot(1).unwrap();
        run(&reference, &mut states, 1, &[at + on]);
        prop_assert_eq!(states.resumable(1, at + on).unwrap(), at + on);
        prop_assert_eq!(states.resumable(1, at + on - 1).unwrap(), at);
        // Saved with its snapshots, restored under another number, cut back there.
        let bytes = states.save(1).unwrap();
        states.restore(5, &bytes).unwrap();
        states.truncate(5, at).unwrap();
        states.copy(1, 6, at).unwrap();
        states.truncate(1, at).unwrap();
        for sequence in [1, 5, 6] {
            prop_assert_eq!(states.length(sequence).unwrap(), at);
            let rows: Vec<Row> = rows(1, at, 15).into_iter().map(|r| Row { sequence, ..r }).collect();
            let outputs = reference.forward(&Step { rows: &rows, ..Step::default() }, &mut states, None).unwrap();
            prop_assert_eq!(&logits(&outputs).table.data, &expected[at..].concat());
        }
    }

    /// Damaged bytes are refused or give a state that can be used without a panic.
    #[test]
    fn hostile_bytes_do_no_harm(cut in any::<prop::sample::Index>(), place in any::<prop::sample::Index>(), to: u8) {
        let reference = reference();
        let mut states = fresh(&reference, &[1]);
        run(&reference, &mut states, 1, &[5]);
        states.snapshot(1).unwrap();
        run(&reference, &mut states, 1, &[7]);
        let bytes = states.save(1).unwrap();
        prop_assert!(states.restore(2, &bytes[..cut.index(bytes.len())]).is_err());
        let mut damaged = bytes.clone();
        damaged[place.index(bytes.len())] = to;
        if states.restore(3, &damaged).is_ok() {
            let position = states.length(3).unwrap();
            let rows = [Row { sequence: 3, token: 1, position }];
            let _ = reference.forward(&Step { rows: &rows, ..Step::default() }, &mut states, None);
            for n in 0..8 {
                let _ = states.truncate(3, 8 - n);
            }
        }
    }
}

#[test]
fn a_step_that_does_not_fit_changes_nothing() {
    let reference = reference();
    let mut states = fresh(&reference, &[1]);
    run(&reference, &mut states, 1, &[4]);
    let before = states.save(1).unwrap();
    let mut refuse = |rows: &[Row], part: &str| {
        let error = reference.forward(&Step { rows, ..Step::default() }, &mut states, None).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
        assert_eq!(states.save(1).unwrap(), before);
    };
    let row = |sequence, token, position| Row { sequence, token, position };
    refuse(&[], "no rows");
    refuse(&[row(9, 0, 0)], "sequence 9 does not exist");
    refuse(&[row(1, 0, 5)], "position 5");
    refuse(&[row(1, 0, 4), row(1, 0, 6)], "position 6");
    refuse(&[row(1, 0, 4), row(1, 0, 4)], "position 4");
    refuse(&[row(1, 32, 4)], "token 32 is outside the vocabulary of 32");
    let flags = [true];
    let rows = [row(1, 0, 4), row(1, 0, 5)];
    let step = Step { rows: &rows, logits: Some(&flags), ..Step::default() };
    let error = reference.forward(&step, &mut states, None).unwrap_err();
    assert_eq!(error.to_string(), "the step is malformed: 1 flags for 2 rows");
    // A state that cannot be cut is left alone too.
    let error = states.truncate(1, 3).unwrap_err();
    assert_eq!(error, ReferenceError::NotResumable { asked: 3, nearest: 0 });
    assert_eq!(states.save(1).unwrap(), before);
    assert_eq!(states.create(1), Err(ReferenceError::SequenceTaken(1)));
}

#[test]
fn going_back_to_where_it_stands_changes_nothing() {
    let reference = reference();
    let mut states = fresh(&reference, &[1]);
    run(&reference, &mut states, 1, &[6]);
    let before = states.save(1).unwrap();
    states.truncate(1, 6).unwrap();
    assert_eq!(states.save(1).unwrap(), before);
}

#[test]
fn a_saved_state_that_is_longer_than_its_sequence_is_refused() {
    let reference = reference();
    let mut states = fresh(&reference, &[1]);
    run(&reference, &mut states, 1, &[6]);
    let mut bytes = states.save(1).unwrap();
    // The length follows the mark and the fingerprint.
    assert_eq!(bytes[12..20], 6u64.to_le_bytes());
    bytes[12] = 5;
    let error = states.restore(2, &bytes).unwrap_err();
    assert_eq!(error, ReferenceError::BadState("a state of 6 tokens in a sequence of 5".into()));
    assert!(states.length(2).is_err());
}

#[test]
fn at_most_eight_snapshots_are_kept_and_the_spread_out_ones_stay() {
    let reference = reference();
    let mut states = fresh(&reference, &[1]);
    for end in [4, 8, 12, 16, 20, 24, 28, 29, 30] {
        run(&reference, &mut states, 1, &[end]);
        states.snapshot(1).unwrap();
    }
    // 29 stood closest to the one before it.
    let kept: BTreeSet<usize> = (1..30).map(|n| states.resumable(1, n).unwrap()).collect();
    assert_eq!(kept, BTreeSet::from([0, 4, 8, 12, 16, 20, 24, 28]));
    assert_eq!(states.resumable(1, 99).unwrap(), 30);
}

#[test]
fn f16_stores_round_keys_and_values() {
    let reference = reference();
    let exact = alone(&reference, 1, 12);
    let mut states = reference.states(CacheType::F16);
    states.create(1).unwrap();
    let rounded = run(&reference, &mut states, 1, &[12]);
    let most = exact.concat().iter().zip(rounded.concat()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(most > 0.0 && most < 0.05, "{most}");
}

#[test]
fn a_block_drafter_runs_and_is_taken_back() {
    let reference = reference();
    let mut states = fresh(&reference, &[1]);
    let hidden = noise("hidden", 5 * 8);
    let block = rows(1, 0, 5);
    let step = Step { graph: Some(1), rows: &block, target_hidden: &[("h", &hidden)], ..Step::default() };
    let first = reference.forward(&step, &mut states, None).unwrap();
    let sure = first.iter().find(|o| o.kind == OutputKind::Confidence).unwrap();
    assert!(sure.table.data.iter().all(|c| *c > 0.0 && *c < 1.0));
    // The target has not moved, the drafter's store has; taken back, the same step gives the same.
    assert_eq!(states.length(1).unwrap(), 0);
    assert!(matches!(
        reference.forward(&step, &mut states, None),
        Err(ReferenceError::Position { expected: 5, .. })
    ));
    states.truncate(1, 0).unwrap();
    assert_eq!(reference.forward(&step, &mut states, None).unwrap(), first);
    // Every row of a block sees the last one.
    states.truncate(1, 0).unwrap();
    let mut other = block.clone();
    other[4].token = (other[4].token + 1) % N_VOCAB as u32;
    let changed = reference.forward(&Step { rows: &other, ..step }, &mut states, None).unwrap();
    assert_ne!(changed[0].table.row(0), first[0].table.row(0));
    let short = Step { target_hidden: &[("h", &hidden[..8])], ..step };
    states.truncate(1, 0).unwrap();
    assert!(
        reference
            .forward(&short, &mut states, None)
            .unwrap_err()
            .to_string()
            .contains("40 values are needed")
    );
}

#[test]
fn a_decision_gives_one_logit_an_option() {
    let reference = reference();
    let mut states = fresh(&reference, &[1]);
    let rows = rows(1, 0, 12);
    let question =
        |kind, span, options: &[std::ops::Range<usize>]| Question { kind, span, options: options.to_vec() };
    let mut questions = vec![
        question(QuestionKind::Noul, 1..3, &[3..5, 5..6]),
        question(QuestionKind::Score, 6..7, &[7..8, 8..10, 10..12]),
    ];
    let step = Step { graph: Some(2), rows: &rows, questions: &questions, ..Step::default() };
    let outputs = reference.forward(&step, &mut states, None).unwrap();
    assert_eq!((outputs[0].table.width, outputs[0].table.data.len()), (1, 5));
    questions[1].options[2] = 11..13;
    let step = Step { graph: Some(2), rows: &rows, questions: &questions, ..Step::default() };
    let error = reference.forward(&step, &mut states, None).unwrap_err();
    assert!(error.to_string().contains("span 11..13 of a prompt of 12 tokens"), "{error}");
}

#[test]
fn a_custom_operator_is_refused_unless_it_is_allowed() {
    let (program, facts) = zoo();
    let weights = reference().weights().clone();
    let reference = Reference::new(program, &facts, weights).unwrap();
    let rows = rows(1, 0, 1);
    let step = Step { rows: &rows, ..Step::default() };
    let error = reference.forward(&step, &mut fresh(&reference, &[1]), None).unwrap_err();
    assert!(
        error.to_string().contains("the operator zoo.slope of the seat is not allowed to run"),
        "{error}"
    );
}
