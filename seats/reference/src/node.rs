//! From a node to the function that computes it.

use crate::forward::{Batch, Step};
use crate::state::States;
use crate::table::{RowSet, Table, Value};
use crate::weights::{Tensor, Weights};
use crate::{local, stateful};
use bloomery_program::{Node, Op, StateId, ValueId};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// A seat's own operators.
pub trait CustomOperator: Send {
    /// Results of the operator, each as wide as declared, for the same rows as the operands.
    ///
    /// # Errors
    /// The seat's sentence; the step fails with it.
    fn run(
        &self,
        name: &str,
        version: u32,
        attributes: &BTreeMap<String, f64>,
        operands: &[CustomRows<'_>],
        widths: &[usize],
    ) -> std::result::Result<Vec<Vec<f32>>, String>;
}

/// An operand of a custom operator: `[rows, width]`.
#[derive(Debug, Clone, Copy)]
pub struct CustomRows<'a> {
    /// Values in a row.
    pub width: usize,
    /// All rows of the step.
    pub data: &'a [f32],
}

/// What a node may look at.
pub(crate) struct Context<'a> {
    pub node: &'a Node,
    /// The rows to compute.
    pub rows: &'a Rc<RowSet>,
    pub values: &'a HashMap<ValueId, Value>,
    pub weights: &'a dyn Weights,
    pub step: &'a Step<'a>,
    pub batch: &'a Batch<'a>,
    pub custom: Option<&'a dyn CustomOperator>,
}

pub(crate) type Outcome<T> = std::result::Result<T, String>;

/// Computes a node.
pub(crate) fn run_node(c: &Context<'_>, states: &mut States) -> Outcome<Vec<Value>> {
    match &c.node.op {
        Op::NgramEmbed { .. } => stateful::ngram_embed(c, states),
        Op::Append { state } => stateful::append(c, states, *state),
        Op::Attention(a) => stateful::attend(c, states, a),
        Op::Pool { ratio, weights, state } => stateful::pool(c, states, *ratio as usize, *weights, *state),
        Op::IndexScore { state, .. } => stateful::index_score(c, states, *state),
        Op::TopRows { top_k, expand, tail } => stateful::top_rows(c, states, *top_k as usize, *expand, *tail),
        Op::CandidateBlocks { block, keep } => stateful::candidate_blocks(c, *block as usize, *keep as usize),
        Op::CausalConv { dilation, function, state, .. } => {
            stateful::causal_conv(c, states, *dilation as usize, *function, *state)
        }
        Op::GatedDelta(d) => stateful::gated_delta(c, states, d),
        Op::Custom { name, version, attributes } => custom(c, name, *version, attributes),
        _ => local::run(c),
    }
}

fn custom(
    c: &Context<'_>,
    name: &str,
    version: u32,
    attributes: &BTreeMap<String, f64>,
) -> Outcome<Vec<Value>> {
    let seat = c.custom.ok_or_else(|| format!("the operator {name} of the seat is not allowed to run"))?;
    let mut operands = Vec::new();
    for i in 0..c.node.ins.len() {
        let table = c.table(i)?;
        operands.push(CustomRows { width: table.width, data: &table.data });
    }
    let widths: Vec<usize> = (0..c.node.outs.len()).map(|i| c.width(i)).collect();
    let results = seat.run(name, version, attributes, &operands, &widths)?;
    if results.len() != widths.len() {
        return Err(format!("{name} gave {} results, {} are declared", results.len(), widths.len()));
    }
    let mut values = Vec::new();
    for (data, width) in results.into_iter().zip(widths) {
        if data.len() != width * c.rows.len() {
            return Err(format!("{name} gave {} values for {} rows of {width}", data.len(), c.rows.len()));
        }
        values.push(Value::Rows(Table { width, rows: Rc::clone(c.rows), data }));
    }
    Ok(values)
}

impl<'a> Context<'a> {
    fn value(&self, i: usize) -> Outcome<&'a Value> {
        let id = self.node.ins.get(i).ok_or_else(|| format!("operand {i} is missing"))?;
        self.values.get(id).ok_or_else(|| format!("operand {i} was not computed"))
    }

    /// Operand i as f32 rows.
    pub fn table(&self, i: usize) -> Outcome<&'a Table<f32>> {
        match self.value(i)? {
            Value::Rows(table) => Ok(table),
            _ => Err(format!("operand {i} is not rows of numbers")),
        }
    }

    /// Operand i as integer rows.
    pub fn index(&self, i: usize) -> Outcome<&'a Table<u32>> {
        match self.value(i)? {
            Value::Index(table) => Ok(table),
            _ => Err(format!("operand {i} is not rows of integers")),
        }
    }

    /// Operand i as scores of store rows.
    pub fn scores(&self, i: usize) -> Outcome<(StateId, &'a [Vec<f32>])> {
        match self.value(i)? {
            Value::Scores { state, rows } => Ok((*state, rows)),
            _ => Err(format!("operand {i} is not scores")),
        }
    }

    /// Operand i as a selection of store rows.
    pub fn selection(&self, i: usize) -> Outcome<&'a [Vec<usize>]> {
        match self.value(i)? {
            Value::Selection(rows) => Ok(rows),
            _ => Err(format!("operand {i} is not a selection")),
        }
    }

    /// Number of operands.
    pub fn operands(&self) -> usize {
        self.node.ins.len()
    }

    /// Values in a row of result i, streams side by side.
    pub fn width(&self, i: usize) -> usize {
        self.node.outs.get(i).and_then(|o| o.shape.row_len()).unwrap_or(0) as usize
    }

    /// The tensor of a role, if the node names one.
    pub fn optional(&self, role: &str) -> Outcome<Option<&'a dyn Tensor>> {
        match self.node.tensors.get(role) {
            None => Ok(None),
            Some(name) => self.weights.tensor(name).map(Some).map_err(|e| e.to_string()),
        }
    }

    /// The tensor of a role.
    pub fn tensor(&self, role: &str) -> Outcome<&'a dyn Tensor> {
        self.optional(role)?.ok_or_else(|| format!("no tensor for role {role}"))
    }

    /// All values of a small tensor, if the node names one.
    pub fn optional_vector(&self, role: &str) -> Outcome<Option<Vec<f32>>> {
        self.optional(role)?.map(all_values).transpose()
    }

    /// All values of a small tensor.
    pub fn vector(&self, role: &str) -> Outcome<Vec<f32>> {
        all_values(self.tensor(role)?)
    }

    /// Result 0 by a function of the row's number.
    pub fn fill(&self, row: impl FnMut(usize, &mut [f32])) -> Outcome<Vec<Value>> {
        Ok(vec![Value::Rows(Table::fill(self.rows, self.width(0), row))])
    }

    /// Several operands' rows for all rows to compute.
    pub fn operand_rows(&self, i: usize) -> Outcome<Vec<&'a [f32]>> {
        let table = self.table(i)?;
        Ok(self.rows.rows().iter().map(|r| table.row(*r)).collect())
    }
}

fn all_values(tensor: &dyn Tensor) -> Outcome<Vec<f32>> {
    let rows: u64 = tensor.dims().iter().skip(1).product();
    let mut values = Vec::new();
    let mut scratch = Vec::new();
    for row in 0..rows as usize {
        values.extend_from_slice(tensor.row(row, &mut scratch)?);
    }
    Ok(values)
}
