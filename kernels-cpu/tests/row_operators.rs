//! Norms, functions, rotation and the router against their definitions, and bit for bit between levels and threads.
//!
//! Widths are odd on purpose: every kernel has a tail after its last full register.

mod support;

use bloomery_formats::math;
use bloomery_kernels_cpu::cpu::Cpu;
use bloomery_kernels_cpu::level::Level;
use bloomery_kernels_cpu::pointwise::{Function, GateLimits, add, glu, mul, unary};
use bloomery_kernels_cpu::pool::Pool;
use bloomery_kernels_cpu::prepare::rotate;
use bloomery_kernels_cpu::rope::{RopeSpec, RopeTable, frequencies};
use bloomery_kernels_cpu::route::{RouteSpec, Score, route};
use bloomery_kernels_cpu::rows::{NormSpec, rms_norm};
use support::{machines, name, near, on_all, same, values};

const WIDTHS: [usize; 12] = [1, 2, 3, 15, 16, 17, 31, 63, 64, 65, 129, 577];
const ROWS: [usize; 3] = [1, 3, 40];

const FUNCTIONS: [Function; 8] = [
    Function::Silu,
    Function::GeluTanh,
    Function::GeluErf,
    Function::Sigmoid,
    Function::Softplus,
    Function::Exp,
    Function::Relu,
    Function::Tanh,
];

#[test]
fn rms_norm_is_its_definition() {
    for (case, width) in WIDTHS.into_iter().enumerate() {
        for rows in ROWS {
            for (group, weighted) in
                [(width, true), (width, false), (if width % 3 == 0 { 3 } else { 1 }, true)]
            {
                let x = values(case as u64, rows * width, 3.0);
                let weight = values(100 + case as u64, width, 2.0);
                let eps = 1e-6;
                let spec = NormSpec { weight: weighted.then_some(&weight[..]), group, eps };
                let what = format!("{rows} rows of {width}, groups of {group}");
                let out = on_all(rows * width, &what, |cpu, out| {
                    rms_norm(cpu, spec, rows, width, &x, out, &mut []);
                });
                for (i, found) in out.iter().enumerate() {
                    let members = &x[i / group * group..][..group];
                    let mean = members.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / group as f64;
                    let factor = if weighted { f64::from(weight[i % width]) } else { 1.0 };
                    let expected = f64::from(x[i]) / (mean + f64::from(eps)).sqrt() * factor;
                    // Three roundings and a sum of `group` squares.
                    assert!(near(*found, expected, 1e-3, 1e-6), "{what}, {i}: {found} for {expected}");
                }
            }
        }
    }
}

#[test]
fn a_norm_weight_repeats_over_the_row() {
    let (rows, width, head) = (5, 6 * 33, 33);
    let (x, weight) = (values(1, rows * width, 2.0), values(2, head, 2.0));
    let spec = NormSpec { weight: Some(&weight), group: head, eps: 1e-5 };
    let out = on_all(rows * width, "heads", |cpu, out| rms_norm(cpu, spec, rows, width, &x, out, &mut []));
    // The same heads as rows of their own.
    let heads = on_all(rows * width, "rows", |cpu, out| {
        rms_norm(cpu, spec, rows * width / head, head, &x, out, &mut []);
    });
    assert!(same(&out, &heads));
}

/// A function in f64.
fn definition(function: Function, x: f64) -> f64 {
    let sigmoid = 1.0 / (1.0 + (-x).exp());
    match function {
        Function::Silu => x * sigmoid,
        Function::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
        }
        Function::GeluErf => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        Function::Sigmoid => sigmoid,
        Function::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
        Function::Exp => x.exp(),
        Function::Relu => x.max(0.0),
        Function::Tanh => x.tanh(),
    }
}

/// By its Taylor series, enough for |x| < 4.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..120 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

#[test]
fn functions_are_their_definitions() {
    for function in FUNCTIONS {
        for width in WIDTHS {
            let mut x = values(width as u64, 40 * width, 5.0);
            let special = [0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, 88.0, -104.0];
            x.iter_mut().zip(special).for_each(|(x, s)| *x = s);
            let what = format!("{function:?} of {width}");
            let out = on_all(x.len(), &what, |cpu, out| unary(cpu, function, 40, width, &x, out));
            for (x, found) in x.iter().zip(&out) {
                if x.abs() < 5.0 {
                    let expected = definition(function, f64::from(*x));
                    assert!(near(*found, expected, 1e-1, 2e-6), "{what}: {found} for {expected} at {x}");
                } else if x.is_nan() {
                    assert!(found.is_nan(), "{what}: {found} at NaN");
                }
            }
        }
    }
    // What the levels run is the scalar function itself.
    let x = values(9, 577, 20.0);
    let out = on_all(577, "silu", |cpu, out| unary(cpu, Function::Silu, 1, 577, &x, out));
    assert!(same(&out, &x.iter().map(|x| math::silu(*x)).collect::<Vec<f32>>()));
}

#[test]
fn gated_units_are_their_definitions() {
    for limits in [None, Some(GateLimits { gate_max: 1.5, up_abs: 0.75 })] {
        for function in FUNCTIONS {
            for width in WIDTHS {
                let rows = 40;
                let (gate, up) = (values(1, rows * width, 4.0), values(2, rows * width, 3.0));
                let what = format!("{function:?} of {width}, {limits:?}");
                let out = on_all(rows * width, &what, |cpu, out| {
                    glu(cpu, function, limits, rows, width, &gate, &up, out);
                });
                let (mut g, mut u) = (gate, up);
                if let Some(limits) = limits {
                    g.iter_mut().for_each(|g| *g = g.min(limits.gate_max));
                    u.iter_mut().for_each(|u| *u = u.clamp(-limits.up_abs, limits.up_abs));
                }
                // The gate is the function's own bits, the product one rounding.
                let mut expected = vec![0.0; rows * width];
                let scalar = Cpu { pool: Pool::new(Some(1)), level: Level::SCALAR };
                unary(&scalar, function, rows, width, &g, &mut expected);
                expected.iter_mut().zip(&u).for_each(|(e, u)| *e *= u);
                assert!(same(&out, &expected), "{what}");
            }
        }
    }
}

#[test]
fn sums_and_products_are_exact_and_take_one_value_a_row() {
    for width in WIDTHS {
        for rows in ROWS {
            let (a, b) = (values(1, rows * width, 1e3), values(2, rows * width, 1e-3));
            let each = &b[..rows];
            for threads in [1, 2] {
                let pool = Pool::new(Some(threads));
                let mut out = vec![0.0; rows * width];
                let expect = |f: fn(f32, f32) -> f32, b: &dyn Fn(usize) -> f32| -> Vec<f32> {
                    a.iter().enumerate().map(|(i, a)| f(*a, b(i))).collect()
                };
                add(&pool, rows, width, &a, &b, &mut out);
                assert!(same(&out, &expect(|a, b| a + b, &|i| b[i])));
                mul(&pool, rows, width, &a, &b, &mut out);
                assert!(same(&out, &expect(|a, b| a * b, &|i| b[i])));
                if width > 1 {
                    add(&pool, rows, width, &a, each, &mut out);
                    assert!(same(&out, &expect(|a, b| a + b, &|i| each[i / width])));
                    mul(&pool, rows, width, &a, each, &mut out);
                    assert!(same(&out, &expect(|a, b| a * b, &|i| each[i / width])));
                }
            }
        }
    }
}

#[test]
fn rotation_is_its_definition() {
    // Heads of `head` values, of which `dims` from `offset` turn.
    for (head, dims, offset) in [(2, 2, 0), (6, 2, 3), (7, 6, 1), (34, 34, 0), (65, 30, 5), (128, 64, 64)] {
        for (halves, inverse, group, magnitude) in
            [(true, false, 1, 1.0), (false, false, 1, 1.0), (true, true, 4, 0.5), (false, true, 3, 1.25)]
        {
            let (rows, heads) = (37, 5);
            let frequencies = frequencies(dims, 10_000.0, 1.0, None, None);
            let spec = RopeSpec { dims, offset, halves, inverse, frequencies, magnitude, group };
            let positions: Vec<usize> = (0..rows).map(|r| r * r * 17).collect();
            let mut table = RopeTable::default();
            table.fill(&spec, positions.iter().copied());
            let x = values(head as u64, rows * heads * head, 3.0);
            let what = format!("{dims} of {head}, halves {halves}, inverse {inverse}");
            let out = on_all(x.len(), &what, |cpu, out| {
                out.copy_from_slice(&x);
                rotate(cpu, &spec, &table, rows, heads * head, head, out);
            });
            let mut expected: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
            for (at, values) in expected.chunks_exact_mut(head).enumerate() {
                let position = (positions[at / heads] + 1).saturating_sub(group) as f64;
                for i in 0..dims / 2 {
                    let (first, second) = if halves { (i, i + dims / 2) } else { (2 * i, 2 * i + 1) };
                    let angle = position * 10_000f64.powf(-2.0 * i as f64 / dims as f64);
                    let angle = if inverse { -angle } else { angle };
                    let (a, b) = (values[offset + first], values[offset + second]);
                    let m = f64::from(magnitude);
                    values[offset + first] = m * (a * angle.cos() - b * angle.sin());
                    values[offset + second] = m * (a * angle.sin() + b * angle.cos());
                }
            }
            for (i, (found, expected)) in out.iter().zip(&expected).enumerate() {
                // Two products of values up to 3 and one sum, each rounded once, of a table rounded once.
                assert!((f64::from(*found) - expected).abs() < 1.5e-6, "{what}, {i}: {found} for {expected}");
                let turned = (offset..offset + dims).contains(&(i % head));
                assert!(
                    turned || found.to_bits() == x[i].to_bits(),
                    "{what}: {i} is outside and was changed"
                );
            }
        }
    }
}

/// Ids and weights of one row in f64, by the definition.
fn routed(spec: &RouteSpec<'_>, logits: &[f32]) -> (Vec<usize>, Vec<f64>) {
    let x: Vec<f64> = logits.iter().map(|v| f64::from(*v)).collect();
    let softmax = |x: &[f64]| -> Vec<f64> {
        let sum: f64 = x.iter().map(|v| v.exp()).sum();
        x.iter().map(|v| v.exp() / sum).collect()
    };
    let scores = match spec.score {
        Score::Softmax => softmax(&x),
        Score::Sigmoid => x.iter().map(|v| definition(Function::Sigmoid, *v)).collect(),
        Score::SqrtSoftplus => x.iter().map(|v| definition(Function::Softplus, *v).sqrt()).collect(),
        Score::SoftmaxChosen => x,
    };
    let choice: Vec<f64> =
        scores.iter().enumerate().map(|(i, s)| s + spec.bias.map_or(0.0, |b| f64::from(b[i]))).collect();
    let descending = |of: &[f64]| {
        let mut order: Vec<usize> = (0..of.len()).collect();
        order.sort_by(|a, b| of[*b].total_cmp(&of[*a]));
        order
    };
    let (count, kept) = spec.groups.unwrap_or((1, 1));
    let size = spec.experts / count;
    let worth: Vec<f64> = choice
        .chunks(size)
        .map(|g| descending(g).iter().take(if count > 1 { 2 } else { 1 }).map(|i| g[*i]).sum())
        .collect();
    let groups = descending(&worth)[..kept].to_vec();
    let ids: Vec<usize> =
        descending(&choice).into_iter().filter(|i| groups.contains(&(i / size))).take(spec.used).collect();
    let mut weights: Vec<f64> = ids.iter().map(|i| scores[*i]).collect();
    if spec.score == Score::SoftmaxChosen {
        weights = softmax(&weights);
    }
    if spec.normalize {
        let sum = weights.iter().sum::<f64>().max(f64::from(spec.sum_floor));
        weights.iter_mut().for_each(|w| *w /= sum);
    }
    weights.iter_mut().for_each(|w| *w *= f64::from(spec.scale));
    (ids, weights)
}

/// Routes on every machine and asserts the same bits.
fn route_on_all(spec: &RouteSpec<'_>, rows: usize, logits: &[f32]) -> (Vec<u32>, Vec<f32>) {
    let mut first: Option<(Vec<u32>, Vec<f32>)> = None;
    for cpu in machines() {
        let (mut ids, mut weights) = (vec![u32::MAX; rows * spec.used], vec![f32::NAN; rows * spec.used]);
        route(&cpu, spec, rows, logits, &mut ids, &mut weights);
        let (all_ids, all_weights) = first.get_or_insert_with(|| (ids.clone(), weights.clone()));
        assert!(*all_ids == ids && same(all_weights, &weights), "{spec:?}: {} differs", name(&cpu));
    }
    first.unwrap_or_default()
}

#[test]
fn the_router_is_its_definition() {
    for (experts, used, groups) in [
        (1, 1, None),
        (3, 2, None),
        (17, 17, None),
        (30, 5, Some((5, 2))),
        (128, 8, None),
        (256, 8, Some((8, 4))),
    ] {
        let bias = values(77, experts, 0.05);
        for score in [Score::Softmax, Score::Sigmoid, Score::SqrtSoftplus, Score::SoftmaxChosen] {
            for (bias, normalize, sum_floor, scale) in [
                (None, true, 0.0, 1.0),
                (Some(&bias[..]), true, 1e-20, 2.5),
                (Some(&bias[..]), false, 0.0, 1.0),
                (None, true, 50.0, 1.0),
            ] {
                let spec = RouteSpec { experts, used, score, groups, bias, normalize, sum_floor, scale };
                let rows = 23;
                let logits = values(experts as u64, rows * experts, 3.0);
                let (ids, weights) = route_on_all(&spec, rows, &logits);
                for row in 0..rows {
                    let (expected_ids, expected) = routed(&spec, &logits[row * experts..][..experts]);
                    let found: Vec<usize> = ids[row * used..][..used].iter().map(|i| *i as usize).collect();
                    assert_eq!(found, expected_ids, "{spec:?}, row {row}");
                    for (found, expected) in weights[row * used..][..used].iter().zip(&expected) {
                        // Softmax sums `experts` terms; its smallest weights are relative to 1.
                        assert!(near(*found, *expected, 1e-4, 4e-6), "{spec:?}: {found} for {expected}");
                    }
                }
            }
        }
    }
}

#[test]
fn equal_scores_go_to_the_lower_number_and_nan_leaves_experts_distinct() {
    let spec = |score, groups| RouteSpec {
        experts: 24,
        used: 6,
        score,
        groups,
        bias: None,
        normalize: true,
        sum_floor: 0.0,
        scale: 1.0,
    };
    for score in [Score::Softmax, Score::Sigmoid, Score::SqrtSoftplus, Score::SoftmaxChosen] {
        let mut logits = vec![0.5; 24];
        let (ids, weights) = route_on_all(&spec(score, None), 1, &logits);
        assert_eq!(ids, [0, 1, 2, 3, 4, 5], "{score:?}");
        assert!(weights.iter().all(|w| near(*w, 1.0 / 6.0, 1.0, 1e-6)), "{score:?}: {weights:?}");
        (logits[20], logits[7], logits[22]) = (0.75, 0.75, 0.75);
        assert_eq!(route_on_all(&spec(score, None), 1, &logits).0, [7, 20, 22, 0, 1, 2], "{score:?}");
        // Groups of 8: the last holds two of the three best, then the lower of the others that are worth more.
        assert_eq!(route_on_all(&spec(score, Some((3, 1))), 1, &logits).0, [20, 22, 16, 17, 18, 19]);
        for bad in [vec![f32::NAN; 24], vec![f32::NEG_INFINITY; 24]] {
            let mut ids = route_on_all(&spec(score, Some((3, 1))), 1, &bad).0;
            ids.sort_unstable();
            ids.dedup();
            assert!(ids.len() == 6 && ids.iter().all(|id| *id < 24), "{score:?}: {ids:?}");
        }
    }
}
