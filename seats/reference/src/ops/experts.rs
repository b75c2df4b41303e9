//! Router and routed experts.

use super::linear::multiply;
use super::plain::{largest, softmax};
use super::pointwise::{gated, sigmoid, softplus};
use crate::weights::Tensor;
use bloomery_program::op::{Clamp, Function, Groups, Route, Score};

/// Chooses `used` experts for one row. `fixed` gives the experts of hash routing; then `bias` and groups have no say.
/// Ids come best first, weights in the same order.
pub fn route(
    route: &Route,
    logits: &[f32],
    bias: Option<&[f32]>,
    fixed: Option<&[u32]>,
    ids: &mut [u32],
    weights: &mut [f32],
) {
    // 1. Scores, the weights-to-be.
    let mut scores = logits.to_vec();
    match route.score {
        Score::Softmax => softmax(&mut scores),
        Score::Sigmoid => scores.iter_mut().for_each(|s| *s = sigmoid(*s)),
        Score::SqrtSoftplus => scores.iter_mut().for_each(|s| *s = softplus(*s).sqrt()),
        Score::SoftmaxChosen => {}
    }
    // 2. The choice: by score plus bias, inside the best groups.
    match fixed {
        Some(fixed) => ids.copy_from_slice(fixed),
        None => {
            let mut choice = scores.clone();
            if let Some(bias) = bias {
                choice.iter_mut().zip(bias).for_each(|(c, b)| *c += b);
            }
            if let Some(groups) = route.groups {
                leave_groups(&mut choice, groups);
            }
            let best = largest(&choice, ids.len());
            ids.iter_mut().zip(best).for_each(|(id, expert)| *id = expert as u32);
        }
    }
    // 3. Weights: the chosen scores without the bias.
    weights.iter_mut().zip(ids.iter()).for_each(|(w, id)| *w = scores[*id as usize]);
    if route.score == Score::SoftmaxChosen {
        softmax(weights);
    }
    if route.normalize {
        let sum = weights.iter().sum::<f32>().max(route.sum_floor);
        weights.iter_mut().for_each(|w| *w /= sum);
    }
    weights.iter_mut().for_each(|w| *w *= route.scale);
}

/// Puts the experts of all but the best groups out of reach. A group is as good as the sum of its two best experts.
fn leave_groups(choice: &mut [f32], groups: Groups) {
    let size = choice.len() / groups.count as usize;
    let score = |group: &[f32]| largest(group, 2).into_iter().map(|i| group[i]).sum::<f32>();
    let scores: Vec<f32> = choice.chunks_exact(size).map(score).collect();
    let kept = largest(&scores, groups.used as usize);
    for (group, choice) in choice.chunks_exact_mut(size).enumerate() {
        if !kept.contains(&group) {
            choice.fill(f32::NEG_INFINITY);
        }
    }
}

/// Weights of all experts of a layer: matrix `[in, out, experts]` each.
#[derive(Clone, Copy)]
pub struct ExpertWeights<'a> {
    /// `gate` and `up`, or one tensor with the gate's rows before the up rows.
    pub gate_up: GateUp<'a>,
    /// `[ff, width, experts]`.
    pub down: &'a dyn Tensor,
    /// `[ff, experts]`.
    pub gate_bias: Option<&'a dyn Tensor>,
    /// `[ff, experts]`.
    pub up_bias: Option<&'a dyn Tensor>,
    /// `[width, experts]`.
    pub down_bias: Option<&'a dyn Tensor>,
}

/// The first half of an expert.
#[derive(Clone, Copy)]
pub enum GateUp<'a> {
    /// `[width, ff, experts]` each.
    Two(&'a dyn Tensor, &'a dyn Tensor),
    /// `[width, 2 * ff, experts]`.
    Fused(&'a dyn Tensor),
}

/// `down . gated(gate . x, up . x)` of one expert for several rows; `[rows, width]`.
///
/// # Errors
/// A row of a weight cannot be read.
pub fn expert(
    weights: ExpertWeights<'_>,
    number: usize,
    act: Function,
    clamp: Option<Clamp>,
    x: &[&[f32]],
) -> Result<Vec<Vec<f32>>, String> {
    let ff = weights.down.dims()[0] as usize;
    let width = weights.down.dims()[1] as usize;
    let mut gate = vec![vec![0.0; ff]; x.len()];
    let mut up = gate.clone();
    match weights.gate_up {
        GateUp::Two(g, u) => {
            multiply(g, number * ff, ff, x, |r, o, v| gate[r][o] = v)?;
            multiply(u, number * ff, ff, x, |r, o, v| up[r][o] = v)?;
        }
        GateUp::Fused(both) => {
            multiply(both, number * 2 * ff, ff, x, |r, o, v| gate[r][o] = v)?;
            multiply(both, number * 2 * ff + ff, ff, x, |r, o, v| up[r][o] = v)?;
        }
    }
    add_bias(weights.gate_bias, number, &mut gate)?;
    add_bias(weights.up_bias, number, &mut up)?;
    for (gate, up) in gate.iter_mut().zip(&up) {
        gate.iter_mut().zip(up).for_each(|(g, u)| *g = gated(act, clamp, *g, *u));
    }
    let hidden: Vec<&[f32]> = gate.iter().map(Vec::as_slice).collect();
    let mut out = vec![vec![0.0; width]; x.len()];
    multiply(weights.down, number * width, width, &hidden, |r, o, v| out[r][o] = v)?;
    add_bias(weights.down_bias, number, &mut out)?;
    Ok(out)
}

fn add_bias(bias: Option<&dyn Tensor>, number: usize, rows: &mut [Vec<f32>]) -> Result<(), String> {
    if let Some(bias) = bias {
        let mut scratch = Vec::new();
        let bias = bias.row(number, &mut scratch)?;
        rows.iter_mut().for_each(|row| row.iter_mut().zip(bias).for_each(|(v, b)| *v += b));
    }
    Ok(())
}
