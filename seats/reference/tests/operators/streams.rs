//! Residual streams.

use crate::sketch::{Sketch, close};
use bloomery_program::Op;

#[test]
fn spread_collapse_combine_scale() {
    let mut s = Sketch::new();
    let x = s.input(&[&[1.0, 2.0]]);
    let y = s.one(Op::StreamSpread { streams: 3 }, &[x], &[]);
    close(&s.run(y).rows(), &[&[1.0, 2.0, 1.0, 2.0, 1.0, 2.0]]);
    let h: &[f32] = &[1.0, 2.0, 30.0, 40.0];
    let mut s = Sketch::new();
    let (v, pre) = (s.streams(2, &[h]), s.input(&[&[2.0, 0.5]]));
    let y = s.one(Op::StreamCollapse {}, &[v, pre], &[]);
    close(&s.run(y).rows(), &[&[17.0, 24.0]]);
    let mut s = Sketch::new();
    let v = s.streams(2, &[h]);
    let y = s.one(Op::StreamCollapse {}, &[v], &[]);
    close(&s.run(y).rows(), &[&[15.5, 21.0]]);
    // comb[source][target]: everything of stream 0 goes to stream 1, a tenth of stream 1 to stream 0.
    let mut s = Sketch::new();
    let (v, y) = (s.streams(2, &[h]), s.input(&[&[100.0, 200.0]]));
    let (post, comb) = (s.input(&[&[1.0, -1.0]]), s.input(&[&[0.0, 1.0, 0.1, 0.0]]));
    let combined = s.one(Op::StreamCombine {}, &[v, y, post, comb], &[]);
    close(&s.run(combined).rows(), &[&[103.0, 204.0, -99.0, -198.0]]);
    let mut s = Sketch::new();
    let (v, y, post) = (s.streams(2, &[h]), s.input(&[&[100.0, 200.0]]), s.input(&[&[1.0, -1.0]]));
    let combined = s.one(Op::StreamCombine {}, &[v, y, post], &[]);
    close(&s.run(combined).rows(), &[&[101.0, 202.0, -70.0, -160.0]]);
    let mut s = Sketch::new();
    let (value, gate) = (s.input(&[&[1.0, 2.0]]), s.input(&[&[3.0, -1.0]]));
    let y = s.one(Op::StreamScale {}, &[value, gate], &[]);
    close(&s.run(y).rows(), &[&[3.0, 6.0, -1.0, -2.0]]);
}

/// Two streams of width 1. flat h = (3, 4) over its root mean square sqrt(12.5); fn is the identity on the first two
/// coefficients and zero elsewhere.
fn hyper(iterations: u32, base: &[f32; 8]) -> [Vec<Vec<f32>>; 3] {
    [0, 1, 2].map(|result| {
        let mut s = Sketch::new();
        let h = s.streams(2, &[&[3.0, 4.0]]);
        let mut weight = [0.0f32; 16];
        (weight[0], weight[3]) = (1.0, 1.0);
        let tensors: [(&str, &[u64], &[f32]); 3] =
            [("fn", &[2, 8], &weight), ("scale", &[3], &[2.0, 1.0, 1.0]), ("base", &[8], base)];
        let values = s.node(Op::HyperMix { iterations, eps: 1e-3, norm_eps: 1e-12 }, &[h], &tensors);
        s.run(values[result]).rows()
    })
}

#[test]
fn hyper_mix_coefficients() {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let ln3 = 3f32.ln();
    let base = [0.5, -0.5, 0.0, ln3, 0.0, ln3, 0.0, 0.0];
    let [pre, post, comb] = hyper(1, &base);
    let root = 12.5f64.sqrt();
    close(&pre, &[&[sigmoid(6.0 / root + 0.5) + 1e-3, sigmoid(8.0 / root - 0.5) + 1e-3]]);
    close(&post, &[&[1.0, 1.5]]);
    // Rows (sources) (1/4, 3/4) and (1/2, 1/2), plus eps; then columns over their sum plus eps.
    let (a, b, c) = (0.251, 0.751, 0.501);
    let first = [a / 0.753, b / 1.253, c / 0.753, c / 1.253];
    close(&comb, &[&first]);
    // A second round: sources over their sum plus eps, then targets.
    let eps = 1e-3;
    let (top, bottom) = (first[0] + first[1] + eps, first[2] + first[3] + eps);
    let [w, x, y, z] = [first[0] / top, first[1] / top, first[2] / bottom, first[3] / bottom];
    let (left, right) = (w + y + eps, x + z + eps);
    close(&hyper(2, &base)[2], &[&[w / left, x / right, y / left, z / right]]);
}

#[test]
fn hyper_mix_rounds_make_rows_and_columns_sum_to_one() {
    let base = [0.0, 0.0, 0.0, 0.0, 1.0, -2.0, 0.5, 3.0];
    let comb = &hyper(60, &base)[2][0];
    for (i, j) in [(0, 1), (2, 3), (0, 2), (1, 3)] {
        // eps in each division keeps the sums a little below one.
        let sum = comb[i] + comb[j];
        assert!((0.99..=1.0).contains(&sum), "{comb:?}");
    }
    // The order of source and target survives: the largest base entry is source 1, target 1.
    assert!(comb[3] > comb[2] && comb[0] > comb[1]);
}

#[test]
fn hyper_head_weights() {
    let mut s = Sketch::new();
    let h = s.streams(2, &[&[3.0, 4.0]]);
    let tensors: [(&str, &[u64], &[f32]); 3] =
        [("fn", &[2, 2], &[1.0, 0.0, 0.0, -1.0]), ("scale", &[1], &[2.0]), ("base", &[2], &[0.5, 0.0])];
    let y = s.one(Op::HyperHead { eps: 0.25, norm_eps: 1e-12 }, &[h], &tensors);
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let root = 12.5f64.sqrt();
    close(&s.run(y).rows(), &[&[sigmoid(6.0 / root + 0.5) + 0.25, sigmoid(-8.0 / root) + 0.25]]);
}

/// Streams (3, 4) and (1, 1): root mean squares sqrt(12.5) and 1; weights 1, 1, 2, 2.
#[test]
fn low_rank_mix_by_hand() {
    let run = |result: usize| {
        let mut s = Sketch::new();
        let h = s.streams(2, &[&[3.0, 4.0, 1.0, 1.0]]);
        let tensors: [(&str, &[u64], &[f32]); 4] = [
            ("norm", &[4], &[1.0, 1.0, 2.0, 2.0]),
            // One low dimension: the sum of stream 1, 4, halved: silu(2).
            ("down", &[4, 1], &[0.0, 0.0, 1.0, 1.0]),
            ("up", &[1, 4], &[0.0, 1.0, 0.0, -1.0]),
            ("inject", &[4, 2], &[0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, -1.0]),
        ];
        let values = s.node(Op::LowRankMix { eps: 1e-12 }, &[h], &tensors);
        s.run(values[result]).rows()
    };
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let (root, low) = (12.5f64.sqrt(), 2.0 * sigmoid(2.0));
    let mixed =
        [0.5 * (3.0 / root * 0.5 + 2.0 * 0.5), 0.5 * (4.0 / root * sigmoid(low) + 2.0 * sigmoid(-low))];
    close(&run(0), &[&mixed]);
    close(&run(1), &[&[2.0 * sigmoid(1.0), 2.0 * sigmoid(-1.0)]]);
}

/// Width 4: stream 0 and its key agree, d = 4 * 1 * 1 / 2 = 2 times the weights' product; stream 1 is opposite; zeros
/// give the floor.
#[test]
fn memory_gate_takes_the_signed_root() {
    let mut s = Sketch::new();
    let h = s.streams(3, &[&[1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 1.0, -1.0, 1.0, -1.0]]);
    let key = s.input(&[&[1.0, 1.0, 1.0, 1.0, -5.0, -5.0, -5.0, -5.0, 1.0, 1.0, 1.0, 1.0]]);
    let mut query_norm = [1.0f32; 12];
    query_norm[..4].fill(2.0);
    let mut key_norm = [1.0f32; 12];
    key_norm[4..8].fill(4.5);
    let tensors: [(&str, &[u64], &[f32]); 2] =
        [("query_norm", &[4, 3], &query_norm), ("key_norm", &[12], &key_norm)];
    let y = s.one(Op::MemoryGate { eps: 1e-12 }, &[h, key], &tensors);
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    close(&s.run(y).rows(), &[&[sigmoid(2.0), sigmoid(-3.0), sigmoid(1e-3)]]);
}
