//! Logits equal the naive executor's within rounding; bits do not depend on steps, threads, company or fusion.

use super::small::{Builder, KINDS, Model, VOCABULARY, model};
use crate::cpu::{CacheType, CpuError, CpuExecutor, CpuOptions, MemoryTensors};
use crate::executor::{Executor, Row, SequenceId};
use bloomery_program::op::{Attention, Source};
use bloomery_program::{Op, OutputKind, ValueId};
use bloomery_reference::{CacheType as ReferenceCache, Reference, Row as ReferenceRow, Step};
use std::sync::Arc;

pub fn options(threads: usize, fuse: bool) -> CpuOptions {
    CpuOptions {
        threads: Some(threads),
        max_rows: 128,
        max_tokens: 256,
        store_tokens: 1024,
        cache_key: CacheType::F32,
        cache_value: CacheType::F32,
        fuse,
        draft: false,
    }
}

pub fn executor(model: &Model, tensors: &MemoryTensors, options: &CpuOptions) -> CpuExecutor {
    CpuExecutor::new(&model.program, Arc::new(tensors.clone()), options).unwrap()
}

pub fn text(seed: usize, n: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * i * 7 + i * 13 + seed * 5) % VOCABULARY as usize) as u32).collect()
}

pub fn rows(tokens: &[u32], first: usize, sequence: SequenceId) -> Vec<Row> {
    let row = |(i, token): (usize, &u32)| Row {
        token: *token,
        position: first + i,
        sequence,
        wants_logits: true,
        wants_hidden: (first + i).is_multiple_of(3),
    };
    tokens.iter().enumerate().map(row).collect()
}

/// Logits and hidden rows of a whole text.
fn run(executor: &mut CpuExecutor, tokens: &[u32], chunk: usize) -> (Vec<f32>, Vec<f32>) {
    let sequence = executor.create().unwrap();
    let (mut logits, mut hidden) = (vec![], vec![]);
    for (i, part) in tokens.chunks(chunk).enumerate() {
        let out = executor.run(&rows(part, i * chunk, sequence)).unwrap();
        logits.extend_from_slice(out.logits);
        hidden.extend_from_slice(out.hidden);
    }
    executor.drop_sequence(sequence);
    (logits, hidden)
}

fn bits(a: &(Vec<f32>, Vec<f32>)) -> Vec<u32> {
    a.0.iter().chain(&a.1).map(|v| v.to_bits()).collect()
}

#[test]
fn equals_the_naive_executor() {
    let tokens = text(0, 70);
    for kind in 0..KINDS {
        let model = model(kind);
        let reference =
            Reference::new(model.program.clone(), &model.facts, model.reference_weights()).unwrap();
        let mut states = reference.states(ReferenceCache::F32);
        states.create(1).unwrap();
        let reference_rows: Vec<ReferenceRow> =
            (0..tokens.len()).map(|i| ReferenceRow { sequence: 1, token: tokens[i], position: i }).collect();
        let step = Step { rows: &reference_rows, ..Step::default() };
        let outputs = reference.forward(&step, &mut states, None).unwrap();
        let table = |kind| &outputs.iter().find(|o| o.kind == kind).unwrap().table;
        let (logits, hidden) = run(&mut executor(&model, &model.tensors, &options(2, true)), &tokens, 32);
        let close = |a: &[f32], b: &[f32], what: &str| {
            let scale = b.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            let worst = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);
            assert!(
                a.len() == b.len() && worst < 2e-5 * scale.max(1.0),
                "{what} of kind {kind}: {worst} of {scale}"
            );
        };
        close(&logits, &table(OutputKind::Logits).data, "logits");
        let every_third: Vec<f32> =
            table(OutputKind::Hidden).data.chunks_exact(64).step_by(3).flatten().copied().collect();
        close(&hidden, &every_third, "hidden rows");
    }
}

#[test]
fn no_bit_depends_on_steps_threads_company_or_fusion() {
    let tokens = text(3, 75);
    for kind in 0..KINDS {
        let model = model(kind);
        for tensors in [model.tensors.clone(), model.quantized()] {
            let expected = bits(&run(&mut executor(&model, &tensors, &options(1, true)), &tokens, 128));
            for (threads, fuse) in [(1, false), (2, true), (2, false)] {
                let mut executor = executor(&model, &tensors, &options(threads, fuse));
                for chunk in [1, 7, 64, 75] {
                    let found = bits(&run(&mut executor, &tokens, chunk));
                    assert!(
                        expected == found,
                        "kind {kind}, {threads} threads, fused {fuse}, steps of {chunk}"
                    );
                }
            }
            let mut executor = executor(&model, &tensors, &options(2, true));
            let company: Vec<SequenceId> = (0..3).map(|_| executor.create().unwrap()).collect();
            let (mut logits, mut hidden) = (vec![], vec![]);
            for (i, part) in tokens.chunks(11).enumerate() {
                let mut step = Vec::new();
                for (j, row) in rows(part, i * 11, company[1]).into_iter().enumerate() {
                    let other = Row {
                        sequence: company[0],
                        token: 5,
                        wants_logits: false,
                        wants_hidden: false,
                        ..row
                    };
                    step.push(other);
                    step.push(row);
                    if j == 0 {
                        step.push(Row { sequence: company[2], position: i, ..other });
                    }
                }
                let out = executor.run(&step).unwrap();
                logits.extend_from_slice(out.logits);
                hidden.extend_from_slice(out.hidden);
            }
            assert!(expected == bits(&(logits, hidden)), "kind {kind} in company");
        }
    }
}

#[test]
fn tracing_shows_every_named_result() {
    let model = model(3);
    let mut executor = executor(&model, &model.tensors, &options(1, false));
    let sequence = executor.create().unwrap();
    let mut shown = std::collections::BTreeSet::new();
    executor
        .run_traced(&rows(&text(1, 5), 0, sequence), &mut |name, values, width| {
            assert_eq!(values.len(), 5 * width, "{name}");
            shown.insert(name.to_string());
        })
        .unwrap();
    let named = model.program.graphs[0].nodes.iter().flat_map(|n| &n.outs);
    for out in named {
        assert!(shown.contains(&out.name), "{} was not shown", out.name);
    }
}

#[test]
fn every_missing_kernel_is_named_at_once() {
    let mut b = Builder::new(1);
    let n = u64::from(VOCABULARY);
    let table = b.tensor("embedding", &[64, n], 0.0);
    let x = b.one(Op::Embed { scale: 1.0 }, &[ValueId(0)], &[("weight", table)]);
    let mut logits = b.linear(x, n, "output", false);
    for _ in 0..2 {
        let shift = ["w1", "w2"].map(|role| (role, b.tensor(role, &[8, n], 0.0)));
        let sure = b.tensor("confidence", &[72, 1], 0.0);
        let tensors = [&shift[..], &[("confidence", sure)]].concat();
        logits = b.one(Op::MarkovChain { rank: 8 }, &[logits, x, ValueId(0)], &tensors);
    }
    let state = b.state(64, 64);
    b.node(Op::Append { state }, &[x, x], &[]);
    let attention = Attention {
        heads: 1,
        kv_heads: 1,
        key: 64,
        value: 64,
        scale: 1.0,
        softcap: None,
        block_bidirectional: true,
        sources: vec![Source { state, window: None, selected: false }],
    };
    b.one(Op::Attention(attention), &[x], &[]);
    let model = b.finish(logits, None);
    let Err(error) = CpuExecutor::new(&model.program, Arc::new(model.tensors), &options(1, true)) else {
        panic!("it was accepted");
    };
    let CpuError::Missing { missing } = &error else { panic!("{error}") };
    let names: Vec<&str> = missing.iter().map(|m| m.operator.as_str()).collect();
    assert_eq!(names, ["attention", "markov_chain"]);
    assert_eq!(missing[1].nodes, 2);
    assert!(error.to_string().contains("--backend reference"), "{error}");
}
