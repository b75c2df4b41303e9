//! One method for each operator. `docs/operators.md` defines what they compute.

use super::GraphBuilder;
use crate::error::{Error, Result};
use crate::facts::ReadFacts;
use bloomery_program::op::{
    Attention, Clamp, Function, GatedDelta, PoolWeights, Reduction, Rope, Route, Score, Source,
};
use bloomery_program::{Op, StateId, ValueId};

/// Constants of plain causal attention over a store of the layer's own, see [`GraphBuilder::causal_attention`].
#[derive(Debug, Clone, Copy)]
pub struct CausalAttention {
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Width of a key.
    pub key: u32,
    /// Width of a value.
    pub value: u32,
    /// Factor on the products, commonly `key^-0.5`.
    pub scale: f32,
    /// Only the last so many tokens, the query's own included.
    pub window: Option<u32>,
    /// `softcap * tanh(s / softcap)` on the scaled products.
    pub softcap: Option<f32>,
}

// ---- tokens, norm, linear
impl GraphBuilder<'_, '_> {
    /// Rows of a table by token id, times `scale`. The table must be `[width, n_vocab]`.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`], and a table of another width.
    pub fn embed(&mut self, tokens: ValueId, table: &str, width: u32, scale: f32) -> Result<ValueId> {
        let n_vocab = self.facts().n_vocab()?;
        let name = self.shaped(table, &[Some(width.into()), Some(n_vocab.into())])?;
        self.one(Op::Embed { scale }, &[tokens], &[("weight", name)], word_of(table))
    }

    /// Rows of hashed n-grams; `op` must be [`Op::NgramEmbed`].
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn ngram_embed(&mut self, tokens: ValueId, table: &str, op: Op) -> Result<ValueId> {
        let name = self.tensor(table)?;
        self.one(op, &[tokens], &[("weight", name)], word_of(table))
    }

    /// RMS norm of the whole row with a weight of its length.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`], and a weight of another length.
    pub fn rms_norm(&mut self, x: ValueId, weight: &str, eps: f32) -> Result<ValueId> {
        let group = self.width(x)?;
        self.rms_norm_of(x, weight, group, eps)
    }

    /// RMS norm of each head of `head` values with one weight for all heads.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`], and a weight of another length.
    pub fn head_norm(&mut self, x: ValueId, weight: &str, head: u32, eps: f32) -> Result<ValueId> {
        self.rms_norm_of(x, weight, head, eps)
    }

    /// RMS norm of groups without a weight.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn plain_rms_norm(&mut self, x: ValueId, group: u32, eps: f32) -> Result<ValueId> {
        self.derived(Op::RmsNorm { eps, group }, &[x], &[])
    }

    fn rms_norm_of(&mut self, x: ValueId, weight: &str, group: u32, eps: f32) -> Result<ValueId> {
        let name = self.shaped(weight, &[Some(group.into())])?;
        self.one(Op::RmsNorm { eps, group }, &[x], &[("weight", name)], word_of(weight))
    }

    /// Layer norm of groups of `group` values; `weight` and, where the file has it, the bias of the same name.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn layer_norm(&mut self, x: ValueId, weight: &str, group: u32, eps: f32) -> Result<ValueId> {
        let tensors = self.weight_and_bias(weight)?;
        self.one(Op::LayerNorm { eps, group }, &[x], &tensors, word_of(weight))
    }

    /// L2 norm of groups.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn l2_norm(&mut self, x: ValueId, group: u32, eps: f32) -> Result<ValueId> {
        self.derived(Op::L2Norm { eps, group }, &[x], &[])
    }

    /// RMS norm of groups, times a function of a gate.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn gated_rms_norm(
        &mut self,
        x: ValueId,
        gate: ValueId,
        weight: &str,
        group: u32,
        eps: f32,
        function: Function,
    ) -> Result<ValueId> {
        let name = self.tensor(weight)?;
        let op = Op::GatedRmsNorm { eps, group, function };
        self.one(op, &[x, gate], &[("weight", name)], word_of(weight))
    }

    /// `x` through a matrix to rows of `width` values. A bias of the same name is bound when the file has one.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`], and a matrix of other dimensions than `[width of x, width]`.
    pub fn linear(&mut self, x: ValueId, weight: &str, width: u32) -> Result<ValueId> {
        let inputs = u64::from(self.width(x)?);
        // A matrix of one column may stand in the file as a vector.
        let vector = width == 1 && self.dims(weight)?.len() == 1;
        let expected = [Some(inputs), Some(width.into())];
        self.shaped(weight, if vector { &expected[..1] } else { &expected })?;
        let tensors = self.weight_and_bias(weight)?;
        self.one(Op::Linear {}, &[x], &tensors, word_of(weight))
    }

    /// Block-diagonal projection of `groups` groups.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn grouped_linear(&mut self, x: ValueId, weight: &str, groups: u32) -> Result<ValueId> {
        let name = self.tensor(weight)?;
        self.one(Op::GroupedLinear { groups }, &[x], &[("weight", name)], word_of(weight))
    }

    fn weight_and_bias(&self, weight: &str) -> Result<Vec<(&'static str, String)>> {
        let name = self.tensor(weight)?;
        let bias = format!("{}.bias", self.path(weight));
        let mut tensors = vec![("weight", name)];
        if self.facts().has(&bias) {
            tensors.push(("bias", bias));
        }
        Ok(tensors)
    }
}

// ---- point-wise
impl GraphBuilder<'_, '_> {
    /// `a + b`.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn add(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.derived(Op::Add {}, &[a, b], &[])
    }

    /// `a * b`.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn mul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.derived(Op::Mul {}, &[a, b], &[])
    }

    /// `x * by + plus`.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn scale(&mut self, x: ValueId, by: f32, plus: f32) -> Result<ValueId> {
        self.derived(Op::Scale { by, plus }, &[x], &[])
    }

    /// `x * scale + bias`, each a tensor, either optional.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn affine(&mut self, x: ValueId, scale: Option<&str>, bias: Option<&str>) -> Result<ValueId> {
        let mut tensors = vec![];
        for (role, tensor) in [("scale", scale), ("bias", bias)] {
            if let Some(tensor) = tensor {
                tensors.push((role, self.tensor(tensor)?));
            }
        }
        self.derived(Op::Affine {}, &[x], &tensors)
    }

    /// `function(x)`.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn unary(&mut self, x: ValueId, function: Function) -> Result<ValueId> {
        self.derived(Op::Unary { function }, &[x], &[])
    }

    /// `act(gate) * up`.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn glu(&mut self, gate: ValueId, up: ValueId, act: Function) -> Result<ValueId> {
        self.derived(Op::Glu { act, clamp: None }, &[gate, up], &[])
    }

    /// `act(gate) * up` with both limited first.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn clamped_glu(
        &mut self,
        gate: ValueId,
        up: ValueId,
        act: Function,
        clamp: Clamp,
    ) -> Result<ValueId> {
        self.derived(Op::Glu { act, clamp: Some(clamp) }, &[gate, up], &[])
    }

    /// Values side by side.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn concat(&mut self, values: &[ValueId]) -> Result<ValueId> {
        self.derived(Op::Concat {}, values, &[])
    }

    /// Values `start .. start+width` of every group.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn slice(&mut self, x: ValueId, group: u32, start: u32, width: u32) -> Result<ValueId> {
        self.derived(Op::Slice { group, start, width }, &[x], &[])
    }
}

// ---- position, attention, sparse selection
impl GraphBuilder<'_, '_> {
    /// Rotary position embedding.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn rope(&mut self, x: ValueId, rope: &Rope) -> Result<ValueId> {
        self.derived(Op::Rope(rope.clone()), &[x], &[])
    }

    /// Rotary position embedding whose frequencies are divided by a tensor `[dims/2]`.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn rope_with_factors(&mut self, x: ValueId, rope: &Rope, factors: &str) -> Result<ValueId> {
        let tensors = [("freq_factors", self.tensor(factors)?)];
        self.derived(Op::Rope(rope.clone()), &[x], &tensors)
    }

    /// Appends a row to a store.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn append(&mut self, store: StateId, parts: &[ValueId]) -> Result<()> {
        self.node(Op::Append { state: store }, parts, &[], &[])?;
        Ok(())
    }

    /// Attention over stores; `selections` serve the sources that ask for one, in their order.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn attention(
        &mut self,
        q: ValueId,
        selections: &[ValueId],
        attention: Attention,
        sinks: Option<&str>,
    ) -> Result<ValueId> {
        let mut tensors = vec![];
        if let Some(sinks) = sinks {
            tensors.push(("sinks", self.tensor(sinks)?));
        }
        let operands: Vec<ValueId> = std::iter::once(q).chain(selections.iter().copied()).collect();
        self.one(Op::Attention(attention), &operands, &tensors, "kqv_out")
    }

    /// Plain causal attention: declares the layer's store `kv`, appends k and v, attends.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn causal_attention(
        &mut self,
        q: ValueId,
        k: ValueId,
        v: ValueId,
        a: &CausalAttention,
    ) -> Result<ValueId> {
        let product = |head: u32, name: &str| {
            a.kv_heads
                .checked_mul(head)
                .ok_or_else(|| Error::refused(format!("{} {name} heads of {head} values", a.kv_heads)))
        };
        let name = self.next_name.take();
        let store = self.key_value_store("kv", product(a.key, "key")?, product(a.value, "value")?, a.window);
        self.append(store, &[k, v])?;
        self.next_name = name;
        let attention = Attention {
            heads: a.heads,
            kv_heads: a.kv_heads,
            key: a.key,
            value: a.value,
            scale: a.scale,
            softcap: a.softcap,
            block_bidirectional: false,
            sources: vec![Source { state: store, window: a.window, selected: false }],
        };
        self.attention(q, &[], attention, None)
    }

    /// One pooled row for each group of `ratio` tokens; `gate` where the weights are a softmax.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn pool(
        &mut self,
        x: ValueId,
        gate: Option<ValueId>,
        position_bias: Option<&str>,
        ratio: u32,
        weights: PoolWeights,
        state: StateId,
    ) -> Result<ValueId> {
        let mut tensors = vec![];
        if let Some(bias) = position_bias {
            tensors.push(("position_bias", self.tensor(bias)?));
        }
        let operands: Vec<ValueId> = std::iter::once(x).chain(gate).collect();
        self.derived(Op::Pool { ratio, weights, state }, &operands, &tensors)
    }

    /// Scores of every visible row of a store of index keys.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn index_score(
        &mut self,
        q: ValueId,
        weights: Option<ValueId>,
        heads: u32,
        key: u32,
        store: StateId,
    ) -> Result<ValueId> {
        let operands: Vec<ValueId> = std::iter::once(q).chain(weights).collect();
        self.derived(Op::IndexScore { heads, key, state: store }, &operands, &[])
    }

    /// The best rows by score, among `within` where given.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn top_rows(
        &mut self,
        scores: ValueId,
        within: Option<ValueId>,
        top_k: u32,
        expand: bool,
        tail: bool,
    ) -> Result<ValueId> {
        let operands: Vec<ValueId> = std::iter::once(scores).chain(within).collect();
        self.derived(Op::TopRows { top_k, expand, tail }, &operands, &[])
    }

    /// Rows of the best blocks by maximum score.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn candidate_blocks(&mut self, scores: ValueId, block: u32, keep: u32) -> Result<ValueId> {
        self.derived(Op::CandidateBlocks { block, keep }, &[scores], &[])
    }
}

// ---- recurrent, residual streams
impl GraphBuilder<'_, '_> {
    /// Causal depthwise convolution; a bias of the same name is bound when the file has one.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn causal_conv(
        &mut self,
        x: ValueId,
        weight: &str,
        taps: u32,
        dilation: u32,
        function: Option<Function>,
        state: StateId,
    ) -> Result<ValueId> {
        let tensors = self.weight_and_bias(weight)?;
        self.one(Op::CausalConv { taps, dilation, function, state }, &[x], &tensors, word_of(weight))
    }

    /// The gated delta rule over `[q, k, v, decay, beta]`.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn gated_delta(
        &mut self,
        operands: [ValueId; 5],
        a: &str,
        dt: &str,
        delta: GatedDelta,
    ) -> Result<ValueId> {
        let tensors = [("a", self.tensor(a)?), ("dt", self.tensor(dt)?)];
        self.one(Op::GatedDelta(delta), &operands, &tensors, "delta_out")
    }

    /// `x` in every stream.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn stream_spread(&mut self, x: ValueId, streams: u32) -> Result<ValueId> {
        self.derived(Op::StreamSpread { streams }, &[x], &[])
    }

    /// Weighted sum of the streams, or their mean without `pre`.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn stream_collapse(&mut self, h: ValueId, pre: Option<ValueId>) -> Result<ValueId> {
        let operands: Vec<ValueId> = std::iter::once(h).chain(pre).collect();
        self.derived(Op::StreamCollapse {}, &operands, &[])
    }

    /// A branch's result put back into the streams.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn stream_combine(
        &mut self,
        h: ValueId,
        y: ValueId,
        post: ValueId,
        comb: Option<ValueId>,
    ) -> Result<ValueId> {
        let operands: Vec<ValueId> = [h, y, post].into_iter().chain(comb).collect();
        self.derived(Op::StreamCombine {}, &operands, &[])
    }

    /// `gate[j] * value` in stream j.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn stream_scale(&mut self, value: ValueId, gate: ValueId) -> Result<ValueId> {
        self.derived(Op::StreamScale {}, &[value, gate], &[])
    }

    /// Hyper-connection coefficients pre, post and comb; tensors `{stem}_fn`, `{stem}_scale`, `{stem}_base`.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn hyper_mix(
        &mut self,
        h: ValueId,
        stem: &str,
        iterations: u32,
        eps: f32,
        norm_eps: f32,
    ) -> Result<[ValueId; 3]> {
        let tensors = self.hyper_tensors(stem)?;
        let words = ["pre", "post", "comb"].map(|word| format!("{}_{word}", word_of(stem)));
        let op = Op::HyperMix { iterations, eps, norm_eps };
        let values = self.node(op, &[h], &tensors, &[&words[0], &words[1], &words[2]])?;
        exactly(values)
    }

    /// The head's collapse weights; tensors as for [`GraphBuilder::hyper_mix`].
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn hyper_head(&mut self, h: ValueId, stem: &str, eps: f32, norm_eps: f32) -> Result<ValueId> {
        let tensors = self.hyper_tensors(stem)?;
        self.one(Op::HyperHead { eps, norm_eps }, &[h], &tensors, word_of(stem))
    }

    fn hyper_tensors(&self, stem: &str) -> Result<[(&'static str, String); 3]> {
        let tensor = |suffix: &str| self.tensor(&format!("{stem}_{suffix}"));
        Ok([("fn", tensor("fn")?), ("scale", tensor("scale")?), ("base", tensor("base")?)])
    }

    /// Gated low-rank mix; with `inject` there are two results.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn low_rank_mix(
        &mut self,
        h: ValueId,
        norm: &str,
        down: &str,
        up: &str,
        inject: Option<&str>,
        eps: f32,
    ) -> Result<(ValueId, Option<ValueId>)> {
        let mut tensors =
            vec![("norm", self.tensor(norm)?), ("down", self.tensor(down)?), ("up", self.tensor(up)?)];
        if let Some(inject) = inject {
            tensors.push(("inject", self.tensor(inject)?));
        }
        let word = format!("{}.low_rank_mix", self.word(h));
        let values = self.node(Op::LowRankMix { eps }, &[h], &tensors, &[&word])?;
        match values[..] {
            [mixed] => Ok((mixed, None)),
            [mixed, post, ..] => Ok((mixed, Some(post))),
            [] => Err(Error::refused("low_rank_mix gave no value")),
        }
    }

    /// The gate of an n-gram memory.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn memory_gate(
        &mut self,
        h: ValueId,
        key: ValueId,
        query_norm: &str,
        key_norm: &str,
        eps: f32,
    ) -> Result<ValueId> {
        let tensors = [("query_norm", self.tensor(query_norm)?), ("key_norm", self.tensor(key_norm)?)];
        self.derived(Op::MemoryGate { eps }, &[h, key], &tensors)
    }
}

// ---- experts, head
impl GraphBuilder<'_, '_> {
    /// Ids and weights of each row's experts; `bias` shifts the choice. Named `ffn_moe_topk` and `ffn_moe_weights`, with
    /// `_norm` and `_scaled` where the weights are.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn route(&mut self, logits: ValueId, bias: Option<&str>, route: Route) -> Result<(ValueId, ValueId)> {
        let mut tensors = vec![];
        if let Some(bias) = bias {
            tensors.push(("bias", self.tensor(bias)?));
        }
        self.route_node(&[logits], &tensors, route)
    }

    /// Experts by token id: the table gives the ids, the logits their weights.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn route_by_table(
        &mut self,
        logits: ValueId,
        tokens: ValueId,
        table: &str,
        route: Route,
    ) -> Result<(ValueId, ValueId)> {
        let tensors = [("table", self.tensor(table)?)];
        self.route_node(&[logits, tokens], &tensors, route)
    }

    fn route_node(
        &mut self,
        operands: &[ValueId],
        tensors: &[(&str, String)],
        route: Route,
    ) -> Result<(ValueId, ValueId)> {
        let weights = match (route.scale != 1.0, route.normalize || route.score == Score::SoftmaxChosen) {
            (true, _) => "ffn_moe_weights_scaled",
            (false, true) => "ffn_moe_weights_norm",
            (false, false) => "ffn_moe_weights",
        };
        let values = self.node(Op::Route(route), operands, tensors, &["ffn_moe_topk", weights])?;
        let [ids, weights] = exactly(values)?;
        Ok((ids, weights))
    }

    /// The routed experts of width `ff`. Tensors `{stem}_gate_exps`, `_up_exps`, `_down_exps`, or a joined
    /// `_gate_up_exps`, with their biases where the file has them; the stem is `ffn` in every family so far.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`], and a tensor of other dimensions.
    pub fn experts(
        &mut self,
        x: ValueId,
        (ids, weights): (ValueId, ValueId),
        stem: &str,
        (experts, used, ff): (u32, u32, u32),
        act: Function,
        clamp: Option<Clamp>,
    ) -> Result<ValueId> {
        let (width, n, ff) = (Some(u64::from(self.width(x)?)), Some(u64::from(experts)), u64::from(ff));
        let joined = format!("{stem}_gate_up_exps");
        let mut parts = vec![("down", "down_bias", format!("{stem}_down_exps"), [Some(ff), width, n])];
        if self.has(&joined) {
            parts.push(("gate_up", "gate_up_bias", joined, [width, Some(ff * 2), n]));
        } else {
            parts.push(("gate", "gate_bias", format!("{stem}_gate_exps"), [width, Some(ff), n]));
            parts.push(("up", "up_bias", format!("{stem}_up_exps"), [width, Some(ff), n]));
        }
        let mut tensors = vec![];
        for (role, bias_role, tensor, dims) in parts {
            tensors.push((role, self.shaped(&tensor, &dims)?));
            let bias = format!("{}.bias", self.path(&tensor));
            if self.facts().has(&bias) && bias_role != "gate_up_bias" {
                tensors.push((bias_role, bias));
            }
        }
        self.one(Op::Experts { experts, used, act, clamp }, &[x, ids, weights], &tensors, "ffn_moe_out")
    }

    /// Logits shifted by the previous row's choice, and the confidence in each.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn markov_chain(
        &mut self,
        (logits, hidden, tokens): (ValueId, ValueId, ValueId),
        w1: &str,
        w2: &str,
        confidence: &str,
        rank: u32,
    ) -> Result<(ValueId, ValueId)> {
        let tensors =
            [("w1", self.tensor(w1)?), ("w2", self.tensor(w2)?), ("confidence", self.tensor(confidence)?)];
        let values = self.node(
            Op::MarkovChain { rank },
            &[logits, hidden, tokens],
            &tensors,
            &["markov_logits", "confidence"],
        )?;
        let [logits, confidence] = exactly(values)?;
        Ok((logits, confidence))
    }

    /// The joint decision head; `op` must be [`Op::DecisionHead`], `tensors` are pairs of role and full name.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn decision_head(
        &mut self,
        hidden: ValueId,
        tokens: ValueId,
        spans: ValueId,
        tensors: &[(&str, String)],
        op: Op,
    ) -> Result<ValueId> {
        self.one(op, &[hidden, tokens, spans], tensors, "decision")
    }
}

// ---- plain tier
impl GraphBuilder<'_, '_> {
    /// For each row `a [m, k] . b [n, k]^T`.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn mat_mul(&mut self, a: ValueId, b: ValueId, k: u32) -> Result<ValueId> {
        self.derived(Op::MatMul { k }, &[a, b], &[])
    }

    /// Softmax over groups.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn softmax(&mut self, x: ValueId, group: u32) -> Result<ValueId> {
        self.derived(Op::Softmax { group }, &[x], &[])
    }

    /// One value for each group.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn reduce(&mut self, x: ValueId, by: Reduction, group: u32) -> Result<ValueId> {
        self.derived(Op::Reduce { by, group }, &[x], &[])
    }

    /// Values and indices of the largest.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn top_k(&mut self, x: ValueId, top_k: u32) -> Result<(ValueId, ValueId)> {
        let word = format!("{}.top_k", self.word(x));
        let values = self.node(Op::TopK { top_k }, &[x], &[], &[&word])?;
        let [values, index] = exactly(values)?;
        Ok((values, index))
    }

    /// Chunks by number.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn gather(&mut self, x: ValueId, index: ValueId, width: u32) -> Result<ValueId> {
        self.derived(Op::Gather { width }, &[x, index], &[])
    }

    /// Another split of the row into streams.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn reshape(&mut self, x: ValueId, streams: u32) -> Result<ValueId> {
        self.derived(Op::Reshape { streams }, &[x], &[])
    }

    /// `[streams, width]` to `[width, streams]`.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn transpose(&mut self, x: ValueId) -> Result<ValueId> {
        self.derived(Op::Transpose {}, &[x], &[])
    }
}

impl GraphBuilder<'_, '_> {
    /// A node of one result, named by `word`.
    fn one(&mut self, op: Op, ins: &[ValueId], tensors: &[(&str, String)], word: &str) -> Result<ValueId> {
        let [value] = exactly(self.node(op, ins, tensors, &[word])?)?;
        Ok(value)
    }

    /// A node of one result, named after its first operand.
    fn derived(&mut self, op: Op, ins: &[ValueId], tensors: &[(&str, String)]) -> Result<ValueId> {
        let word = match ins.first() {
            Some(first) => format!("{}.{}", self.word(*first), op.name()),
            None => op.name().to_string(),
        };
        self.one(op, ins, tensors, &word)
    }
}

fn exactly<const N: usize>(values: Vec<ValueId>) -> Result<[ValueId; N]> {
    <[ValueId; N]>::try_from(values)
        .map_err(|v| Error::refused(format!("the operator gave {} values, expected {N}", v.len())))
}

fn word_of(tensor: &str) -> &str {
    tensor.trim_start_matches('/')
}
