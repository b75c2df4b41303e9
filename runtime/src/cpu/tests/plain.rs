//! A model of the plain tier's operators: the logits of the naive executor, the same bits for any steps, threads and fusion.

use super::against_reference::{executor, options, rows, text};
use super::small::{Builder, Model, VOCABULARY};
use crate::executor::Executor;
use bloomery_program::op::{Function, Reduction};
use bloomery_program::{Op, OutputKind, ValueId};
use bloomery_reference::{CacheType as ReferenceCache, Reference, Row as ReferenceRow, Step};

/// Every plain operator once, some before the last stateful node and some behind it.
fn model() -> Model {
    let mut b = Builder::new(21);
    let table = b.tensor("embedding", &[64, u64::from(VOCABULARY)], 0.0);
    let x = b.one(Op::Embed { scale: 1.0 }, &[ValueId(0)], &[("weight", table)]);
    let unit = b.one(Op::L2Norm { eps: 1e-6, group: 16 }, &[x], &[]);
    let streams = b.one(Op::Reshape { streams: 4 }, &[unit], &[]);
    let turned = b.one(Op::Transpose {}, &[streams], &[]);
    let flat = b.one(Op::Reshape { streams: 1 }, &[turned], &[]);
    // Four lines against four lines of sixteen values, as the weights of a mix of four chunks.
    let products = b.one(Op::MatMul { k: 16 }, &[unit, flat], &[]);
    let weights = b.one(Op::Softmax { group: 4 }, &[products], &[]);
    let best = b.node(Op::TopK { top_k: 3 }, &[weights], &[]);
    let chunks = b.linear(x, 16 * 16, "chunks", false);
    let picked = b.one(Op::Gather { width: 16 }, &[chunks, best[1]], &[]);
    let all = b.one(Op::Concat {}, &[picked, best[0], flat], &[]);
    let q = b.linear(all, 64, "q", false);
    let k = b.linear(all, 32, "k", false);
    let v = b.linear(all, 32, "v", false);
    let a = b.attention(q, k, v, 4, 2);
    let sum = b.one(Op::Reduce { by: Reduction::Sum, group: 4 }, &[a], &[]);
    let mean = b.one(Op::Reduce { by: Reduction::Mean, group: 4 }, &[a], &[]);
    let most = b.one(Op::Reduce { by: Reduction::Max, group: 4 }, &[a], &[]);
    let all = b.one(Op::Concat {}, &[sum, mean, most], &[]);
    let shares = b.one(Op::Softmax { group: 12 }, &[all], &[]);
    let y = b.one(Op::Unary { function: Function::Tanh }, &[shares], &[]);
    let logits = b.linear(y, u64::from(VOCABULARY), "output", true);
    b.finish(logits, None)
}

#[test]
fn plain_operators_equal_the_naive_executor() {
    let (model, tokens) = (model(), text(0, 70));
    let reference = Reference::new(model.program.clone(), &model.facts, model.reference_weights()).unwrap();
    let mut states = reference.states(ReferenceCache::F32);
    states.create(1).unwrap();
    let naive: Vec<ReferenceRow> =
        (0..tokens.len()).map(|i| ReferenceRow { sequence: 1, token: tokens[i], position: i }).collect();
    let outputs = reference.forward(&Step { rows: &naive, ..Step::default() }, &mut states, None).unwrap();
    let expected = &outputs.iter().find(|o| o.kind == OutputKind::Logits).unwrap().table.data;
    let mut first: Option<Vec<f32>> = None;
    for (threads, fuse) in [(1, true), (2, true), (2, false)] {
        let mut executor = executor(&model, &model.tensors, &options(threads, fuse));
        for chunk in [1, 7, 64, 70] {
            let sequence = executor.create().unwrap();
            let mut found = Vec::new();
            for (i, part) in tokens.chunks(chunk).enumerate() {
                found.extend_from_slice(executor.run(&rows(part, i * chunk, sequence)).unwrap().logits);
            }
            let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(found.len() == expected.len() && worst < 1e-4, "{worst}");
            assert_eq!(first.get_or_insert(found.clone()), &found, "{threads} threads, steps of {chunk}");
        }
    }
}
