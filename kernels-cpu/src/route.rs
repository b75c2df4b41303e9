//! The router: scores, the choice of experts, their weights.

use crate::cpu::Cpu;
use crate::lanes::Lanes;
use crate::level::Kernel;
use bloomery_formats::math;

/// Logits to scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Score {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid.
    Sigmoid,
    /// `sqrt(softplus(x))`.
    SqrtSoftplus,
    /// Choose by logit, then softmax over the chosen.
    SoftmaxChosen,
}

/// Constants of a router.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteSpec<'a> {
    /// Experts.
    pub experts: usize,
    /// Experts of a row.
    pub used: usize,
    /// Logits to scores.
    pub score: Score,
    /// Groups, and how many of them are kept; a group is as good as the sum of its two best experts.
    pub groups: Option<(usize, usize)>,
    /// `[experts]`: added to the scores for the choice only.
    pub bias: Option<&'a [f32]>,
    /// Divide the weights by their sum.
    pub normalize: bool,
    /// The sum is at least this.
    pub sum_floor: f32,
    /// Factor on the weights.
    pub scale: f32,
}

/// Chooses experts for rows of logits `[rows, experts]`; `ids` and `weights` are `[rows, used]`, best first. Equal scores go to
/// the lower number.
///
/// # Panics
/// When lengths disagree.
pub fn route(
    cpu: &Cpu,
    spec: &RouteSpec<'_>,
    rows: usize,
    logits: &[f32],
    ids: &mut [u32],
    weights: &mut [f32],
) {
    assert!(spec.used > 0 && spec.used <= spec.experts, "{} of {} experts", spec.used, spec.experts);
    assert!(
        logits.len() >= rows * spec.experts
            && ids.len() >= rows * spec.used
            && weights.len() >= rows * spec.used
    );
    assert!(spec.bias.is_none_or(|b| b.len() == spec.experts));
    let rows = logits.chunks_exact(spec.experts).take(rows);
    let (mut scores, mut choice) = (vec![0.0; spec.experts], vec![0.0; spec.experts]);
    for ((logits, ids), weights) in
        rows.zip(ids.chunks_exact_mut(spec.used)).zip(weights.chunks_exact_mut(spec.used))
    {
        scores.copy_from_slice(logits);
        cpu.level.run(Scores(spec.score, &mut scores));
        choice.copy_from_slice(&scores);
        if let Some(bias) = spec.bias {
            choice.iter_mut().zip(bias).for_each(|(c, b)| *c += b);
        }
        if let Some((count, kept)) = spec.groups {
            leave_groups(&mut choice, count, kept);
        }
        for id in ids.iter_mut() {
            let best = best(&choice);
            choice[best] = f32::NEG_INFINITY;
            *id = best as u32;
        }
        weigh(spec, &scores, ids, weights);
        distinct(ids);
    }
}

/// Weights of experts that are given: `ids` is `[rows, used]`, every number below `experts`; bias and groups have no say.
///
/// # Panics
/// When lengths disagree or a number is too large.
pub fn weigh_given(
    cpu: &Cpu,
    spec: &RouteSpec<'_>,
    rows: usize,
    logits: &[f32],
    ids: &[u32],
    weights: &mut [f32],
) {
    let needed = rows * spec.used;
    assert!(logits.len() >= rows * spec.experts && ids.len() >= needed && weights.len() >= needed);
    let mut scores = vec![0.0; spec.experts];
    let rows = logits.chunks_exact(spec.experts).take(rows);
    for ((logits, ids), weights) in
        rows.zip(ids.chunks_exact(spec.used)).zip(weights.chunks_exact_mut(spec.used))
    {
        scores.copy_from_slice(logits);
        cpu.level.run(Scores(spec.score, &mut scores));
        weigh(spec, &scores, ids, weights);
    }
}

/// Weights of the chosen experts of one row.
fn weigh(spec: &RouteSpec<'_>, scores: &[f32], ids: &[u32], weights: &mut [f32]) {
    weights.iter_mut().zip(ids).for_each(|(w, id)| *w = scores[*id as usize]);
    if spec.score == Score::SoftmaxChosen {
        softmax(weights);
    }
    if spec.normalize {
        let sum = weights.iter().sum::<f32>();
        let sum = if sum < spec.sum_floor { spec.sum_floor } else { sum };
        weights.iter_mut().for_each(|w| *w /= sum);
    }
    weights.iter_mut().for_each(|w| *w *= spec.scale);
}

struct Scores<'a>(Score, &'a mut [f32]);

impl Kernel for Scores<'_> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        match self.0 {
            Score::Softmax => softmax(self.1),
            Score::Sigmoid => self.1.iter_mut().for_each(|s| *s = math::sigmoid(*s)),
            Score::SqrtSoftplus => self.1.iter_mut().for_each(|s| *s = math::softplus(*s).sqrt()),
            Score::SoftmaxChosen => {}
        }
    }
}

#[inline(always)]
fn softmax(values: &mut [f32]) {
    let top = values.iter().fold(f32::NEG_INFINITY, |m, v| if *v > m { *v } else { m });
    for v in values.iter_mut() {
        *v = math::exp(*v - top);
    }
    let sum: f32 = values.iter().sum();
    for v in values.iter_mut() {
        *v /= sum;
    }
}

/// The first index of the largest value; a NaN is never larger.
fn best(values: &[f32]) -> usize {
    let mut best = 0;
    for (i, v) in values.iter().enumerate() {
        if *v > values[best] || values[best].is_nan() && !v.is_nan() {
            best = i;
        }
    }
    best
}

/// Where scores are NaN or minus infinity one expert may have been chosen twice: replace repeats by the lowest unused number, so
/// that every later stage may rely on distinct experts.
fn distinct(ids: &mut [u32]) {
    for i in 1..ids.len() {
        if ids[..i].contains(&ids[i]) {
            ids[i] = (0..).find(|id| !ids.contains(id)).unwrap_or(0);
        }
    }
}

fn leave_groups(choice: &mut [f32], count: usize, kept: usize) {
    let size = choice.len() / count.max(1);
    let mut scores: Vec<f32> = choice
        .chunks_exact(size)
        .map(|group| {
            let first = best(group);
            let second = group
                .iter()
                .enumerate()
                .filter(|(i, _)| *i != first)
                .fold(f32::NEG_INFINITY, |m, (_, v)| if *v > m { *v } else { m });
            group[first] + second
        })
        .collect();
    let mut stays = vec![false; scores.len()];
    for _ in 0..kept {
        let group = best(&scores);
        scores[group] = f32::NEG_INFINITY;
        stays[group] = true;
    }
    for (group, stays) in choice.chunks_exact_mut(size).zip(stays) {
        if !stays {
            group.fill(f32::NEG_INFINITY);
        }
    }
}
