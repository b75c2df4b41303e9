//! Pools, scores, and the choice of rows.

use crate::sketch::{Sketch, close};
use bloomery_program::op::{Attention, PoolWeights, Source};
use bloomery_program::{Op, StateKind};
use bloomery_reference::ops::selection;

#[test]
fn pool_by_the_mean() {
    let mut s = Sketch::new();
    let x = s.input(&[&[1.0, 10.0], &[3.0, 20.0], &[5.0, 0.0], &[7.0, 0.0], &[9.0, 0.0]]);
    let state = s.state(StateKind::Recent { rows: 1, width: 2 });
    let y = s.one(Op::Pool { ratio: 2, weights: PoolWeights::Mean {}, state }, &[x], &[]);
    close(&s.run(y).rows(), &[&[0.0, 0.0], &[2.0, 15.0], &[0.0, 0.0], &[6.0, 0.0], &[0.0, 0.0]]);
}

/// Gates 0 and ln 3, per channel; the bias of member 1 takes the ln 3 of channel 1 away.
#[test]
fn pool_by_softmax_with_a_position_bias() {
    let ln3 = 3f32.ln();
    let run = |bias: Option<&[f32]>| {
        let mut s = Sketch::new();
        let x = s.input(&[&[4.0, 4.0], &[8.0, 8.0]]);
        let gate = s.input(&[&[0.0, 0.0], &[ln3, ln3]]);
        let state = s.state(StateKind::Recent { rows: 1, width: 4 });
        let tensors: Vec<(&str, &[u64], &[f32])> =
            bias.map(|b| ("position_bias", &[2u64, 2][..], b)).into_iter().collect();
        let weights = PoolWeights::Softmax { overlap: false };
        let y = s.one(Op::Pool { ratio: 2, weights, state }, &[x, gate], &tensors);
        s.run(y).rows().split_off(1)
    };
    close(&run(None), &[&[7.0, 7.0]]);
    close(&run(Some(&[0.0, 0.0, 0.0, -ln3])), &[&[7.0, 6.0]]);
}

/// x = (first half, second half); equal gates. Group 0 has its own second halves only; group 1 also the first halves of
/// group 0.
#[test]
fn pool_with_overlap_reads_the_group_before() {
    let mut s = Sketch::new();
    let x = s.input(&[&[100.0, 1.0], &[200.0, 3.0], &[400.0, 5.0], &[800.0, 7.0]]);
    let gate = s.same(&[0.0, 0.0], 4);
    let state = s.state(StateKind::Recent { rows: 3, width: 4 });
    let weights = PoolWeights::Softmax { overlap: true };
    let y = s.one(Op::Pool { ratio: 2, weights, state }, &[x, gate], &[]);
    close(&s.run(y).rows(), &[&[0.0], &[2.0], &[0.0], &[(100.0 + 200.0 + 5.0 + 7.0) / 4.0]]);
    // The bias of a half belongs to the half: ln 3 on the second half of member 1.
    let mut s = Sketch::new();
    let x = s.input(&[&[100.0, 1.0], &[200.0, 3.0]]);
    let gate = s.same(&[0.0, 0.0], 2);
    let state = s.state(StateKind::Recent { rows: 3, width: 4 });
    let bias = [5.0, 0.0, 5.0, 3f32.ln()];
    let y = s.one(Op::Pool { ratio: 2, weights, state }, &[x, gate], &[("position_bias", &[2, 2], &bias)]);
    close(&s.run(y).rows()[1..], &[&[0.25 + 2.25]]);
}

/// Two heads of width 1 against keys 2, -3 and 5 that stand for two tokens each.
#[test]
fn index_scores_count_visible_rows_only() {
    let run = |weighted: bool| {
        let mut s = Sketch::new();
        let keys = s.input(&[&[0.0], &[2.0], &[0.0], &[-3.0], &[0.0], &[5.0]]);
        let store = s.store(&[1], 2);
        s.node(Op::Append { state: store }, &[keys], &[]);
        let q = s.same(&[1.0, -1.0], 6);
        let w = s.same(&[10.0, -100.0], 6);
        let ins = if weighted { vec![q, w] } else { vec![q] };
        let y = s.one(Op::IndexScore { heads: 2, key: 1, state: store }, &ins, &[]);
        s.run(y).rows()
    };
    close(&run(true), &[&[], &[20.0], &[20.0], &[20.0, -300.0], &[20.0, -300.0], &[20.0, -300.0, 50.0]]);
    close(&run(false)[5..], &[&[2.0, 3.0, 5.0]]);
}

#[test]
fn top_rows_breaks_ties_downwards_and_sorts_by_row() {
    assert_eq!(selection::top_rows(&[1.0, 5.0, 5.0, 2.0, 5.0], None, 2), [1, 2]);
    assert_eq!(selection::top_rows(&[1.0, 2.0, 9.0], None, 2), [1, 2]);
    assert_eq!(selection::top_rows(&[1.0, 2.0], None, 9), [0, 1]);
    assert_eq!(selection::top_rows(&[], None, 3), [0usize; 0]);
    // Zeros of either sign are equal: relu and negative weights make both.
    assert_eq!(selection::top_rows(&[-0.0, 0.0, -1.0, 0.0], None, 2), [0, 1]);
    assert_eq!(selection::top_rows(&[9.0, 1.0, 3.0, 2.0], Some(&[1, 3]), 1), [3]);
    assert_eq!(selection::top_rows(&[9.0, 1.0, 3.0, 2.0], Some(&[1, 3]), 4), [1, 3]);
}

#[test]
fn expansion_gives_tokens_and_the_tail() {
    assert_eq!(selection::expand(&[0, 2], 3, false, 11), [0, 1, 2, 6, 7, 8]);
    assert_eq!(selection::expand(&[0, 2], 3, true, 11), [0, 1, 2, 6, 7, 8, 9, 10]);
    assert_eq!(selection::expand(&[1], 3, true, 6), [3, 4, 5]);
    assert_eq!(selection::expand(&[], 3, true, 2), [0, 1]);
}

#[test]
fn candidate_blocks_keep_the_newest() {
    // Blocks of two: maxima 9, 2, 3 and the newest, 1.
    let scores = [9.0, 0.0, 1.0, 2.0, 3.0, 0.0, 1.0];
    assert_eq!(selection::candidate_blocks(&scores, 2, 1), [6]);
    assert_eq!(selection::candidate_blocks(&scores, 2, 2), [0, 1, 6]);
    assert_eq!(selection::candidate_blocks(&scores, 2, 3), [0, 1, 4, 5, 6]);
    assert_eq!(selection::candidate_blocks(&[1.0, 1.0, 1.0], 1, 2), [0, 2]);
    assert_eq!(selection::candidate_blocks(&[], 4, 2), [0usize; 0]);
}

/// The whole way: keys, scores, candidates, the best row, its tokens and the tail, attention over those.
#[test]
fn a_selection_reaches_attention() {
    let mut s = Sketch::new();
    let keys = s.input(&[&[0.0], &[1.0], &[0.0], &[4.0], &[0.0], &[2.0], &[0.0]]);
    let index = s.store(&[1], 2);
    s.node(Op::Append { state: index }, &[keys], &[]);
    let q = s.same(&[1.0], 7);
    let scores = s.one(Op::IndexScore { heads: 1, key: 1, state: index }, &[q], &[]);
    let blocks = s.one(Op::CandidateBlocks { block: 1, keep: 2 }, &[scores], &[]);
    let chosen = s.one(Op::TopRows { top_k: 1, expand: true, tail: true }, &[scores, blocks], &[]);
    let values = s.input(&[&[1.0], &[2.0], &[4.0], &[8.0], &[16.0], &[32.0], &[64.0]]);
    let zero = s.same(&[0.0], 7);
    let store = s.store(&[1, 1], 1);
    s.node(Op::Append { state: store }, &[zero, values], &[]);
    let attention = Attention {
        heads: 1,
        kv_heads: 1,
        key: 1,
        value: 1,
        scale: 1.0,
        softcap: None,
        block_bidirectional: false,
        sources: vec![Source { state: store, window: None, selected: true }],
    };
    let y = s.one(Op::Attention(attention), &[q, chosen], &[]);
    // Tokens seen: 0; 0-1; 0-2; 2-3 (row 1 is the better of both); 2-4; 2-3; 2-3 and 6.
    let expected: [&[f64]; 7] = [&[1.0], &[1.5], &[7.0 / 3.0], &[6.0], &[28.0 / 3.0], &[6.0], &[76.0 / 3.0]];
    close(&s.run(y).rows(), &expected);
}

/// Row 0 is the best for every query, but the window of two hides it from the last one.
#[test]
fn chosen_rows_outside_a_window_are_not_seen() {
    let run = |window| {
        let mut s = Sketch::new();
        let keys = s.input(&[&[5.0], &[1.0], &[1.0]]);
        let store = s.store(&[1], 1);
        s.node(Op::Append { state: store }, &[keys], &[]);
        let q = s.same(&[0.0], 3);
        let ones = s.same(&[1.0], 3);
        let scores = s.one(Op::IndexScore { heads: 1, key: 1, state: store }, &[ones], &[]);
        let chosen = s.one(Op::TopRows { top_k: 2, expand: false, tail: false }, &[scores], &[]);
        let attention = Attention {
            heads: 1,
            kv_heads: 1,
            key: 1,
            value: 1,
            scale: 1.0,
            softcap: None,
            block_bidirectional: false,
            sources: vec![Source { state: store, window, selected: true }],
        };
        let y = s.one(Op::Attention(attention), &[q, chosen], &[]);
        s.run(y).rows()
    };
    close(&run(None), &[&[5.0], &[3.0], &[3.0]]);
    close(&run(Some(2)), &[&[5.0], &[3.0], &[1.0]]);
}

#[test]
fn selections_are_sorted_rows() {
    let mut s = Sketch::new();
    let keys = s.input(&[&[1.0], &[5.0], &[3.0]]);
    let store = s.store(&[1], 1);
    s.node(Op::Append { state: store }, &[keys], &[]);
    let q = s.same(&[1.0], 3);
    let scores = s.one(Op::IndexScore { heads: 1, key: 1, state: store }, &[q], &[]);
    let chosen = s.one(Op::TopRows { top_k: 2, expand: false, tail: false }, &[scores], &[]);
    assert_eq!(s.run(chosen).selection(), [vec![0], vec![0, 1], vec![1, 2]]);
}
