//! Convolution and the delta rule, by hand with one-dimensional states.

use crate::sketch::{Sketch, close};
use bloomery_program::op::{Decay, Function, GatedDelta, HeadMap};
use bloomery_program::{Op, StateId, StateKind};

#[test]
fn causal_conv_meets_the_current_row_with_the_last_tap() {
    let run = |dilation: u32, function: Option<Function>, bias: Option<&[f32]>| {
        let mut s = Sketch::new();
        let x = s.input(&[&[1.0, -1.0], &[2.0, 0.0], &[4.0, 0.0], &[8.0, 0.0]]);
        let state = s.state(StateKind::Recent { rows: 2 * dilation, width: 2 });
        // Channel 0: 100, 10, 1 for the rows two back, one back and now; channel 1: now only.
        let weight: &[f32] = &[100.0, 10.0, 1.0, 0.0, 0.0, 1.0];
        let mut tensors: Vec<(&str, &[u64], &[f32])> = vec![("weight", &[3, 2], weight)];
        tensors.extend(bias.map(|b| ("bias", &[2u64][..], b)));
        let y = s.one(Op::CausalConv { taps: 3, dilation, function, state }, &[x], &tensors);
        s.run(y).rows()
    };
    close(&run(1, None, None), &[&[1.0, -1.0], &[12.0, 0.0], &[124.0, 0.0], &[248.0, 0.0]]);
    close(&run(2, None, None), &[&[1.0, -1.0], &[2.0, 0.0], &[14.0, 0.0], &[28.0, 0.0]]);
    close(&run(1, None, Some(&[0.5, 1.0]))[1..2], &[&[12.5, 1.0]]);
    close(&run(1, Some(Function::Relu), None)[..1], &[&[1.0, 0.0]]);
}

fn constants(state: StateId) -> GatedDelta {
    GatedDelta {
        key_heads: 1,
        value_heads: 1,
        key: 1,
        value: 1,
        decay: Decay::ScalarSoftplus {},
        scale: 1.0,
        l2_eps: None,
        head_map: HeadMap::Tiled,
        state,
    }
}

/// Operands of two equal rows and the results.
fn delta(
    change: impl Fn(&mut GatedDelta),
    [q, k, v, decay, beta]: [&[f32]; 5],
    a: &[f32],
    dt: &[f32],
) -> Vec<Vec<f32>> {
    let mut s = Sketch::new();
    let ins = [q, k, v, decay, beta].map(|row| s.input(&[row, row]));
    let mut d = constants(StateId(0));
    change(&mut d);
    s.state(StateKind::Recurrent { dims: vec![d.value_heads, d.key, d.value] });
    let tensors: [(&str, &[u64], &[f32]); 2] = [("a", &[a.len() as u64], a), ("dt", &[dt.len() as u64], dt)];
    let y = s.one(Op::GatedDelta(d), &ins, &tensors);
    s.run(y).rows()
}

/// softplus(0) = ln 2, so a = -1 halves the state: S = 2; then S = 1 + 0.5 (4 - 1) = 2.5.
#[test]
fn gated_delta_with_a_scalar_decay() {
    let ins: [&[f32]; 5] = [&[1.0], &[1.0], &[4.0], &[-0.25], &[0.5]];
    close(&delta(|_| {}, ins, &[-1.0], &[0.25]), &[&[2.0], &[2.5]]);
    // The factor is the query's alone.
    close(&delta(|d| d.scale = 10.0, ins, &[-1.0], &[0.25]), &[&[20.0], &[25.0]]);
}

/// Two key channels: the first halves, the second keeps a quarter. k = (1, 2), q = (1, 1), v = 4, beta = 0.1.
/// S = (0.4, 0.8), o = 1.2. Then S = (0.2, 0.2), S.k = 0.6, d = 0.34, S = (0.54, 0.88), o = 1.42.
#[test]
fn gated_delta_with_a_decay_for_each_channel() {
    let ins: [&[f32]; 5] = [&[1.0, 1.0], &[1.0, 2.0], &[4.0], &[0.0, 1.0], &[0.1]];
    let softplus = |d: &mut GatedDelta| (d.key, d.decay) = (2, Decay::ChannelSoftplus {});
    // softplus(dt + x) = ln 2 and 2 ln 2 = ln(1 + 3): x + dt = ln 3.
    close(&delta(softplus, ins, &[-1.0], &[0.0, 3f32.ln() - 1.0]), &[&[1.2], &[1.42]]);
    // lower_bound * sigmoid(-a f): sigmoid(0) = 1/2 and sigmoid(2 f) = 1 far out: -2 ln 2 * (1/2, 1).
    let bound = -2.0 * std::f32::consts::LN_2;
    let sigmoid = |d: &mut GatedDelta| (d.key, d.decay) = (2, Decay::ChannelSigmoid { lower_bound: bound });
    close(&delta(sigmoid, ins, &[-2.0], &[0.0, 49.0]), &[&[1.2], &[1.42]]);
}

#[test]
fn gated_delta_normalises_keys_and_queries() {
    // |k| = 5 and |q| = 13 with eps making them 10 and sqrt(244): 25 + 75 = 100, 169 + 75.
    let ins: [&[f32]; 5] = [&[5.0, 12.0], &[3.0, 4.0], &[4.0], &[-90.0], &[1.0]];
    let change = |d: &mut GatedDelta| (d.key, d.l2_eps) = (2, Some(75.0));
    let norm = 244f64.sqrt();
    let first = 4.0 * (0.3 * 5.0 + 0.4 * 12.0) / norm;
    // k.k = 1/4: S.k = 1 after the first row, d = 3 and S = (4 + 3) k.
    close(&delta(change, ins, &[-1.0], &[0.0]), &[&[first], &[first * 7.0 / 4.0]]);
}

/// Two key heads, four value heads: tiled 0 1 0 1, grouped 0 0 1 1.
#[test]
fn gated_delta_maps_value_heads_to_key_heads() {
    let ins: [&[f32]; 5] =
        [&[1.0, 10.0], &[1.0, 1.0], &[1.0, 2.0, 3.0, 4.0], &[0.0; 4], &[1.0, 1.0, 1.0, 0.5]];
    let run = |head_map| {
        let change = |d: &mut GatedDelta| (d.key_heads, d.value_heads, d.head_map) = (2, 4, head_map);
        delta(change, ins, &[-1.0; 4], &[0.0; 4])[..1].to_vec()
    };
    close(&run(HeadMap::Tiled), &[&[1.0, 20.0, 3.0, 20.0]]);
    close(&run(HeadMap::Grouped), &[&[1.0, 2.0, 30.0, 20.0]]);
}

/// The state is `[key, value]`: with two values the key's outer product with the correction.
#[test]
fn gated_delta_keeps_values_apart() {
    let ins: [&[f32]; 5] = [&[1.0, 2.0], &[1.0, 0.0], &[5.0, 7.0], &[0.0], &[1.0]];
    let change = |d: &mut GatedDelta| (d.key, d.value) = (2, 2);
    // S = [[5, 7], [0, 0]]; the second row learns nothing new after halving and correcting.
    close(&delta(change, ins, &[-1.0], &[0.0]), &[&[5.0, 7.0], &[5.0, 7.0]]);
}
