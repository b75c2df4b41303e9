//! Tokens, norms, linear, point-wise, rope and the plain tier.

use crate::sketch::{Sketch, close};
use bloomery_program::op::{Clamp, Function, Pairing, Reduction, Rope, Yarn};
use bloomery_program::{Op, StateKind};
use bloomery_reference::ops::pointwise::{apply, erf};

#[test]
fn embed_takes_the_tokens_row() {
    let mut s = Sketch::new();
    let table = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let y = s.one(Op::Embed { scale: 10.0 }, &[s.tokens], &[("weight", &[2, 3], &table)]);
    close(&s.run_tokens(y, &[2, 0]).rows(), &[&[50.0, 60.0], &[10.0, 20.0]]);
}

/// Orders 2 and 3, two heads, multipliers 1, 10, 100: r2 = c0 xor 10 c1, r3 = r2 xor 100 c2.
fn ngram(cut: Vec<u32>, map: Option<Vec<u64>>, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut s = Sketch::new();
    let state = s.state(StateKind::Tokens { count: 2 });
    let token_map = map.map(|values| {
        s.integers("map", values);
        "map".to_string()
    });
    let op = Op::NgramEmbed {
        max_ngram: 3,
        heads: 2,
        multipliers: vec![1, 10, 100],
        moduli: vec![4, 5, 6, 7],
        offsets: vec![0, 4, 9, 15],
        fill: 7,
        cut,
        token_map,
        state,
    };
    // Row r of the table holds r itself.
    let table: Vec<f32> = (0..22).map(|r| r as f32).collect();
    let y = s.one(op, &[s.tokens], &[("weight", &[1, 22], &table)]);
    s.run_tokens(y, tokens).rows()
}

/// Rows of both heads of order 2 and of order 3.
fn hashed(r2: u32, r3: u32) -> [f64; 4] {
    [r2 % 4, 4 + r2 % 5, 9 + r3 % 6, 15 + r3 % 7].map(f64::from)
}

#[test]
fn ngram_embed_hashes_the_history() {
    // Token 3 first: c = 3, 7, 7. r2 = 3 ^ 70 = 69; r3 = 69 ^ 700 = 761.
    // Then 5: c = 5, 3, 7. r2 = 5 ^ 30 = 27; r3 = 27 ^ 700 = 679.
    // Then 2: c = 2, 5, 3. r2 = 2 ^ 50 = 48; r3 = 48 ^ 300 = 284.
    let expected: [&[f64]; 3] = [&hashed(69, 761), &hashed(27, 679), &hashed(48, 284)];
    close(&ngram(vec![], None, &[3, 5, 2]), &expected);
}

#[test]
fn ngram_embed_forgets_at_a_cut_but_not_the_cutting_token_itself() {
    // Cut at 5. The token 5 itself is as before; after it, 5 and everything older become 7.
    let whole = ngram(vec![5], None, &[3, 5, 2]);
    let open = ngram(vec![], None, &[3, 5, 2]);
    assert_eq!(whole[1], open[1]);
    // c = 2, 7, 7: r2 = 2 ^ 70 = 68; r3 = 68 ^ 700 = 760.
    close(&whole[2..], &[&hashed(68, 760)]);
}

#[test]
fn ngram_embed_maps_ids_before_it_hashes_and_not_the_fill() {
    // 3 -> 1 alone: c = 1, 7, 7. r2 = 1 ^ 70 = 71; r3 = 71 ^ 700 = 763.
    let found = ngram(vec![], Some(vec![0, 0, 0, 1]), &[3]);
    close(&found, &[&hashed(71, 763)]);
}

#[test]
fn norms() {
    let x: &[f32] = &[3.0, 4.0, 1.0, 7.0];
    let (a, b) = (12.5f64.sqrt(), 25f64.sqrt());
    let mut s = Sketch::new();
    let v = s.input(&[x]);
    // Groups of two, the weight repeats.
    let y = s.one(Op::RmsNorm { eps: 1e-20, group: 2 }, &[v], &[("weight", &[2], &[1.0, 2.0])]);
    close(&s.run(y).rows(), &[&[3.0 / a, 8.0 / a, 1.0 / b, 14.0 / b]]);
    // eps is added to the mean square: (12.5 + 3.5) = 4^2, (25 + 3.5).
    let mut s = Sketch::new();
    let v = s.input(&[x]);
    let y = s.one(Op::RmsNorm { eps: 3.5, group: 2 }, &[v], &[]);
    close(&s.run(y).rows(), &[&[0.75, 1.0, 1.0 / 28.5f64.sqrt(), 7.0 / 28.5f64.sqrt()]]);
    // Mean 3.75, variance (0.5625 + 0.0625 + 7.5625 + 10.5625) / 4 = 4.6875, eps 1.5625: 2.5^2.
    let mut s = Sketch::new();
    let v = s.input(&[x]);
    let tensors: [(&str, &[u64], &[f32]); 2] =
        [("weight", &[4], &[1.0, 1.0, 2.0, 2.0]), ("bias", &[4], &[0.0, 10.0, 0.0, 10.0])];
    let y = s.one(Op::LayerNorm { eps: 1.5625, group: 4 }, &[v], &tensors);
    close(&s.run(y).rows(), &[&[-0.3, 10.1, -2.2, 12.6]]);
    // eps is added to the sum of squares: 25 + 11 = 6^2, 50 - no root in sight.
    let mut s = Sketch::new();
    let v = s.input(&[x]);
    let y = s.one(Op::L2Norm { eps: 11.0, group: 2 }, &[v], &[]);
    let c = 61f64.sqrt();
    close(&s.run(y).rows(), &[&[0.5, 4.0 / 6.0, 1.0 / c, 7.0 / c]]);
    let mut s = Sketch::new();
    let (v, gate) = (s.input(&[x]), s.input(&[&[0.0, 0.0, 1.0, -1.0]]));
    let op = Op::GatedRmsNorm { eps: 3.5, group: 2, function: Function::Sigmoid };
    let y = s.one(op, &[v, gate], &[("weight", &[2], &[2.0, 4.0])]);
    let (up, down) = (1.0 / (1.0 + (-1f64).exp()), 1.0 / (1.0 + 1f64.exp()));
    let d = 28.5f64.sqrt();
    close(&s.run(y).rows(), &[&[0.75, 2.0, 2.0 / d * up, 28.0 / d * down]]);
}

#[test]
fn linear_with_a_bias_and_as_a_vector() {
    let mut s = Sketch::new();
    let v = s.input(&[&[1.0, 2.0, 3.0], &[0.0, 1.0, 0.0]]);
    let weight = [1.0, 10.0, 100.0, -1.0, 0.5, 0.0];
    let tensors: [(&str, &[u64], &[f32]); 2] = [("weight", &[3, 2], &weight), ("bias", &[2], &[1000.0, 0.0])];
    let y = s.one(Op::Linear {}, &[v], &tensors);
    close(&s.run(y).rows(), &[&[1321.0, 0.0], &[1010.0, 0.5]]);
    let mut s = Sketch::new();
    let v = s.input(&[&[1.0, 2.0, 3.0]]);
    let y = s.one(Op::Linear {}, &[v], &[("weight", &[3], &[1.0, 1.0, 2.0])]);
    close(&s.run(y).rows(), &[&[9.0]]);
}

/// A width that is no multiple of eight: sum of i * (i + 1) for i below 19 is 19 * 18 * 20 / 3.
#[test]
fn dot_takes_the_rest_of_a_row() {
    let a: Vec<f32> = (0..19).map(|i| i as f32).collect();
    let b: Vec<f32> = (0..19).map(|i| (i + 1) as f32).collect();
    assert_eq!(bloomery_reference::ops::linear::dot(&a, &b), 2280.0);
}

#[test]
fn grouped_linear_is_block_diagonal() {
    // Group 0: [1, 2] through [[1, 1], [1, 0], [0, 1]]; group 1: [3, 4] through twice that.
    let weight = [1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 2.0, 2.0, 2.0, 0.0, 0.0, 2.0];
    for dims in [&[2u64, 3, 2][..], &[2, 6]] {
        let mut s = Sketch::new();
        let v = s.input(&[&[1.0, 2.0, 3.0, 4.0]]);
        let y = s.one(Op::GroupedLinear { groups: 2 }, &[v], &[("weight", dims, &weight)]);
        close(&s.run(y).rows(), &[&[3.0, 1.0, 2.0, 14.0, 6.0, 8.0]]);
    }
}

#[test]
fn functions_have_their_known_values() {
    let known = [
        (Function::Silu, 1.0, 0.731_058_578_6),
        (Function::Silu, -20.0, -20.0 / (1.0 + 20f64.exp())),
        (Function::GeluTanh, 1.0, 0.841_191_990_6),
        (Function::GeluErf, 1.0, 0.841_344_746_1),
        (Function::GeluErf, -2.0, -0.045_500_263_9),
        (Function::Sigmoid, -1.0, 0.268_941_421_4),
        (Function::Softplus, 0.0, std::f64::consts::LN_2),
        (Function::Softplus, 90.0, 90.0),
        (Function::Softplus, 1.0, 1.313_261_687_5),
        (Function::Exp, 1.0, std::f64::consts::E),
        (Function::Relu, -3.0, 0.0),
        (Function::Relu, 3.0, 3.0),
        (Function::Tanh, 0.5, 0.462_117_157_3),
    ];
    for (function, x, expected) in known {
        close(&[vec![apply(function, x)]], &[&[expected]]);
    }
    // No overflow, no loss of the small end.
    assert!(apply(Function::Softplus, -80.0) > 0.0);
    assert_eq!(apply(Function::Sigmoid, -200.0), 0.0);
    for (x, expected) in [
        (0.5, 0.520_499_877_813_046_5),
        (1.0, 0.842_700_792_949_714_9),
        (2.4, 0.999_311_486_103_355),
        (2.6, 0.999_763_965_583_471),
        (-3.0, -0.999_977_909_503_001_4),
    ] {
        assert!((erf(x) - expected).abs() < 1e-13, "erf({x}) = {}", erf(x));
    }
}

#[test]
fn point_wise() {
    let pair = |s: &mut Sketch, b: &[f32]| [s.input(&[&[1.0, -2.0, 3.0, 4.0]]), s.input(&[b])];
    let run = |op: Op, b: &[f32]| {
        let mut s = Sketch::new();
        let ins = pair(&mut s, b);
        let y = s.one(op, &ins, &[]);
        s.run(y).rows()
    };
    close(&run(Op::Add {}, &[10.0, 20.0, 30.0, 40.0]), &[&[11.0, 18.0, 33.0, 44.0]]);
    close(&run(Op::Add {}, &[0.5]), &[&[1.5, -1.5, 3.5, 4.5]]);
    close(&run(Op::Mul {}, &[10.0, 20.0, 30.0, 40.0]), &[&[10.0, -40.0, 90.0, 160.0]]);
    close(&run(Op::Mul {}, &[0.5]), &[&[0.5, -1.0, 1.5, 2.0]]);
    close(&run(Op::Concat {}, &[7.0]), &[&[1.0, -2.0, 3.0, 4.0, 7.0]]);
    let one = |op: Op, tensors: &[(&str, &[u64], &[f32])]| {
        let mut s = Sketch::new();
        let x = pair(&mut s, &[0.0])[0];
        let y = s.one(op, &[x], tensors);
        s.run(y).rows()
    };
    close(&one(Op::Scale { by: 2.0, plus: 1.0 }, &[]), &[&[3.0, -3.0, 7.0, 9.0]]);
    let both: [(&str, &[u64], &[f32]); 2] = [("scale", &[2], &[2.0, 3.0]), ("bias", &[1], &[1.0])];
    close(&one(Op::Affine {}, &both), &[&[3.0, -5.0, 7.0, 13.0]]);
    close(&one(Op::Affine {}, &both[1..]), &[&[2.0, -1.0, 4.0, 5.0]]);
    close(&one(Op::Unary { function: Function::Relu }, &[]), &[&[1.0, 0.0, 3.0, 4.0]]);
    close(&one(Op::Slice { group: 2, start: 1, width: 1 }, &[]), &[&[-2.0, 4.0]]);
}

/// The clamp comes before the activation: relu(min(12, 10)) * clamp(-11) is -100, and a low gate stays as it is.
#[test]
fn glu_with_and_without_clamp() {
    let run = |clamp| {
        let mut s = Sketch::new();
        let (gate, up) = (s.input(&[&[12.0, -3.0, 2.0]]), s.input(&[&[-11.0, 5.0, 11.0]]));
        let y = s.one(Op::Glu { act: Function::Silu, clamp }, &[gate, up], &[]);
        s.run(y).rows()
    };
    let silu = |x: f64| x / (1.0 + (-x).exp());
    close(&run(None), &[&[silu(12.0) * -11.0, silu(-3.0) * 5.0, silu(2.0) * 11.0]]);
    let clamp = Some(Clamp { gate_max: 10.0, up_abs: 10.0 });
    close(&run(clamp), &[&[silu(10.0) * -10.0, silu(-3.0) * 5.0, silu(2.0) * 10.0]]);
}

fn rope(pairing: Pairing) -> Rope {
    Rope {
        head: 4,
        dims: 4,
        offset: 0,
        theta: 100.0,
        pairing,
        inverse: false,
        linear_factor: 1.0,
        yarn: None,
        sections: None,
        group: 1,
    }
}

/// The last of `positions + 1` equal rows, rotated.
fn rotated(rope: Rope, x: &[f32], position: usize, factors: Option<&[f32]>) -> Vec<Vec<f32>> {
    let mut s = Sketch::new();
    let v = s.input(&vec![x; position + 1]);
    let dims = [u64::from(rope.dims / 2)];
    let tensors: Vec<(&str, &[u64], &[f32])> =
        factors.map(|f| ("freq_factors", &dims[..], f)).into_iter().collect();
    let y = s.one(Op::Rope(rope), &[v], &tensors);
    s.run(y).rows().split_off(position)
}

/// theta 100 over four values: pair 0 turns by p, pair 1 by p / 10.
#[test]
fn rope_pairs_offset_and_inverse() {
    let (c, s) = (2f64.cos(), 2f64.sin());
    let (c1, s1) = (0.2f64.cos(), 0.2f64.sin());
    let x = [1.0, 0.0, 0.0, 1.0];
    close(&rotated(rope(Pairing::Halves), &x, 2, None), &[&[c, -s1, s, c1]]);
    close(&rotated(rope(Pairing::Adjacent), &x, 2, None), &[&[c, s, -s1, c1]]);
    // Two heads alike; only the last two values of each turn, by pair 0.
    let part = Rope { offset: 2, dims: 2, ..rope(Pairing::Halves) };
    let two = [5.0, 6.0, 1.0, 0.0, 7.0, 8.0, 0.0, 1.0];
    close(&rotated(part, &two, 2, None), &[&[5.0, 6.0, c, s, 7.0, 8.0, -s, c]]);
    let back = Rope { inverse: true, ..rope(Pairing::Halves) };
    close(&rotated(back, &x, 2, None), &[&[c, s1, -s, c1]]);
    // Position 0 turns nothing.
    close(&rotated(rope(Pairing::Halves), &x, 0, None), &[&[1.0, 0.0, 0.0, 1.0]]);
}

#[test]
fn rope_positions_and_factors() {
    let x = [1.0, 0.0, 0.0, 1.0];
    let turned = |a: f64, b: f64| [a.cos(), -b.sin(), a.sin(), b.cos()];
    // A row that completes a group of 3 at position 5 stands at 3; one before the first group's end at 0.
    let group = Rope { group: 3, ..rope(Pairing::Halves) };
    close(&rotated(group.clone(), &x, 5, None), &[&turned(3.0, 0.3)]);
    close(&rotated(group, &x, 1, None), &[&turned(0.0, 0.0)]);
    let slow = Rope { linear_factor: 4.0, ..rope(Pairing::Halves) };
    close(&rotated(slow, &x, 2, None), &[&turned(0.5, 0.05)]);
    close(&rotated(rope(Pairing::Halves), &x, 2, Some(&[2.0, 0.5])), &[&turned(1.0, 0.4)]);
    // One position for every section.
    let sections = Rope { sections: Some([1, 1, 0, 0]), ..rope(Pairing::Halves) };
    close(&rotated(sections, &x, 2, None), &[&turned(2.0, 0.2)]);
}

/// theta 10,000 over eight values, 64 trained tokens: pair(32) = 8 ln(64/64pi) / (2 ln 10000) < 0, so low = 0;
/// pair(1) = 1.008, so high = 2. Ramp 0, 1/2, 1, 1; factor 4.
#[test]
fn rope_yarn_stretches_slow_pairs() {
    let yarn = Yarn { factor: 4.0, original_context: 64, beta_fast: 32.0, beta_slow: 1.0, magnitude: 1.0 };
    let eight = Rope { head: 8, dims: 8, theta: 10_000.0, yarn: Some(yarn), ..rope(Pairing::Adjacent) };
    let x = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0];
    let angles = [1.0f64, 0.1 / 4.0 / 2.0 + 0.1 / 2.0, 0.01 / 4.0, 0.001 / 4.0].map(|f| f * 3.0);
    let expected: Vec<f64> = angles.iter().flat_map(|a| [a.cos(), a.sin()]).collect();
    close(&rotated(eight.clone(), &x, 3, None), &[&expected]);
    let louder = Rope { yarn: Some(Yarn { magnitude: 1.5, ..yarn }), ..eight };
    let expected: Vec<f64> = expected.iter().map(|v| v * 1.5).collect();
    close(&rotated(louder, &x, 3, None), &[&expected]);
}

#[test]
fn plain_tier() {
    let one = |op: Op, x: &[f32]| {
        let mut s = Sketch::new();
        let v = s.input(&[x]);
        let y = s.one(op, &[v], &[]);
        s.run(y).rows()
    };
    // [[1, 2], [3, 4]] times the transpose of [[5, 6], [7, 8], [9, 10]].
    let mut s = Sketch::new();
    let (a, b) = (s.input(&[&[1.0, 2.0, 3.0, 4.0]]), s.input(&[&[5.0, 6.0, 7.0, 8.0, 9.0, 10.0]]));
    let y = s.one(Op::MatMul { k: 2 }, &[a, b], &[]);
    close(&s.run(y).rows(), &[&[17.0, 23.0, 29.0, 39.0, 53.0, 67.0]]);
    let ln3 = 3f32.ln();
    close(&one(Op::Softmax { group: 2 }, &[0.0, ln3, 5.0, 5.0]), &[&[0.25, 0.75, 0.5, 0.5]]);
    close(&one(Op::Softmax { group: 2 }, &[1000.0, 1000.0]), &[&[0.5, 0.5]]);
    let x = [1.0, 5.0, -3.0, -1.0];
    close(&one(Op::Reduce { by: Reduction::Sum, group: 2 }, &x), &[&[6.0, -4.0]]);
    close(&one(Op::Reduce { by: Reduction::Mean, group: 2 }, &x), &[&[3.0, -2.0]]);
    close(&one(Op::Reduce { by: Reduction::Max, group: 2 }, &x), &[&[5.0, -1.0]]);
    // Best first, ties to the lower place, -0 equal to 0.
    let mut s = Sketch::new();
    let v = s.input(&[&[2.0, 7.0, -0.0, 7.0, 0.0]]);
    let best = s.node(Op::TopK { top_k: 4 }, &[v], &[]);
    let rows = s.one(Op::Gather { width: 1 }, &[v, best[1]], &[]);
    let again = s.one(Op::Reshape { streams: 2 }, &[rows], &[]);
    let turned = s.one(Op::Transpose {}, &[again], &[]);
    close(&s.run(turned).rows(), &[&[7.0, 2.0, 7.0, 0.0]]);
    let mut s = Sketch::new();
    let v = s.input(&[&[2.0, 7.0, -0.0, 7.0, 0.0]]);
    let best = s.node(Op::TopK { top_k: 4 }, &[v], &[]);
    assert_eq!(s.run(best[1]).index(), [[1, 3, 0, 2]]);
    let mut s = Sketch::new();
    let v = s.input(&[&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]);
    let h = s.one(Op::Reshape { streams: 2 }, &[v], &[]);
    let y = s.one(Op::Transpose {}, &[h], &[]);
    close(&s.run(y).rows(), &[&[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]]);
}

/// A number out of range is an error, not a panic.
#[test]
#[should_panic(expected = "chunk 2 of 1")]
fn gather_refuses_a_number_out_of_range() {
    let mut s = Sketch::new();
    let (x, choice) = (s.input(&[&[1.0, 2.0]]), s.input(&[&[0.0, 0.0, 9.0]]));
    let best = s.node(Op::TopK { top_k: 1 }, &[choice], &[]);
    let y = s.one(Op::Gather { width: 2 }, &[x, best[1]], &[]);
    s.run(y);
}
