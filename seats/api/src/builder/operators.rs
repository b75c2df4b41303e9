//! One method for each operator. `docs/operators.md` defines what they compute.

mod attention;
mod experts;
mod plain;
mod rows;
mod streams;

pub use attention::CausalAttention;

use super::GraphBuilder;
use crate::error::{Error, Result};
use bloomery_program::{Op, ValueId};

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

fn exactly<const N: usize>(values: Vec<ValueId>) -> Result<[ValueId; N]> {
    <[ValueId; N]>::try_from(values)
        .map_err(|v| Error::refused(format!("the operator gave {} values, expected {N}", v.len())))
}

fn word_of(tensor: &str) -> &str {
    tensor.trim_start_matches('/')
}
