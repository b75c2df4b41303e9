//! The joint decision head: one logit for every option of every question of a request.

use super::linear::{dot, multiply};
use super::norm::layer_norm;
use super::plain::softmax;
use super::pointwise::apply;
use crate::weights::Tensor;
use bloomery_program::op::Function;
use std::ops::Range;

/// A question of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Which type vector it gets.
    pub kind: QuestionKind,
    /// Positions of its instructions.
    pub span: Range<usize>,
    /// Positions of each option.
    pub options: Vec<Range<usize>>,
}

/// Type of a question: the row of the type vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuestionKind {
    /// True or false.
    Noul = 0,
    /// Named options.
    Choice = 1,
    /// Ordered levels.
    Score = 2,
}

/// Tensors by role.
pub trait HeadTensors {
    /// The tensor of a role.
    ///
    /// # Errors
    /// There is none.
    fn role(&self, role: &str) -> Result<&dyn Tensor, String>;
}

/// Constants of the head.
#[derive(Debug, Clone, Copy)]
pub struct DecisionHead {
    /// Attention heads.
    pub heads: usize,
    /// Routing blocks.
    pub routing_blocks: usize,
    /// Decoder blocks.
    pub decoder_blocks: usize,
    /// LayerNorm epsilon.
    pub eps: f32,
}

type Rows = Vec<Vec<f32>>;

struct Head<'a> {
    constants: DecisionHead,
    tensors: &'a dyn HeadTensors,
}

impl DecisionHead {
    /// Logits of all options, questions in order. `hidden` are the rows of the whole prompt, `tokens` their ids.
    ///
    /// # Errors
    /// A tensor cannot be read, or a span is empty or outside the prompt.
    pub fn logits(
        self,
        hidden: &[&[f32]],
        tokens: &[u32],
        questions: &[Question],
        tensors: &dyn HeadTensors,
    ) -> Result<Vec<f32>, String> {
        let head = Head { constants: self, tensors };
        let spans = questions.iter().flat_map(|q| q.options.iter().chain([&q.span]));
        for span in spans {
            if span.is_empty() || span.end > hidden.len() {
                return Err(format!("span {span:?} of a prompt of {} tokens", hidden.len()));
            }
        }
        head.logits(hidden, tokens, questions)
    }
}

impl Head<'_> {
    fn logits(&self, hidden: &[&[f32]], tokens: &[u32], questions: &[Question]) -> Result<Vec<f32>, String> {
        // H: the normalised prompt; memory M; g, its last row.
        let hidden: Rows = hidden.iter().map(|h| h.to_vec()).collect();
        let hidden = self.norm("hidden_norm", &hidden)?;
        let memory = self.project("proj_memory", &hidden)?;
        let last = hidden.last().ok_or("an empty prompt")?.clone();
        // For each question u; for each option its context c and its lexical vector x.
        let question_means: Rows = questions.iter().map(|q| mean(&hidden[q.span.clone()])).collect();
        let mut owner = Vec::new();
        let (mut contexts, mut lexical) = (Rows::new(), Rows::new());
        for (q, question) in questions.iter().enumerate() {
            for option in &question.options {
                owner.push(q);
                contexts.push(mean(&hidden[option.clone()]));
                lexical.push(self.lexical(&tokens[option.clone()])?);
            }
        }
        // Option queries r, then the routing blocks over all options of the request.
        let mut r = self.project("proj_option_context", &contexts)?;
        add(&mut r, &self.project("proj_option_lexical", &lexical)?);
        let of_question = self.project("proj_option_question", &question_means)?;
        for (r, q) in r.iter_mut().zip(&owner) {
            r.iter_mut().zip(&of_question[*q]).for_each(|(r, v)| *r += v);
        }
        for block in 0..self.constants.routing_blocks {
            let keys = self.block_norm(block, "cross_attn_norm_kv", &memory)?;
            let queries = self.block_norm(block, "cross_attn_norm", &r)?;
            add(&mut r, &self.attend(block, "cross_attn", &queries, &keys)?);
            let x = self.block_norm(block, "ffn_norm", &r)?;
            add(&mut r, &self.feed_forward(block, &x)?);
        }
        let mut fields = self.fields(questions, &question_means, &owner, &r, &last)?;
        // Decoder blocks over all questions of the request.
        let first = self.constants.routing_blocks;
        for block in first..first + self.constants.decoder_blocks {
            let x = self.block_norm(block, "attn_norm", &fields)?;
            add(&mut fields, &self.attend(block, "attn", &x, &x)?);
            let x = self.block_norm(block, "cross_attn_norm", &fields)?;
            add(&mut fields, &self.attend(block, "cross_attn", &x, &memory)?);
            let x = self.block_norm(block, "ffn_norm", &fields)?;
            add(&mut fields, &self.feed_forward(block, &x)?);
        }
        let fields = self.norm("field_norm", &fields)?;
        let options = self.norm("option_norm", &r)?;
        self.score(&owner, &fields, &options, &lexical, &question_means, &last)
    }

    /// `f = f0 + LN(sum_i a_i r_i) + proj_global g + type`, `a = softmax_i(r_i . f0 / sqrt(width))` in a question.
    fn fields(
        &self,
        questions: &[Question],
        question_means: &Rows,
        owner: &[usize],
        r: &Rows,
        last: &[f32],
    ) -> Result<Rows, String> {
        let mut fields = self.project("proj_question", question_means)?;
        let global = self.project("proj_global", &vec![last.to_vec()])?;
        for (q, field) in fields.iter_mut().enumerate() {
            let own: Vec<&Vec<f32>> = r.iter().zip(owner).filter(|(_, o)| **o == q).map(|(r, _)| r).collect();
            let root = (field.len() as f32).sqrt();
            let mut weights: Vec<f32> = own.iter().map(|r| dot(r, field) / root).collect();
            softmax(&mut weights);
            let mut summary = vec![0.0; field.len()];
            for (weight, r) in weights.iter().zip(own) {
                summary.iter_mut().zip(r).for_each(|(s, r)| *s += weight * r);
            }
            let summary = self.norm("option_summary_norm", &vec![summary])?;
            let mut scratch = Vec::new();
            let kind =
                self.tensors.role("token_types.weight")?.row(questions[q].kind as usize, &mut scratch)?;
            for (i, f) in field.iter_mut().enumerate() {
                *f += summary[0][i] + global[0][i] + kind[i];
            }
        }
        Ok(fields)
    }

    /// `prior + gate * joint` for every option.
    fn score(
        &self,
        owner: &[usize],
        fields: &Rows,
        options: &Rows,
        lexical: &Rows,
        question_means: &Rows,
        last: &[f32],
    ) -> Result<Vec<f32>, String> {
        let scales = self.vector("scales")?;
        let mut logits = Vec::with_capacity(owner.len());
        for (i, q) in owner.iter().enumerate() {
            let (f, o) = (&fields[*q], &options[i]);
            let anchor: Vec<f32> = question_means[*q].iter().zip(last).map(|(u, g)| u + g).collect();
            let prior = scales[0] * cosine(&lexical[i], &anchor);
            let pairs = || f.iter().zip(o);
            let mut features = f.clone();
            features.extend(o);
            features.extend(pairs().map(|(f, o)| f * o));
            features.extend(pairs().map(|(f, o)| (f - o).abs()));
            let mut inner = self.affine("scorer", &vec![features])?;
            inner[0].iter_mut().for_each(|v| *v = apply(Function::GeluErf, *v));
            let joint = scales[1] * cosine(f, o) + self.affine("scorer_out", &inner)?[0][0];
            logits.push(prior + scales[2] * joint);
        }
        Ok(logits)
    }

    /// Mean of the tokens' rows of the output matrix.
    fn lexical(&self, tokens: &[u32]) -> Result<Vec<f32>, String> {
        let table = self.tensors.role("output.weight")?;
        let mut scratch = Vec::new();
        let mut rows = Rows::new();
        for token in tokens {
            rows.push(table.row(*token as usize, &mut scratch)?.to_vec());
        }
        Ok(mean(&rows))
    }

    /// Multi-head attention without mask, scale `1 / sqrt(head width)`.
    fn attend(&self, block: usize, name: &str, queries: &Rows, memory: &Rows) -> Result<Rows, String> {
        let part = |p: &str| format!("dec.blk.{block}.{name}_{p}");
        let q = self.affine(&part("q"), queries)?;
        let k = self.affine(&part("k"), memory)?;
        let v = self.affine(&part("v"), memory)?;
        let width = q.first().map_or(0, Vec::len) / self.constants.heads;
        let mut mixed = vec![vec![0.0; width * self.constants.heads]; q.len()];
        for (q, mixed) in q.iter().zip(&mut mixed) {
            for head in 0..self.constants.heads {
                let span = head * width..(head + 1) * width;
                let root = (width as f32).sqrt();
                let mut weights: Vec<f32> =
                    k.iter().map(|k| dot(&q[span.clone()], &k[span.clone()]) / root).collect();
                softmax(&mut weights);
                for (weight, v) in weights.iter().zip(&v) {
                    mixed[span.clone()].iter_mut().zip(&v[span.clone()]).for_each(|(m, v)| *m += weight * v);
                }
            }
        }
        self.affine(&part("o"), &mixed)
    }

    fn feed_forward(&self, block: usize, x: &Rows) -> Result<Rows, String> {
        let mut inner = self.affine(&format!("dec.blk.{block}.ffn_up"), x)?;
        inner.iter_mut().flatten().for_each(|v| *v = apply(Function::GeluErf, *v));
        self.affine(&format!("dec.blk.{block}.ffn_down"), &inner)
    }

    fn block_norm(&self, block: usize, name: &str, x: &Rows) -> Result<Rows, String> {
        self.norm(&format!("dec.blk.{block}.{name}"), x)
    }

    fn norm(&self, name: &str, x: &Rows) -> Result<Rows, String> {
        let weight = self.vector(&format!("{name}.weight"))?;
        let bias = self.vector(&format!("{name}.bias"))?;
        let mut out = x.clone();
        for (x, out) in x.iter().zip(&mut out) {
            layer_norm(x, Some(&weight), Some(&bias), x.len(), self.constants.eps, out);
        }
        Ok(out)
    }

    fn affine(&self, name: &str, x: &Rows) -> Result<Rows, String> {
        let mut out = self.project(name, x)?;
        let bias = self.vector(&format!("{name}.bias"))?;
        out.iter_mut().for_each(|row| row.iter_mut().zip(&bias).for_each(|(v, b)| *v += b));
        Ok(out)
    }

    fn project(&self, name: &str, x: &Rows) -> Result<Rows, String> {
        let weight = self.tensors.role(&format!("{name}.weight"))?;
        let outs = weight.dims().get(1).copied().unwrap_or(1) as usize;
        let rows: Vec<&[f32]> = x.iter().map(Vec::as_slice).collect();
        let mut out = vec![vec![0.0; outs]; x.len()];
        multiply(weight, 0, outs, &rows, |r, o, v| out[r][o] = v)?;
        Ok(out)
    }

    fn vector(&self, role: &str) -> Result<Vec<f32>, String> {
        let mut scratch = Vec::new();
        Ok(self.tensors.role(role)?.row(0, &mut scratch)?.to_vec())
    }
}

fn mean(rows: &[Vec<f32>]) -> Vec<f32> {
    let mut mean = vec![0.0; rows.first().map_or(0, Vec::len)];
    for row in rows {
        mean.iter_mut().zip(row).for_each(|(m, v)| *m += v / rows.len() as f32);
    }
    mean
}

fn add(to: &mut Rows, from: &Rows) {
    for (to, from) in to.iter_mut().zip(from) {
        to.iter_mut().zip(from).for_each(|(a, b)| *a += b);
    }
}

/// Inner product of the normalised vectors; norms are at least 1e-12.
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let norm = |x: &[f32]| dot(x, x).sqrt().max(1e-12);
    dot(a, b) / (norm(a) * norm(b))
}
