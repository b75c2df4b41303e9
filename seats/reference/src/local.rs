//! Nodes whose rows depend on nothing but the same rows of their operands.

use crate::node::{Context, Outcome};
use crate::ops::experts::{ExpertWeights, GateUp};
use crate::ops::{decision, experts, linear, markov, norm, plain, pointwise, rope, streams};
use crate::table::{RowSet, Table, Value};
use crate::weights::Tensor;
use bloomery_program::Op;
use bloomery_program::op::{Clamp, Function, Route};
use std::rc::Rc;

/// Computes the node.
pub(crate) fn run(c: &Context<'_>) -> Outcome<Vec<Value>> {
    match &c.node.op {
        Op::Embed { scale } => embed(c, *scale),
        Op::RmsNorm { eps, group } => {
            let (x, weight) = (c.table(0)?, c.optional_vector("weight")?);
            c.fill(|r, out| norm::rms_norm(x.row(r), weight.as_deref(), *group as usize, *eps, out))
        }
        Op::LayerNorm { eps, group } => {
            let (x, weight) = (c.table(0)?, c.optional_vector("weight")?);
            let (bias, group) = (c.optional_vector("bias")?, *group as usize);
            c.fill(|r, out| norm::layer_norm(x.row(r), weight.as_deref(), bias.as_deref(), group, *eps, out))
        }
        Op::L2Norm { eps, group } => {
            let x = c.table(0)?;
            c.fill(|r, out| norm::l2_norm(x.row(r), *group as usize, *eps, out))
        }
        Op::GatedRmsNorm { eps, group, function } => {
            let (x, gate, weight) = (c.table(0)?, c.table(1)?, c.optional_vector("weight")?);
            let group = *group as usize;
            c.fill(|r, out| {
                let (x, gate) = (x.row(r), gate.row(r));
                norm::gated_rms_norm(x, gate, weight.as_deref(), group, *eps, *function, out);
            })
        }
        Op::Linear {} => linear(c),
        Op::GroupedLinear { groups } => grouped_linear(c, *groups as usize),
        Op::Add {} => {
            let (a, b) = (c.table(0)?, c.table(1)?);
            c.fill(|r, out| pointwise::combine(a.row(r), b.row(r), |a, b| a + b, out))
        }
        Op::Mul {} => {
            let (a, b) = (c.table(0)?, c.table(1)?);
            c.fill(|r, out| pointwise::combine(a.row(r), b.row(r), |a, b| a * b, out))
        }
        Op::Scale { by, plus } => {
            let x = c.table(0)?;
            c.fill(|r, out| out.iter_mut().zip(x.row(r)).for_each(|(out, x)| *out = x * by + plus))
        }
        Op::Affine {} => {
            let x = c.table(0)?;
            let (scale, bias) = (c.optional_vector("scale")?, c.optional_vector("bias")?);
            c.fill(|r, out| pointwise::affine(x.row(r), scale.as_deref(), bias.as_deref(), out))
        }
        Op::Unary { function } => {
            let x = c.table(0)?;
            c.fill(|r, out| {
                out.iter_mut().zip(x.row(r)).for_each(|(out, x)| *out = pointwise::apply(*function, *x));
            })
        }
        Op::Glu { act, clamp } => {
            let (gate, up) = (c.table(0)?, c.table(1)?);
            c.fill(|r, out| {
                pointwise::combine(gate.row(r), up.row(r), |g, u| pointwise::gated(*act, *clamp, g, u), out);
            })
        }
        Op::Concat {} => concat(c),
        Op::Slice { group, start, width } => {
            let x = c.table(0)?;
            let (group, start, width) = (*group as usize, *start as usize, *width as usize);
            c.fill(|r, out| pointwise::slice(x.row(r), group, start, width, out))
        }
        Op::Rope(constants) => {
            let x = c.table(0)?;
            let factors = c.optional_vector("freq_factors")?;
            let frequencies = rope::frequencies(constants, factors.as_deref());
            c.fill(|r, out| {
                let position = c.batch.rows[r].position;
                rope::rope(x.row(r), constants, &frequencies, position, out);
            })
        }
        Op::StreamSpread { .. } => {
            let x = c.table(0)?;
            c.fill(|r, out| out.chunks_exact_mut(x.width).for_each(|out| out.copy_from_slice(x.row(r))))
        }
        Op::StreamCollapse {} => {
            let (h, width) = (c.table(0)?, c.width(0));
            let pre = if c.operands() > 1 { Some(c.table(1)?) } else { None };
            c.fill(|r, out| streams::collapse(h.row(r), pre.map(|p| p.row(r)), width, out))
        }
        Op::StreamCombine {} => {
            let (h, y, post) = (c.table(0)?, c.table(1)?, c.table(2)?);
            let comb = if c.operands() > 3 { Some(c.table(3)?) } else { None };
            c.fill(|r, out| {
                streams::combine(h.row(r), y.row(r), post.row(r), comb.map(|m| m.row(r)), out);
            })
        }
        Op::StreamScale {} => {
            let (value, gate) = (c.table(0)?, c.table(1)?);
            c.fill(|r, out| streams::scale(value.row(r), gate.row(r), out))
        }
        Op::HyperMix { iterations, eps, norm_eps } => hyper_mix(c, *iterations as usize, *eps, *norm_eps),
        Op::HyperHead { eps, norm_eps } => {
            let (scale, base) = (c.vector("scale")?, c.vector("base")?);
            let m = projected_streams(c, *norm_eps)?;
            c.fill(|r, out| streams::hyper_head(m.row(r), scale[0], &base, *eps, out))
        }
        Op::LowRankMix { eps } => low_rank_mix(c, *eps),
        Op::MemoryGate { eps } => {
            let (h, key) = (c.table(0)?, c.table(1)?);
            let (q, k) = (c.vector("query_norm")?, c.vector("key_norm")?);
            let width = h.width / c.width(0);
            c.fill(|r, out| streams::memory_gate(h.row(r), key.row(r), &q, &k, width, *eps, out))
        }
        Op::Route(route) => router(c, route),
        Op::Experts { experts, act, clamp, .. } => routed_experts(c, *experts as usize, *act, *clamp),
        Op::MarkovChain { .. } => markov_chain(c),
        Op::DecisionHead { heads, routing_blocks, decoder_blocks, eps } => {
            let head = decision::DecisionHead {
                heads: *heads as usize,
                routing_blocks: *routing_blocks as usize,
                decoder_blocks: *decoder_blocks as usize,
                eps: *eps,
            };
            decision_head(c, head)
        }
        Op::MatMul { k } => {
            let (a, b) = (c.table(0)?, c.table(1)?);
            c.fill(|r, out| plain::mat_mul(a.row(r), b.row(r), *k as usize, out))
        }
        Op::Softmax { group } => {
            let x = c.table(0)?;
            c.fill(|r, out| {
                out.copy_from_slice(x.row(r));
                out.chunks_exact_mut(*group as usize).for_each(plain::softmax);
            })
        }
        Op::Reduce { by, group } => {
            let x = c.table(0)?;
            c.fill(|r, out| plain::reduce(x.row(r), *by, *group as usize, out))
        }
        Op::TopK { top_k } => largest(c, *top_k as usize),
        Op::Gather { width } => gather(c, *width as usize),
        Op::Reshape { .. } => {
            let x = c.table(0)?;
            c.fill(|r, out| out.copy_from_slice(x.row(r)))
        }
        Op::Transpose {} => {
            let x = c.table(0)?;
            // A result of one stream is plain rows in disguise; its shape says how many columns there were.
            let columns = match c.node.outs[0].shape {
                bloomery_program::Shape::Streams { streams, .. } => streams as usize,
                _ => 1,
            };
            c.fill(|r, out| plain::transpose(x.row(r), columns, out))
        }
        other => Err(format!("{} is not row-local", other.name())),
    }
}

fn embed(c: &Context<'_>, scale: f32) -> Outcome<Vec<Value>> {
    let table = c.tensor("weight")?;
    let mut scratch = Vec::new();
    let mut failed = Ok(());
    let rows = c.fill(|r, out| match table.row(c.batch.rows[r].token as usize, &mut scratch) {
        Ok(row) => out.iter_mut().zip(row).for_each(|(out, v)| *out = v * scale),
        Err(what) => failed = Err(what),
    });
    failed.and(rows)
}

fn linear(c: &Context<'_>) -> Outcome<Vec<Value>> {
    let x = c.operand_rows(0)?;
    let outs = c.width(0);
    let bias = c.optional_vector("bias")?;
    let mut table = Table::new(c.rows, outs);
    linear::multiply(c.tensor("weight")?, 0, outs, &x, |r, o, v| {
        table.data[r * outs + o] = v + bias.as_ref().map_or(0.0, |b| b[o]);
    })?;
    Ok(vec![Value::Rows(table)])
}

/// Group g of the row through matrix g.
fn grouped_linear(c: &Context<'_>, groups: usize) -> Outcome<Vec<Value>> {
    let x = c.operand_rows(0)?;
    let (width, all) = (c.table(0)?.width / groups, c.width(0));
    let outs = all / groups;
    let mut table = Table::new(c.rows, all);
    for g in 0..groups {
        let part: Vec<&[f32]> = x.iter().map(|x| &x[g * width..(g + 1) * width]).collect();
        linear::multiply(c.tensor("weight")?, g * outs, outs, &part, |r, o, v| {
            table.data[r * all + g * outs + o] = v;
        })?;
    }
    Ok(vec![Value::Rows(table)])
}

fn concat(c: &Context<'_>) -> Outcome<Vec<Value>> {
    let mut parts = Vec::new();
    for i in 0..c.operands() {
        parts.push(c.table(i)?);
    }
    c.fill(|r, out| {
        let mut at = 0;
        for part in &parts {
            out[at..at + part.width].copy_from_slice(part.row(r));
            at += part.width;
        }
    })
}

/// `fn . rms(flat streams)`.
fn projected_streams(c: &Context<'_>, norm_eps: f32) -> Outcome<Table<f32>> {
    let h = c.table(0)?;
    let flat = Table::fill(c.rows, h.width, |r, out| norm::rms_norm(h.row(r), None, h.width, norm_eps, out));
    project(c, c.tensor("fn")?, &flat)
}

fn project(c: &Context<'_>, weight: &dyn Tensor, x: &Table<f32>) -> Outcome<Table<f32>> {
    let outs = weight.dims().get(1).copied().unwrap_or(1) as usize;
    let rows: Vec<&[f32]> = c.rows.rows().iter().map(|r| x.row(*r)).collect();
    let mut table = Table::new(c.rows, outs);
    linear::multiply(weight, 0, outs, &rows, |r, o, v| table.data[r * outs + o] = v)?;
    Ok(table)
}

fn hyper_mix(c: &Context<'_>, iterations: usize, eps: f32, norm_eps: f32) -> Outcome<Vec<Value>> {
    let (scale, base) = (c.vector("scale")?, c.vector("base")?);
    let m = projected_streams(c, norm_eps)?;
    let [mut pre, mut post, mut comb] = [0, 1, 2].map(|i| Table::new(c.rows, c.width(i)));
    let (streams, pairs) = (pre.width, comb.width);
    for (place, r) in c.rows.rows().iter().enumerate() {
        streams::hyper_mix(
            m.row(*r),
            &scale,
            &base,
            iterations,
            eps,
            &mut pre.data[place * streams..(place + 1) * streams],
            &mut post.data[place * streams..(place + 1) * streams],
            &mut comb.data[place * pairs..(place + 1) * pairs],
        );
    }
    Ok(vec![Value::Rows(pre), Value::Rows(post), Value::Rows(comb)])
}

fn low_rank_mix(c: &Context<'_>, eps: f32) -> Outcome<Vec<Value>> {
    let (h, width) = (c.table(0)?, c.width(0));
    let streams = (h.width / width) as f32;
    let weight = c.vector("norm")?;
    // 1. Every stream normalised.
    let n = Table::fill(c.rows, h.width, |r, out| norm::rms_norm(h.row(r), Some(&weight), width, eps, out));
    // 2. Down, silu, up.
    let mut low = project(c, c.tensor("down")?, &n)?;
    low.data.iter_mut().for_each(|v| *v = pointwise::apply(Function::Silu, *v / streams));
    let up = project(c, c.tensor("up")?, &low)?;
    // 3. The gated mean of the streams, and what the sub-block's result is multiplied with.
    let mixed = Table::fill(c.rows, width, |r, out| streams::low_rank_mixed(n.row(r), up.row(r), out));
    let mut results = vec![Value::Rows(mixed)];
    if let Some(inject) = c.optional("inject")? {
        let mut post = project(c, inject, &n)?;
        post.data.iter_mut().for_each(|v| *v = 2.0 * pointwise::sigmoid(*v / streams));
        results.push(Value::Rows(post));
    }
    Ok(results)
}

fn router(c: &Context<'_>, route: &Route) -> Outcome<Vec<Value>> {
    let logits = c.table(0)?;
    let bias = c.optional_vector("bias")?;
    let table = c.optional("table")?;
    let used = route.used as usize;
    let mut ids = Table::<u32>::new(c.rows, used);
    let mut weights = Table::<f32>::new(c.rows, used);
    let mut scratch = Vec::new();
    for (place, r) in c.rows.rows().iter().enumerate() {
        let fixed = match table {
            None => None,
            Some(table) => {
                Some(experts_of_token(table, c.batch.rows[*r].token, route.experts, &mut scratch)?)
            }
        };
        let span = place * used..(place + 1) * used;
        experts::route(
            route,
            logits.row(*r),
            bias.as_deref(),
            fixed.as_deref(),
            &mut ids.data[span.clone()],
            &mut weights.data[span],
        );
    }
    Ok(vec![Value::Index(ids), Value::Rows(weights)])
}

/// Experts of hash routing.
fn experts_of_token(
    table: &dyn Tensor,
    token: u32,
    experts: u32,
    scratch: &mut Vec<f32>,
) -> Outcome<Vec<u32>> {
    let row = table.row(token as usize, scratch)?;
    row.iter()
        .map(|v| match *v >= 0.0 && *v < experts as f32 && v.fract() == 0.0 {
            true => Ok(*v as u32),
            false => Err(format!("the table gives token {token} expert {v} of {experts}")),
        })
        .collect()
}

/// Rows are grouped by expert so that each weight row is read once; results are added up in rank order.
fn routed_experts(
    c: &Context<'_>,
    experts: usize,
    act: Function,
    clamp: Option<Clamp>,
) -> Outcome<Vec<Value>> {
    let (x, ids, factors) = (c.table(0)?, c.index(1)?, c.table(2)?);
    let weights = ExpertWeights {
        gate_up: match c.optional("gate_up")? {
            Some(both) => GateUp::Fused(both),
            None => GateUp::Two(c.tensor("gate")?, c.tensor("up")?),
        },
        down: c.tensor("down")?,
        gate_bias: c.optional("gate_bias")?,
        up_bias: c.optional("up_bias")?,
        down_bias: c.optional("down_bias")?,
    };
    let used = ids.width;
    let mut results: Vec<Vec<f32>> = vec![Vec::new(); c.rows.len() * used];
    for number in 0..experts {
        let calls: Vec<(usize, usize)> = (0..c.rows.len())
            .flat_map(|place| (0..used).map(move |rank| (place, rank)))
            .filter(|(place, rank)| ids.row(c.rows.rows()[*place])[*rank] as usize == number)
            .collect();
        if calls.is_empty() {
            continue;
        }
        let rows: Vec<&[f32]> = calls.iter().map(|(place, _)| x.row(c.rows.rows()[*place])).collect();
        for ((place, rank), result) in calls.iter().zip(experts::expert(weights, number, act, clamp, &rows)?)
        {
            results[place * used + rank] = result;
        }
    }
    let mut place = 0;
    c.fill(|r, out| {
        for (rank, factor) in factors.row(r).iter().enumerate() {
            out.iter_mut().zip(&results[place * used + rank]).for_each(|(out, v)| *out += factor * v);
        }
        place += 1;
    })
}

fn markov_chain(c: &Context<'_>) -> Outcome<Vec<Value>> {
    let hidden = c.table(1)?;
    let mut logits = c.table(0)?.clone();
    let mut sure = Table::new(c.rows, 1);
    for (_, rows) in &c.batch.sequences {
        let mut block: Vec<Vec<f32>> = rows.iter().map(|r| logits.row(*r).to_vec()).collect();
        let mut slices: Vec<&mut [f32]> = block.iter_mut().map(Vec::as_mut_slice).collect();
        let hidden: Vec<&[f32]> = rows.iter().map(|r| hidden.row(*r)).collect();
        let confidence = markov::markov_chain(
            c.batch.rows[rows[0]].token,
            &mut slices,
            &hidden,
            c.tensor("w1")?,
            c.tensor("w2")?,
            c.tensor("confidence")?,
        )?;
        for ((r, row), confidence) in rows.iter().zip(block).zip(confidence) {
            let width = logits.width;
            logits.data[r * width..(r + 1) * width].copy_from_slice(&row);
            sure.data[*r] = confidence;
        }
    }
    Ok(vec![Value::Rows(logits), Value::Rows(sure)])
}

fn decision_head(c: &Context<'_>, head: decision::DecisionHead) -> Outcome<Vec<Value>> {
    let hidden = c.table(0)?;
    let rows = &c.batch.sequences[0].1;
    if c.batch.rows[rows[0]].position != 0 {
        return Err("a decision needs the whole prompt in one step".into());
    }
    let hidden: Vec<&[f32]> = rows.iter().map(|r| hidden.row(*r)).collect();
    let tokens: Vec<u32> = rows.iter().map(|r| c.batch.rows[*r].token).collect();
    let logits = head.logits(&hidden, &tokens, c.step.questions, c)?;
    let rows = Rc::new(RowSet::all(logits.len()));
    Ok(vec![Value::Rows(Table { width: 1, rows, data: logits })])
}

impl decision::HeadTensors for Context<'_> {
    fn role(&self, role: &str) -> Outcome<&dyn Tensor> {
        self.tensor(role)
    }
}

fn largest(c: &Context<'_>, top_k: usize) -> Outcome<Vec<Value>> {
    let x = c.table(0)?;
    let best: Vec<Vec<usize>> = c.rows.rows().iter().map(|r| plain::largest(x.row(*r), top_k)).collect();
    let mut values = Table::new(c.rows, top_k);
    let mut index = Table::<u32>::new(c.rows, top_k);
    for (place, r) in c.rows.rows().iter().enumerate() {
        for (k, i) in best[place].iter().enumerate() {
            values.data[place * top_k + k] = x.row(*r)[*i];
            index.data[place * top_k + k] = *i as u32;
        }
    }
    Ok(vec![Value::Rows(values), Value::Index(index)])
}

fn gather(c: &Context<'_>, width: usize) -> Outcome<Vec<Value>> {
    let (x, index) = (c.table(0)?, c.index(1)?);
    let mut failed = Ok(());
    let rows = c.fill(|r, out| {
        let chunks = x.width / width;
        for (out, i) in out.chunks_exact_mut(width).zip(index.row(r)) {
            match x.row(r).chunks_exact(width).nth(*i as usize) {
                Some(chunk) => out.copy_from_slice(chunk),
                None => failed = Err(format!("chunk {i} of {chunks}")),
            }
        }
    });
    failed.and(rows)
}
