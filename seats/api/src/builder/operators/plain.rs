//! The plain tier: operators from which an unknown architecture can be put together.

use super::exactly;
use crate::builder::GraphBuilder;
use crate::error::Result;
use bloomery_program::op::Reduction;
use bloomery_program::{Op, ValueId};

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
