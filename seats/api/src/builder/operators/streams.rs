//! Recurrent operators and residual streams.

use super::{exactly, word_of};
use crate::builder::GraphBuilder;
use crate::error::{Error, Result};
use bloomery_program::op::{Function, GatedDelta};
use bloomery_program::{Op, StateId, ValueId};

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
