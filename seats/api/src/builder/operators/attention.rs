//! Positions, attention over stores, and the choice of rows that attention reads.

use crate::builder::GraphBuilder;
use crate::error::{Error, Result};
use bloomery_program::op::{Attention, PoolWeights, Rope, Source};
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
