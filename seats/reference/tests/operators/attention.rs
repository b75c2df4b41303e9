//! Stores and attention. Scores are made of ln 3 and ln 4, so weights are quarters and eighths.

use crate::sketch::{Sketch, close};
use bloomery_program::op::{Attention, Source};
use bloomery_program::{Op, StateId, StateKind};

const LN3: f32 = 1.098_612_3;

fn constants(state: StateId) -> Attention {
    Attention {
        heads: 1,
        kv_heads: 1,
        key: 2,
        value: 2,
        scale: LN3,
        softcap: None,
        block_bidirectional: false,
        sources: vec![Source { state, window: None, selected: false }],
    }
}

/// Keys (1, 0), (0, 1), (0, 1) with values (4, 0), (0, 8), (8, 8) and the query (1, 0) everywhere.
fn attend(change: impl Fn(&mut Attention), sinks: Option<&[f32]>) -> Vec<Vec<f32>> {
    let mut s = Sketch::new();
    let q = s.same(&[1.0, 0.0], 3);
    let k = s.input(&[&[1.0, 0.0], &[0.0, 1.0], &[0.0, 1.0]]);
    let v = s.input(&[&[4.0, 0.0], &[0.0, 8.0], &[8.0, 8.0]]);
    let store = s.store(&[2, 2], 1);
    s.node(Op::Append { state: store }, &[k, v], &[]);
    let mut a = constants(store);
    change(&mut a);
    let tensors: Vec<(&str, &[u64], &[f32])> = sinks.map(|d| ("sinks", &[1u64][..], d)).into_iter().collect();
    let y = s.one(Op::Attention(a), &[q], &tensors);
    s.run(y).rows()
}

#[test]
fn attention_is_causal_softmax() {
    // Weights: 1; 3/4, 1/4; 3/5, 1/5, 1/5.
    close(&attend(|_| {}, None), &[&[4.0, 0.0], &[3.0, 2.0], &[4.0, 3.2]]);
}

#[test]
fn attention_with_a_window_counts_the_query() {
    // Last row: the two equal keys only.
    close(&attend(|a| a.sources[0].window = Some(2), None), &[&[4.0, 0.0], &[3.0, 2.0], &[4.0, 8.0]]);
    close(&attend(|a| a.sources[0].window = Some(1), None), &[&[4.0, 0.0], &[0.0, 8.0], &[8.0, 8.0]]);
}

#[test]
fn a_sink_only_enters_the_denominator() {
    // e^sink = 4: 3/7; 3/8, 1/8; 3/9, 1/9, 1/9.
    let expected: [&[f64]; 3] = [&[12.0 / 7.0, 0.0], &[1.5, 1.0], &[12.0 / 9.0 + 8.0 / 9.0, 16.0 / 9.0]];
    close(&attend(|_| {}, Some(&[4f32.ln()])), &expected);
}

#[test]
fn a_soft_cap_bends_scores_after_the_scale() {
    let cap = 0.5f64;
    let w = (cap * (3f64.ln() / cap).tanh()).exp();
    let found = attend(|a| a.softcap = Some(0.5), None);
    close(&found[1..2], &[&[4.0 * w / (w + 1.0), 8.0 / (w + 1.0)]]);
}

#[test]
fn a_block_sees_all_of_itself_and_a_window_before_it() {
    // All three rows see all three keys; the window of what lies before the block is empty here.
    let all: &[f64] = &[4.0, 3.2];
    close(&attend(|a| a.block_bidirectional = true, None), &[all, all, all]);
    let windowed = |a: &mut Attention| {
        a.block_bidirectional = true;
        a.sources[0].window = Some(1);
    };
    close(&attend(windowed, None), &[all, all, all]);
}

#[test]
fn query_heads_share_key_value_heads_in_order() {
    // Four query heads on two stored heads of width 1: heads 0, 1 read the first, 2, 3 the second.
    let mut s = Sketch::new();
    let q = s.input(&[&[0.0; 4], &[1.0, 0.0, 1.0, 0.0]]);
    let k = s.input(&[&[1.0, 0.0], &[0.0, 1.0]]);
    let v = s.input(&[&[4.0, 40.0], &[8.0, 80.0]]);
    let store = s.store(&[2, 2], 1);
    s.node(Op::Append { state: store }, &[k, v], &[]);
    let a = Attention { heads: 4, kv_heads: 2, key: 1, value: 1, ..constants(store) };
    let y = s.one(Op::Attention(a), &[q], &[]);
    // Head 0: 3/4 of 4 + 1/4 of 8; head 2: 1/4 of 40 + 3/4 of 80.
    close(&s.run(y).rows()[1..], &[&[5.0, 6.0, 70.0, 60.0]]);
}

#[test]
fn a_latent_store_is_key_and_value_at_once() {
    // One part of width 3, the values are its first two numbers.
    let mut s = Sketch::new();
    let q = s.input(&[&[0.0; 3], &[0.0, 0.0, 1.0]]);
    let c = s.input(&[&[4.0, 0.0, 1.0], &[0.0, 8.0, 0.0]]);
    let store = s.store(&[3], 1);
    s.node(Op::Append { state: store }, &[c], &[]);
    let a = Attention { key: 3, value: 2, ..constants(store) };
    let y = s.one(Op::Attention(a), &[q], &[]);
    close(&s.run(y).rows(), &[&[4.0, 0.0], &[3.0, 2.0]]);
}

#[test]
fn one_softmax_runs_over_several_stores() {
    // A store of pairs of tokens, whose rows are visible once complete, beside a window of one token.
    let mut s = Sketch::new();
    let q = s.same(&[1.0, 0.0], 5);
    let near = s.same(&[1.0, 0.0], 5);
    let far: Vec<[f32; 2]> = (0..5).map(|i| [0.0, 10.0 * i as f32]).collect();
    let far: Vec<&[f32]> = far.iter().map(<[f32; 2]>::as_slice).collect();
    let far = s.input(&far);
    let window = s.store(&[2], 1);
    let pairs = s.store(&[2], 2);
    s.node(Op::Append { state: window }, &[near], &[]);
    s.node(Op::Append { state: pairs }, &[far], &[]);
    let sources = vec![
        Source { state: window, window: Some(1), selected: false },
        Source { state: pairs, window: None, selected: false },
    ];
    let y = s.one(Op::Attention(Attention { sources, ..constants(window) }), &[q], &[]);
    // The rows that complete a pair hold 10 and 30. Weights 3 : 1 : 1.
    let expected: [&[f64]; 5] = [&[1.0, 0.0], &[0.75, 2.5], &[0.75, 2.5], &[0.6, 8.0], &[0.6, 8.0]];
    close(&s.run(y).rows(), &expected);
}

#[test]
fn nothing_seen_gives_zeros() {
    let mut s = Sketch::new();
    let q = s.same(&[1.0, 0.0], 2);
    let pairs = s.store(&[2], 2);
    s.node(Op::Append { state: pairs }, &[q], &[]);
    let y = s.one(Op::Attention(constants(pairs)), &[q], &[]);
    close(&s.run(y).rows(), &[&[0.0, 0.0], &[1.0, 0.0]]);
    // With a sink too.
    let mut s = Sketch::new();
    let q = s.input(&[&[1.0, 0.0]]);
    let pairs = s.store(&[2], 2);
    s.node(Op::Append { state: pairs }, &[q], &[]);
    let y = s.one(Op::Attention(constants(pairs)), &[q], &[("sinks", &[1], &[0.5])]);
    close(&s.run(y).rows(), &[&[0.0, 0.0]]);
}

#[test]
fn a_store_with_a_window_of_its_own_is_read_within_it() {
    let mut s = Sketch::new();
    let x = s.input(&[&[1.0, 0.0], &[0.0, 1.0], &[0.0, 1.0]]);
    let part = bloomery_program::Part { width: 2, role: bloomery_program::PartRole::Key };
    let ring = s.state(StateKind::Rows { parts: vec![part], every: 1, window: Some(2) });
    s.node(Op::Append { state: ring }, &[x], &[]);
    let mut a = constants(ring);
    a.sources[0].window = Some(2);
    let y = s.one(Op::Attention(a), &[x], &[]);
    close(&s.run(y).rows()[2..], &[&[0.0, 1.0]]);
}
