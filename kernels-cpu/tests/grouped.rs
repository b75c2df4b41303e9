//! Grouped products, layer norm, given experts and n-gram rows against their definitions, bit for bit on every machine.

mod support;

use bloomery_formats::WeightType;
use bloomery_kernels_cpu::activations::Activations;
use bloomery_kernels_cpu::grouped::grouped_linear;
use bloomery_kernels_cpu::kv::Run;
use bloomery_kernels_cpu::matrix::Matrix;
use bloomery_kernels_cpu::ngram::{NgramSpec, NoRow, ngram_embed};
use bloomery_kernels_cpu::route::{RouteSpec, Score, route, weigh_given};
use bloomery_kernels_cpu::rows::{NormSpec, layer_norm};
use bloomery_reference::ops::embed::{NgramHash, ngram_rows};
use bloomery_reference::ops::{linear, norm};
use support::{machines, near, on_all, same, values};

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

#[test]
fn every_group_goes_through_its_own_matrix() {
    for (groups, cols, outs, rows) in [(4, 32, 24, 1), (3, 20, 7, 5), (1, 64, 50, 33), (70, 16, 16, 40)] {
        let what = format!("{rows} rows of {groups} groups, {cols} to {outs}");
        let (x, w) = (values(1, rows * groups * cols, 1.0), values(2, groups * outs * cols, 1.0));
        let data = bytes(&w);
        let weight = Matrix::new(WeightType::F32, &data, groups * outs, cols).unwrap();
        let found = on_all(rows * groups * outs, &what, |cpu, out| {
            let mut quantized = Activations::new(weight.activation_kind(), cols).unwrap();
            quantized.reset(weight.activation_kind(), cols, rows * groups).unwrap();
            grouped_linear(cpu, groups, &weight, rows, &x, &mut quantized, out);
        });
        for (i, found) in found.iter().enumerate() {
            let (row, output) = (i / (groups * outs), i % (groups * outs));
            let x = &x[(row * groups + output / outs) * cols..][..cols];
            let expected = linear::dot(&w[output * cols..][..cols], x);
            assert!(near(*found, expected.into(), 1.0, 1e-5), "{what}, {i}: {found} for {expected}");
        }
    }
}

#[test]
fn layer_norm_is_its_definition() {
    for (width, group, rows) in [(64, 64, 3), (33, 11, 40), (1, 1, 2), (577, 577, 9)] {
        let what = format!("{rows} rows of {width}, groups of {group}");
        let x = values(1, rows * width, 3.0);
        let (weight, bias) = (values(2, width, 2.0), values(3, group, 2.0));
        for (weight, bias) in [(Some(&weight[..]), Some(&bias[..])), (None, None)] {
            let spec = NormSpec { weight, group, eps: 1e-5 };
            let found =
                on_all(rows * width, &what, |cpu, out| layer_norm(cpu, spec, bias, rows, width, &x, out));
            let mut expected = vec![0.0; rows * width];
            for (x, out) in x.chunks_exact(width).zip(expected.chunks_exact_mut(width)) {
                norm::layer_norm(x, weight, bias, group, 1e-5, out);
            }
            for (i, (a, b)) in found.iter().zip(&expected).enumerate() {
                assert!(near(*a, (*b).into(), 1.0, 3e-6), "{what}, {i}: {a} for {b}");
            }
        }
    }
}

#[test]
fn given_experts_weigh_as_if_they_were_chosen() {
    let (experts, used, rows) = (16, 4, 9);
    let logits = values(1, rows * experts, 3.0);
    for score in [Score::Softmax, Score::Sigmoid, Score::SqrtSoftplus, Score::SoftmaxChosen] {
        let spec = RouteSpec {
            experts,
            used,
            score,
            groups: None,
            bias: None,
            normalize: true,
            sum_floor: 1e-20,
            scale: 1.5,
        };
        for cpu in machines() {
            let (mut ids, mut chosen) = (vec![0; rows * used], vec![0.0; rows * used]);
            route(&cpu, &spec, rows, &logits, &mut ids, &mut chosen);
            let mut given = vec![f32::NAN; rows * used];
            weigh_given(&cpu, &spec, rows, &logits, &ids, &mut given);
            assert!(same(&chosen, &given), "{score:?}");
        }
    }
}

#[test]
fn ngrams_are_looked_up_in_any_cut_of_the_text() {
    let (width, table_rows) = (8, 200);
    let table = values(1, table_rows * width, 1.0);
    let data = bytes(&table);
    let table_matrix = Matrix::new(WeightType::F32, &data, table_rows, width).unwrap();
    let map: Vec<u64> = (0..50).map(|t| t * t % 37).collect();
    for (max_ngram, map) in [(3, None), (4, Some(map)), (2, None)] {
        let heads = 3;
        let rows = (max_ngram - 1) * heads;
        let spec = NgramSpec {
            max_ngram,
            heads,
            multipliers: (0..max_ngram as u64)
                .map(|i| 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(2 * i + 1))
                .collect(),
            moduli: (0..rows as u64).map(|i| 11 + 2 * i).collect(),
            offsets: (0..rows as u64).map(|i| 7 * i).collect(),
            fill: 5,
            cut: vec![3],
            map,
        };
        let tokens: Vec<u32> = (0..60).map(|i| (i * i * 3 + 1) % 50).collect();
        let hash = NgramHash {
            max_ngram,
            heads,
            multipliers: &spec.multipliers,
            moduli: &spec.moduli,
            offsets: &spec.offsets,
            fill: spec.fill,
            cut: &spec.cut,
            map: spec.map.as_deref(),
        };
        let mut expected = Vec::new();
        for i in 0..tokens.len() {
            let newest_first: Vec<u32> = tokens[..=i].iter().rev().copied().collect();
            for row in ngram_rows(hash, &newest_first).unwrap() {
                expected.extend_from_slice(&table[row as usize * width..][..width]);
            }
        }
        for chunk in [1, 7, 60] {
            let found = on_all(expected.len(), "n-grams", |cpu, out| {
                for first in (0..tokens.len()).step_by(chunk) {
                    let end = tokens.len().min(first + chunk);
                    let run = Run { first_row: first, rows: end - first, position: first, pages: &[] };
                    let before = &tokens[first.saturating_sub(max_ngram - 1)..first];
                    ngram_embed(cpu, &spec, &table_matrix, &run, &tokens, before, out).unwrap();
                }
            });
            assert!(same(&found, &expected), "{max_ngram}-grams, steps of {chunk}");
        }
        let run = Run { first_row: 0, rows: 1, position: 0, pages: &[] };
        let mut out = vec![0.0; rows * width];
        let small = Matrix::new(WeightType::F32, &data[..4 * width], 1, width).unwrap();
        let cpu = &machines()[0];
        assert_eq!(ngram_embed(cpu, &spec, &small, &run, &tokens, &[], &mut out), Err(NoRow));
    }
}
