//! Tokens, norms, projections and point-wise operators: rows in, rows out.

use super::word_of;
use crate::builder::GraphBuilder;
use crate::error::Result;
use crate::facts::ReadFacts;
use bloomery_program::op::{Clamp, Function};
use bloomery_program::{Op, ValueId};

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
