//! The joint decision head: one logit for every option of a request, from the rows of its whole prompt.
//!
//! It runs once a request, after the trunk, over a few rows for each question and option; only the products with the prompt's memory
//! are large. So it allocates as it goes.

use super::super::CpuError;
use super::super::execute::Machine;
use super::super::lower::Lowering;
use super::super::step::{Slot, Vector};
use super::super::weights::TensorRef;
use super::broken;
use crate::executor::Question;
use bloomery_formats::dequantize_row;
use bloomery_kernels_cpu::activations::Activations;
use bloomery_kernels_cpu::cross::cross_attention;
use bloomery_kernels_cpu::linear::{Projection, project};
use bloomery_kernels_cpu::pointwise::{Function, unary};
use bloomery_kernels_cpu::rows::{NormSpec, layer_norm, quantize};
use bloomery_program::{Node, Op};

type Result<T> = std::result::Result<T, CpuError>;

/// A product with its bias.
#[derive(Debug, Clone, Copy)]
struct Dense {
    weight: TensorRef,
    bias: Option<Vector>,
}

/// A layer norm.
#[derive(Debug, Clone, Copy)]
struct Norm {
    weight: Vector,
    bias: Vector,
}

#[derive(Debug, Clone, Copy)]
struct Heads {
    q: Dense,
    k: Dense,
    v: Dense,
    o: Dense,
}

#[derive(Debug, Clone, Copy)]
struct FeedForward {
    norm: Norm,
    up: Dense,
    down: Dense,
}

#[derive(Debug, Clone, Copy)]
struct RoutingBlock {
    queries: Norm,
    keys: Norm,
    cross: Heads,
    feed_forward: FeedForward,
}

#[derive(Debug, Clone, Copy)]
struct DecoderBlock {
    own_norm: Norm,
    own: Heads,
    cross_norm: Norm,
    cross: Heads,
    feed_forward: FeedForward,
}

/// The head with its tensors.
#[derive(Debug, Clone)]
pub(crate) struct DecisionOf {
    /// The trunk's rows, and their width.
    pub hidden: (Slot, usize),
    heads: usize,
    eps: f32,
    hidden_norm: Norm,
    memory: Dense,
    question: Dense,
    option_question: Dense,
    global: Dense,
    option_context: Dense,
    option_lexical: Dense,
    token_types: TensorRef,
    summary_norm: Norm,
    field_norm: Norm,
    option_norm: Norm,
    scorer: Dense,
    scorer_out: Dense,
    scales: Vector,
    lexical: TensorRef,
    routing: Vec<RoutingBlock>,
    decoder: Vec<DecoderBlock>,
}

impl Lowering<'_> {
    /// The head is no step: it runs when the trunk has run over all of the prompt.
    pub(crate) fn decision(&mut self, node: &Node) -> Result<()> {
        let Op::DecisionHead { heads, routing_blocks, decoder_blocks, eps } = node.op else {
            return Err(broken("no decision head"));
        };
        let hidden = (self.operand(node, 0)?, self.width(node.ins[0]));
        let bare = |this: &Self, name: &str| {
            Ok::<_, CpuError>(Dense { weight: this.matrix(node, &format!("{name}.weight"))?, bias: None })
        };
        let (mut routing, mut decoder) = (Vec::new(), Vec::new());
        for block in 0..routing_blocks {
            let part = |name: &str| format!("dec.blk.{block}.{name}");
            routing.push(RoutingBlock {
                queries: self.decision_norm(node, &part("cross_attn_norm"))?,
                keys: self.decision_norm(node, &part("cross_attn_norm_kv"))?,
                cross: self.decision_heads(node, &part("cross_attn"))?,
                feed_forward: self.decision_feed_forward(node, block)?,
            });
        }
        for block in routing_blocks..routing_blocks + decoder_blocks {
            let part = |name: &str| format!("dec.blk.{block}.{name}");
            decoder.push(DecoderBlock {
                own_norm: self.decision_norm(node, &part("attn_norm"))?,
                own: self.decision_heads(node, &part("attn"))?,
                cross_norm: self.decision_norm(node, &part("cross_attn_norm"))?,
                cross: self.decision_heads(node, &part("cross_attn"))?,
                feed_forward: self.decision_feed_forward(node, block)?,
            });
        }
        let of = DecisionOf {
            hidden,
            heads: heads as usize,
            eps,
            hidden_norm: self.decision_norm(node, "hidden_norm")?,
            memory: bare(self, "proj_memory")?,
            question: bare(self, "proj_question")?,
            option_question: bare(self, "proj_option_question")?,
            global: bare(self, "proj_global")?,
            option_context: bare(self, "proj_option_context")?,
            option_lexical: bare(self, "proj_option_lexical")?,
            token_types: self.matrix(node, "token_types.weight")?,
            summary_norm: self.decision_norm(node, "option_summary_norm")?,
            field_norm: self.decision_norm(node, "field_norm")?,
            option_norm: self.decision_norm(node, "option_norm")?,
            scorer: self.decision_dense(node, "scorer")?,
            scorer_out: self.decision_dense(node, "scorer_out")?,
            scales: self.needed(node, "scales")?,
            lexical: self.matrix(node, "output.weight")?,
            routing,
            decoder,
        };
        self.set_decision(of);
        Ok(())
    }

    fn decision_dense(&mut self, node: &Node, name: &str) -> Result<Dense> {
        let bias = Some(self.needed(node, &format!("{name}.bias"))?);
        Ok(Dense { weight: self.matrix(node, &format!("{name}.weight"))?, bias })
    }

    fn decision_norm(&mut self, node: &Node, name: &str) -> Result<Norm> {
        let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
        Ok(Norm { weight: self.needed(node, &weight)?, bias: self.needed(node, &bias)? })
    }

    fn decision_heads(&mut self, node: &Node, name: &str) -> Result<Heads> {
        let mut part = |p: &str| self.decision_dense(node, &format!("{name}_{p}"));
        Ok(Heads { q: part("q")?, k: part("k")?, v: part("v")?, o: part("o")? })
    }

    fn decision_feed_forward(&mut self, node: &Node, block: u32) -> Result<FeedForward> {
        let part = |name: &str| format!("dec.blk.{block}.{name}");
        Ok(FeedForward {
            norm: self.decision_norm(node, &part("ffn_norm"))?,
            up: self.decision_dense(node, &part("ffn_up"))?,
            down: self.decision_dense(node, &part("ffn_down"))?,
        })
    }
}

impl Machine<'_> {
    /// The logits of all options, questions in order. `hidden` is `[tokens, width]`, the trunk's rows of the whole prompt. The spans were
    /// checked before.
    pub(crate) fn decide(
        &self,
        of: &DecisionOf,
        hidden: &[f32],
        tokens: &[u32],
        questions: &[Question],
    ) -> Result<Vec<f32>> {
        let width = of.hidden.1;
        let h = self.head_norm(of, of.hidden_norm, hidden)?;
        let memory = self.dense(of.memory, &h)?;
        let inner = of.memory.weight.rows;
        let last = h[h.len() - width..].to_vec();
        // For each question u; for each option its context, its lexical vector and its question's number.
        let (mut asked, mut contexts, mut lexical) = (Vec::new(), Vec::new(), Vec::new());
        let mut owner = Vec::new();
        for (q, question) in questions.iter().enumerate() {
            asked.extend(mean(&h[question.span.start * width..question.span.end * width], width));
            for option in &question.options {
                owner.push(q);
                contexts.extend(mean(&h[option.start * width..option.end * width], width));
                lexical.extend(mean(&self.lexical_rows(of, &tokens[option.clone()])?, width));
            }
        }
        // Option queries, then the routing blocks over all options of the request.
        let mut r = self.dense(of.option_context, &contexts)?;
        add(&mut r, &self.dense(of.option_lexical, &lexical)?);
        let of_question = self.dense(of.option_question, &asked)?;
        for (r, q) in r.chunks_exact_mut(inner).zip(&owner) {
            add(r, &of_question[q * inner..(q + 1) * inner]);
        }
        for block in &of.routing {
            let keys = self.head_norm(of, block.keys, &memory)?;
            let queries = self.head_norm(of, block.queries, &r)?;
            add(&mut r, &self.attend_rows(of, &block.cross, &queries, &keys)?);
            let more = self.head_feed_forward(of, &block.feed_forward, &r)?;
            add(&mut r, &more);
        }
        let mut fields = self.fields(of, questions, &asked, &owner, &r, &last)?;
        for block in &of.decoder {
            let x = self.head_norm(of, block.own_norm, &fields)?;
            add(&mut fields, &self.attend_rows(of, &block.own, &x, &x)?);
            let x = self.head_norm(of, block.cross_norm, &fields)?;
            add(&mut fields, &self.attend_rows(of, &block.cross, &x, &memory)?);
            let more = self.head_feed_forward(of, &block.feed_forward, &fields)?;
            add(&mut fields, &more);
        }
        let fields = self.head_norm(of, of.field_norm, &fields)?;
        let options = self.head_norm(of, of.option_norm, &r)?;
        // prior + gate * joint for every option.
        let scales = &self.lowered.vectors[of.scales];
        let mut features = Vec::with_capacity(4 * r.len());
        for (o, q) in options.chunks_exact(inner).zip(&owner) {
            let f = &fields[q * inner..(q + 1) * inner];
            features.extend_from_slice(f);
            features.extend_from_slice(o);
            features.extend(f.iter().zip(o).map(|(f, o)| f * o));
            features.extend(f.iter().zip(o).map(|(f, o)| (f - o).abs()));
        }
        let scored = self.dense(of.scorer, &features)?;
        let scored = self.dense(of.scorer_out, &self.gelu(&scored, of.scorer.weight.rows))?;
        let mut logits = Vec::with_capacity(owner.len());
        for (i, q) in owner.iter().enumerate() {
            let anchor: Vec<f32> =
                asked[q * width..(q + 1) * width].iter().zip(&last).map(|(u, g)| u + g).collect();
            let prior = scales[0] * cosine(&lexical[i * width..(i + 1) * width], &anchor);
            let (f, o) = (&fields[q * inner..(q + 1) * inner], &options[i * inner..(i + 1) * inner]);
            logits.push(prior + scales[2] * (scales[1] * cosine(f, o) + scored[i]));
        }
        Ok(logits)
    }

    /// `f0 + norm(sum_i a_i r_i) + global + type`, `a = softmax_i(r_i . f0 / sqrt(width))` in a question.
    fn fields(
        &self,
        of: &DecisionOf,
        questions: &[Question],
        asked: &[f32],
        owner: &[usize],
        r: &[f32],
        last: &[f32],
    ) -> Result<Vec<f32>> {
        let mut fields = self.dense(of.question, asked)?;
        let global = self.dense(of.global, last)?;
        let inner = global.len();
        let types = of.token_types.matrix(self.source).map_err(broken)?;
        let mut kind = vec![0.0; inner];
        for (q, field) in fields.chunks_exact_mut(inner).enumerate() {
            let own = || r.chunks_exact(inner).zip(owner).filter(|(_, o)| **o == q).map(|(r, _)| r);
            let root = (inner as f32).sqrt();
            let mut weights: Vec<f32> = own().map(|r| dot(r, field) / root).collect();
            let most = weights.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
            weights.iter_mut().for_each(|w| *w = bloomery_formats::exp(*w - most));
            let sum: f32 = weights.iter().sum();
            let mut summary = vec![0.0; inner];
            for (weight, r) in weights.iter().zip(own()) {
                summary.iter_mut().zip(r).for_each(|(s, r)| *s += weight / sum * r);
            }
            let summary = self.head_norm(of, of.summary_norm, &summary)?;
            let start = questions[q].kind as usize * types.row_bytes();
            let row = types.data().get(start..start + types.row_bytes());
            let row = row.ok_or_else(|| broken("a kind of question has no row"))?;
            dequantize_row(types.ty(), row, &mut kind).map_err(broken)?;
            for part in [&summary, &global, &kind] {
                add(field, part);
            }
        }
        Ok(fields)
    }

    /// Rows of the output matrix, one for each token.
    fn lexical_rows(&self, of: &DecisionOf, tokens: &[u32]) -> Result<Vec<f32>> {
        let table = of.lexical.matrix(self.source).map_err(broken)?;
        let mut rows = vec![0.0; tokens.len() * table.cols()];
        for (token, out) in tokens.iter().zip(rows.chunks_exact_mut(table.cols())) {
            let start = *token as usize * table.row_bytes();
            let row = table.data().get(start..start + table.row_bytes());
            let row = row.ok_or_else(|| broken(format!("token {token} has no row in the output matrix")))?;
            dequantize_row(table.ty(), row, out).map_err(broken)?;
        }
        Ok(rows)
    }

    fn attend_rows(&self, of: &DecisionOf, heads: &Heads, x: &[f32], memory: &[f32]) -> Result<Vec<f32>> {
        let (q, k, v) = (self.dense(heads.q, x)?, self.dense(heads.k, memory)?, self.dense(heads.v, memory)?);
        let mut mixed = vec![0.0; q.len()];
        cross_attention(self.cpu, of.heads, heads.q.weight.rows, &q, &k, &v, &mut mixed);
        self.dense(heads.o, &mixed)
    }

    fn head_feed_forward(&self, of: &DecisionOf, ff: &FeedForward, x: &[f32]) -> Result<Vec<f32>> {
        let x = self.head_norm(of, ff.norm, x)?;
        let inner = self.dense(ff.up, &x)?;
        self.dense(ff.down, &self.gelu(&inner, ff.up.weight.rows))
    }

    fn gelu(&self, x: &[f32], width: usize) -> Vec<f32> {
        let mut out = vec![0.0; x.len()];
        unary(self.cpu, Function::GeluErf, x.len() / width, width, x, &mut out);
        out
    }

    fn head_norm(&self, of: &DecisionOf, norm: Norm, x: &[f32]) -> Result<Vec<f32>> {
        let (weight, bias) = (&self.lowered.vectors[norm.weight], &self.lowered.vectors[norm.bias]);
        let width = weight.len();
        let mut out = vec![0.0; x.len()];
        let spec = NormSpec { weight: Some(weight), group: width, eps: of.eps };
        layer_norm(self.cpu, spec, Some(bias), x.len() / width, width, x, &mut out);
        Ok(out)
    }

    /// `x . weight^T + bias`.
    fn dense(&self, dense: Dense, x: &[f32]) -> Result<Vec<f32>> {
        let weight = self.matrix(dense.weight)?;
        let rows = x.len() / weight.cols();
        let kind = weight.ty().activation_kind().ok_or_else(|| broken("no weights to multiply with"))?;
        let mut activations = Activations::new(kind, weight.cols()).map_err(broken)?;
        activations.reset(kind, weight.cols(), rows).map_err(broken)?;
        quantize(self.cpu, rows, weight.cols(), x, &mut [&mut activations]);
        let mut out = vec![0.0; rows * weight.rows()];
        let mut projection =
            Projection { weight, bias: self.vector(dense.bias), residual: None, out: &mut out };
        project(self.cpu, &activations, [&mut projection]);
        Ok(out)
    }
}

fn mean(rows: &[f32], width: usize) -> Vec<f32> {
    let mut mean = vec![0.0; width];
    let n = (rows.len() / width) as f32;
    for row in rows.chunks_exact(width) {
        mean.iter_mut().zip(row).for_each(|(m, v)| *m += v / n);
    }
    mean
}

fn add(to: &mut [f32], from: &[f32]) {
    to.iter_mut().zip(from).for_each(|(a, b)| *a += b);
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Inner product of the normalised vectors; norms are at least 1e-12.
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let norm = |x: &[f32]| dot(x, x).sqrt().max(1e-12);
    dot(a, b) / (norm(a) * norm(b))
}
