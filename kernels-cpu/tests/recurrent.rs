//! Convolution and the delta rule against their definitions, bit for bit on every machine and for any cut into steps.

mod support;

use bloomery_kernels_cpu::conv::{ConvSpec, causal_conv};
use bloomery_kernels_cpu::delta::{Decay, DeltaRows, DeltaSpec, gated_delta};
use bloomery_kernels_cpu::kv::Run;
use bloomery_kernels_cpu::pointwise::Function;
use bloomery_program::StateId;
use bloomery_program::op;
use bloomery_reference::ops::recurrent as definition;
use support::{machines, name, same, values};

const TOKENS: usize = 90;

/// Steps of `chunk` rows over one text.
fn steps(chunk: usize) -> impl Iterator<Item = Run<'static>> {
    (0..TOKENS).step_by(chunk).map(move |start| Run {
        first_row: start,
        rows: chunk.min(TOKENS - start),
        position: start,
        pages: &[],
    })
}

#[test]
fn convolutions_are_their_definition() {
    for (taps, dilation, width, function, biased) in
        [(4, 1, 48, Some(Function::Silu), false), (3, 2, 17, None, true), (1, 1, 5, None, true)]
    {
        let (x, weight, bias) =
            (values(1, TOKENS * width, 2.0), values(2, taps * width, 1.0), values(3, width, 1.0));
        let bias = biased.then_some(&bias[..]);
        // The definition has the taps of a channel side by side.
        let by_channel: Vec<f32> = (0..taps * width).map(|i| weight[i % taps * width + i / taps]).collect();
        let zeros = vec![0.0; width];
        let mut expected = vec![0.0; TOKENS * width];
        for (row, out) in expected.chunks_exact_mut(width).enumerate() {
            let met: Vec<&[f32]> = (0..taps)
                .map(|k| {
                    row.checked_sub((taps - 1 - k) * dilation)
                        .map_or(&zeros[..], |r| &x[r * width..][..width])
                })
                .collect();
            let function = function.map(|_| op::Function::Silu);
            definition::causal_conv(&met, &by_channel, bias, function, out);
        }
        let spec = ConvSpec { taps, dilation, weight: &weight, bias, function };
        let mut first: Option<Vec<f32>> = None;
        for cpu in machines() {
            for chunk in [1, 7, TOKENS] {
                let what = format!("{taps} taps, {}, steps of {chunk}", name(&cpu));
                let mut history = vec![0.0; ((taps - 1) * dilation + 1) * width];
                let mut out = vec![f32::NAN; TOKENS * width];
                for run in steps(chunk) {
                    causal_conv(&cpu, &spec, &run, width, &x, &mut history, &mut out);
                }
                for (i, (a, b)) in out.iter().zip(&expected).enumerate() {
                    assert!((a - b).abs() < 3e-6, "{what}, {i}: {a} for {b}");
                }
                assert!(same(first.get_or_insert(out.clone()), &out), "{what}: other bits");
            }
        }
    }
}

#[test]
fn delta_rules_are_their_definition() {
    let sigmoid = Decay::ChannelSigmoid { lower_bound: -5.0 };
    for (key_heads, value_heads, key, value, decay, tiled, l2_eps) in [
        (2, 4, 64, 64, Decay::ScalarSoftplus, false, Some(1e-6)),
        (2, 6, 24, 81, Decay::ScalarSoftplus, true, Some(1e-6)),
        (3, 3, 33, 17, Decay::ChannelSoftplus, true, None),
        (4, 4, 64, 128, sigmoid, true, Some(1e-6)),
        (1, 2, 16, 96, Decay::ScalarSoftplus, true, Some(1e-6)),
    ] {
        let gates = if decay == Decay::ScalarSoftplus { value_heads } else { value_heads * key };
        let (q, k) = (values(1, TOKENS * key_heads * key, 0.5), values(2, TOKENS * key_heads * key, 0.3));
        let (v, x) = (values(3, TOKENS * value_heads * value, 1.0), values(4, TOKENS * gates, 2.0));
        let beta: Vec<f32> = values(5, TOKENS * value_heads, 0.5).iter().map(|b| b + 0.5).collect();
        let a: Vec<f32> = values(6, value_heads, 0.5).iter().map(|a| a - 0.6).collect();
        let dt = values(7, gates, 1.0);
        let d = op::GatedDelta {
            key_heads: key_heads as u32,
            value_heads: value_heads as u32,
            key: key as u32,
            value: value as u32,
            decay: match decay {
                Decay::ScalarSoftplus => op::Decay::ScalarSoftplus {},
                Decay::ChannelSoftplus => op::Decay::ChannelSoftplus {},
                Decay::ChannelSigmoid { lower_bound } => op::Decay::ChannelSigmoid { lower_bound },
            },
            scale: 0.3,
            l2_eps,
            head_map: if tiled { op::HeadMap::Tiled } else { op::HeadMap::Grouped },
            state: StateId(0),
        };
        let block = value_heads * key * value;
        let mut state = vec![0.0; block];
        let mut expected = vec![0.0; TOKENS * value_heads * value];
        for (row, out) in expected.chunks_exact_mut(value_heads * value).enumerate() {
            let row = definition::DeltaRow {
                q: &q[row * key_heads * key..][..key_heads * key],
                k: &k[row * key_heads * key..][..key_heads * key],
                v: &v[row * value_heads * value..][..value_heads * value],
                decay: &x[row * gates..][..gates],
                beta: &beta[row * value_heads..][..value_heads],
                a: &a,
                dt: &dt,
            };
            definition::gated_delta(&d, row, &mut state, out);
        }
        let spec = DeltaSpec {
            key_heads,
            value_heads,
            key,
            value,
            decay,
            scale: 0.3,
            l2_eps,
            tiled,
            a: &a,
            dt: &dt,
        };
        let rows = DeltaRows { q: &q, k: &k, v: &v, decay: &x, beta: &beta };
        let scale = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let mut first: Option<Vec<f32>> = None;
        for cpu in machines() {
            for chunk in [1, 7, TOKENS] {
                let what = format!("{decay:?} of {value_heads} heads, {}, steps of {chunk}", name(&cpu));
                // Something else of the sequence lies before and behind the state.
                let mut held = vec![0.0; block + 5];
                let mut out = vec![f32::NAN; expected.len()];
                for run in steps(chunk) {
                    gated_delta(&cpu, &spec, &[run], &rows, &mut [&mut held], 2..2 + block, &mut out);
                }
                assert!(held[..2].iter().chain(&held[2 + block..]).all(|v| *v == 0.0), "{what}");
                let state = held[2..2 + block].to_vec();
                for (i, (a, b)) in out.iter().zip(&expected).enumerate() {
                    assert!((a - b).abs() < 1e-5 * scale, "{what}, {i}: {a} for {b}");
                }
                out.extend(state);
                assert!(same(first.get_or_insert(out.clone()), &out), "{what}: other bits");
            }
        }
    }
}

#[test]
fn sequences_of_a_step_do_not_meet() {
    let (heads, key, value) = (2, 20, 80);
    let (q, k) = (values(1, TOKENS * heads * key, 0.5), values(2, TOKENS * heads * key, 0.3));
    let (v, x) = (values(3, TOKENS * heads * value, 1.0), values(4, TOKENS * heads, 2.0));
    let beta = values(5, TOKENS * heads, 0.5).iter().map(|b| b + 0.5).collect::<Vec<f32>>();
    let (a, dt) = ([-0.5, -0.2], [0.1, 0.7]);
    let spec = DeltaSpec {
        key_heads: heads,
        value_heads: heads,
        key,
        value,
        decay: Decay::ScalarSoftplus,
        scale: 0.3,
        l2_eps: Some(1e-6),
        tiled: true,
        a: &a,
        dt: &dt,
    };
    let rows = DeltaRows { q: &q, k: &k, v: &v, decay: &x, beta: &beta };
    let run = |first_row, rows| Run { first_row, rows, position: 0, pages: &[] };
    let runs = [run(0, 1), run(1, 40), run(41, 2), run(43, TOKENS - 43)];
    let block = heads * key * value;
    for cpu in machines() {
        let (mut alone, mut expected) = (vec![vec![0.5; block]; 4], vec![0.0; TOKENS * heads * value]);
        for (run, state) in runs.iter().zip(&mut alone) {
            gated_delta(&cpu, &spec, &[*run], &rows, &mut [state], 0..block, &mut expected);
        }
        let (mut together, mut out) = (vec![vec![0.5; block]; 4], vec![0.0; TOKENS * heads * value]);
        let mut states: Vec<&mut [f32]> = together.iter_mut().map(Vec::as_mut_slice).collect();
        gated_delta(&cpu, &spec, &runs, &rows, &mut states, 0..block, &mut out);
        assert!(same(&out, &expected), "{}", name(&cpu));
        assert!(together.iter().zip(&alone).all(|(a, b)| same(a, b)), "{}", name(&cpu));
    }
}
