//! Router, experts and the drafter's chain.

use crate::sketch::{Sketch, close};
use bloomery_program::Op;
use bloomery_program::op::{Clamp, Function, Groups, Route, Score};
use bloomery_reference::MemoryWeights;
use bloomery_reference::Weights;
use bloomery_reference::ops::markov::markov_chain;

fn constants() -> Route {
    Route {
        experts: 4,
        used: 2,
        score: Score::Softmax,
        groups: None,
        normalize: false,
        sum_floor: 0.0,
        scale: 1.0,
    }
}

/// Ids and weights of one row of logits.
fn route(change: impl Fn(&mut Route), logits: &[f32], bias: Option<&[f32]>) -> (Vec<u32>, Vec<Vec<f32>>) {
    let run = |result: usize| {
        let mut s = Sketch::new();
        let x = s.input(&[logits]);
        let mut r = constants();
        r.experts = logits.len() as u32;
        change(&mut r);
        let dims = [logits.len() as u64];
        let tensors: Vec<(&str, &[u64], &[f32])> = bias.map(|b| ("bias", &dims[..], b)).into_iter().collect();
        let values = s.node(Op::Route(r), &[x], &tensors);
        s.run(values[result])
    };
    (run(0).index().remove(0), run(1).rows())
}

/// exp of the logits: 1, 4, 2, 3 of 10.
fn tenths() -> [f32; 4] {
    [0.0, 4f32.ln(), 2f32.ln(), 3f32.ln()]
}

#[test]
fn route_by_softmax() {
    let (ids, weights) = route(|_| {}, &tenths(), None);
    assert_eq!(ids, [1, 3]);
    close(&weights, &[&[0.4, 0.3]]);
    let (_, weights) = route(|r| (r.normalize, r.scale) = (true, 2.0), &tenths(), None);
    close(&weights, &[&[8.0 / 7.0, 6.0 / 7.0]]);
    // The sum is at least the floor.
    let (_, weights) = route(|r| (r.normalize, r.sum_floor) = (true, 1.4), &tenths(), None);
    close(&weights, &[&[0.4 / 1.4, 0.3 / 1.4]]);
    // Ties go to the lower number.
    assert_eq!(route(|_| {}, &[1.0, 2.0, 2.0, 2.0], None).0, [1, 2]);
    // Softmax over the chosen: 4 and 3 of 7.
    let (ids, weights) = route(|r| r.score = Score::SoftmaxChosen, &tenths(), None);
    assert_eq!(ids, [1, 3]);
    close(&weights, &[&[4.0 / 7.0, 3.0 / 7.0]]);
}

#[test]
fn a_bias_moves_the_choice_and_not_the_weights() {
    let (ids, weights) = route(|_| {}, &tenths(), Some(&[0.35, 0.0, 0.0, 0.0]));
    assert_eq!(ids, [0, 1]);
    close(&weights, &[&[0.1, 0.4]]);
}

#[test]
fn route_by_other_scores() {
    let (ids, weights) = route(|r| r.score = Score::Sigmoid, &[0.0, 3f32.ln(), -5.0, -6.0], None);
    assert_eq!(ids, [1, 0]);
    close(&weights, &[&[0.75, 0.5]]);
    // sqrt(softplus(ln(e - 1))) = sqrt(ln e) = 1; sqrt(softplus(0)) = sqrt(ln 2).
    let x = (std::f64::consts::E - 1.0).ln() as f32;
    let (ids, weights) = route(|r| r.score = Score::SqrtSoftplus, &[0.0, x, -5.0, -6.0], None);
    assert_eq!(ids, [1, 0]);
    close(&weights, &[&[1.0, std::f64::consts::LN_2.sqrt()]]);
}

/// Three groups of three. The best expert, 6, stands alone in the last group: the sum of the best two decides.
#[test]
fn groups_are_chosen_by_their_two_best() {
    let logits = [0.1, 0.1, 0.1, 2.0, 1.9, 0.0, 3.0, -9.0, -9.0];
    let softplus = |r: &mut Route| r.score = Score::SqrtSoftplus;
    assert_eq!(route(softplus, &logits, None).0, [6, 3]);
    let grouped = |r: &mut Route| {
        r.score = Score::SqrtSoftplus;
        r.groups = Some(Groups { count: 3, used: 1 });
    };
    assert_eq!(route(grouped, &logits, None).0, [3, 4]);
    // The bias counts in the groups' scores.
    let bias = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 0.0];
    assert_eq!(route(grouped, &logits, Some(&bias)).0, [7, 6]);
    // And it can be negative without letting the other groups in.
    assert_eq!(route(grouped, &logits, Some(&[-50.0; 9])).0, [3, 4]);
}

#[test]
fn a_table_routes_by_token() {
    let run = |result: usize| {
        let mut s = Sketch::new();
        let x = s.input(&[&tenths(), &tenths()]);
        let table = [0.0, 2.0, 3.0, 1.0];
        let tokens = s.tokens;
        let values = s.node(Op::Route(constants()), &[x, tokens], &[("table", &[2, 2], &table)]);
        s.run_tokens(values[result], &[1, 0])
    };
    assert_eq!(run(0).index(), [[3, 1], [0, 2]]);
    close(&run(1).rows(), &[&[0.3, 0.4], &[0.1, 0.2]]);
}

#[test]
#[should_panic(expected = "the table gives token 0 expert 4 of 4")]
fn a_table_with_a_wrong_expert_is_refused() {
    let mut s = Sketch::new();
    let x = s.input(&[&tenths()]);
    let tokens = s.tokens;
    let values = s.node(Op::Route(constants()), &[x, tokens], &[("table", &[2, 1], &[0.0, 4.0])]);
    s.run_tokens(values[1], &[0]);
}

/// Two experts of one hidden value over rows of two: gate sums, up takes the difference, down gives (1, e).
fn experts(fused: bool, biases: bool, clamp: Option<Clamp>) -> Vec<Vec<f32>> {
    let mut s = Sketch::new();
    let x = s.input(&[&[3.0, 1.0], &[-1.0, 2.0]]);
    let logits = s.input(&[&[0.0, 3f32.ln()], &[3f32.ln(), 0.0]]);
    let route = Route { experts: 2, used: 2, ..constants() };
    let chosen = s.node(Op::Route(route), &[logits], &[]);
    let (gate, up): (&[f32], &[f32]) = (&[1.0, 1.0, 2.0, 2.0], &[1.0, -1.0, 1.0, -1.0]);
    let joined = [1.0, 1.0, 1.0, -1.0, 2.0, 2.0, 1.0, -1.0];
    let mut tensors: Vec<(&str, &[u64], &[f32])> = vec![("down", &[1, 2, 2], &[1.0, 0.0, 1.0, 1.0])];
    if fused {
        tensors.push(("gate_up", &[2, 2, 2], &joined));
    } else {
        tensors.extend([("gate", &[2u64, 1, 2][..], gate), ("up", &[2, 1, 2], up)]);
    }
    if biases {
        tensors.extend([
            ("gate_bias", &[1u64, 2][..], &[0.0f32, -8.0][..]),
            ("up_bias", &[1, 2], &[1.0, 0.0]),
            ("down_bias", &[2, 2], &[0.0, 100.0, 0.0, 1000.0]),
        ]);
    }
    let op = Op::Experts { experts: 2, used: 2, act: Function::Relu, clamp };
    let y = s.one(op, &[x, chosen[0], chosen[1]], &tensors);
    s.run(y).rows()
}

#[test]
fn experts_by_hand() {
    // Row 0: expert 0 gives 4 * 2 = 8 with weight 1/4, expert 1 gives 8 * 2 = 16 with 3/4.
    // Row 1: expert 0 gives 1 * -3 with 3/4, expert 1 gives 2 * -3 with 1/4.
    let expected: [&[f64]; 2] = [&[14.0, 12.0], &[-3.75, -1.5]];
    close(&experts(false, false, None), &expected);
    close(&experts(true, false, None), &expected);
    // Biases. Row 0: expert 0 gives 4 * 3 = 12, expert 1 relu(0) = 0; row 1: 1 * -2, relu(-6) = 0.
    close(&experts(false, true, None), &[&[3.0, 775.0], &[-1.5, 325.0]]);
    // Clamps: gates 4, 8 and 1, 2 to at most 3, ups 2 and -3 to within 2.
    let clamp = Some(Clamp { gate_max: 3.0, up_abs: 2.0 });
    close(&experts(false, false, clamp), &[&[6.0, 4.5], &[-2.5, -1.0]]);
}

/// Rank 1, three tokens. w1 = (1, 2, -1), w2 = (0, 1, 4).
#[test]
fn markov_chain_follows_its_own_choice() {
    let mut w = MemoryWeights::default();
    w.insert("w1", &[1, 3], vec![1.0, 2.0, -1.0]).unwrap();
    w.insert("w2", &[1, 3], vec![0.0, 1.0, 4.0]).unwrap();
    w.insert("confidence", &[3, 1], vec![1.0, 0.0, 0.5]).unwrap();
    let tensor = |name: &str| w.tensor(name).unwrap();
    let (mut a, mut b, mut c) = ([5.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]);
    let hidden: [&[f32]; 3] = [&[0.0, 9.0], &[1.0, 9.0], &[2.0, 9.0]];
    let mut logits: [&mut [f32]; 3] = [&mut a, &mut b, &mut c];
    let sure =
        markov_chain(1, &mut logits, &hidden, tensor("w1"), tensor("w2"), tensor("confidence")).unwrap();
    // Token 1 first: + 2 w2 = (0, 2, 8) gives (5, 2, 8), so 2. Then - w2 = (0, -1, -4): 0. Then + w2: (0, 2, 4).
    assert_eq!((a, b, c), ([5.0, 2.0, 8.0], [0.0, -1.0, -4.0], [0.0, 2.0, 4.0]));
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    // hidden[0] + w1 / 2: 0 + 1, 1 - 0.5, 2 + 0.5.
    close(&[sure], &[&[sigmoid(1.0), sigmoid(0.5), sigmoid(2.5)]]);
}
